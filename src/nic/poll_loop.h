// Poll loop: one thread's world in real time. Turns machines, ports and schedulers, and waits as cheaply as their work allows.
//
// Life:       add() what is to be turned, add_port() what may wake it -> run() until stop().  Or turn() by the caller's own loop.
// A turn:     read the clock -> poll(now) of each, in the order added -> transmit(now) of each -> flush() of all ports, so that all frames of a
//             turn leave together.
// Stopped:    a program may be stopped anywhere (SIGSTOP, a frozen group, a machine that sleeps) and go on seconds later. What leaves is judged by the
//             time that it is then: the clock is read again before transmit(), and before each port shows what that has given it. If longest_lag
//             has passed in between, they discard it; and so they do then with what they were given in poll(), or could not send in the turn
//             before. Protocols send it again, or know by then that they must not. What remains is one store, or one call of the kernel's.
// Waiting:    after an empty turn: first spin, then sched_yield, then sleep in epoll until a port's descriptor, a watched one,
//             post(), wake() or the earliest deadline. Two processes that only spin on one core cost each other 8 ms a round
//             trip, with yields 3 us; a wake from sleep costs 22 us and more. So: yield early, sleep late. How long a yield
//             lasts tells whether others want the core; on a core of our own spinning is better, a yield costs 0.5 us there.
// Errors:     set-up aborts when the kernel has no descriptors left; nothing else fails.
// Threads:    one owner; post(), wake() and stop() from any thread, wake() and stop() from a signal handler, too.
// Source:     ARCHITECTURE.md "Real time and virtual time"; docs/performance.md for the figures of WaitPolicy.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/time.h"
#include "nic/clock.h"
#include "port/port.h"

namespace sluice::nic {

// Anything that a loop turns.
class Pollable {
 public:
  virtual ~Pollable() = default;
  // Does what there is to do, within bounds, and returns how much that was; 0 lets the loop come to rest.
  virtual std::size_t poll(Time now) = 0;
  // Gives its ports what all pollables together have produced in this turn; the loop flushes them.
  virtual void transmit(Time now) { static_cast<void>(now); }
  // When poll() wants to be called though no port has anything; in the past: at once.
  virtual Time next_deadline() const { return Time::never(); }
};

// Whoever judges what it sends by the clock reckons with as much (rc/remote_rc.h, "Flight"). Not less than a crowded machine makes a process wait for
// its turn: what is discarded is sent again after a time-out only.
inline constexpr Duration kLongestLag = Duration::milliseconds(100);

struct WaitPolicy {
  std::uint32_t spin_turns = 64;         // empty turns before each sched_yield while the core is ours alone
  std::uint32_t crowded_spin_turns = 2;  // … and while others take it when we yield
  Duration crowded_yield = Duration::nanoseconds(900);   // a yield that lasts longer has let somebody else run
  Duration awake = Duration::microseconds(100);          // without work for this long: sleep
  Duration shortest_sleep = Duration::microseconds(80);  // a deadline nearer than this is awaited with yields
  Duration blind_nap = Duration::microseconds(500);      // longest sleep while a port has no descriptor to wait on
  Duration look_up = Duration::milliseconds(1);          // under load: how often watched descriptors are looked at
  Duration longest_lag = kLongestLag;                    // see Stopped
};

struct PollLoopCounters {
  std::uint64_t turns = 0;
  std::uint64_t busy_turns = 0;  // turns in which something was done
  std::uint64_t yields = 0;
  std::uint64_t sleeps = 0;
  std::uint64_t posts = 0;  // functions run for other threads
  std::uint64_t stops = 0;  // times that frames were discarded, because the program had been stopped amid a turn
};

class PollLoop {
 public:
  // Throws std::system_error where the process may have no more descriptors.
  explicit PollLoop(WaitPolicy policy = {});
  ~PollLoop();
  PollLoop(const PollLoop&) = delete;
  PollLoop& operator=(const PollLoop&) = delete;

  // --- set-up; the owner's thread, also from within a turn ---
  // The object stays alive until remove(). A pollable may remove itself or others in poll().
  void add(Pollable& pollable);
  void remove(Pollable& pollable);
  // The loop wakes when frames arrive there and at the port's own deadlines, and flushes it once a turn. Polling it is some pollable's work.
  void add_port(port::Port& port);
  void remove_port(port::Port& port);
  // Calls on_ready when the descriptor is readable (level-triggered): at once when idle, within policy.look_up under load.
  void watch(int descriptor, std::function<void(Time)> on_ready);
  void unwatch(int descriptor);

  // --- running; the owner's thread ---
  // Turns and waits until stop().
  void run();
  // Turns and waits until `done` says so (asked after every turn), or stop(): false then.
  bool run_until(const std::function<bool()>& done);
  // One turn, never waits. Returns how much was done.
  std::size_t turn();
  Time now() const { return clock_.now(); }
  const PollLoopCounters& counters() const { return counters_; }

  // --- any thread ---
  void post(std::function<void(Time)> function);
  void wake();
  void stop();
  bool stopping() const { return stop_.load(std::memory_order_relaxed); }

 private:
  struct Watch;

  std::size_t turn(Time now);
  // At the end of a turn: shows what has been given to the ports since `leaving`, if that is not too long ago.
  void flush_ports(Time leaving);
  void discard();
  void wait();
  void yield(Time now);
  void sleep(Time now, Time until);
  bool arm_ports();
  void disarm_ports();
  void listen_to_ports();
  // Waits at most until `until` for any descriptor and serves the watched ones; `now` itself: only looks.
  void wait_for_descriptors(Time now, Time until);
  std::size_t run_posted(Time now);
  Time next_deadline() const;
  bool can_be_woken() const;

  WaitPolicy policy_;
  Clock clock_;
  PollLoopCounters counters_;
  std::vector<Pollable*> pollables_;  // null: removed, until the end of the next turn
  std::vector<port::Port*> ports_;
  std::vector<std::unique_ptr<Watch>> watches_;
  int epoll_ = -1;
  int wake_descriptor_ = -1;

  std::uint32_t empty_turns_ = 0;
  std::uint32_t turns_to_yield_ = 0;
  Time last_work_;
  Time next_look_;
  Time flushed_at_ = Time::never();
  Time latest_;  // the clock's last reading in a turn

  std::atomic<bool> stop_{false};
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> posted_{false};
  std::mutex mutex_;
  std::vector<std::function<void(Time)>> queue_;  // guarded by mutex_
};

// Turns anything with poll(now), such as a RemoteRc or a MessageServerRc.
template <class T>
class Polled final : public Pollable {
 public:
  explicit Polled(T& target) : target_(target) {}
  std::size_t poll(Time now) override { return target_.poll(now); }

 private:
  T& target_;
};

// Calls a function once a period; for work that nobody waits for.
class Periodic final : public Pollable {
 public:
  Periodic(Duration period, std::function<void(Time)> function) : period_(period), function_(std::move(function)) {}
  std::size_t poll(Time now) override {
    if (now < next_) return 0;
    next_ = now + period_;
    function_(now);
    return 0;  // no reason to stay awake
  }
  Time next_deadline() const override { return next_; }

 private:
  Duration period_;
  std::function<void(Time)> function_;
  Time next_;
};

// A loop with a thread of its own. What it turns is added by the set-up function, in that thread, before the first turn.
class LoopThread {
 public:
  explicit LoopThread(std::function<void(PollLoop&)> set_up = {}, WaitPolicy policy = {});
  ~LoopThread();  // stops and joins

  PollLoop& loop() { return loop_; }
  // Runs `function` in the loop's thread and waits for its end. REQUIRES: called from another thread, and nobody stops the loop meanwhile.
  void call(const std::function<void(Time)>& function);

 private:
  PollLoop loop_;
  std::thread thread_;
};

}  // namespace sluice::nic
