// SwordBox in the simulated switch's pipeline.
//
// Source:  SwordBox §5.1: all of a packet's work is done as it crosses the pipeline.
#pragma once

#include "switching/stage.h"
#include "swordbox/box.h"

namespace sluice::sim {

class BoxStage final : public switching::Stage {
 public:
  explicit BoxStage(const swordbox::BoxConfig& config) : box_(config) {}
  swordbox::Box& box() { return box_; }

  void process(Time now, std::span<switching::Packet> packets, port::FrameSink& outbox) override;
  Time next_deadline() const override { return box_.next_deadline(); }
  void on_deadline(Time now, port::FrameSink& outbox) override { box_.on_deadline(now, outbox); }

 private:
  swordbox::Box box_;
};

}  // namespace sluice::sim
