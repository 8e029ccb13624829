#include "nic/poll_loop.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <future>
#include <system_error>

#include "base/check.h"
#include "nic/wait_epoll.h"

namespace sluice::nic {

struct PollLoop::Watch {
  int descriptor;
  std::function<void(Time)> on_ready;
  bool removed = false;
};

namespace {

void add_to_epoll(int epoll, int descriptor, void* tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = tag;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) == 0) return;
  SLUICE_CHECK(errno == EEXIST || errno == EBADF || errno == EPERM);
  // One that is known already is fine: ports may have closed and opened theirs meanwhile, so they are added anew each time. Who watches it
  // is told of it, whether or not it is a port's as well.
  if (errno == EEXIST && tag != nullptr) epoll_ctl(epoll, EPOLL_CTL_MOD, descriptor, &event);
}

constexpr Duration kLongestSleep = Duration::seconds(60);

}  // namespace

PollLoop::PollLoop(WaitPolicy policy)
    : policy_(policy), epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  turns_to_yield_ = policy_.spin_turns;
  if (epoll_ < 0 || wake_descriptor_ < 0) {
    const int error = errno;
    if (epoll_ >= 0) close(epoll_);
    throw std::system_error(error, std::generic_category(), "a poll loop's descriptors");
  }
  add_to_epoll(epoll_, wake_descriptor_, nullptr);
}

PollLoop::~PollLoop() {
  close(epoll_);
  close(wake_descriptor_);
}

void PollLoop::add(Pollable& pollable) { pollables_.push_back(&pollable); }

void PollLoop::remove(Pollable& pollable) {
  std::replace(pollables_.begin(), pollables_.end(), &pollable, static_cast<Pollable*>(nullptr));
}

void PollLoop::add_port(port::Port& port) { ports_.push_back(&port); }

void PollLoop::remove_port(port::Port& port) {
  std::erase(ports_, &port);
  const int descriptor = port.wait_descriptor();
  if (descriptor < 0) return;
  epoll_ctl(epoll_, EPOLL_CTL_DEL, descriptor, nullptr);
  // A listener and its ports may share one descriptor.
  for (const auto& watch : watches_) {
    if (watch->descriptor == descriptor && !watch->removed) add_to_epoll(epoll_, descriptor, watch.get());
  }
}

void PollLoop::watch(int descriptor, std::function<void(Time)> on_ready) {
  unwatch(descriptor);
  watches_.push_back(std::make_unique<Watch>(Watch{descriptor, std::move(on_ready)}));
  add_to_epoll(epoll_, descriptor, watches_.back().get());
}

void PollLoop::unwatch(int descriptor) {
  for (auto& watch : watches_) {
    if (watch->descriptor != descriptor || watch->removed) continue;
    epoll_ctl(epoll_, EPOLL_CTL_DEL, descriptor, nullptr);
    watch->removed = true;  // freed after the turn: it may be the one that is being served
  }
}

void PollLoop::run() {
  run_until([] { return false; });
}

bool PollLoop::run_until(const std::function<bool()>& done) {
  while (!stopping()) {
    // Not by the last flush's time: the program may have been stopped in that.
    const std::size_t work = turn(clock_.now());
    if (done()) return true;
    if (work == 0) wait();
  }
  return false;
}

std::size_t PollLoop::turn() { return turn(clock_.now()); }

std::size_t PollLoop::turn(Time now) {
  std::size_t work = 0;
  ++counters_.turns;
  // A port that cannot send at once keeps the frames, and this loop awake: if no turn came, the program was stopped.
  if (now - flushed_at_ > policy_.longest_lag) discard();
  if (posted_.load(std::memory_order_relaxed)) work += run_posted(now);
  for (std::size_t i = 0; i < pollables_.size(); ++i) {
    if (pollables_[i] != nullptr) work += pollables_[i]->poll(now);
  }
  // What was submitted in a turn amid which the program was stopped may have expired: the clock is read again.
  const Time leaving = clock_.now();
  if (leaving - now > policy_.longest_lag) [[unlikely]] {
    ++counters_.stops;
    discard();
  }
  for (std::size_t i = 0; i < pollables_.size(); ++i) {
    if (pollables_[i] != nullptr) pollables_[i]->transmit(leaving);
  }
  flush_ports(leaving);
  std::erase(pollables_, nullptr);
  if (now >= next_look_ && !watches_.empty()) {
    next_look_ = now + policy_.look_up;
    wait_for_descriptors(now, now);
  }
  if (work != 0) {
    ++counters_.busy_turns;
    last_work_ = now;
    empty_turns_ = 0;
  }
  return work;
}

void PollLoop::flush_ports(Time leaving) {
  latest_ = leaving;
  bool stopped = false;
  // Before each call of the kernel's. Whether a port makes one is not known before: 24 ns a port.
  const auto in_time = [&] {
    latest_ = clock_.now();
    stopped = latest_ - leaving > policy_.longest_lag;
    return !stopped;
  };
  for (port::Port* port : ports_) {
    while (in_time() && port->flush_some(latest_)) {
    }
    if (stopped) port->discard();
  }
  if (stopped) ++counters_.stops;
  flushed_at_ = latest_;
}

void PollLoop::discard() {
  for (port::Port* port : ports_) port->discard();
}

void PollLoop::wait() {
  if (++empty_turns_ < turns_to_yield_) {
    __builtin_ia32_pause();
    return;
  }
  const Time now = latest_;
  const Time deadline = next_deadline();
  if (now - last_work_ < policy_.awake || deadline < now + policy_.shortest_sleep) return yield(now);
  sleep(clock_.now(), std::min(deadline, now + (can_be_woken() ? kLongestSleep : policy_.blind_nap)));
}

void PollLoop::yield(Time now) {
  ++counters_.yields;
  sched_yield();
  const bool crowded = clock_.now() - now > policy_.crowded_yield;
  turns_to_yield_ = crowded ? policy_.crowded_spin_turns : policy_.spin_turns;
  empty_turns_ = 0;
}

void PollLoop::sleep(Time now, Time until) {
  sleeping_.store(true, std::memory_order_seq_cst);
  // What was posted before the flag was up has not written to the descriptor.
  if (posted_.load(std::memory_order_seq_cst) || stopping() || !arm_ports()) {
    sleeping_.store(false, std::memory_order_relaxed);
    return;
  }
  listen_to_ports();
  ++counters_.sleeps;
  wait_for_descriptors(now, until);
  sleeping_.store(false, std::memory_order_relaxed);
  disarm_ports();
}

bool PollLoop::arm_ports() {
  for (std::size_t i = 0; i < ports_.size(); ++i) {
    if (ports_[i]->wait_descriptor() < 0 || ports_[i]->arm()) continue;
    for (std::size_t armed = 0; armed <= i; ++armed) ports_[armed]->disarm();
    return false;
  }
  return true;
}

void PollLoop::disarm_ports() {
  for (port::Port* port : ports_) port->disarm();
}

void PollLoop::listen_to_ports() {
  for (port::Port* port : ports_) {
    if (port->wait_descriptor() >= 0) add_to_epoll(epoll_, port->wait_descriptor(), nullptr);
  }
}

void PollLoop::wait_for_descriptors(Time now, Time until) {
  std::array<epoll_event, 32> events;
  const int count = wait_epoll(epoll_, events, until - now);
  for (int i = 0; i < count; ++i) {
    auto* watch = static_cast<Watch*>(events[static_cast<std::size_t>(i)].data.ptr);
    if (watch != nullptr && !watch->removed) watch->on_ready(clock_.now());
  }
  std::uint64_t wakes = 0;
  if (count > 0) static_cast<void>(!read(wake_descriptor_, &wakes, sizeof wakes));
  std::erase_if(watches_, [](const auto& watch) { return watch->removed; });
  latest_ = clock_.now();
}

std::size_t PollLoop::run_posted(Time now) {
  std::vector<std::function<void(Time)>> functions;
  {
    const std::lock_guard lock(mutex_);
    functions.swap(queue_);
    posted_.store(false, std::memory_order_relaxed);
  }
  for (auto& function : functions) function(now);
  counters_.posts += functions.size();
  return functions.size();
}

Time PollLoop::next_deadline() const {
  Time earliest = Time::never();
  for (const Pollable* pollable : pollables_) {
    if (pollable != nullptr) earliest = std::min(earliest, pollable->next_deadline());
  }
  for (const port::Port* port : ports_) earliest = std::min(earliest, port->next_deadline());
  return earliest;
}

bool PollLoop::can_be_woken() const {
  return std::all_of(ports_.begin(), ports_.end(), [](const port::Port* port) { return port->wait_descriptor() >= 0; });
}

void PollLoop::post(std::function<void(Time)> function) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(function));
    posted_.store(true, std::memory_order_seq_cst);
  }
  if (sleeping_.load(std::memory_order_seq_cst)) wake();
}

void PollLoop::wake() {
  const std::uint64_t one = 1;
  static_cast<void>(!write(wake_descriptor_, &one, sizeof one));
}

void PollLoop::stop() {
  stop_.store(true, std::memory_order_seq_cst);
  wake();
}

LoopThread::LoopThread(std::function<void(PollLoop&)> set_up, WaitPolicy policy)
    : loop_(policy), thread_([this, set_up = std::move(set_up)] {
        if (set_up) set_up(loop_);
        loop_.run();
      }) {}

LoopThread::~LoopThread() {
  loop_.stop();
  thread_.join();
}

void LoopThread::call(const std::function<void(Time)>& function) {
  SLUICE_CHECK(!loop_.stopping());
  std::promise<void> done;
  loop_.post([&](Time now) {
    function(now);
    done.set_value();
  });
  done.get_future().wait();
}

}  // namespace sluice::nic
