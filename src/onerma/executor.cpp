#include "onerma/executor.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace sluice::onerma {

Executor::Executor(const ExecutorParameters& parameters, const CongestionPolicy& policy, CommandSlots& slots)
    : parameters_(parameters), policy_(policy), slots_(slots), ring_(parameters.ring) {
  local_.window.size = parameters.first_local;
  local_.rtt = parameters.base_rtt;
}

PathId Executor::add_path(Direction direction) {
  Path path;
  path.target = direction == Direction::kInbound ? parameters_.remote_target : parameters_.write_target;
  path.window.size = parameters_.first_remote;
  path.rtt = parameters_.base_rtt;
  paths_.push_back(path);
  paced_.reserve(paths_.capacity());
  return PathId(static_cast<std::uint32_t>(paths_.size() - 1));
}

void Executor::submit(Time now, Request& request) {
  Path& path = paths_[request.path.value];
  request.next = nullptr;
  (path.first == nullptr ? path.first : path.last->next) = &request;
  path.last = &request;
  if (path.state == State::kIdle) place(now, request.path.value);
}

std::size_t Executor::poll(Time now) {
  std::size_t done = 0;
  for (; !ring_.empty(); ++done) on_completion(now, ring_.pop());
  wake(now);
  while (issue_one(now)) ++done;
  return done;
}

// The path stays where it is in line, perhaps with nothing to send.
void Executor::withdraw(Time now, PathId id, bool (*unwanted)(const Request& request)) {
  Path& path = paths_[id.value];
  Request* out = nullptr;
  Request** out_end = &out;
  Request* last = nullptr;
  for (Request** link = &path.first; *link != nullptr;) {
    Request& request = **link;
    if (unwanted(request)) {
      *link = request.next;
      *out_end = &request;
      out_end = &request.next;
    } else {
      last = &request;
      link = &request.next;
    }
  }
  *out_end = nullptr;
  path.last = last;
  while (out != nullptr) {
    Request& request = *std::exchange(out, out->next);
    ++counters_.by_status[static_cast<std::size_t>(Status::kDispatchTimeout)];
    Completion completion;
    completion.op = request.op;
    completion.status = Status::kDispatchTimeout;
    request.on_complete(now, request, completion);
  }
}

Time Executor::next_deadline() const {
  const bool held =
      first_ready_ != kNone && local_.outstanding < local_.window.operations() && !slots_.full() && !ring_.full();
  Time ready = held ? local_.next_issue : Time::never();
  if (held && refused_) ready = std::max(ready, slots_.next_try(ring_));
  return paced_.empty() ? ready : std::min(ready, paced_.front().when);
}

void Executor::Limited::on_issue(Time now, Duration slack) {
  ++outstanding;
  next_issue = std::max(next_issue, now - slack) + window.interval(rtt);
}

// What a smaller window has put off is due as the present one says: from a hundredth a success makes a quarter.
void Executor::Limited::on_growth(Time now) {
  if (window.size < CongestionWindow::kOne) next_issue = std::min(next_issue, now + window.interval(rtt));
}

// Where a path that has just changed belongs. REQUIRES: it is in no line.
void Executor::place(Time now, std::uint32_t index) {
  Path& path = paths_[index];
  if (path.first == nullptr) {
    path.state = State::kIdle;
  } else if (path.outstanding >= path.window.operations()) {
    path.state = State::kFull;
  } else if (path.next_issue > now) {
    path.state = State::kPaced;
    paced_.push_back({path.next_issue, index});
    std::push_heap(paced_.begin(), paced_.end());
  } else {
    path.state = State::kReady;
    path.next = kNone;
    (first_ready_ == kNone ? first_ready_ : paths_[last_ready_].next) = index;
    last_ready_ = index;
  }
}

void Executor::wake(Time now) {
  while (!paced_.empty() && paced_.front().when <= now) {
    const std::uint32_t index = paced_.front().path;
    std::pop_heap(paced_.begin(), paced_.end());
    paced_.pop_back();
    place(now, index);
  }
}

bool Executor::issue_one(Time now) {
  if (first_ready_ == kNone || local_.outstanding >= local_.window.operations() || local_.next_issue > now)
    return false;
  const std::uint32_t index = first_ready_;
  Path& path = paths_[index];
  if (path.first == nullptr) {  // withdrawn
    first_ready_ = path.next;
    path.state = State::kIdle;
    return issue_one(now);
  }
  if (path.outstanding >= path.window.operations()) {  // cut meanwhile
    first_ready_ = path.next;
    place(now, index);
    return issue_one(now);
  }
  Request& request = *path.first;
  const bool issued = slots_.issue(now, {.op = request.op,
                                         .grant = request.grant,
                                         .address = request.address,
                                         .local = request.local,
                                         .user = reinterpret_cast<std::uintptr_t>(&request),
                                         .completions = &ring_});
  refused_ = !issued;
  if (!issued) return false;
  path.first = request.next;
  path.on_issue(now, parameters_.pacing_slack);
  local_.on_issue(now, parameters_.pacing_slack);
  ++counters_.issued;
  first_ready_ = path.next;
  place(now, index);
  return true;
}

void Executor::on_completion(Time now, const Completion& completion) {
  Request& request = *reinterpret_cast<Request*>(static_cast<std::uintptr_t>(completion.user));
  const std::uint32_t index = request.path.value;
  Path& path = paths_[index];
  ++counters_.by_status[static_cast<std::size_t>(completion.status)];
  --path.outstanding;
  --local_.outstanding;
  react(now, path, completion);
  if (path.state == State::kFull) place(now, index);
  request.on_complete(now, request, completion);
}

void Executor::react(Time now, Path& path, const Completion& completion) {
  switch (completion.status) {
    case Status::kOk: {
      // An answer that has lain here for longer, because nobody looked, says nothing of the round trip.
      const Duration total = std::min(completion.total_delay, slots_.longest(completion.op));
      path.measure(total);
      local_.measure(total);
      policy_.on_success(now, local_.window, completion.issue_delay, parameters_.local_target, local_.rtt);
      policy_.on_success(now, path.window, completion.remote_delay(), path.target, path.rtt);
      path.on_growth(now);
      local_.on_growth(now);
      return;
    }
    case Status::kDispatchTimeout: return policy_.on_failure(now, local_.window, local_.rtt);
    case Status::kNack:
    case Status::kTimeout: return policy_.on_failure(now, path.window, path.rtt);
    default: return;  // says nothing of congestion
  }
}

}  // namespace sluice::onerma
