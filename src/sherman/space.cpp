#include "sherman/space.h"

#include <algorithm>
#include <array>

namespace sluice::sherman {

using remote::Status;
using remote::Task;

bool Space::cut(NodePointer& node) {
  if (!returned_.empty() && returned_.front().from <= c_.now()) {
    node = returned_.front().node;
    returned_.pop_front();
    return true;
  }
  if (left_ == 0) return false;
  node = next_;
  next_ = NodePointer::at(next_.node(), next_.offset() + piece());
  --left_;
  return true;
}

Task<Space::Given> Space::take(Time deadline, NodePointer& node) {
  while (!cut(node)) {
    if (c_.now() >= deadline) co_return Given::kUnavailable;
    if (claiming_) {
      co_await c_.scheduler.sleep_for(c_.config.backoff_first);
      continue;
    }
    claiming_ = true;
    const Given given = co_await claim(deadline);
    claiming_ = false;
    if (given != Given::kOk) co_return given;
  }
  co_return Given::kOk;
}

Task<Space::Given> Space::claim(Time deadline) {
  const std::uint32_t nodes = c_.map.nodes();
  if (hints_.empty()) {
    hints_.resize(nodes);
    turn_ = c_.client % nodes;
  }
  Given worst = Given::kNoSpace;
  for (std::uint32_t i = 0; i < nodes; ++i) {
    const std::uint32_t node = turn_;
    turn_ = (turn_ + 1) % nodes;
    const Given given = co_await claim_on(node, deadline);
    if (given == Given::kOk) co_return given;
    if (given == Given::kUnavailable) worst = given;
  }
  co_return worst;
}

Task<Space::Given> Space::claim_on(std::uint32_t node, Time deadline) {
  std::array<std::uint8_t, 512> owners;
  const std::uint32_t chunks = c_.map.chunks(node);
  std::uint32_t& hint = hints_[node];
  Duration backoff{};
  while (hint < chunks) {
    if (c_.now() >= deadline) co_return Given::kUnavailable;
    const std::uint32_t some = std::min<std::uint32_t>(chunks - hint, owners.size() / 8);
    const Status seen =
        co_await c_.read(c_.map.owner_of_chunk(node, hint), MutableBytes(owners).first(std::size_t{8} * some));
    if (seen == Status::kUnreachable || seen == Status::kNodeUnknown) co_return Given::kUnavailable;
    if (seen != Status::kOk) {
      ++c_.counters.failures;
      co_await c_.back_off(backoff);
      continue;
    }
    std::uint32_t skipped = 0;
    while (skipped < some && load_le<std::uint64_t>(owners.data() + std::size_t{8} * skipped) != 0) ++skipped;
    hint += skipped;
    if (skipped == some) continue;
    const std::uint64_t mine = std::uint64_t{c_.client} << 32 | ++c_.claims;
    const auto at = c_.map.owner_of_chunk(node, hint);
    const auto swapped = co_await c_.swap(at, 0, mine);
    bool ours = swapped.status == Status::kOk && swapped.prior == 0;
    if (swapped.status != Status::kOk) {
      ++c_.counters.failures;
      co_await c_.outlive();
      bool known = false;
      while (!known && c_.now() < deadline) {
        const Status status = co_await c_.read(at, MutableBytes(owners).first(8));
        known = status == Status::kOk;
        if (!known) co_await c_.back_off(backoff);
      }
      if (!known) co_return Given::kUnavailable;
      ours = load_le<std::uint64_t>(owners.data()) == mine;
    }
    if (!ours) continue;  // read again from here
    next_ = c_.map.start_of_chunk(node, hint);
    left_ = c_.geometry.chunk_bytes / piece();
    ++hint;
    ++c_.counters.chunks;
    co_return Given::kOk;
  }
  co_return Given::kNoSpace;
}

}  // namespace sluice::sherman
