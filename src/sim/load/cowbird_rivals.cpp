#include "sim/load/cowbird_rivals.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace sluice::sim {
namespace {

constexpr std::size_t kRequestBytes = 8;

std::vector<std::vector<std::uint8_t>> messages(const CowbirdWorkload& w, std::size_t bytes_of_one) {
  return {w.messages, std::vector<std::uint8_t>(w.batch * bytes_of_one)};
}

void send_to(Time now, Nic& nic, rc::QueuePair& pair, ByteView bytes) {
  const rc::Sge sge = rc::Sge::of(bytes);
  const rc::SendRequest request{.op = rc::SendOp::kSend, .sges = {&sge, 1}};
  SLUICE_CHECK(nic.post(now, nic.doorbell_latency(), pair, request) == rc::PostError::kNone);
}

void receive_into(Nic& nic, rc::QueuePair& pair, MutableBytes bytes) {
  const rc::Sge sge = rc::Sge::of(bytes);
  nic.adapter().post_receive(pair, {.sges = {&sge, 1}});
}

// All that is there, one after the other.
template <class Take>
void poll_all(rc::CompletionQueue& completions, Take take) {
  std::array<rc::Completion, 16> found;
  while (const std::size_t n = completions.poll(found)) std::ranges::for_each(std::span(found).first(n), take);
}

}  // namespace

// ------------------------------------------------------------------------------------------------- the memory node's side

BatchServer::BatchServer(Rack& rack, Rack::Machine& pool, Cpu& cpu, std::uint32_t number, ByteView memory,
                         const CowbirdWorkload& w)
    : rack_(rack),
      nic_(pool.nic),
      cpu_(cpu),
      number_(number),
      memory_(memory),
      w_(w),
      completions_(pool.make_completions(static_cast<std::uint32_t>(4 * w.messages))),
      requests_(messages(w, kRequestBytes)),
      answers_(messages(w, w.bytes)) {}

void BatchServer::begin(rc::QueuePair& pair) {
  pair_ = &pair;
  for (std::size_t i = 0; i < requests_.size(); ++i) post_receive(i);
}

void BatchServer::post_receive(std::size_t message) { receive_into(nic_, *pair_, requests_[message]); }

void BatchServer::on_completions(Time now) {
  poll_all(*completions_, [this](const rc::Completion& c) {
    SLUICE_CHECK(c.status == rc::CompletionStatus::kSuccess);
    if (c.kind == rc::CompletionKind::kReceive) arrived_.push_back(c.length);
  });
  next(now);
}

void BatchServer::next(Time now) {
  if (scheduled() || arrived_.empty()) return;
  const HostParameters& host = cpu_.host();
  const auto requests = static_cast<std::int64_t>(arrived_.front() / kRequestBytes);
  // It finds the message and that its last answer is sent, serves, posts another receive and the answer.
  const Duration once = host.poll_cost + (host.completion_cost + host.post_cost + host.doorbell_cost) * 2;
  rack_.loop.schedule(*this, cpu_.finish_of(number_, now, once + (w_.near_cost - w_.engine_cost) * requests));
}

void BatchServer::fire(Time now) {
  const std::size_t message = served_++ % requests_.size();
  const std::size_t requests = arrived_.front() / kRequestBytes;
  arrived_.pop_front();
  for (std::size_t i = 0; i < requests; ++i) {
    const auto offset = load_le<std::uint64_t>(requests_[message].data() + i * kRequestBytes);
    SLUICE_CHECK(offset + w_.bytes <= memory_.size());
    std::memcpy(answers_[message].data() + i * w_.bytes, memory_.data() + offset, w_.bytes);
  }
  post_receive(message);
  send_to(now, nic_, *pair_, ByteView(answers_[message]).first(requests * w_.bytes));
  on_completions(now);
}

// -------------------------------------------------------------------------------------------------- the compute node's side

IoThreadWay::IoThreadWay(Rack& rack, Rack::Machine& compute, Rack::Machine& pool, Cpu& cpu, std::uint32_t io_thread,
                         BatchServer& server, const CowbirdWorkload& w)
    : w_(w),
      rack_(rack),
      nic_(compute.nic),
      cpu_(cpu),
      io_thread_(io_thread),
      completions_(compute.make_completions(static_cast<std::uint32_t>(4 * w.messages))),
      buffer_(w.depth * w.bytes),
      requests_(messages(w, kRequestBytes)),
      answers_(messages(w, w.bytes)),
      slots_(w.messages) {
  const auto depth = static_cast<std::uint32_t>(2 * w.messages);
  const auto made =
      rack.connect({&compute, completions_, this, depth, depth}, {&pool, server.completions(), &server, depth, depth});
  pair_ = made.a;
  server.begin(*made.b);
}

void IoThreadWay::issue(Time now, std::uint64_t offset, std::size_t slot) {
  asked_.push_back({offset, slot});
  wake(now);
}

std::size_t IoThreadWay::look(Time) { return std::exchange(ready_, 0); }

// The thread polls: what has come it finds at once, or when it is done with what it is at.
void IoThreadWay::wake(Time now) {
  if (scheduled()) return;
  poll();
  const HostParameters& host = cpu_.host();
  Duration cost{};
  if (answered_ > handed_out_) {
    doing_ = Doing::kHandOut;
    const auto records = static_cast<std::int64_t>(slots_[handed_out_ % w_.messages].size());
    cost = host.poll_cost + host.completion_cost * 2 + w_.complete_cost * records;  // of the request and of the answer
  } else if (!asked_.empty() && sent_ - handed_out_ < w_.messages) {
    doing_ = Doing::kSend;
    taking_ = std::min<std::size_t>(asked_.size(), w_.batch);
    cost = (host.post_cost + host.doorbell_cost) * 2 + w_.issue_cost * static_cast<std::int64_t>(taking_);
  } else {
    doing_ = Doing::kNothing;
    return;
  }
  rack_.loop.schedule(*this, cpu_.finish_of(io_thread_, now, cost));
}

void IoThreadWay::fire(Time now) {
  if (doing_ == Doing::kSend) send(now);
  if (doing_ == Doing::kHandOut) hand_out();
  wake(now);
}

void IoThreadWay::poll() {
  poll_all(*completions_, [this](const rc::Completion& c) {
    failed_ |= c.status != rc::CompletionStatus::kSuccess;
    if (c.kind == rc::CompletionKind::kReceive) ++answered_;
  });
}

void IoThreadWay::send(Time now) {
  const std::size_t message = sent_++ % w_.messages;
  slots_[message].clear();
  for (std::size_t i = 0; i < taking_; ++i) {
    store_le(requests_[message].data() + i * kRequestBytes, asked_.front().offset);
    slots_[message].push_back(asked_.front().slot);
    asked_.pop_front();
  }
  receive_into(nic_, *pair_, answers_[message]);
  send_to(now, nic_, *pair_, ByteView(requests_[message]).first(taking_ * kRequestBytes));
}

void IoThreadWay::hand_out() {
  const std::size_t message = handed_out_++ % w_.messages;
  for (std::size_t i = 0; i < slots_[message].size(); ++i) {
    std::memcpy(buffer_.data() + slots_[message][i] * w_.bytes, answers_[message].data() + i * w_.bytes, w_.bytes);
  }
  ready_ += slots_[message].size();
}

}  // namespace sluice::sim
