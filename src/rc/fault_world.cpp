#include "rc/fault_world.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace sluice::rc {
namespace {

constexpr std::uint64_t kBase = 0x4000'0000;
constexpr std::size_t kSlots = 8;
constexpr std::size_t kSlotSize = 131'072;  // word for atomics first, then data
constexpr std::size_t kLongest = 100'000;   // READs: of several pieces, where packets are small
constexpr std::uint32_t kInFlight = 64;
constexpr std::uint32_t kReceiveSize = 8192;

struct Pending {
  std::uint64_t id = 0;
  SendOp op{};
  std::size_t slot = 0;
  std::size_t offset = 0;              // in the region
  std::vector<std::uint8_t> data;      // to write or send; or where a READ puts what it got
  std::vector<std::uint8_t> expected;  // READ: the model when it was posted
  std::uint64_t prior = 0;             // atomics: where the answer goes
  std::uint64_t expected_prior = 0;
  std::uint64_t compare = 0;
  std::uint64_t operand = 0;
  std::uint32_t immediate = 0;
};

bool changes_memory(SendOp op) {
  return op != SendOp::kRead && op != SendOp::kSend && op != SendOp::kSendWithImmediate;
}
bool takes_receive(SendOp op) {
  return op == SendOp::kSend || op == SendOp::kSendWithImmediate || op == SendOp::kWriteWithImmediate;
}

class World {
 public:
  explicit World(const FaultOptions& o)
      : options_(o), rng_(Rng(o.seed).fork("work")), impairment_(spec(o)), world_(&impairment_, adapter_config(o)) {
    memory_.resize(kSlots * kSlotSize);
    model_ = settled_ = memory_;
    key_ = world_.region(world_.b, memory_, kBase);
    reconnect();
  }

  FaultResult run() {
    while (result_.failure.empty() && (posted_ < options_.operations || !pending_.empty())) step();
    result_.retransmits = world_.a.adapter->counters().tx_retransmits;
    if (result_.failure.empty() && memory_ != model_) fail_with("memory differs from the model at the end");
    return result_;
  }

 private:
  static port::ImpairmentSpec spec(const FaultOptions& o) {
    port::Impairment each;
    each.drop = each.duplicate = each.reorder = each.corrupt = o.rate_per_million;
    return {.tx = each, .rx = each, .seed = o.seed};
  }
  static AdapterConfig adapter_config(const FaultOptions& o) {
    AdapterConfig config;
    config.seed = o.seed;
    config.coalesce_acks = o.coalesce_acks;
    config.advertise_credits = o.advertise_credits;
    return config;
  }

  void fail_with(std::string what) {
    if (result_.failure.empty()) {
      result_.failure = fmt::format("seed {} after {} operations: {}", options_.seed, result_.completed, what);
    }
  }
  void mix(std::uint64_t value) { result_.trace_hash = (result_.trace_hash ^ value) * 0x100000001B3u; }

  void reconnect() {
    if (pair_.a != nullptr) {
      world_.a.adapter->destroy(pair_.a);
      world_.b.adapter->destroy(pair_.b);
      ++result_.reconnects;
    }
    // A pair of old frames may still be on the cable: new queue pairs, new PSNs.
    pair_ = world_.connect({.mtu = options_.mtu,
                            .timeout = 8,
                            .max_reads = static_cast<std::uint8_t>(1 + options_.seed % 5),
                            .a_psn = Psn(static_cast<std::uint32_t>(rng_.next())),
                            .b_psn = Psn(static_cast<std::uint32_t>(rng_.next()))});
    receives_posted_ = receives_expected_ = 0;
    receive_buffers_.clear();
    expected_receives_.clear();
  }

  void step() {
    if (posted_ < options_.operations && pending_.size() < kInFlight && rng_.below(4) != 0) post_one();
    if (rng_.below(3) != 0) post_receives();
    const auto rounds = rng_.below(6);
    for (std::uint64_t i = 0; i < rounds; ++i) {
      if (!world_.round()) break;
    }
    if (pending_.size() == kInFlight || posted_ == options_.operations) {
      const auto done = [&] { return world_.a.completions->size() != 0; };
      if (!world_.run_until(done, 200'000)) {
        post_receives();
        if (!world_.run_until(done, 200'000)) fail_with("no progress");
      }
    }
    take_receives();
    take_completions();
  }

  void post_receives() {
    while (receives_posted_ - receives_expected_ < 16) {
      receive_buffers_.push_back(std::make_unique<std::vector<std::uint8_t>>(kReceiveSize));
      const Sge into = Sge::of(*receive_buffers_.back());
      if (world_.b.adapter->post_receive(*pair_.b, {.id = receives_posted_, .sges = {&into, 1}}) != PostError::kNone) {
        receive_buffers_.pop_back();
        return;
      }
      ++receives_posted_;
    }
  }

  void post_one() {
    Pending& p = *pending_.emplace_back(std::make_unique<Pending>());
    p.id = posted_++;
    constexpr SendOp kOps[] = {
        SendOp::kSend, SendOp::kSendWithImmediate,  SendOp::kWrite,       SendOp::kWrite,
        SendOp::kRead, SendOp::kWriteWithImmediate, SendOp::kFetchAndAdd, SendOp::kCompareAndSwap};
    p.op = kOps[rng_.below(std::size(kOps))];
    p.slot = rng_.below(kSlots);
    p.immediate = static_cast<std::uint32_t>(rng_.next());
    const bool is_long = p.op == SendOp::kRead && rng_.below(4) == 0;
    const std::size_t length = is_long ? rng_.below(kLongest) : rng_.below(3) == 0 ? rng_.below(8000) : rng_.below(64);
    const bool atomic = is_atomic(p.op);
    p.offset = p.slot * kSlotSize + (atomic ? 0 : 8 + rng_.below(4000));
    p.data.resize(length);
    Sge sge = Sge::of(p.data);
    if (atomic) {
      sge = {reinterpret_cast<std::uintptr_t>(&p.prior), 8};
      const auto word = load_le<std::uint64_t>(&model_[p.offset]);
      p.expected_prior = word;
      p.operand = rng_.next();
      p.compare = rng_.below(2) == 0 ? word : rng_.next();
    } else if (p.op == SendOp::kRead) {
      p.expected.assign(model_.begin() + static_cast<long>(p.offset),
                        model_.begin() + static_cast<long>(p.offset + length));
    } else {
      for (auto& byte : p.data) byte = static_cast<std::uint8_t>(rng_.next());
    }
    // A READ may execute again when its answer is lost: what changes its bytes must wait for it.
    const bool after_read = changes_memory(p.op) && std::ranges::any_of(pending_, [&](const auto& other) {
                              return other->op == SendOp::kRead && other->slot == p.slot;
                            });
    const SendRequest request{.id = p.id,
                              .op = p.op,
                              .flags = {.fence = after_read},
                              .sges = {&sge, 1},
                              .immediate = p.immediate,
                              .remote_address = kBase + p.offset,
                              .remote_key = key_,
                              .compare = p.compare,
                              .swap_or_add = p.operand};
    const PostError error = world_.a.adapter->post_send(world_.now, *pair_.a, request);
    if (error != PostError::kNone) return fail_with(fmt::format("post refused: {}", to_string(error)));
    apply(model_, p);
    if (takes_receive(p.op)) expected_receives_.push_back(p);
  }

  // What executing `p` does to `memory`.
  static void apply(std::vector<std::uint8_t>& memory, const Pending& p) {
    std::uint8_t* const at = &memory[p.offset];
    const auto word = load_le<std::uint64_t>(at);
    switch (p.op) {
      case SendOp::kWrite:
      case SendOp::kWriteWithImmediate: std::ranges::copy(p.data, at); return;
      case SendOp::kFetchAndAdd: store_le(at, word + p.operand); return;
      case SendOp::kCompareAndSwap:
        if (word == p.compare) store_le(at, p.operand);
        return;
      default: return;
    }
  }

  void take_receives() {
    for (const Completion& c : TwoAdapters::take(world_.b)) {
      if (c.status == CompletionStatus::kFlushed) continue;
      if (expected_receives_.empty()) return fail_with("a message arrived that nobody sent, or twice");
      const Pending& p = expected_receives_.front();
      const bool write = p.op == SendOp::kWriteWithImmediate;
      if (c.id != receives_expected_) return fail_with("receive requests completed out of order");
      if (c.status != CompletionStatus::kSuccess || c.length != p.data.size())
        return fail_with("a message arrived with a wrong length");
      if (!write && !std::equal(p.data.begin(), p.data.end(), receive_buffers_[c.id]->begin()))
        return fail_with("a message arrived changed");
      if (p.op != SendOp::kSend && (!c.has_immediate || c.immediate != p.immediate))
        return fail_with("immediate data changed");
      mix(c.id);
      receive_buffers_[c.id].reset();
      ++receives_expected_;
      expected_receives_.pop_front();
    }
  }

  void take_completions() {
    for (const Completion& c : TwoAdapters::take(world_.a)) {
      if (!result_.failure.empty()) return;
      if (pending_.empty() || c.id != pending_.front()->id) return fail_with("a completion twice or out of order");
      mix(c.id * 31 + static_cast<std::uint64_t>(c.status));
      if (c.status != CompletionStatus::kSuccess) return give_up(c);
      const Pending& p = *pending_.front();
      if (p.op == SendOp::kRead && p.data != p.expected) return fail_with("a READ returned wrong bytes");
      const bool atomic = is_atomic(p.op);
      if (atomic && p.prior != p.expected_prior) return fail_with("an atomic returned a wrong prior value");
      ++result_.completed;
      apply(settled_, p);
      pending_.pop_front();
    }
  }

  // The queue pair failed: what was outstanding is unknown, but it was executed up to some point and no further.
  void give_up(const Completion& first) {
    if (first.status != CompletionStatus::kRetryExceeded && first.status != CompletionStatus::kRnrRetryExceeded) {
      return fail_with(fmt::format("unexpected status: {}", to_string(first.status)));
    }
    take_receives();
    result_.unknown += pending_.size();
    std::vector<std::uint8_t> state = settled_;
    bool explained = explains(state, 0);
    for (std::size_t k = 0; k < pending_.size() && !explained; ++k) {
      apply(state, *pending_[k]);
      explained = explains(state, k + 1);
    }
    if (!explained) return fail_with("after a failure memory is not what a prefix of the work leaves");
    pending_.clear();
    settled_ = model_ = memory_;
    reconnect();
  }

  // Whether memory is `state`, to which pending work before `next` has been applied, plus perhaps the first packets of `next`.
  bool explains(std::vector<std::uint8_t>& state, std::size_t next) const {
    if (state == memory_) return true;
    if (next == pending_.size()) return false;
    const Pending& p = *pending_[next];
    if (p.op != SendOp::kWrite && p.op != SendOp::kWriteWithImmediate) return false;
    std::vector<std::uint8_t> partial = state;
    for (std::size_t done = 0; done < p.data.size(); done += options_.mtu) {
      const std::size_t n = std::min<std::size_t>(options_.mtu, p.data.size() - done);
      std::copy_n(p.data.begin() + static_cast<long>(done), n, partial.begin() + static_cast<long>(p.offset + done));
      if (partial == memory_) return true;
    }
    return false;
  }

  FaultOptions options_;
  Rng rng_;
  port::ImpairmentSpec impairment_;
  TwoAdapters world_;
  TwoAdapters::Pair pair_;
  memory::Key key_{};
  std::vector<std::uint8_t> memory_;
  std::vector<std::uint8_t> model_;    // what all posted work leaves
  std::vector<std::uint8_t> settled_;  // what all completed work leaves
  std::uint64_t posted_ = 0;
  std::uint64_t receives_posted_ = 0;
  std::uint64_t receives_expected_ = 0;
  std::deque<std::unique_ptr<Pending>> pending_;
  std::deque<Pending> expected_receives_;
  std::vector<std::unique_ptr<std::vector<std::uint8_t>>> receive_buffers_;
  FaultResult result_;
};

}  // namespace

FaultResult run_under_faults(const FaultOptions& options) { return World(options).run(); }

}  // namespace sluice::rc
