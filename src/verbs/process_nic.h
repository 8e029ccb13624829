// The NIC of this process: an adapter on a port behind one lock, turned by whoever of the program's threads is in a verb, and by a
// thread of its own while none is.
//
// Turning:    posting sends at once (transmit()); polling an empty completion queue turns the whole NIC (turn()). So a program that
//             polls meets no thread switch on the way of a message.
// Thread:     one-sided servers never call a verb while data lands in their memory, and sleepers wait for completion events. The
//             progress thread sleeps on the port's descriptor, armed, when it is needed: when it was it that found the last
//             requests. When the program's threads find them first, it only looks every kNap whether they still do.
//             It never yields while it spins: a program that spins on its memory would keep the core for a whole time slice, and
//             a wake takes it away from it at once.
// Fork:       the child keeps the objects but its cable is cut; it can open no device of its own either. Exec is fine.
// Counters:   with SLUICE_COUNTERS the progress thread wakes every second at least, copies them under the lock and writes them after it,
//             which keeps the thread busy for 0.1 ms. A file system that blocks keeps it longer: the program must poll by itself then.
// Exit:       retire() tells the peers of rdma_cm's connections, and closes the port, so that a recording is complete.
// Threads:    any; all but lock(), now() and settings() REQUIRES the lock.
// Source:     ARCHITECTURE.md "Real time and virtual time": waiting; servers of one-sided memory call no verb while data lands.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "nic/clock.h"
#include "nic/nic.h"
#include "ports/host_directory.h"
#include "rc/connection_manager.h"
#include "verbs/counter_file.h"
#include "verbs/loopback_port.h"
#include "verbs/settings.h"
#include "verbs/spin_lock.h"

namespace sluice::verbs {

class ProcessNic {
 public:
  static Result<std::unique_ptr<ProcessNic>> open(const Settings& settings);
  ~ProcessNic();
  ProcessNic(const ProcessNic&) = delete;
  ProcessNic& operator=(const ProcessNic&) = delete;

  SpinLock& lock() { return lock_; }
  Time now() const { return clock_.now(); }
  const Settings& settings() const { return settings_; }

  rc::Adapter& adapter() { return shard_->adapter(); }
  // Sends what has been posted.
  void transmit();
  // Receives, lets time pass, sends; as the program. Returns how much was done.
  std::size_t turn();
  // Called with each event of the connection manager, with the lock held; may call it.
  void set_connection_handlers(std::function<void(const rc::ConnectionEvent&)> of_connections,
                               std::function<void(const rc::ResolutionEvent&)> of_resolutions);

  // Calls the handler at that time, or earlier, with the lock held; once. REQUIRES the lock.
  void set_alarm_handler(std::function<void(Time now)> handler) { on_alarm_ = std::move(handler); }
  void set_alarm(Time when);

  // Called when the link goes down and when it comes back, with the lock held.
  void set_link_handler(std::function<void()> handler) { on_link_change_ = std::move(handler); }
  // Called once, when another NIC on our network is found to have our address, with the lock held.
  void set_conflict_handler(std::function<void()> handler) {
    on_conflict_ = std::move(handler);
    look_for_conflict();  // the answer may have been here before the handler, and nothing else comes by that would wake us
  }
  // Called once, when the process ends, with the lock held; may turn the NIC until then.
  void set_end_handler(std::function<void(Time until)> handler) { on_end_ = std::move(handler); }
  // A link is taken to be up until one that was up goes down: the other end of a cable may come later than we. REQUIRES the lock.
  bool link_up() const { return link_up_; }
  // REQUIRES the lock.
  const port::PortCounters& port_counters() const { return port_->counters(); }

  // On a NIC that several programs share: nobody else listens for this service as long as we hold the lock. Empty: another does.
  ports::Descriptor take_service(std::uint32_t service) const;
  bool is_shared() const { return place_.number != 0; }

  std::size_t device_memory_used = 0;  // guarded by the lock

  // At the end of the process. Does nothing if the lock is not to be had: exit() in a signal handler that came upon a verb.
  void retire();
  // Around a fork: nobody is in the NIC while the child is made, so it gets objects that are whole. Not if this thread itself is: a
  // signal handler that forks.
  void hold_for_fork();
  void release_after_fork();
  // In the child of a fork.
  void abandon();

 private:
  explicit ProcessNic(const Settings& settings);
  std::size_t work(Time now);
  void make_progress();
  enum class Rest : std::uint8_t { kNone, kNap, kSleep };  // asleep, whoever needs the thread earlier wakes it

  Rest find_rest(Time now, Time& until);
  void rest(Rest how, Time until);
  void plan_spin(Time now, bool found_by_spinning);
  void judge(bool woken, bool served);
  void flush(Time now);
  Time next_deadline() const {
    return std::min({shard_->adapter().next_deadline(), port_->next_deadline(), retry_at_, alarm_});
  }
  bool lock_at_the_end();
  NicCounters counters() { return {.nic = adapter().counters(), .port = port_->totals()}; }
  void look_at_link();
  void look_for_conflict();
  void keep_armed();
  void wake_if_too_late();
  void wake();

  Settings settings_;
  ports::HostDirectory::Place place_{};  // number 0: the NIC is ours alone
  SpinLock lock_;
  nic::Clock clock_;
  std::unique_ptr<nic::Shard> shard_;
  LoopbackPort* port_ = nullptr;  // the shard's

  // Guarded by lock_.
  std::function<void(const rc::ConnectionEvent&)> on_connection_event_;
  std::function<void(const rc::ResolutionEvent&)> on_resolution_event_;
  std::function<void(Time)> on_alarm_;
  Time alarm_ = Time::never();
  Time retry_at_ = Time::never();  // the port was full
  bool held_for_fork_ = false;
  std::function<void()> on_link_change_;
  std::function<void()> on_conflict_;  // empty once it has been called
  std::function<void(Time)> on_end_;
  bool link_found_ = false;  // it has been up
  bool link_up_ = true;
  Time last_turn_;                      // by the program
  std::uint64_t found_by_program_ = 0;  // turns of the program that found something
  std::uint64_t found_before_ = 0;      // … up to the progress thread's last turn
  Time last_work_;                      // of the progress thread
  int needed_ = 0;                      // above 0: the progress thread finds requests before the program does
  Time sleeping_until_ = Time();        // of the progress thread; zero: it does not sleep
  bool ended_ = false;
  Time refresh_at_ = Time::never();  // of counter_file_

  bool spinning_ = false;  // the progress thread, after work
  int spin_credit_ = 0;    // above 0: spinning has found work of late
  unsigned spins_saved_ = 0;

  std::unique_ptr<CounterFile> counter_file_;  // null: nobody wants it
  ports::Descriptor kernel_kept_quiet_;        // on a wire, where our address may be the kernel's as well
  int wake_ = -1;
  int epoll_ = -1;
  std::thread thread_;
};

using NicLock = std::lock_guard<SpinLock>;

}  // namespace sluice::verbs
