// Soft-RoCE's conversations again, with our requester in the place of rxe's: it sends what rxe sent and completes on what rxe received.
//
// What may differ: rxe asks for an ACK on the last packet of a message and on every 66th; who asks when in between is the requester's
// own affair (IBTA vol. 1 §9.7.3.1).
#include <deque>
#include <map>

#include "golden/replay_endpoint.h"

namespace sluice::golden {
namespace {

class RequesterReplay {
 public:
  explicit RequesterReplay(const Conversation& c) : c_(c), endpoint_(make_endpoint(c)) {
    for (const Packet& p : c.packets) {
      if (p.traits().is_request) first_sent_.try_emplace(p.psn().value(), &p);
    }
  }

  void run() {
    for (const Packet& p : c_.packets) {
      if (p.traits().is_request) {
        const bool fresh = first_sent_.at(p.psn().value()) == &p;
        if (fresh && p.traits().starts_message()) post(p);
      } else {
        endpoint_.receive(p.bytes);
      }
      endpoint_.tick();
    }
    for (int i = 0; i < 100 && c_.first_answer() == nullptr; ++i) endpoint_.tick();
  }

  void expect_same_requests() const {
    std::map<std::uint32_t, const Packet*> ours;
    for (const Packet& p : endpoint_.sent.packets) ours.try_emplace(p.psn().value(), &p);
    for (const auto& [psn, theirs] : first_sent_) {
      SCOPED_TRACE("rxe's frame " + std::to_string(theirs->number));
      ASSERT_TRUE(ours.contains(psn));
      expect_same_request(*ours[psn], *theirs);
    }
    // A refusal reaches rxe before it has sent all of a message; us it may reach later.
    if (c_.fatal()) return;
    for (const auto& [psn, packet] : ours) EXPECT_TRUE(first_sent_.contains(psn)) << "rxe never sent PSN " << psn;
  }

  void expect_completions() const {
    std::vector<Completion> completions(endpoint_.completions->size());
    endpoint_.completions->poll(completions);
    ASSERT_EQ(completions.size(), operations_.size());
    for (std::size_t i = 0; i < completions.size(); ++i) {
      SCOPED_TRACE("operation " + std::to_string(i));
      EXPECT_EQ(completions[i].id, i);
      const bool last = i + 1 == completions.size();
      EXPECT_EQ(to_string(completions[i].status), to_string(last ? last_status() : CompletionStatus::kSuccess));
      if (completions[i].status == CompletionStatus::kSuccess) expect_result(operations_[i]);
    }
  }
  // How often the requester sent its last PSN.
  std::size_t transmissions_of_last() const {
    const Psn last = endpoint_.sent.packets.back().psn();
    return static_cast<std::size_t>(std::ranges::count(endpoint_.sent.packets, last, &Packet::psn));
  }

 private:
  struct Operation {
    const Packet* first = nullptr;
    std::vector<std::uint8_t> local{};  // what is sent, or where the answer goes
  };

  static Endpoint make_endpoint(const Conversation& c) {
    const Packet& first = c.first();
    const Packet* answer = c.first_answer();
    const AdapterConfig peer = config_of_receiver(first);
    const bool nobody = answer == nullptr;
    // Where nobody answers, as often as rxe tried; elsewhere only what is said counts, not the time.
    return {config_of_sender(first),
            peer.gids[0],
            peer.mac,
            {.own = nobody ? first.parsed.destination : answer->parsed.destination,
             .remote = first.parsed.destination,
             .psn = first.psn(),
             .mtu = c.mtu(),
             .timeout = static_cast<std::uint8_t>(nobody ? 8 : 0),
             .retry_count = static_cast<std::uint8_t>(nobody ? c.packets.size() - 1 : 7)}};
  }

  CompletionStatus last_status() const {
    if (c_.first_answer() == nullptr) return CompletionStatus::kRetryExceeded;
    const auto fatal = c_.fatal();
    if (!fatal) return CompletionStatus::kSuccess;
    switch (*fatal) {
      case wire::NakCode::kInvalidRequest: return CompletionStatus::kRemoteInvalidRequest;
      case wire::NakCode::kRemoteAccessError: return CompletionStatus::kRemoteAccessError;
      default: return CompletionStatus::kRemoteOperationError;
    }
  }

  // The message that begins with `first`, as a work request.
  void post(const Packet& first) {
    const Kind kind = first.traits().kind;
    Operation operation{.first = &first};
    SendRequest request{.id = operations_.size()};
    const auto target = target_of(first);
    if (target) {
      request.remote_address = target->address;
      request.remote_key = memory::Key(target->key);
    }
    const Packet* last = &first;
    if (kind == Kind::kSend || kind == Kind::kWrite) {
      for (Psn psn = first.psn();; ++psn) {
        const auto found = first_sent_.find(psn.value());
        if (found == first_sent_.end()) break;  // cut short by a refusal
        last = found->second;
        operation.local.insert(operation.local.end(), last->payload().begin(), last->payload().end());
        if (last->traits().ends_message()) break;
      }
      if (kind == Kind::kWrite) operation.local.resize(target->length);
      const bool immediate = last->traits().has(wire::Extended::kImmDt);
      if (immediate) request.immediate = last->get<wire::ImmDt>().immediate;
      if (kind == Kind::kSend) request.op = immediate ? SendOp::kSendWithImmediate : SendOp::kSend;
      if (kind == Kind::kWrite) request.op = immediate ? SendOp::kWriteWithImmediate : SendOp::kWrite;
    } else if (kind == Kind::kReadRequest) {
      request.op = SendOp::kRead;
      operation.local.resize(target->length);
    } else {
      const auto atomic = first.get<wire::AtomicEth>();
      request.op = kind == Kind::kFetchAdd ? SendOp::kFetchAndAdd : SendOp::kCompareAndSwap;
      request.compare = atomic.compare;
      request.swap_or_add = atomic.swap_or_add;
      operation.local.resize(8);
    }
    request.flags.solicited = last->parsed.solicited;
    operations_.push_back(std::move(operation));
    const Sge sge = Sge::of(operations_.back().local);
    request.sges = {&sge, 1};
    ASSERT_EQ(endpoint_.adapter.post_send(endpoint_.now, *endpoint_.pair, request), PostError::kNone);
    endpoint_.transmit();
  }

  void expect_same_request(const Packet& ours, const Packet& theirs) const {
    EXPECT_EQ(ours.traits().name, theirs.traits().name);
    EXPECT_EQ(ours.parsed.destination, theirs.parsed.destination);
    EXPECT_EQ(ours.parsed.pad_count, theirs.parsed.pad_count);
    EXPECT_EQ(ours.parsed.solicited, theirs.parsed.solicited);
    EXPECT_EQ(ours.parsed.pkey, theirs.parsed.pkey);
    if (theirs.traits().ends_message()) {
      EXPECT_TRUE(ours.parsed.ack_request);
    }
    if (ours.traits().kind != theirs.traits().kind) return;
    const auto extended = [](const Packet& p) {
      return ByteView(p.bytes).subspan(p.parsed.extended_offset(), p.traits().extended_length);
    };
    EXPECT_TRUE(std::ranges::equal(extended(ours), extended(theirs)));
    EXPECT_TRUE(std::ranges::equal(ours.payload(), theirs.payload()));
  }

  // READs and atomics: what came back.
  void expect_result(const Operation& operation) const {
    const Kind kind = operation.first->traits().kind;
    std::vector<std::uint8_t> expected;
    if (kind == Kind::kReadRequest) {
      for (std::uint32_t n = 0; n < psns_of(*operation.first, c_.mtu()); ++n) {
        const Packet* answer = answer_to(operation.first->psn() + n);
        ASSERT_NE(answer, nullptr);
        expected.insert(expected.end(), answer->payload().begin(), answer->payload().end());
      }
    } else if (operation.first->traits().is_atomic()) {
      const Packet* answer = answer_to(operation.first->psn());
      ASSERT_NE(answer, nullptr);
      expected.resize(8);
      store_le(expected.data(), answer->get<wire::AtomicAckEth>().original);
    } else {
      return;
    }
    EXPECT_EQ(operation.local, expected);
  }

  const Packet* answer_to(Psn psn) const {
    for (const Packet& p : c_.packets) {
      if (!p.traits().is_request && p.traits().kind != Kind::kAcknowledge && p.psn() == psn) return &p;
    }
    return nullptr;
  }

  const Conversation& c_;
  Endpoint endpoint_;
  std::map<std::uint32_t, const Packet*> first_sent_;  // by PSN
  std::deque<Operation> operations_;
};

class RxeRequester : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(RxeRequester, IsStoodInForByOurs) {
  for (const Conversation& c : conversations_of(GetParam())) {
    SCOPED_TRACE("the conversation that begins with frame " + std::to_string(c.first().number));
    RequesterReplay replay(c);
    replay.run();
    replay.expect_same_requests();
    replay.expect_completions();
    if (c.first_answer() == nullptr) {
      EXPECT_EQ(replay.transmissions_of_last(), c.packets.size());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Captures, RxeRequester, testing::ValuesIn(rxe_captures()),
                         [](const auto& tested) { return tested.param.stem().string(); });

}  // namespace
}  // namespace sluice::golden
