#include "sherman/locks.h"

#include <algorithm>
#include <array>
#include <memory>

#include "base/check.h"

namespace sluice::sherman {

using remote::Operation;
using remote::Status;
using remote::Task;

namespace {
constexpr std::array<std::uint8_t, 8> kFree{};
}

// Waits until this coroutine is the client's one at a lock.
class NodeLocks::Turn {
 public:
  Turn(Connection& c, Local& local) : c_(c), local_(local) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  bool await_ready() {
    if (local_.busy) return false;
    local_.busy = true;
    return true;
  }
  void await_suspend(std::coroutine_handle<> handle) {
    handle_ = handle;
    local_.waiting.push_back(this);
  }
  Grip await_resume() const { return grip_; }
  // From the one before. A grip with a word: the remote lock comes along.
  void give(const Grip& grip) {
    grip_ = grip;
    c_.scheduler.post(handle_);
  }

 private:
  Connection& c_;
  Local& local_;
  Grip grip_;
  std::coroutine_handle<> handle_;
};

// -------------------------------------------------------------------------------------------------------------- take

Task<bool> NodeLocks::lock_and_read(NodePointer node, MutableBytes image, Time deadline, Grip& grip) {
  do {
    Local& local = (*locals_)[id(c_.map, node)];
    Turn turn(c_, local);
    grip = co_await turn;
    grip.node = node;
    bool read = false;
    if (grip.word.raw != 0) {
      ++c_.counters.hand_overs;
    } else {
      const bool taken = co_await take(local, image, deadline, grip, read);
      if (!taken) break;
    }
    if (!read) read = co_await read_under(grip, image);
    if (read) co_return true;
    co_await release(grip);  // the lease is over
  } while (c_.now() < deadline);
  co_return false;
}

// False: not before the deadline. `read`: the image as well.
Task<bool> NodeLocks::take(Local& local, MutableBytes image, Time deadline, Grip& grip, bool& read) {
  Duration backoff{};
  bool first = true;
  while (c_.now() < deadline) {
    const Step step = co_await try_take(local, image, grip, read, first);
    first = false;
    if (step == Step::kDone) {
      local.seen = 0;
      co_return true;
    }
    if (local.seen != 0 && c_.now() - local.since >= c_.config.lease + c_.config.flight) {
      const LockWord word{local.seen};
      local.seen = 0;
      co_await recover(grip.node, word);
      continue;
    }
    co_await c_.back_off(backoff);
  }
  grip.word = {};
  pass_on(grip, false);
  co_return false;
}

Task<NodeLocks::Step> NodeLocks::try_take(Local& local, MutableBytes image, Grip& grip, bool& read, bool with_read) {
  const LockWord word = LockWord::of(c_.client, ++sequence_);
  const Time until = c_.now() + c_.config.lease;
  std::array<Operation, 2> chain{remote::swap_operation(word_address(grip.node), 0, word.raw),
                                 remote::read_operation(c_.map.at(grip.node), image)};
  co_await c_.chain(std::span(chain).first(with_read ? 2 : 1));
  if (chain[0].status == Status::kUnknown) {
    ++c_.counters.failures;
    co_return co_await resolve_take(grip, word, until);
  }
  if (chain[0].status != Status::kOk) {
    ++c_.counters.failures;
    co_return Step::kAgain;
  }
  if (chain[0].prior != 0) {
    ++c_.counters.swaps_lost;
    if (local.seen != chain[0].prior) {
      local.seen = chain[0].prior;
      local.since = c_.now();
    }
    co_return Step::kAgain;
  }
  grip.word = word;
  grip.until = until;
  grip.handed = 0;
  grip.logged = false;
  read = with_read && chain[1].status == Status::kOk;
  co_return Step::kDone;
}

// A CAS of unknown outcome: once it cannot be executed any more, the word tells.
Task<NodeLocks::Step> NodeLocks::resolve_take(Grip& grip, LockWord word, Time until) {
  grip.word = word;
  grip.until = until;
  grip.handed = 0;
  grip.logged = false;
  const Step ours = co_await still_ours(grip);
  if (ours == Step::kDone) co_return Step::kDone;
  grip.word = {};
  co_return Step::kAgain;
}

Task<bool> NodeLocks::read_under(const Grip& grip, MutableBytes image) {
  Duration backoff{};
  while (c_.now() < grip.until) {
    const Status status = co_await c_.read(c_.map.at(grip.node), image);
    if (status == Status::kOk) co_return true;
    ++c_.counters.failures;
    co_await c_.back_off(backoff);
  }
  co_return false;
}

// ------------------------------------------------------------------------------------------------------------ release

bool NodeLocks::may_hand_over(const Local& local, const Grip& grip) const {
  if (local.waiting.empty() || grip.handed >= c_.config.hand_overs) return false;
  if (grip.logged && !c_.geometry.entries_logged()) return false;
  return c_.now() + c_.config.lease / 2 < grip.until;  // else the next has no time for a failure
}

void NodeLocks::pass_on(Grip& grip, bool with_lock) {
  const auto it = locals_->find(id(c_.map, grip.node));
  SLUICE_CHECK(it != locals_->end() && it->second.busy);
  Local& local = it->second;
  Grip next = grip;
  if (with_lock) {
    ++next.handed;
  } else {
    next = {};
  }
  grip = {};
  if (!local.waiting.empty()) {
    Turn* const turn = local.waiting.front();
    local.waiting.pop_front();
    turn->give(next);
    return;
  }
  local.busy = false;
  if (local.seen == 0) locals_->erase(it);
}

Task<void> NodeLocks::release(Grip& grip) {
  if (may_hand_over((*locals_)[id(c_.map, grip.node)], grip)) {
    pass_on(grip, true);
    co_return;
  }
  co_await unlock(grip);
}

Task<void> NodeLocks::unlock(Grip& grip) {
  bool freed = false;
  while (!freed && c_.now() < grip.until) {
    const Status status = co_await c_.write(word_address(grip.node), kFree);
    freed = status == Status::kOk;
    if (freed) break;
    ++c_.counters.failures;
    const Step ours = co_await still_ours(grip);
    freed = ours == Step::kAgain;
    if (ours == Step::kFailed) break;
  }
  if (!freed) ++c_.counters.abandoned;
  pass_on(grip, false);
}

Task<NodeLocks::Written> NodeLocks::write_and_release(Grip& grip, std::uint64_t offset, ByteView bytes) {
  const bool log = bytes.size() > c_.geometry.whole_bytes;
  grip.logged = grip.logged || log;
  const bool hand_over = may_hand_over((*locals_)[id(c_.map, grip.node)], grip);
  std::unique_ptr<std::uint8_t[]> record;
  const std::size_t record_bytes = 32 + bytes.size();
  if (log) {
    record = std::make_unique<std::uint8_t[]>(record_bytes);
    put_record({record.get(), record_bytes}, grip.word, grip.node.offset() + offset, bytes);
  }
  std::array<Operation, 3> operations;
  bool submitted = false;
  while (c_.now() < grip.until) {
    std::size_t count = 0;
    if (log) {
      operations[count++] = remote::write_operation(record_address(grip.node), {record.get(), record_bytes});
    }
    operations[count++] = remote::write_operation(c_.map.at(grip.node) + offset, bytes);
    if (!hand_over) operations[count++] = remote::write_operation(word_address(grip.node), kFree);
    submitted = true;
    const Sent sent = co_await send(std::span(operations).first(count), !hand_over);
    if (sent.body && (hand_over || sent.unlock)) {
      pass_on(grip, hand_over);
      co_return Written::kYes;
    }
    if (sent.body) {  // only the unlock is open
      const Step ours = co_await still_ours(grip);
      if (ours == Step::kDone) {
        co_await unlock(grip);
      } else {
        if (ours == Step::kFailed) ++c_.counters.abandoned;
        pass_on(grip, false);
      }
      co_return Written::kYes;
    }
    const Step ours = co_await still_ours(grip);
    if (ours == Step::kAgain && sent.unlock_tells) {
      ++c_.counters.resolved;
      pass_on(grip, false);
      co_return Written::kYes;
    }
    if (ours != Step::kDone) break;
  }
  ++c_.counters.abandoned;
  pass_on(grip, false);
  co_return submitted ? Written::kUnknown : Written::kNo;
}

Task<NodeLocks::Sent> NodeLocks::send(std::span<Operation> operations, bool with_unlock) {
  Sent sent;
  const std::size_t body = operations.size() - (with_unlock ? 1 : 0);
  if (with_unlock) ++c_.counters.combined;
  co_await c_.chain(operations);
  sent.body = std::ranges::all_of(operations.first(body), [](auto& o) { return o.status == Status::kOk; });
  sent.unlock = with_unlock && operations.back().status == Status::kOk;
  sent.unlock_tells = with_unlock && std::ranges::all_of(operations.first(body), [](auto& o) {
                        return o.status == Status::kOk || o.status == Status::kUnknown;
                      });
  if (!sent.body || (with_unlock && !sent.unlock)) ++c_.counters.failures;
  co_return sent;
}

Task<NodeLocks::Step> NodeLocks::still_ours(const Grip& grip) {
  co_await c_.outlive();
  Duration backoff{};
  while (c_.now() < grip.until) {
    std::array<std::uint8_t, 8> bytes;
    const Status status = co_await c_.read(word_address(grip.node), bytes);
    // Within the lease nobody else may have touched the word while it was ours.
    if (status == Status::kOk && c_.now() < grip.until) {
      co_return load_le<std::uint64_t>(bytes.data()) == grip.word.raw ? Step::kDone : Step::kAgain;
    }
    ++c_.counters.failures;
    co_await c_.back_off(backoff);
  }
  co_return Step::kFailed;
}

Task<bool> NodeLocks::write_fresh(const Grip& grip, NodePointer node, ByteView bytes) {
  while (c_.now() < grip.until) {
    const Status status = co_await c_.write(c_.map.at(node), bytes);
    if (status == Status::kOk) co_return c_.now() < grip.until;
    ++c_.counters.failures;
    co_await c_.outlive();  // or it would overwrite what comes to be there
  }
  co_return false;
}

// ----------------------------------------------------------------------------------------------------------- recovery

Task<bool> NodeLocks::free_of_dead(std::uint32_t node, std::uint32_t lock, LockWord word) {
  // Some piece of memory whose lock this is.
  return recover(NodePointer::at(node, std::uint64_t{lock} * c_.geometry.node_bytes), word);
}

Task<bool> NodeLocks::recover(NodePointer node, LockWord word) {
  const LockWord mine = word.next_attempt();
  Grip grip{.node = node, .word = mine, .until = c_.now() + c_.config.lease};
  const auto swapped = co_await c_.swap(word_address(node), word.raw, mine.raw);
  if (swapped.status != Status::kOk) {
    // It cannot be known who recovers it: that lease, too, runs out.
    ++c_.counters.failures;
    co_return false;
  }
  if (swapped.prior != word.raw) co_return true;  // somebody else does
  const bool whole = co_await redo(node, mine, grip.until);
  if (!whole) co_return false;
  ++c_.counters.recovered;
  while (c_.now() < grip.until) {
    const Status status = co_await c_.write(word_address(node), kFree);
    if (status == Status::kOk) co_return true;
    ++c_.counters.failures;
    const Step ours = co_await still_ours(grip);
    if (ours != Step::kDone) co_return ours == Step::kAgain;
  }
  co_return false;
}

// False: not surely done within the lease.
Task<bool> NodeLocks::redo(NodePointer node, LockWord word, Time until) {
  const std::size_t size = c_.geometry.record_bytes();
  if (size == 0) co_return true;
  const auto bytes = std::make_unique<std::uint8_t[]>(size);
  const MutableBytes record_bytes{bytes.get(), size};
  Duration backoff{};
  bool known = false;
  while (!known && c_.now() < until) {
    const Status status = co_await c_.read(record_address(node), record_bytes);
    known = status == Status::kOk;
    if (known) break;
    ++c_.counters.failures;
    co_await c_.back_off(backoff);
  }
  if (!known) co_return false;
  Record record;
  if (!parse_record(record_bytes, word, record)) co_return true;
  const auto target = NodePointer::at(node.node(), record.target);
  while (c_.now() < until) {
    const Status status = co_await c_.write(c_.map.at(target), record.bytes);
    if (status == Status::kOk) {
      ++c_.counters.redone;
      co_return true;
    }
    ++c_.counters.failures;
    co_await c_.outlive();
  }
  co_return false;
}

}  // namespace sluice::sherman
