#include "port/memory_port.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"

namespace sluice::port {
namespace {

// One direction: a ring of slots, each one frame long. Counts only grow; a slot's index is its count modulo capacity.
struct FrameQueue {
  explicit FrameQueue(std::size_t frames)
      : bytes(std::make_unique_for_overwrite<std::uint8_t[]>(frames * kMaxFrame)), lengths(frames) {}

  std::uint8_t* slot(std::uint64_t count) { return bytes.get() + (count % lengths.size()) * kMaxFrame; }
  std::uint32_t& length(std::uint64_t count) { return lengths[count % lengths.size()]; }

  std::unique_ptr<std::uint8_t[]> bytes;  // untouched until used
  std::vector<std::uint32_t> lengths;
  std::uint64_t committed = 0;
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  std::uint64_t taken = 0;  // given back by the receiver
  bool cut = false;         // one end is gone
};

class MemoryPort final : public Port {
 public:
  MemoryPort(std::shared_ptr<FrameQueue> out, std::shared_ptr<FrameQueue> in, std::string name)
      : out_(std::move(out)), in_(std::move(in)), name_(std::move(name)) {}
  ~MemoryPort() override { out_->cut = in_->cut = true; }

  std::uint8_t* reserve(std::size_t length) override {
    SLUICE_CHECK(length <= kMaxFrame);
    reserved_ = length;
    if (out_->cut) return out_->slot(0);  // nobody reads that queue any more
    if (out_->committed - out_->taken < out_->lengths.size()) return out_->slot(out_->committed);
    reserved_ = 0;
    ++counters_.tx_full;
    return nullptr;
  }

  void commit(std::size_t length) override {
    SLUICE_CHECK(length <= reserved_ && length > 0);
    reserved_ = 0;
    if (out_->cut) {
      ++counters_.tx_dropped;
      return;
    }
    out_->length(out_->committed++) = static_cast<std::uint32_t>(length);
    ++counters_.tx_frames;
    counters_.tx_bytes += length;
  }

  bool flush_some(Time) override {
    reserved_ = 0;
    out_->sent = out_->committed;
    return false;
  }

  void discard() override {
    reserved_ = 0;
    counters_.tx_discarded += out_->committed - out_->sent;
    out_->committed = out_->sent;
  }

  std::size_t receive(Time, std::span<Frame> burst) override {
    reserved_ = 0;
    in_->taken = in_->received;
    const auto count = std::min<std::uint64_t>(burst.size(), in_->sent - in_->received);
    for (auto& frame : burst.first(count)) {
      frame = {in_->slot(in_->received), in_->length(in_->received), kMaxFrame};
      ++in_->received;
      counters_.rx_bytes += frame.length;
    }
    counters_.rx_frames += count;
    return count;
  }

  bool arm() override { return in_->sent == in_->received; }
  PortState state() const override { return out_->cut ? PortState::kDown : PortState::kUp; }
  const PortCounters& counters() const override { return counters_; }
  std::string name() const override { return name_; }

 private:
  std::shared_ptr<FrameQueue> out_;
  std::shared_ptr<FrameQueue> in_;
  std::string name_;
  std::size_t reserved_ = 0;
  PortCounters counters_;
};

}  // namespace

MemoryCable make_memory_cable(std::size_t frames) {
  SLUICE_CHECK(frames > 0);
  auto there = std::make_shared<FrameQueue>(frames);
  auto back = std::make_shared<FrameQueue>(frames);
  return {std::make_unique<MemoryPort>(there, back, "memory:a"), std::make_unique<MemoryPort>(back, there, "memory:b")};
}

}  // namespace sluice::port
