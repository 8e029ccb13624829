#include "integrations/rocksdb/remote_lane.h"

namespace sluice::rocksdb_cache {
namespace {

constexpr int kTries = 64;  // of a call that a full ring refuses

}  // namespace

RemoteLane::RemoteLane(cowbird_thread_t* thread, std::uint16_t region, NodeState& node)
    : thread_(thread), region_(region), node_(node) {}

bool RemoteLane::write(std::uint64_t offset, std::span<const char> bytes) {
  const std::scoped_lock lock(mutex_);
  for (int i = 0; i < kTries; ++i) {
    const std::int64_t id =
        cowbird_async_write(thread_, region_, bytes.data(), offset, static_cast<std::uint32_t>(bytes.size()));
    if (id > 0) {
      ++writes_;
      return true;
    }
    if (!COWBIRD_IS_FULL(id)) return false;
    poll_locked();
  }
  return false;
}

std::shared_ptr<Read> RemoteLane::read(std::uint64_t offset, std::uint32_t length) {
  auto made = std::make_shared<Read>();
  made->bytes.resize(length);
  const std::scoped_lock lock(mutex_);
  reads_.push_back(made);  // before it is issued: then it must have its place
  for (int i = 0; i < kTries; ++i) {
    const std::int64_t id = cowbird_async_read(thread_, region_, offset, made->bytes.data(), length);
    if (id > 0) {
      made->request = id;
      return made;
    }
    if (!COWBIRD_IS_FULL(id)) break;
    poll_locked();
  }
  reads_.pop_back();
  return nullptr;
}

bool RemoteLane::poll() {
  const std::scoped_lock lock(mutex_);
  return poll_locked();
}

bool RemoteLane::is_idle() { return poll_locked() && reads_.empty() && writes_ == 0; }

bool RemoteLane::poll_locked() {
  cowbird_completion_t done[32];
  constexpr int kMost = std::size(done);
  const int n = cowbird_collect(thread_, done, kMost);
  for (int i = 0; i < n; ++i) {
    if (done[i].status == COWBIRD_DENIED) node_.denies = true;
    if (reads_.empty() || reads_.front()->request != done[i].request) {
      --writes_;
      if (done[i].status != 0) node_.writes_failed.fetch_add(1);
      continue;
    }
    Read& oldest = *reads_.front();
    oldest.status = done[i].status;
    oldest.done.store(true, std::memory_order_release);
    reads_.pop_front();
  }
  return n == kMost ? poll_locked() : n != COWBIRD_ENGINE_ABSENT;
}

}  // namespace sluice::rocksdb_cache
