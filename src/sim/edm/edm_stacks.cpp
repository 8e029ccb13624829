#include "sim/edm/edm_stacks.h"

namespace sluice::sim {
namespace {

using Where = Stage::Where;
using What = Stage::What;

class Path {
 public:
  Path(const EdmTestbedHardware& hardware, Stack stack) : h_(hardware), stack_(stack) {}

  // One way: down the sender's stack, over a link, through the switch, over another link, up the receiver's stack.
  void message(Where from, Where to) {
    host(from, true);
    link();
    through_switch();
    link();
    host(to, false);
  }
  std::vector<Stage> stages;

 private:
  void add(Where where, What what, Duration latency) { stages.push_back({where, what, latency}); }
  void host(Where where, bool sends) {
    const Duration protocol = stack_ == Stack::kTcp      ? h_.tcp_stack
                              : stack_ == Stack::kRocev2 ? h_.rocev2_stack
                                                         : Duration{};
    if (sends) add(where, What::kProtocol, protocol);
    add(where, What::kMac, h_.mac_latency);
    add(where, What::kPcs, h_.ethernet_pcs_latency);
    if (!sends) add(where, What::kProtocol, protocol);
  }
  void link() {
    add(Where::kLink, What::kPma, h_.pma_latency);
    add(Where::kLink, What::kPropagation, h_.propagation);
    add(Where::kLink, What::kPma, h_.pma_latency);
  }
  void through_switch() {
    add(Where::kSwitch, What::kPcs, h_.ethernet_pcs_latency);
    add(Where::kSwitch, What::kMac, h_.mac_latency);
    for (const Duration part : {h_.parsing, h_.match_action, h_.packet_manager, h_.crossbar})
      add(Where::kSwitch, What::kForwarding, part);
    add(Where::kSwitch, What::kMac, h_.mac_latency);
    add(Where::kSwitch, What::kPcs, h_.ethernet_pcs_latency);
  }

  const EdmTestbedHardware& h_;
  Stack stack_;
};

}  // namespace

std::vector<Stage> stages_of(const EdmTestbedHardware& hardware, Stack stack, bool reads) {
  Path path(hardware, stack);
  path.message(Where::kCompute, Where::kMemory);
  if (reads) path.message(Where::kMemory, Where::kCompute);
  return std::move(path.stages);
}

}  // namespace sluice::sim
