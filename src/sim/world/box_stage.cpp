#include "sim/world/box_stage.h"

#include <array>

#include "switching/learning_switch.h"

namespace sluice::sim {

void BoxStage::process(Time now, std::span<switching::Packet> packets, port::FrameSink& outbox) {
  std::array<swordbox::Packet, switching::LearningSwitch::kBurst> burst;
  for (std::size_t i = 0; i < packets.size(); ++i) burst.at(i) = {.frame = packets[i].frame};
  box_.process(now, std::span(burst).first(packets.size()), outbox);
  for (std::size_t i = 0; i < packets.size(); ++i) {
    packets[i].frame = burst.at(i).frame;
    if (burst.at(i).action == swordbox::Action::kDrop) packets[i].action = switching::Packet::Action::kDrop;
  }
}

}  // namespace sluice::sim
