// Invitation: what a machine needs to join a rack whose switch is on another one, in one file; and joining.
//
// File:      JSON {"sluice_invitation": 1, "machine", "address", "authority", "certificate", "key"}; who has it is that machine, so it is
//            written with mode 0600 and goes over ways that are trusted.
// Joining:   leaves <run directory>/joined/, from which every command and daemon with that run directory takes the way to the rack: the
//            directory over TLS at `address`, frames over UDP to the same address and port.
// Errors:    Result, with what to do.
// Threads:   any.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "rack/settings/run_directory.h"

namespace sluice::rack {

inline constexpr std::uint16_t kServePort = 7472;

struct Invitation {
  std::string machine;    // its name on the rack
  std::string address;    // HOST:PORT of the switch, TCP and UDP
  std::string authority;  // these three in PEM
  std::string certificate;
  std::string key;
};

std::string to_text(const Invitation& invitation);
Result<Invitation> parse_invitation(std::string_view text);

// What was joined before is set aside, until keep_joined() or go_back(), and is back after an error. REQUIRES: the run directory is prepared.
Result<void> join(const RunDirectory& run, const Invitation& invitation);
void keep_joined(const RunDirectory& run);
void go_back(const RunDirectory& run);
// False: nothing had been joined.
Result<bool> leave(const RunDirectory& run);

}  // namespace sluice::rack
