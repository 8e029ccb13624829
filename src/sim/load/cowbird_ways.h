// Ways of a simulated application's thread to remote records: READs, calls, Cowbird's rings. Others' mechanisms: cowbird_rivals.h.
//
// Threads:    one owner.
// Source:     Cowbird §8.1.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "base/check.h"
#include "cowbird/channel.h"
#include "sim/load/cowbird_load.h"
#include "sim/world/cpu.h"
#include "sim/world/rack.h"

namespace sluice::sim {

inline constexpr std::uint64_t kPoolBase = 0x7000'0000;

// How a thread gets at remote records. What it does takes effect when it is called; what that costs the thread is said beforehand.
class Way {
 public:
  virtual ~Way() = default;
  // REQUIRES: fewer than the depth are under way.
  virtual void issue(Time now, std::uint64_t offset, std::size_t slot) = 0;
  // Reads that are complete now, in the order of issue.
  virtual std::size_t look(Time now) = 0;
  virtual const std::uint8_t* record(std::size_t slot) const = 0;
  virtual Duration issue_cost() const = 0;
  virtual Duration look_cost() const = 0;
  virtual Duration complete_cost() const = 0;
  virtual bool failed() const { return false; }
};

// One-sided READs; the thread posts and polls by itself.
class ReadWay final : public Way {
 public:
  ReadWay(Rack& rack, Rack::Machine& compute, Rack::Machine& pool, rc::CompletionQueue& pool_completions,
          memory::Key key, const CowbirdWorkload& w)
      : host_(rack.hardware().host),
        nic_(compute.nic),
        key_(key),
        bytes_(w.bytes),
        completions_(compute.make_completions(static_cast<std::uint32_t>(w.depth))),
        buffer_(w.depth * w.bytes),
        pair_(rack.connect({&compute, completions_, nullptr, static_cast<std::uint32_t>(w.depth)},
                           {&pool, &pool_completions})
                  .a) {}

  void issue(Time now, std::uint64_t offset, std::size_t slot) override {
    const rc::Sge sge = rc::Sge::of(ByteView(buffer_).subspan(slot * bytes_, bytes_));
    rc::SendRequest request{.op = rc::SendOp::kRead, .sges = {&sge, 1}};
    request.remote_address = kPoolBase + offset;
    request.remote_key = key_;
    failed_ |= nic_.post(now, nic_.doorbell_latency(), *pair_, request) != rc::PostError::kNone;
  }
  std::size_t look(Time) override {
    std::array<rc::Completion, HostParameters::kMostPolled> found;
    const std::size_t n = completions_->poll(std::span(found).first(host_.poll_batch));
    for (std::size_t i = 0; i < n; ++i) failed_ |= found.at(i).status != rc::CompletionStatus::kSuccess;
    return n;
  }
  const std::uint8_t* record(std::size_t slot) const override { return buffer_.data() + slot * bytes_; }
  Duration issue_cost() const override { return host_.post_cost + host_.doorbell_cost; }
  Duration look_cost() const override { return host_.poll_cost; }
  Duration complete_cost() const override { return host_.completion_cost; }
  bool failed() const override { return failed_; }

 private:
  const HostParameters& host_;
  Nic& nic_;
  memory::Key key_;
  std::size_t bytes_;
  rc::CompletionQueue* completions_;
  std::vector<std::uint8_t> buffer_;
  rc::QueuePair* pair_;
  bool failed_ = false;
};

// A request as a SEND to a thread of the memory node, which finds the record and answers with a SEND.
class CallWay final : public Way {
 public:
  // The memory node's side: one thread for each of the compute node's.
  class Server final : public Event, public CompletionListener {
   public:
    Server(Rack& rack, Rack::Machine& pool, Cpu& cpu, std::uint32_t number, ByteView memory, std::size_t bytes)
        : rack_(rack),
          nic_(pool.nic),
          cpu_(cpu),
          number_(number),
          memory_(memory),
          bytes_(bytes),
          completions_(pool.make_completions(16)) {}
    rc::CompletionQueue* completions() const { return completions_; }
    void begin(rc::QueuePair& pair) {
      pair_ = &pair;
      post_receive();
    }
    void on_completions(Time now) override {
      if (scheduled()) return;
      std::array<rc::Completion, 4> found;
      const std::size_t n = completions_->poll(found);
      bool asked = false;
      for (std::size_t i = 0; i < n; ++i) asked |= found.at(i).kind == rc::CompletionKind::kReceive;
      const HostParameters& host = cpu_.host();
      if (!asked) return;
      // It finds the request, posts another receive, and the answer.
      const Duration cost = host.poll_cost + host.completion_cost + host.post_cost * 2 + host.doorbell_cost * 2;
      rack_.loop.schedule(*this, cpu_.finish_of(number_, now, cost));
    }

   private:
    void fire(Time now) override {
      const auto offset = load_le<std::uint64_t>(request_.data());
      SLUICE_CHECK(offset + bytes_ <= memory_.size());
      post_receive();
      const rc::Sge sge = rc::Sge::of(memory_.subspan(offset, bytes_));
      const rc::SendRequest answer{.op = rc::SendOp::kSend, .sges = {&sge, 1}};
      SLUICE_CHECK(nic_.post(now, nic_.doorbell_latency(), *pair_, answer) == rc::PostError::kNone);
      on_completions(now);
    }
    void post_receive() {
      const rc::Sge sge = rc::Sge::of(ByteView(request_));
      nic_.adapter().post_receive(*pair_, {.sges = {&sge, 1}});
    }
    Rack& rack_;
    Nic& nic_;
    Cpu& cpu_;
    std::uint32_t number_;
    ByteView memory_;
    std::size_t bytes_;
    rc::CompletionQueue* completions_;
    rc::QueuePair* pair_ = nullptr;
    std::array<std::uint8_t, 8> request_{};
  };

  CallWay(Rack& rack, Rack::Machine& compute, Rack::Machine& pool, Server& server, const CowbirdWorkload& w)
      : host_(rack.hardware().host), nic_(compute.nic), completions_(compute.make_completions(16)), buffer_(w.bytes) {
    const auto made =
        rack.connect({&compute, completions_, nullptr, 4, 4}, {&pool, server.completions(), &server, 4, 4});
    pair_ = made.a;
    server.begin(*made.b);
  }

  void issue(Time now, std::uint64_t offset, std::size_t) override {
    const rc::Sge into = rc::Sge::of(ByteView(buffer_));
    nic_.adapter().post_receive(*pair_, {.sges = {&into, 1}});
    store_le(request_.data(), offset);
    const rc::Sge sge = rc::Sge::of(ByteView(request_));
    const rc::SendRequest request{.op = rc::SendOp::kSend, .sges = {&sge, 1}};
    failed_ |= nic_.post(now, nic_.doorbell_latency(), *pair_, request) != rc::PostError::kNone;
  }
  std::size_t look(Time) override {
    std::array<rc::Completion, 4> found;
    const std::size_t n = completions_->poll(found);
    std::size_t answers = 0;
    for (std::size_t i = 0; i < n; ++i) {
      failed_ |= found.at(i).status != rc::CompletionStatus::kSuccess;
      answers += found.at(i).kind == rc::CompletionKind::kReceive ? 1u : 0u;
    }
    return answers;
  }
  const std::uint8_t* record(std::size_t) const override { return buffer_.data(); }
  Duration issue_cost() const override { return (host_.post_cost + host_.doorbell_cost) * 2; }  // receive and request
  Duration look_cost() const override { return host_.poll_cost; }
  Duration complete_cost() const override { return host_.completion_cost * 2; }  // of the request and the answer
  bool failed() const override { return failed_; }

 private:
  const HostParameters& host_;
  Nic& nic_;
  rc::CompletionQueue* completions_;
  std::vector<std::uint8_t> buffer_;
  std::array<std::uint8_t, 8> request_{};
  rc::QueuePair* pair_ = nullptr;
  bool failed_ = false;
};

// A disk that all threads share: so many reads a second, each so long, in the order in which they were asked for.
struct Disk {
  Time free_at;
};

class DiskWay final : public Way {
 public:
  DiskWay(Disk& disk, ByteView table, const CowbirdWorkload& w)
      : disk_(disk), table_(table), w_(w), buffer_(w.depth * w.bytes) {}

  void issue(Time now, std::uint64_t offset, std::size_t slot) override {
    disk_.free_at = std::max(disk_.free_at, now) + w_.disk_interval;
    under_way_.push_back(disk_.free_at + w_.disk_latency);
    std::memcpy(buffer_.data() + slot * w_.bytes, table_.data() + offset, w_.bytes);
  }
  std::size_t look(Time now) override {
    std::size_t n = 0;
    for (; !under_way_.empty() && under_way_.front() <= now; under_way_.pop_front()) ++n;
    return n;
  }
  const std::uint8_t* record(std::size_t slot) const override { return buffer_.data() + slot * w_.bytes; }
  Duration issue_cost() const override { return w_.issue_cost; }
  Duration look_cost() const override { return w_.look_cost; }
  Duration complete_cost() const override { return w_.complete_cost; }

 private:
  Disk& disk_;
  ByteView table_;
  const CowbirdWorkload& w_;
  std::vector<std::uint8_t> buffer_;
  std::deque<Time> under_way_;
};

// Cowbird: stores into the channel's rings, and looks at them.
class RingWay final : public Way {
 public:
  RingWay(MutableBytes channel, const cowbird::ChannelLayout& layout, const std::vector<cowbird::Region>& regions,
          const CowbirdWorkload& w)
      : w_(w), channel_(channel, layout, regions), buffer_(w.depth * w.bytes), done_(w.depth) {
    channel_.set_regions_generation(1);
  }
  void issue(Time, std::uint64_t offset, std::size_t slot) override {
    const auto id =
        channel_.async_read(0, offset, buffer_.data() + slot * w_.bytes, static_cast<std::uint32_t>(w_.bytes));
    failed_ |= id < 0;
  }
  std::size_t look(Time) override {
    const std::size_t n = channel_.collect(done_);
    for (std::size_t i = 0; i < n; ++i) failed_ |= done_[i].status != cowbird::Status::kOk;
    return n;
  }
  const std::uint8_t* record(std::size_t slot) const override { return buffer_.data() + slot * w_.bytes; }
  Duration issue_cost() const override { return w_.issue_cost; }
  Duration look_cost() const override { return w_.look_cost; }
  Duration complete_cost() const override { return w_.complete_cost; }
  bool failed() const override { return failed_; }

 private:
  const CowbirdWorkload& w_;
  cowbird::Channel channel_;
  std::vector<std::uint8_t> buffer_;
  std::vector<cowbird::Completion> done_;
  bool failed_ = false;
};

}  // namespace sluice::sim
