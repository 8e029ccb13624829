// Steering: SwordBox's steering for Clover as a program in the kernel, loaded, attached to interfaces, watched.
//
// Life:       load -> attach(interfaces) -> it works without this process, until detach() or until the interfaces go. open() finds it again by
//             an interface that it is attached to.
// State:      the program's maps live as long as it is attached. Losing them loses nothing: nothing depends on a link that is not
//             acknowledged, and connections from before are not followed (docs/design/swordbox.md, "In the kernel").
// Errors:     no permission (load, attach: CAP_BPF with CAP_NET_ADMIN; to find what is attached: CAP_SYS_ADMIN), no such interface, a kernel that refuses the program, a build without XDP: a sentence each.
// Threads:    one owner; the kernel's lock guards the tables, which status calls read without it.
// Limits:     steer_state.h; frames of one buffer (no jumbo frames beyond a page on most drivers).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "base/time.h"
#include "swordbox/chain_layout.h"
#include "swordbox/clover_rule.h"
#include "swordbox/connections.h"
#include "swordbox/verdict.h"

namespace sluice::xdp {

// Where a frame goes that has been judged.
enum class WayOut : std::uint8_t {
  kToKernel,  // as if there were no program: to the host, or over its bridge
  kBack,      // out of the interface where it came in
  kAcross,    // of two interfaces, out of the other
};

struct SteeringConfig {
  // Of the rule in C++ these count: layout, regions, mirrored, steer_reads(_for), steer_writes, tracked_keys, history_entries, ring
  // (at most 32), hot_from. Order is always kPassing.
  swordbox::CloverConfig rule{};
  std::uint32_t connections = 4096;        // at most
  Duration flight = Duration::seconds(1);  // what a client has sent is executed within this or never
  Duration idle = Duration::seconds(600);
  Duration closing = Duration::milliseconds(200);
  WayOut way_out = WayOut::kToKernel;
};

enum class Attachment : std::uint8_t { kDriver, kGeneric };

class Steering {
 public:
  // Whether this build and this process can: an empty text, or the reason why not.
  static std::string refusal();

  static Result<std::unique_ptr<Steering>> load(const SteeringConfig& config);
  // That which is attached to the interface.
  static Result<std::unique_ptr<Steering>> open(const std::string& interface);
  // Interfaces of this network namespace that a steering program is attached to.
  static Result<std::vector<std::string>> attached();
  // Ends it on this interface. The last one takes the state along.
  static Result<void> detach(const std::string& interface);

  virtual ~Steering() = default;
  // All or none. In the driver where it can, else before the network stack (slower); kAcross wants two interfaces.
  virtual Result<Attachment> attach(std::span<const std::string> interfaces) = 0;

  // A connection that the control plane knows, and one that is gone.
  virtual Result<void> announce(const swordbox::Announcement& announcement) = 0;
  virtual Result<void> close(const swordbox::Announcement& announcement) = 0;
  // Off: nothing new is steered; retransmissions still go where the originals went.
  virtual Result<void> switch_on(bool on) = 0;
  virtual void steer_reads(bool on) = 0;
  virtual void steer_writes(bool on) = 0;

  // As it was when loaded, counts apart. REQUIRES: not attached.
  virtual void start_over() = 0;
  // For tests: as if another core had the tables.
  virtual void hold(bool held) = 0;
  // What the program makes of one frame, without any wire (BPF_PROG_TEST_RUN): state changes as it would.
  struct Outcome {
    bool dropped = false;
    std::vector<std::uint8_t> frame;
  };
  virtual Result<Outcome> try_frame(ByteView frame) = 0;
  // Nanoseconds that one frame takes in the program, as the kernel measures it over `repeat` runs.
  virtual Result<std::uint32_t> time_frame(ByteView frame, std::uint32_t repeat) = 0;

  struct Status {
    bool on = true;
    WayOut way_out{};
    std::size_t regions = 0;
    std::size_t connections = 0;
    std::size_t tracked_keys = 0;
    std::size_t open_links = 0;
    std::vector<swordbox::CloverRule::HotKey> hottest;
  };
  virtual swordbox::Counters counters() const = 0;
  virtual Status status(std::size_t most_keys) const = 0;
  virtual std::optional<std::uint64_t> tail_of(std::uint64_t key) const = 0;
};

}  // namespace sluice::xdp
