// EDM's testbed, block by block: host stacks, the switch's stack and links, each with the latencies of the paper's hardware. Table 1 comes out.
//
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
#include "sim/fields.h"

namespace sluice::sim {

struct EdmTestbedHardware {
  std::string name;
  std::string text;
  std::uint64_t bits_per_second = 0;
  Duration cycle{};
  Duration pcs_latency{};  // one way through a PCS: encoder and scrambler, or back
  Duration pma_latency{};  // PMA, PMD and transceiver, at one end of a link
  Duration propagation{};

  Duration block() const {
    return Duration::picoseconds(static_cast<std::int64_t>(64'000'000'000'000u / bits_per_second));
  }
  Duration link() const { return (pcs_latency + pma_latency) * 2 + propagation; }
};
Result<EdmTestbedHardware> load_edm_testbed_hardware(const std::string& path);

// Hosts around a switch; memory of so many bytes in each.
class EdmTestbed {
 public:
  // When the first block of a unit was where.
  struct Passage {
    Time at{};
    std::string where;  // "host 0 sends", "switch takes", "switch sends", "host 1 takes"
  };

  EdmTestbed(const EdmTestbedHardware& hardware, std::uint32_t hosts, std::size_t memory_bytes, Duration dram);
  ~EdmTestbed();

  edm::HostStack& host(std::uint32_t which);
  MutableBytes memory(std::uint32_t which);
  Time now() const { return now_; }
  // To be called after each call of a host.
  void wake(std::uint32_t which);
  // Until nothing happens any more, or that time.
  void run(Time end);
  // A host that no longer answers.
  void kill(std::uint32_t which);
  const edm::SwitchStack& switch_stack() const { return switch_; }
  const std::vector<Passage>& passages() const { return passages_; }
  std::uint64_t blocks() const { return blocks_; }

 private:
  struct Node;
  struct Step {
    Time at{};
    std::uint64_t order = 0;
    std::function<void()> what;

    friend bool operator>(const Step& a, const Step& b) { return a.at != b.at ? a.at > b.at : a.order > b.order; }
  };
  void at(Time when, std::function<void()> what);
  void wake_switch();
  void send_up(std::uint32_t from, const edm::Unit& unit);
  void send_down(std::uint32_t to, const edm::Block& block);
  void at_switch(std::uint32_t from, const edm::Block& block);
  void at_host(std::uint32_t to, const edm::Block& block);

  EdmTestbedHardware hardware_;
  edm::SwitchStack switch_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::priority_queue<Step, std::vector<Step>, std::greater<>> steps_;
  Time now_;
  std::uint64_t order_ = 0;
  std::uint64_t blocks_ = 0;
  std::vector<Passage> passages_;
};

struct EdmTestbedWorkload {
  std::string operation = "read";
  std::uint64_t bytes = 64;
  Duration dram{};

  void read(Fields& fields);
};
// first_ns, last_ns: to the first and the last block of the data; and where the time to the first went.
std::vector<std::pair<std::string, double>> run_edm_testbed(const EdmTestbedHardware& hardware,
                                                            const EdmTestbedWorkload& workload);

}  // namespace sluice::sim
