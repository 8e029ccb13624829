#include "cowbird/poll_group.h"

#include <algorithm>

namespace sluice::cowbird {
namespace {

constexpr std::size_t kCompactAt = 1024;

bool earlier(RequestId a, RequestId b) { return a.sequence() < b.sequence(); }

}  // namespace

std::vector<RequestId>::iterator PollGroup::find(Lane& lane, RequestId id) {
  return std::lower_bound(lane.ids.begin() + static_cast<std::ptrdiff_t>(lane.first), lane.ids.end(), id, earlier);
}

Status PollGroup::add(RequestId id) {
  if (!channel_.is_issued(id)) return Status::kNoSuchRequest;
  Lane& lane = lanes_[id.is_write()];
  if (lane.size() == 0 || earlier(lane.ids.back(), id)) {
    lane.ids.push_back(id);
    return Status::kOk;
  }
  const auto at = find(lane, id);
  if (at == lane.ids.end() || *at != id) lane.ids.insert(at, id);
  return Status::kOk;
}

Status PollGroup::remove(RequestId id) {
  Lane& lane = lanes_[id.is_write()];
  const auto at = find(lane, id);
  if (at == lane.ids.end() || *at != id) return Status::kNoSuchRequest;
  lane.ids.erase(at);
  return Status::kOk;
}

void PollGroup::take(Lane& lane, std::span<Completion> out, std::size_t& count) {
  while (count < out.size() && lane.size() != 0 && channel_.is_complete(lane.ids[lane.first])) {
    const RequestId id = lane.ids[lane.first++];
    out[count++] = {id, channel_.status_of(id)};
  }
  if (lane.size() == 0) {
    lane.ids.clear();
    lane.first = 0;
  } else if (lane.first >= kCompactAt) {
    lane.ids.erase(lane.ids.begin(), lane.ids.begin() + static_cast<std::ptrdiff_t>(lane.first));
    lane.first = 0;
  }
}

std::size_t PollGroup::collect(std::span<Completion> out) {
  channel_.advance();
  std::size_t count = 0;
  take(lanes_[writes_first_], out, count);
  take(lanes_[!writes_first_], out, count);
  if (count == out.size()) writes_first_ = !writes_first_;
  return count;
}

}  // namespace sluice::cowbird
