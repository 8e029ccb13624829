// The hardware that we do not have, as numbers: NIC, link, switch and host of one rack. What each number does is said here; where it
// comes from, beside it in experiments/hardware/*.toml.
//
// Life:       load_hardware(file) -> a Rack is built of it.
// Units:      Durations; rates as the time that one thing takes ("interval").
// Errors:     a key that is missing or unknown, a value of another kind, a number without a source: a message with its line.
// Source:     docs/design/sim.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/time.h"

namespace sluice::sim {

// A NIC that executes one-sided operations. `qp` intervals hold for each queue pair alone.
struct NicParameters {
  Duration packet_interval{};        // any packet, either way, through the whole NIC
  Duration requester_qp_interval{};  // requests of one queue pair
  Duration responder_qp_interval{};  // requests to one queue pair that end in host memory
  Duration responder_qp_interval_device{};
  Duration transmit_latency{};    // from a request in the NIC to its first bit on the wire; ACKs too
  Duration receive_latency{};     // from the last bit to execution, or to the completion's way to the host
  Duration completion_latency{};  // a completion's (and READ data's) way to host memory
  Duration doorbell_latency{};    // from the CPU's store to the NIC's knowing of the work requests
  Duration fetch_latency{};  // reading from this machine's memory: payload that is not inline, work requests not kept
  // Open work requests up to `kept` stay on the NIC; from `lost` on, each has to be fetched again when its answer comes; between, in proportion.
  std::uint64_t work_requests_kept = 0;
  std::uint64_t work_requests_lost = 0;
  std::uint64_t inline_bytes = 0;  // payloads up to here travel with the work request
  Duration read_latency{};         // reading host memory for a READ response
  Duration read_latency_device{};
  Duration read_interval{};            // READs of host memory, through the whole NIC
  std::uint64_t reads_in_flight = 16;  // READs and atomics a queue pair

  // The atomic unit.
  Duration atomic_latency{};  // from its start to the answer, host memory
  Duration atomic_latency_device{};
  Duration atomic_address_interval{};  // on one address
  Duration atomic_address_interval_device{};
  Duration atomic_qp_interval{};  // of one queue pair
  Duration atomic_interval{};     // all together

  // How host memory answers: a bit unevenly; and now and then, whatever the load, late: evenly by up to one step, and half as often each
  // time by a whole step more.
  Duration memory_jitter{};   // READ and atomic latencies vary evenly by up to so much
  Duration stall_interval{};  // between stalls, on average; 0: never
  Duration stall_step{};
};

struct LinkParameters {
  std::uint64_t bits_per_second = 0;
  Duration delay{};
};

struct SwitchParameters {
  Duration pipeline_latency{};
  std::uint64_t queue_bytes = 0;  // of each port
  std::uint64_t ecn_from_bytes = 0;
  std::uint64_t ecn_to_bytes = 0;
  std::uint64_t ecn_most_per_million = 0;
  std::uint64_t pause_from_bytes = 0;  // held for one ingress port; 0: no PFC
  std::uint64_t pause_to_bytes = 0;
};

// A machine whose threads poll for completions.
struct HostParameters {
  std::uint64_t cores = 0;
  std::uint64_t threads_per_core = 0;
  Duration time_slice{};  // of a thread, where there are more than the machine runs at once
  static constexpr std::uint64_t kMostPolled = 64;
  std::uint64_t poll_batch = 1;             // completions that one look takes, at most
  Duration poll_cost{};                     // a look at the completion queue that finds something
  Duration completion_cost{};               // each completion found
  Duration post_cost{};                     // each work request
  Duration doorbell_cost{};                 // each time work requests are posted
  std::uint64_t all_cores_percent = 100;    // the time that work takes when all cores are busy, of that when one is
  std::uint64_t shared_core_percent = 100;  // … when the core's other hardware thread is busy too, besides
};

struct EdmTestbedHardware;

struct Hardware {
  std::string name;
  std::string text;  // the file
  NicParameters nic;
  LinkParameters link;
  SwitchParameters net_switch;
  HostParameters host;
  std::shared_ptr<const EdmTestbedHardware>
      edm;  // beside the NICs, for workloads whose transport it is; null: there is none
};

Result<Hardware> load_hardware(const std::string& path);
Result<Hardware> parse_hardware(std::string text, const std::string& path);

}  // namespace sluice::sim
