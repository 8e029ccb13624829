#include "rack/directory/membership.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <utility>

#include "nic/quiet_thread.h"
#include "rack/settings/run_directory.h"

namespace sluice::rack {
namespace {

std::chrono::nanoseconds to_chrono(Duration d) { return std::chrono::nanoseconds(d.nanoseconds()); }

// One watch at the directory lasts so long: each costs an idle rack what a renewal of the lease does, and more. Those who come and go, and leave
// their last one to the directory until it is over, have not got beyond the first.
constexpr Duration kFirstWatch = Duration::milliseconds(500);
constexpr Duration kWatch = Duration::seconds(2);
// Who leaves cuts it, and again after this: it may not have begun yet, in what cuts.
constexpr Duration kCutAgain = Duration::milliseconds(20);
// Before the next, where one brought nothing and did not last.
constexpr Duration kPause = Duration::milliseconds(200);
// Between two looks whether a rack that has begun anew gives us our address after all.
constexpr Duration kMisplaced = Duration::seconds(10);

// What a node says of itself: which machine it is of, the directory adds.
std::map<std::string, std::string> said_by(const NodeDescription& node) {
  auto attributes = node.attributes;
  attributes.erase(kMachineAttribute);
  return attributes;
}

// Somebody has a lease on the name.
bool is_taken(const Error& error) { return error.message.find("is taken") != std::string::npos; }

}  // namespace

// The number of our lease, in a file that is locked as long as we live.
class Membership::LeaseFile {
 public:
  // Null: it cannot be had.
  static std::unique_ptr<LeaseFile> take(const std::string& path) {
    const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (descriptor < 0) return nullptr;
    auto file = std::unique_ptr<LeaseFile>(new LeaseFile(descriptor));
    return flock(descriptor, LOCK_EX | LOCK_NB) == 0 && !is_removed(descriptor) ? std::move(file) : nullptr;
  }
  ~LeaseFile() { close(descriptor_); }

  // Of who had it before us; 0: nobody, or they have left.
  LeaseId read() const {
    std::array<char, 24> text{};
    const auto length = pread(descriptor_, text.data(), text.size(), 0);
    std::uint64_t number = 0;
    if (length > 0) std::from_chars(text.data(), text.data() + length, number);
    return LeaseId(number);
  }
  void write(LeaseId lease) const {
    const std::string text = std::to_string(lease.value) + "\n";
    const bool written = ftruncate(descriptor_, 0) == 0 && pwrite(descriptor_, text.data(), text.size(), 0) > 0;
    static_cast<void>(written);  // our successor will have to wait
  }

 private:
  explicit LeaseFile(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

Result<std::unique_ptr<Membership>> Membership::join(Directory& directory, NodeDescription description,
                                                     MembershipConfig config, OnChange on_change) {
  const auto give_up = std::chrono::steady_clock::now() + to_chrono(config.patience);
  std::unique_ptr<LeaseFile> file;
  for (;;) {
    // A process that was killed keeps it until its last thread has ended.
    if (!file && !config.lease_file.empty()) file = LeaseFile::take(config.lease_file);
    // Whoever had the name is dead: nobody else holds the file.
    if (file && file->read().value != 0) static_cast<void>(directory.leave(file->read()));
    auto joined = directory.join(description, config.lease);
    if (joined) {
      std::unique_ptr<Membership> membership(new Membership(directory, std::move(description), std::move(config),
                                                            std::move(*joined), std::move(file), std::move(on_change)));
      membership->begin();
      return membership;
    }
    const bool taken = is_taken(joined.error());
    const bool waits = config.on_taken ? taken && config.on_taken(joined.error())
                                       : taken && std::chrono::steady_clock::now() < give_up;
    if (!waits) return tl::unexpected(joined.error());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

Membership::Membership(Directory& directory, NodeDescription description, MembershipConfig config,
                       Registration registration, std::unique_ptr<LeaseFile> file, OnChange on_change)
    : directory_(directory),
      config_(std::move(config)),
      on_change_(std::move(on_change)),
      file_(std::move(file)),
      description_(std::move(description)),
      lease_(registration.lease),
      registration_(std::move(registration)) {}

// Where there is no room for a thread it throws, and what has begun ends with the membership.
void Membership::begin() {
  if (file_) file_->write(lease_);
  keeper_ = nic::start_quiet_thread([this] { keep_lease(); });
  if (!on_change_) return;
  watcher_ = nic::start_quiet_thread([this] {
    watch();
    const std::lock_guard lock(mutex_);
    has_watched_ = true;
    stop_.notify_all();
  });
}

Membership::~Membership() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    stop_.notify_all();
  }
  if (keeper_.joinable()) keeper_.join();
  static_cast<void>(directory_.leave(lease_));
  for (bool watches = watcher_.joinable(); watches;) {
    directory_.cut_watches();
    std::unique_lock lock(mutex_);
    watches = !stop_.wait_for(lock, to_chrono(kCutAgain), [&] { return has_watched_; });
  }
  if (watcher_.joinable()) watcher_.join();
  if (file_) file_->write(LeaseId(0));
}

Result<void> Membership::publish(const NodeDescription& description) {
  const std::lock_guard order(publishing_);
  const LeaseId lease = [this] {
    const std::lock_guard lock(mutex_);
    return lease_;
  }();
  auto published = directory_.publish(lease, description);
  if (!published) return published;
  const std::lock_guard lock(mutex_);
  description_ = description;
  published_ = true;
  return {};
}

bool Membership::wait(Duration duration) {
  std::unique_lock lock(mutex_);
  return !stop_.wait_for(lock, to_chrono(duration), [&] { return stopping_; });
}

void Membership::publish_soon(NodeDescription description) {
  const std::lock_guard lock(mutex_);
  description_ = std::move(description);
  published_ = true;
  changed_ = true;
  stop_.notify_all();
}

void Membership::keep_lease() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      stop_.wait_for(lock, to_chrono(is_misplaced_ ? kMisplaced : config_.lease / 3),
                     [&] { return stopping_ || changed_; });
      if (stopping_) return;
      if (std::exchange(changed_, false)) untold_ = true;
    }
    if (!file_ && !config_.lease_file.empty()) take_file();
    if (untold_) {
      const std::lock_guard order(publishing_);
      untold_ = !tell();  // else again with the next renewal
    }
    renew_once();
  }
}

// Who had it before us was only stopped, and may have ended since.
void Membership::take_file() {
  file_ = LeaseFile::take(config_.lease_file);
  if (!file_) return;
  const std::lock_guard lock(mutex_);
  file_->write(lease_);
}

// REQUIRES: publishing_ is held.
bool Membership::tell() {
  std::unique_lock lock(mutex_);
  const LeaseId lease = lease_;
  const NodeDescription description = description_;
  lock.unlock();
  return directory_.publish(lease, description).has_value();
}

void Membership::renew_once() {
  const LeaseId lease = [this] {
    const std::lock_guard lock(mutex_);
    return lease_;
  }();
  const auto renewed = directory_.renew(lease);
  if (renewed) taken_since_.reset();
  const bool is_lost = !renewed && unknown_lease(renewed.error());
  if (!is_lost) return note_trouble(renewed ? "" : renewed.error().message);  // the directory is away: next time
  const auto now = std::chrono::steady_clock::now();
  if (lost_at_ && now - *lost_at_ < to_chrono(config_.lease / 4)) return;  // what on_lost publishes wakes us
  lost_at_ = now;
  std::optional<NodeDescription> afresh;
  if (config_.on_lost) {
    afresh = config_.on_lost();
    if (!afresh) return;
  }
  const std::lock_guard order(publishing_);
  const NodeDescription description = [&] {
    const std::lock_guard lock(mutex_);
    if (afresh && !changed_) description_ = std::move(*afresh);
    return description_;
  }();
  auto joined = directory_.join(description, config_.lease, registration_.node.id);
  note_trouble(joined ? "" : joined.error().message);
  if (joined) {
    taken_since_.reset();
    take(*joined);
  } else if (config_.on_superseded && is_taken(joined.error())) {
    note_taken(description);
  }
}

// Said when it comes a second time, once for each reason: a machine that was shut out would not learn of it otherwise. Empty: none.
void Membership::note_trouble(const std::string& why) {
  const bool again = why == trouble_;
  trouble_ = why;
  const auto tell = [this](const std::string& text) {
    if (config_.on_trouble) return config_.on_trouble(text);
    const std::string& name = registration_.node.description.name;
    if (text.empty()) return spdlog::info("{}: the directory renews the lease again", name);
    spdlog::warn("{}: {}", name, text);
  };
  if (why.empty()) {
    if (!std::exchange(told_of_, {}).empty()) tell({});
  } else if (again && why != told_of_) {
    told_of_ = why;
    tell("the lease is not renewed, others will take this process for gone: " + why);
  }
}

// A join of ours whose answer was lost takes the name as well: until that lease ends, which nobody renews.
void Membership::note_taken(const NodeDescription& ours) {
  const auto now = std::chrono::steady_clock::now();
  if (!taken_since_) taken_since_ = now;
  const auto all = directory_.nodes();
  const NodeRecord* const owner = all ? all->find(ours.name) : nullptr;
  const bool may_be_ours = owner == nullptr || said_by(owner->description) == said_by(ours);
  if (!may_be_ours || now - *taken_since_ > to_chrono(config_.lease * 2)) config_.on_superseded();
}

void Membership::take(const Registration& joined) {
  const wire::Ipv4Address ours = registration_.node.ip;
  const bool was_misplaced = is_misplaced_.exchange(joined.node.ip != ours);
  if (is_misplaced_) {  // another directory than before: our address is not ours there
    static_cast<void>(directory_.leave(joined.lease));
    if (!was_misplaced && config_.on_lost)  // a daemon, which has a log
      spdlog::error("{}: the rack has begun anew and gives this name the address {}, not {}",
                    registration_.node.description.name, joined.node.ip.to_string(), ours.to_string());
    // Ours may be another's there. The switch sends nothing from its own.
    if (config_.on_superseded && joined.node.description.kind != NodeKind::kSwitch) config_.on_superseded();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    lease_ = joined.lease;
    if (published_) untold_ = true;
  }
  if (file_) file_->write(joined.lease);
  if (untold_) untold_ = !tell();
}

void Membership::watch() {
  std::uint64_t seen = 0;
  Duration patience = kFirstWatch;
  for (;;) {
    const auto asked = std::chrono::steady_clock::now();
    const auto snapshot = directory_.watch(seen, patience, config_.kinds);
    Duration pause = snapshot ? Duration() : kPause;
    if (snapshot && snapshot->revision != seen) {
      seen = snapshot->revision;
      on_change_(*snapshot);
    } else if (std::chrono::steady_clock::now() - asked < to_chrono(kPause)) {
      pause = kPause;  // too many watch for it to let us wait
    } else {
      patience = kWatch;
    }
    if (!wait(pause)) return;
  }
}

}  // namespace sluice::rack
