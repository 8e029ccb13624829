// Reads the fixture table and builds its frames: what a box in any home is fed with and what must come out.
//
// Source:   README.md here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "wire/frame.h"

namespace sluice::golden {

// One line, cut into words.
struct FixtureLine {
  int number = 0;
  std::vector<std::string> words;     // before =>
  std::string verdict;                // after =>
  std::vector<std::string> replaced;  // after |
  // What the program in the kernel does otherwise, after ||.
  struct InKernel {
    std::string verdict;
    std::vector<std::string> replaced;
  };
  std::optional<InKernel> in_kernel;
};

struct Fixture {
  std::string file;
  std::string name;
  std::vector<FixtureLine> lines;  // the words "xdp ends WHY" or "xdp none WHY" are for the kernel's runner alone
  std::string beyond_kernel;       // why the program in the kernel passes all this by; empty: it does not
};

// All fixtures of all *.fixture files of a folder, sorted by file. Throws std::runtime_error on nonsense.
std::vector<Fixture> read_fixtures(const std::filesystem::path& folder);

// The network of the fixtures: client i is 10.77.0.(10+i) with QPN 0x100+i, the memory node 10.77.0.1 with QPN 0x200+i.
struct FixtureNetwork {
  static wire::Gid client_gid(int client);
  static wire::Gid server_gid();
  static wire::Qpn client_qpn(int client) { return wire::Qpn(0x100u + static_cast<unsigned>(client)); }
  static wire::Qpn server_qpn(int client) { return wire::Qpn(0x200u + static_cast<unsigned>(client)); }
  static wire::RKey rkey(int region) { return wire::RKey(0x1000u + static_cast<unsigned>(region)); }
};

// Nodes and words as fixtures write them.
std::uint64_t node_address(const std::string& node);  // "B"
std::uint64_t free_word(std::uint64_t key);
std::uint64_t tomb_word(std::uint64_t key);
std::uint64_t pointer_to(std::uint64_t address);

// The frame of "c1 100 write B key=7 …" or "s1 100 ack …": words from the first on.
std::vector<std::uint8_t> build_frame(const std::vector<std::string>& words);
// The value of "name=value" among the words, or `otherwise`.
std::string setting(const std::vector<std::string>& words, const std::string& name, const std::string& otherwise = "");

}  // namespace sluice::golden
