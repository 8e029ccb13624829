#include "fusee/connection.h"

#include "fusee/membership.h"

namespace sluice::fusee {

using remote::Status;
using remote::Task;

void Connection::trouble(remote::NodeId node) {
  ++counters.failures;
  if (membership != nullptr) membership->trouble(node);
}

void Connection::tend() {
  if (membership == nullptr) return;
  if (now() + config.view_lease() / 2 >= lease) membership->tend();
  membership->restore();
}

// For what only the membership can change. False: it will not.
Task<bool> Connection::wait_a_turn(Duration& backoff, Time deadline) {
  membership->tend();
  const bool hopeless = now() >= deadline || membership->hopeless();
  // Also then: who tries again at once must not keep from us what would change it.
  co_await back_off(backoff);
  co_return !hopeless;
}

Task<bool> Connection::ensure_view(Time deadline) {
  Duration backoff{};
  bool going = true;
  while (going && !leased()) going = co_await wait_a_turn(backoff, deadline);
  co_return going;
}

Task<bool> Connection::ensure_reads(Time deadline) {
  Duration backoff{};
  bool going = true;
  while (going && !readable()) going = co_await wait_a_turn(backoff, deadline);
  co_return going;
}

Task<bool> Connection::again(Time deadline) {
  Duration backoff{};
  if (membership == nullptr) {
    // Nothing will go better for this operation. But what follows it must not fail in the same moment, and time never get on.
    backoff = config.backoff_most;
    co_await back_off(backoff);
    co_return false;
  }
  bool going = co_await wait_a_turn(backoff, deadline);
  while (going && (!readable() || membership->troubled())) going = co_await wait_a_turn(backoff, deadline);
  co_return going&& now() < deadline;
}

Task<bool> Connection::read_all(std::span<remote::Operation> operations, Time deadline) {
  const std::uint32_t addressed = view;
  const bool reads_only =
      std::ranges::all_of(operations, [](const remote::Operation& o) { return o.kind == remote::OpKind::kRead; });
  Duration backoff{};
  while (true) {
    bool have = reads_only ? readable() : leased();
    if (!have && reads_only) have = co_await ensure_reads(deadline);
    if (!have && !reads_only) have = co_await ensure_view(deadline);
    if (!have) co_return false;
    if (view != addressed) co_return false;
    co_await all(operations);
    bool whole = true;
    for (const auto& o : operations) {
      if (o.status == Status::kOk) continue;
      trouble(o.remote.node);
      whole = false;
      if (o.status != Status::kUnknown) co_return false;
    }
    if (whole) co_return true;
    if (now() >= deadline) co_return false;
    co_await back_off(backoff);
  }
}

// Before any word of a half is written, the header of its table is not 0 any more, in the primary and in all backups; and never is again.
Task<bool> Connection::words_in_use(std::vector<Extent>& extents) {
  constexpr std::size_t kAtOnce = 32 << 10;
  std::vector<bool> used(map.tables(), false);
  for (std::uint64_t table = 0; table < geometry.tables; ++table) used[table] = true;
  std::vector<std::uint8_t> headers(kAtOnce);
  for (std::uint32_t partition = 0; partition < map.partitions(); ++partition) {
    for (std::uint64_t offset = 0; offset < map.header_bytes(); offset += kAtOnce) {
      const std::size_t length = std::min<std::uint64_t>(kAtOnce, map.header_bytes() - offset);
      const remote::RemoteAddress at = map.word_at(Place::at(partition, offset), 0);
      const Status status = co_await read(at, MutableBytes(headers).first(length));
      if (status != Status::kOk) {
        trouble(at.node);
        co_return false;
      }
      for (std::size_t i = 0; i < length / 8; ++i) {
        const std::uint64_t number = (offset / 8 + i) * map.partitions() + partition;
        if (number >= used.size() || load_le<std::uint64_t>(headers.data() + i * 8) == 0) continue;
        const Table table = map.table_of(number);
        if (!map.may_split(table)) continue;
        used[map.number(table.half(0))] = used[map.number(table.half(1))] = true;
      }
    }
  }
  extents = map.extents(used);
  co_return true;
}

}  // namespace sluice::fusee
