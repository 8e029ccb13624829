#include "rack/membership.h"

#include <chrono>
#include <utility>

namespace sluice::rack {
namespace {

std::chrono::nanoseconds to_chrono(Duration d) { return std::chrono::nanoseconds(d.nanoseconds()); }

// One watch at the directory lasts so long; the end of a membership waits for it at most.
constexpr Duration kWatch = Duration::milliseconds(500);

}  // namespace

Result<std::unique_ptr<Membership>> Membership::join(Directory& directory, NodeDescription description,
                                                     MembershipConfig config, OnChange on_change) {
  const auto give_up = std::chrono::steady_clock::now() + to_chrono(config.patience);
  for (;;) {
    auto joined = directory.join(description, config.lease);
    if (joined) {
      return std::unique_ptr<Membership>(
          new Membership(directory, std::move(description), config, std::move(*joined), std::move(on_change)));
    }
    const bool taken = joined.error().message.find("is taken") != std::string::npos;
    if (!taken || std::chrono::steady_clock::now() >= give_up) return tl::unexpected(joined.error());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

Membership::Membership(Directory& directory, NodeDescription description, MembershipConfig config,
                       Registration registration, OnChange on_change)
    : directory_(directory),
      config_(config),
      on_change_(std::move(on_change)),
      description_(std::move(description)),
      lease_(registration.lease),
      registration_(std::move(registration)),
      keeper_([this] { keep_lease(); }) {
  if (on_change_) watcher_ = std::thread([this] { watch(); });
}

Membership::~Membership() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    stop_.notify_all();
  }
  keeper_.join();
  if (watcher_.joinable()) watcher_.join();
  static_cast<void>(directory_.leave(lease_));
}

Result<void> Membership::publish(const NodeDescription& description) {
  const std::lock_guard lock(mutex_);
  auto published = directory_.publish(lease_, description);
  if (!published) return published;
  description_ = description;
  published_ = true;
  return {};
}

bool Membership::wait(Duration duration) {
  std::unique_lock lock(mutex_);
  return !stop_.wait_for(lock, to_chrono(duration), [&] { return stopping_; });
}

void Membership::keep_lease() {
  while (wait(config_.lease / 3)) renew_once();
}

void Membership::renew_once() {
  const auto renewed = directory_.renew(lease_);
  if (renewed || !unknown_lease(renewed.error())) return;  // fine, or the directory is away: next time
  const std::lock_guard lock(mutex_);
  auto joined = directory_.join(description_, config_.lease);
  if (!joined) return;
  if (joined->node.ip != registration_.node.ip) {  // another directory than before: our address is not ours there
    static_cast<void>(directory_.leave(joined->lease));
    return;
  }
  lease_ = joined->lease;
  if (published_) static_cast<void>(directory_.publish(lease_, description_));
}

void Membership::watch() {
  std::uint64_t seen = 0;
  for (;;) {
    const auto snapshot = directory_.watch(seen, kWatch);
    if (snapshot && snapshot->revision != seen) {
      seen = snapshot->revision;
      on_change_(*snapshot);
    }
    if (!wait(snapshot ? Duration{} : Duration::milliseconds(200))) return;
  }
}

}  // namespace sluice::rack
