// Places: so many at once of each who asks.
//
// Life:       take() -> the place is kept until the last copy of it is gone, which may outlive who gave it.
// Threads:    any; who waits, waits in its own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace sluice::telemetry {

class Places {
 public:
  using Place = std::shared_ptr<void>;

  explicit Places(int most) : shared_(std::make_shared<Shared>(most)) {}

  // Null: `who` has as many already, for as long as `patience`; or as many of his wait.
  Place take(const std::string& who, std::chrono::milliseconds patience) {
    std::unique_lock lock(shared_->mutex);
    Shared::One& one = shared_->of[who];
    const auto has_room = [&] { return one.taken < shared_->most; };
    if (!has_room() && one.waiting < shared_->most) {
      ++one.waiting;
      shared_->freed.wait_for(lock, patience, has_room);
      --one.waiting;
    }
    if (!has_room()) return nullptr;
    ++one.taken;
    return {shared_.get(), [shared = shared_, who](void*) { shared->give_back(who); }};
  }

 private:
  struct Shared {
    struct One {
      int taken = 0;
      int waiting = 0;
    };
    explicit Shared(int its_most) : most(its_most) {}
    void give_back(const std::string& who) {
      const std::scoped_lock lock(mutex);
      const auto found = of.find(who);
      if (--found->second.taken == 0 && found->second.waiting == 0) of.erase(found);
      freed.notify_all();
    }

    int most;
    std::mutex mutex;
    std::condition_variable freed;
    std::map<std::string, One> of;  // guarded by mutex; who has none, and waits for none, is not in it
  };
  std::shared_ptr<Shared> shared_;
};

}  // namespace sluice::telemetry
