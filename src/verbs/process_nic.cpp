#include "verbs/process_nic.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <optional>
#include <random>
#include <utility>

#include "base/check.h"
#include "nic/quiet_thread.h"
#include "nic/wait_epoll.h"
#include "ports/interface_address.h"
#include "ports/open.h"
#include "rc/neighbors.h"
#include "verbs/uncancelled.h"

namespace sluice::verbs {
namespace {

constexpr Duration kSpin = Duration::microseconds(5);  // the progress thread, after work
constexpr int kMostSpinCredit = 8;
constexpr unsigned kSpinsSaved = 16;                            // one of so many is tried again when they find nothing
constexpr Duration kProgramAwake = Duration::microseconds(50);  // since its last turn: the program polls
constexpr Duration kNap = Duration::microseconds(200);          // while the program polls
constexpr Duration kLongestSleep = Duration::seconds(60);
constexpr Duration kBlindSleep = Duration::microseconds(500);  // when the port has no descriptor
constexpr Duration kFullRetry = Duration::microseconds(100);   // when the port was full
constexpr Duration kCounterPeriod = Duration::seconds(1);
constexpr Duration kPatienceAtTheEnd = Duration::milliseconds(100);
constexpr int kMostNeeded = 4;
constexpr int kOpenTries = 100;
constexpr std::chrono::milliseconds kOpenPause{20};

// A shared NIC: our queue pairs and ids are told apart from the others' by our place (switching/host_stage.h).
void take_place(rc::AdapterConfig& config, std::uint8_t place, Rng rng) {
  constexpr std::uint32_t kQpns = 1u << 16;
  config.mac.bytes[1] = place;
  config.communication_prefix = place;
  config.limits.max_queue_pairs = kQpns / 4;
  config.first_qpn = wire::Qpn(place * kQpns + static_cast<std::uint32_t>(rng.below(kQpns - kQpns / 4)));
}

rc::AdapterConfig adapter_config(const Settings& settings, std::uint8_t place) {
  std::random_device chance;
  const std::uint64_t seed = std::uint64_t{chance()} << 32 | chance();
  rc::AdapterConfig config;
  config.mac = settings.mac;
  config.gids = settings.gids;
  config.mtu = settings.mtu;
  config.seed = seed;
  // perftest starts as many READs as the peer's device says that it answers: Linux rxe says 128.
  config.limits.max_reads_started = 128;
  config.feigned_rnr_ppm = settings.feigned_rnr_ppm;
  config.dcqcn = settings.dcqcn;
  config.line_rate = settings.line_rate;
  // QPNs begin anywhere, so that late packets for a program of the past do not meet one of today's.
  constexpr std::uint32_t kLowest = 0x100;
  constexpr std::uint32_t kQpns = 1u << 24;
  config.first_qpn =
      wire::Qpn(kLowest + static_cast<std::uint32_t>(Rng(seed).below(kQpns - kLowest - config.limits.max_queue_pairs)));
  if (place != 0) take_place(config, place, Rng(seed));
  return config;
}

// A switch or a peer that is being started at the same time may be a little late.
Result<std::unique_ptr<port::Port>> open_patiently(const std::string& spec) {
  auto opened = ports::open_port(spec);
  for (int tries = 0; !opened && tries < kOpenTries && spec.starts_with("shm:"); ++tries) {
    std::this_thread::sleep_for(kOpenPause);
    opened = ports::open_port(spec);
  }
  return opened;
}

// Little at a time, but at once: with a short slice the scheduler lets this thread, when it wakes, take the core from one that
// spins. Since Linux 6.12; before, nothing changes. A real-time thread (chrt) stays what it is.
void ask_for_short_slices() {
  if (sched_getscheduler(0) != SCHED_OTHER) return;
  struct {  // sched_attr, which the C library lacks
    std::uint32_t size = 48;
    std::uint32_t policy = SCHED_OTHER;
    std::uint64_t flags = 0;
    std::int32_t nice = 0;
    std::uint32_t priority = 0;
    std::uint64_t runtime_ns = 100'000;
    std::uint64_t deadline_ns = 0;
    std::uint64_t period_ns = 0;
  } attributes;
  attributes.nice = getpriority(PRIO_PROCESS, 0);
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace

Result<std::unique_ptr<ProcessNic>> ProcessNic::open(const Settings& settings) {
  std::unique_ptr<port::Port> outside;
  if (!settings.port.empty()) {
    auto opened = open_patiently(settings.port);
    if (!opened) return tl::unexpected(opened.error());
    outside = std::move(*opened);
  }
  std::unique_ptr<ProcessNic> nic(new ProcessNic(settings));
  if (!settings.host.empty()) {
    auto place = ports::HostDirectory(settings.host).take_place();
    if (!place) return tl::unexpected(place.error());
    nic->place_ = std::move(*place);
  }
  const rc::AdapterConfig config = adapter_config(settings, nic->place_.number);
  auto port = std::make_unique<LoopbackPort>(config.mac, nic->place_.number, std::move(outside));
  nic->port_ = port.get();
  nic->shard_ = std::make_unique<nic::Shard>(config, std::move(port));
  if (!nic->is_shared()) nic->adapter().neighbors().probe();
  if (settings.port.starts_with("packet:"))
    nic->kernel_kept_quiet_ = ports::keep_kernel_quiet(settings.gids[ipv4_index(settings.gids)].v4());
  nic->wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  nic->epoll_ = epoll_create1(EPOLL_CLOEXEC);
  if (nic->wake_ < 0 || nic->epoll_ < 0) return fail("no file descriptors left: raise the limit (ulimit -n)");
  for (const int descriptor : {nic->wake_, nic->port_->wait_descriptor()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = descriptor;
    if (descriptor >= 0) SLUICE_CHECK(epoll_ctl(nic->epoll_, EPOLL_CTL_ADD, descriptor, &event) == 0);
  }
  if (!settings.counters.empty()) {
    nic->counter_file_ =
        CounterFile::take(settings.counters, settings.gids[ipv4_index(settings.gids)].v4().to_string());
    if (nic->counter_file_) nic->refresh_at_ = nic->now() + kCounterPeriod;
  }
  nic->thread_ = nic::start_quiet_thread([raw = nic.get()] { raw->make_progress(); });
  return nic;
}

ProcessNic::ProcessNic(const Settings& settings) : settings_(settings) {}

ProcessNic::~ProcessNic() {
  retire();
  if (epoll_ >= 0) close(epoll_);
  if (wake_ >= 0) close(wake_);
}

void ProcessNic::transmit() {
  std::optional<Uncancelled> guard;  // for the port's system calls
  if (port_->has_outside()) guard.emplace();
  flush(now());
  wake_if_too_late();
}

// Nothing else tells when a full port has room again: the progress thread looks, and leaves the core to who makes it until then.
void ProcessNic::flush(Time now) {
  do {
    shard_->transmit(now);
  } while (shard_->held_up() && port_->make_room());
  port_->flush(now);
  retry_at_ = shard_->held_up() ? now + kFullRetry : Time::never();
}

std::size_t ProcessNic::turn() {
  std::optional<Uncancelled> guard;
  if (port_->has_outside()) guard.emplace();
  const Time now = clock_.now();
  last_turn_ = now;
  const std::size_t done = work(now);
  if (done != 0) ++found_by_program_;
  keep_armed();
  wake_if_too_late();
  return done;
}

std::size_t ProcessNic::work(Time now) {
  const std::size_t done = shard_->poll(now);
  if (on_connection_event_) {
    rc::ConnectionManager& connections = adapter().connections();
    while (const auto event = connections.poll_event()) on_connection_event_(*event);
    while (const auto event = connections.resolver().poll_event()) on_resolution_event_(*event);
  }
  if (alarm_ <= now) {
    alarm_ = Time::never();
    on_alarm_(now);
  }
  flush(now);
  return done;
}

void ProcessNic::set_alarm(Time when) {
  alarm_ = std::min(alarm_, when);
  wake_if_too_late();
}

void ProcessNic::set_connection_handlers(std::function<void(const rc::ConnectionEvent&)> of_connections,
                                         std::function<void(const rc::ResolutionEvent&)> of_resolutions) {
  adapter().connections();  // from now on MADs are for it
  on_connection_event_ = std::move(of_connections);
  on_resolution_event_ = std::move(of_resolutions);
}

// A port rings once. When the progress thread sleeps, a turn of the program may just have taken the ring meant for it: the port is
// asked to ring again, for what comes when the program polls no more.
void ProcessNic::keep_armed() {
  if (sleeping_until_ != Time() && port_->wait_descriptor() >= 0 && !port_->arm()) wake();
}

// The progress thread must not sleep beyond a deadline that came up meanwhile.
void ProcessNic::wake_if_too_late() {
  if (sleeping_until_ != Time() && next_deadline() < sleeping_until_) wake();
}

void ProcessNic::wake() {
  sleeping_until_ = Time();
  const std::uint64_t one = 1;
  syscall(SYS_write, wake_, &one, sizeof one);
}

void ProcessNic::make_progress() {
  pthread_setname_np(pthread_self(), "sluice-nic");
  prctl(PR_SET_TIMERSLACK, 1'000UL, 0UL, 0UL, 0UL);
  ask_for_short_slices();
  Rest how = Rest::kNone;
  for (;;) {
    Time until;
    std::optional<NicCounters> counted;
    {
      const NicLock guard(lock_);
      if (ended_) return;
      sleeping_until_ = Time();
      if (how == Rest::kSleep) port_->disarm();
      const Time now = clock_.now();
      const std::uint64_t requests = adapter().counters().rx_requests;
      const bool found = work(now) != 0;
      look_at_link();
      look_for_conflict();
      if (found) plan_spin(now, how == Rest::kNone);
      judge(how == Rest::kSleep, adapter().counters().rx_requests != requests);
      if (refresh_at_ <= now) {
        refresh_at_ = now + kCounterPeriod;
        counted = counters();
      }
      how = find_rest(now, until);
      if (how == Rest::kSleep) sleeping_until_ = until;
    }
    if (counted) counter_file_->write(*counted);
    rest(how, until);
  }
}

void ProcessNic::look_at_link() {
  const bool up = port_->state() == port::PortState::kUp;
  link_found_ |= up;
  if (!link_found_ || up == link_up_) return;
  link_up_ = up;
  if (on_link_change_) on_link_change_();
}

// The programs of a shared NIC have one address by intent.
void ProcessNic::look_for_conflict() {
  if (is_shared() || !on_conflict_ || adapter().neighbors().counters().conflicts == 0) return;
  on_conflict_();
  on_conflict_ = nullptr;
}

// Who found the peer's requests: the progress thread, or the program before it. Responses do not count: who waits for them polls.
void ProcessNic::judge(bool woken, bool served) {
  if (woken && served) {
    needed_ = kMostNeeded;
  } else if (woken && found_by_program_ != found_before_) {
    needed_ = std::max(needed_ - 1, 0);
  }
  found_before_ = found_by_program_;
}

// After work: shall the thread spin for more? Only as long as that finds some; a peer that shares our core cannot send meanwhile.
void ProcessNic::plan_spin(Time now, bool found_by_spinning) {
  last_work_ = now;
  if (found_by_spinning && spinning_) spin_credit_ = std::min(spin_credit_ + 1, kMostSpinCredit);
  spinning_ = spin_credit_ > 0 || ++spins_saved_ % kSpinsSaved == 0;
}

ProcessNic::Rest ProcessNic::find_rest(Time now, Time& until) {
  const bool program_awake = now - last_turn_ < kProgramAwake;
  // While the program polls as well, spinning would only take a core from it, or from its peer.
  if (spinning_ && !program_awake) {
    if (now - last_work_ < kSpin) return Rest::kNone;
    spinning_ = false;
    spin_credit_ = std::max(spin_credit_ - 1, 0);
  }
  if (program_awake && needed_ == 0) {
    until = now + kNap;
    return Rest::kNap;
  }
  const bool blind = port_->has_outside() && port_->wait_descriptor() < 0;
  until = std::min({next_deadline(), refresh_at_, now + (blind ? kBlindSleep : kLongestSleep)});
  if (until <= now) return Rest::kNone;
  if (port_->wait_descriptor() < 0 || port_->arm()) return Rest::kSleep;
  port_->disarm();
  return Rest::kNone;
}

void ProcessNic::rest(Rest how, Time until) {
  if (how == Rest::kNone) {
    __builtin_ia32_pause();
    return;
  }
  const Duration left = std::max(until - now(), Duration());
  if (how == Rest::kNap) {
    pollfd wake{wake_, POLLIN, 0};
    timespec timeout{};  // shorter than a second
    timeout.tv_nsec = left.nanoseconds();
    static_cast<void>(ppoll(&wake, 1, &timeout, nullptr));
  } else {
    std::array<epoll_event, 2> events;
    const int count = nic::wait_epoll(epoll_, events, left);
    SLUICE_CHECK(count >= 0 || errno == EINTR);
  }
  std::uint64_t wakes = 0;
  static_cast<void>(!read(wake_, &wakes, sizeof wakes));
}

ports::Descriptor ProcessNic::take_service(std::uint32_t service) const {
  return ports::HostDirectory(settings_.host).take_service(service, place_.number);
}

// Whoever has the lock may never come back to release it.
bool ProcessNic::lock_at_the_end() {
  if (lock_.is_mine()) return false;
  for (const Time end = now() + kPatienceAtTheEnd; !lock_.try_lock(); sched_yield()) {
    if (now() > end) return false;
  }
  return true;
}

void ProcessNic::retire() {
  const Uncancelled guard;
  if (!lock_at_the_end()) {  // a recording is written out with stdio's other files
    if (counter_file_ && lock_.is_mine()) counter_file_->write_last(counters());
    return;
  }
  ended_ = true;
  if (wake_ >= 0) wake();
  lock_.unlock();
  if (thread_.joinable()) thread_.join();
  if (!lock_at_the_end()) return;
  if (on_end_) on_end_(now() + kPatienceAtTheEnd);
  std::optional<NicCounters> counted;
  if (counter_file_) counted = counters();
  if (port_ != nullptr) port_->cut();
  lock_.unlock();
  if (counted) counter_file_->write_last(*counted);
}

void ProcessNic::hold_for_fork() {
  if (lock_.is_mine()) return;
  lock_.lock();
  held_for_fork_ = true;
}

void ProcessNic::release_after_fork() {
  if (std::exchange(held_for_fork_, false)) lock_.unlock();
}

void ProcessNic::abandon() {
  held_for_fork_ = false;
  lock_.reset();
  ended_ = true;
  port_->abandon();
  if (counter_file_) counter_file_->abandon();
  if (thread_.joinable()) thread_.detach();  // it stayed with the parent
}

}  // namespace sluice::verbs
