// EDM's testbed, block by block: host stacks, the switch's stack and links, each with the latencies of the paper's hardware. Table 1 comes out.
//
// Waiting:  granted data find no other data in the switch: checked for each, unless data may have been late: by a request of several blocks, which
//           nothing may interrupt, by a read that the switch held, or by a link that is longer than others. Requests and grants go before them, for a few blocks. counts() has the longest wait.
// Mirrored: with two networks, hosts send all that they send on both links, and take of what comes on both the copy that is first (EDM §3.3,
//           mirrored_units.h). Where all links are as long, both switches decide the same; where they are not, they may grant in another order,
//           and data go where they say by either. A block that does not check, wherever it is seen, takes its network out of service, since what the
//           other brings would not come by it any longer; so does a notification for which a switch has no room, as its queues lag behind the
//           other's. The other one goes on. The switch looks at the CRC-8 of each control block, at those that it passes on
//           too, in the cycle in which it identifies them.
// Time:     each stage is counted from when its block came, without a phase between clocks: that is in the cycles of a crossing.
// Source:   EDM §3.2.1, §3.2.2, Table 1, Figure 5.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "edm/host_stack.h"
#include "edm/switch_stack.h"
#include "sim/edm/edm_hardware.h"
#include "sim/world/fields.h"

namespace sluice::sim {

struct EdmTestbedHardware {
  std::string name;
  std::string text;
  std::uint64_t bits_per_second = 0;
  Duration cycle{};
  Duration pcs_latency{};  // one way through a PCS: encoder and scrambler, or back
  Duration pma_latency{};  // PMA, PMD and transceiver, at one end of a link
  Duration propagation{};
  // Of the other stacks (edm_stacks.h).
  Duration ethernet_pcs_latency{};
  Duration mac_latency{};
  Duration parsing{};  // layer 2 forwarding's parts
  Duration match_action{};
  Duration packet_manager{};
  Duration crossbar{};
  Duration rocev2_stack{};  // one way through it
  Duration tcp_stack{};
  Duration cxl_switch{};  // one way, all that CXL has besides memory
  Duration dram{};        // one access
  Duration clock{};       // the scheduler's, where it is another one than the stacks'

  Duration iteration() const { return (clock == Duration{} ? cycle : clock) * 3; }
  Duration block() const {
    return Duration::picoseconds(static_cast<std::int64_t>(64'000'000'000'000u / bits_per_second));
  }
  Duration link() const { return (pcs_latency + pma_latency) * 2 + propagation; }
};
Result<EdmTestbedHardware> load_edm_testbed_hardware(const std::string& path);

// Hosts around a switch; memory of so many bytes in each.
//
// Links:    up, as edm::HostStack has it. Down, requests and grants go first, in their order: a single block between those of a message, several
//           when none is under way. A request does not pass data of its own sender that came before it.
class EdmTestbed {
 public:
  // When the first block of a unit was where.
  struct Passage {
    Time at{};
    std::string where;  // "host 0 sends", "switch takes", "switch sends", "host 1 takes"
  };

  // Frames that are no memory messages, on every link both ways. They end where the link ends.
  struct Background {
    std::uint32_t frame_bytes = 0;  // with the FCS; 0: none
    std::uint32_t percent = 0;      // of the link's time
    bool preemption = true;         // otherwise memory's blocks wait for the end of a frame
    std::uint64_t seed = 1;         // of the frames' phases
  };
  // A read's timer: it has its answer before that, whatever the links and what else is on them.
  static constexpr Duration kNoTimer = Duration::seconds(1'000'000);
  enum class Networks : std::uint8_t { kOne = 1, kMirrored = 2 };
  enum class Way : std::uint8_t { kUp, kDown };
  struct Settings {
    std::uint32_t hosts = 2;
    std::size_t memory_bytes = 0;
    Duration dram{};
    Background background{};
    Networks networks = Networks::kOne;
    std::uint32_t active_per_pair = 3;  // X: of reads and of writes each
    std::uint32_t gap_blocks = 0;
    edm::Policy policy = edm::Policy::kShortestRemaining;
    edm::Matching matching = edm::Matching::kPim;
    Duration patience{};
    Duration read_timer = edm::HostConfig{}.read_timer;
    std::uint32_t mega_bytes = 0;  // edm::HostConfig
  };

  EdmTestbed(const EdmTestbedHardware& hardware, const Settings& settings);
  EdmTestbed(const EdmTestbedHardware& hardware, std::uint32_t hosts, std::size_t memory_bytes, Duration dram)
      : EdmTestbed(hardware, {.hosts = hosts, .memory_bytes = memory_bytes, .dram = dram}) {}
  EdmTestbed(const EdmTestbedHardware& hardware, std::uint32_t hosts, std::size_t memory_bytes, Duration dram,
             const Background& background, Networks networks = Networks::kOne)
      : EdmTestbed(hardware, {.hosts = hosts,
                              .memory_bytes = memory_bytes,
                              .dram = dram,
                              .background = background,
                              .networks = networks}) {}
  ~EdmTestbed();

  edm::HostStack& host(std::uint32_t which);
  MutableBytes memory(std::uint32_t which);
  Time now() const { return now_; }
  // To be called after each call of a host.
  void wake(std::uint32_t which);
  // The same, at a time that has not come yet.
  void wake_at(std::uint32_t which, Time when);
  // Until nothing happens any more, or that time.
  void run(Time end);
  // The next thing that happens. False: there is none.
  bool run_one();
  // Whether anything happens until then.
  bool next_by(Time end) const { return !steps_.empty() && steps_.top().at <= end; }
  // A host that no longer answers.
  void kill(std::uint32_t which);
  // A switch that stops at that time, whatever it is doing; blocks that it has sent go on.
  void kill_switch(std::uint32_t network, Time when);
  // Flips bits (0 and 1: of the sync header, then 64 of the payload) of a block, the so manieth that goes that way over a host's link, and of the one that
  // comes right behind it: where none does, an idle block is spoilt, or a frame's.
  struct Flip {
    unsigned bit = 0;
    bool next = false;  // of the block behind
  };
  struct Corruption {
    std::uint32_t network = 0;
    std::uint32_t host = 0;
    Way way = Way::kUp;
    std::uint64_t block = 0;
    std::vector<Flip> flips;
  };
  void corrupt(const Corruption& corruption) { corruptions_.push_back(corruption); }
  // A host's link to a network takes so much longer, either way. Before anything runs; without frames.
  void lengthen(std::uint32_t network, std::uint32_t host, Duration by);
  bool in_service(std::uint32_t network) const { return networks_.at(network).in_service; }
  std::uint64_t blocks_over(std::uint32_t network, std::uint32_t host, Way way) const;
  const edm::SwitchStack& switch_stack(std::uint32_t network = 0) const { return networks_.at(network).stack; }
  const std::vector<Passage>& passages() const { return passages_; }
  std::uint64_t blocks() const { return blocks_; }
  // Frames that came out as they went in; frames that did not.
  std::uint64_t frames() const { return frames_; }
  std::uint64_t broken_frames() const { return broken_frames_; }
  struct Counts {
    // Requests that could not leave the switch at once: several blocks behind a message under way, or any behind data of their own sender that came before.
    std::uint64_t held_requests = 0;
    std::uint64_t long_requests = 0;  // of several blocks, that have left a host
    std::uint64_t met = 0;            // chunks of data that came to a link down before another one had come whole
    Duration most_waited{};           // of a chunk's first block in the switch
    std::uint64_t spoilt_next = 0;    // bits of blocks right behind one that was to be corrupted
    std::uint64_t lagged = 0;         // networks out of service since they were behind the other one
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Node;
  class Line;
  struct Step {
    Time at{};
    bool sends = false;  // on a link down: after all else of that instant, so that what goes first is there
    std::uint64_t order = 0;
    std::function<void()> what;

    friend bool operator>(const Step& a, const Step& b) {
      if (a.at != b.at) return a.at > b.at;
      return a.sends != b.sends ? a.sends : a.order > b.order;
    }
  };
  struct Network {
    edm::SwitchStack stack;
    bool alive = true;
    bool in_service = true;  // false: a block did not check, or it lags
  };
  void at(Time when, std::function<void()> what);
  void wake_switch(std::uint32_t network);
  void send_up(std::uint32_t from, const edm::Unit& unit);
  // A request or a grant.
  void control_down(std::uint32_t network, const edm::SwitchStack::Down& down);
  // A block of a message, whose blocks go together: those of one that comes meanwhile, from another source, wait until it is over.
  void data_down(std::uint32_t network, std::uint32_t to, std::uint32_t from, const edm::Block& block);
  void send_later(std::uint32_t network, std::uint32_t to, Time when);
  void send_down(std::uint32_t network, std::uint32_t to);
  void at_switch(std::uint32_t network, std::uint32_t from, const edm::Block& block);
  void at_host(std::uint32_t network, std::uint32_t to, const edm::Block& block);
  // The first block of what goes along a circuit has come to a switch. False: it may not go where it says.
  bool begin_data(std::uint32_t network, std::uint32_t from, const edm::Block& first);
  bool first_copy(std::uint32_t network, Node& node, const edm::Unit& unit);
  void tick(Line& line);
  void out_of_service(std::uint32_t network) { networks_[network].in_service = false; }
  // The other one goes on without it.
  void lags(std::uint32_t network);
  bool mirrored() const { return networks_.size() == 2; }
  void receive(Line& line, const edm::Block& block);
  bool runs(std::uint32_t network) const { return networks_[network].alive && networks_[network].in_service; }
  void note(std::uint32_t network, std::string where);
  edm::Block over_link(std::uint32_t network, std::uint32_t host, Way way, edm::Block block);

  EdmTestbedHardware hardware_;
  std::vector<Network> networks_;
  std::vector<Corruption> corruptions_;
  bool links_differ_ = false;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<Line>> up_;  // with frames on them; empty without
  std::vector<std::unique_ptr<Line>> down_;
  std::priority_queue<Step, std::vector<Step>, std::greater<>> steps_;
  Time now_;
  std::uint64_t order_ = 0;
  std::uint64_t blocks_ = 0;
  std::uint64_t frames_ = 0;
  std::uint64_t broken_frames_ = 0;
  Counts counts_;
  std::vector<Passage> passages_;
};

struct EdmTestbedWorkload {
  std::string stack = "edm";
  std::string operation = "read";
  std::uint64_t bytes = 64;
  Duration dram{};
  EdmTestbed::Background background{};
  std::uint64_t operations = 1;  // one after another, at random instants

  void read(Fields& fields);
};
// first_ns, last_ns: to the first and the last block of the data; and where the time to the first went. Of other stacks than EDM's: no last_ns, DRAM's time
// not counted, and what lies in MACs and in forwarding besides.
std::vector<std::pair<std::string, double>> run_edm_testbed(const EdmTestbedHardware& hardware,
                                                            const EdmTestbedWorkload& workload);

}  // namespace sluice::sim
