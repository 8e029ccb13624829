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

Task<bool> Connection::ensure_view(Time deadline) {
  Duration backoff{};
  while (!leased()) {
    membership->tend();
    const bool hopeless = now() >= deadline || membership->hopeless();
    // Also then: who tries again at once must not keep from us what would change it.
    co_await back_off(backoff);
    if (hopeless) co_return false;
  }
  co_return true;
}

Task<bool> Connection::ensure_reads(Time deadline) {
  Duration backoff{};
  while (!readable()) {
    membership->tend();
    const bool hopeless = now() >= deadline || membership->hopeless();
    // Also then: who tries again at once must not keep from us what would change it.
    co_await back_off(backoff);
    if (hopeless) co_return false;
  }
  co_return true;
}

Task<bool> Connection::again(Time deadline) {
  if (membership == nullptr) co_return false;
  Duration backoff{};
  do {
    membership->tend();
    const bool hopeless = now() >= deadline || membership->hopeless();
    // Also then: who tries again at once must not keep from us what would change it.
    co_await back_off(backoff);
    if (hopeless) co_return false;
  } while (!readable() || membership->troubled());
  co_return now() < deadline;
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

}  // namespace sluice::fusee
