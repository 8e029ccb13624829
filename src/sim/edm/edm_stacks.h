// The stacks that EDM's Table 1 is compared with, stage by stage: TCP/IP and RoCEv2 in hardware, and plain Ethernet, through a layer 2 switch.
//
// What:     a message alone passes the stages one after another, each with the latency that the paper gives for it; nothing is added up by hand. A read is a
//           request and an answer, a write one message.
// Units:    as the hardware file says them.
// Source:   EDM Table 1 and its caption.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/edm/edm_testbed.h"

namespace sluice::sim {

enum class Stack : std::uint8_t { kEthernet, kRocev2, kTcp };

struct Stage {
  enum class Where : std::uint8_t { kCompute, kSwitch, kMemory, kLink };
  enum class What : std::uint8_t { kProtocol, kMac, kPcs, kForwarding, kPma, kPropagation };
  Where where{};
  What what{};
  Duration latency{};
};

// All stages that an operation passes, in order.
std::vector<Stage> stages_of(const EdmTestbedHardware& hardware, Stack stack, bool reads);

}  // namespace sluice::sim
