#include "integrations/rocksdb/remote_lane.h"

namespace sluice::rocksdb_cache {
namespace {

constexpr int kTries = 64;                 // of a call that a full ring refuses
constexpr std::int64_t kEngineLookUs = 1;  // libcowbird looks for an engine when it may wait at all

bool is_full(std::int64_t error) {
  return error == COWBIRD_METADATA_FULL || error == COWBIRD_REQUEST_DATA_FULL || error == COWBIRD_RESPONSE_DATA_FULL;
}

}  // namespace

RemoteLane::RemoteLane(cowbird_thread_t* thread, std::uint16_t region, NodeState& node)
    : thread_(thread), region_(region), group_(cowbird_poll_create(thread)), node_(node) {}

bool RemoteLane::write(std::uint64_t offset, std::span<const char> bytes) {
  const std::scoped_lock lock(mutex_);
  for (int i = 0; i < kTries; ++i) {
    const std::int64_t id =
        cowbird_async_write(thread_, region_, bytes.data(), offset, static_cast<std::uint32_t>(bytes.size()));
    if (id > 0) {
      cowbird_poll_add(thread_, group_, id);
      ++writes_;
      return true;
    }
    if (!is_full(id)) return false;
    poll_locked(0);
  }
  return false;
}

std::shared_ptr<Read> RemoteLane::read(std::uint64_t offset, std::uint32_t length) {
  auto made = std::make_shared<Read>();
  made->bytes.resize(length);
  const std::scoped_lock lock(mutex_);
  for (int i = 0; i < kTries; ++i) {
    const std::int64_t id = cowbird_async_read(thread_, region_, offset, made->bytes.data(), length);
    if (id > 0) {
      cowbird_poll_add(thread_, group_, id);
      made->request = id;
      reads_.push_back(made);
      return made;
    }
    if (!is_full(id)) return nullptr;
    poll_locked(0);
  }
  return nullptr;
}

bool RemoteLane::poll(bool look_for_engine) {
  const std::scoped_lock lock(mutex_);
  return poll_locked(look_for_engine ? kEngineLookUs : 0);
}

bool RemoteLane::is_idle() { return poll_locked(kEngineLookUs) && reads_.empty() && writes_ == 0; }

bool RemoteLane::poll_locked(std::int64_t timeout_us) {
  cowbird_completion_t done[32];
  constexpr int kMost = std::size(done);
  const int n = cowbird_poll_wait(thread_, group_, done, kMost, timeout_us);
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
  return n == kMost ? poll_locked(0) : n != COWBIRD_ENGINE_ABSENT;
}

}  // namespace sluice::rocksdb_cache
