#include "rack/membership.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <utility>

namespace sluice::rack {
namespace {

std::chrono::nanoseconds to_chrono(Duration d) { return std::chrono::nanoseconds(d.nanoseconds()); }

// One watch at the directory lasts so long; the end of a membership waits for it at most.
constexpr Duration kWatch = Duration::milliseconds(500);

}  // namespace

// The number of our lease, in a file that is locked as long as we live.
class Membership::LeaseFile {
 public:
  // Null: it cannot be had.
  static std::unique_ptr<LeaseFile> take(const std::string& path) {
    const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (descriptor < 0) return nullptr;
    auto file = std::unique_ptr<LeaseFile>(new LeaseFile(descriptor));
    return flock(descriptor, LOCK_EX | LOCK_NB) == 0 ? std::move(file) : nullptr;
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
  auto file = config.lease_file.empty() ? nullptr : LeaseFile::take(config.lease_file);
  for (;;) {
    // Whoever had the name is dead: nobody else holds the file.
    if (file && file->read().value != 0) static_cast<void>(directory.leave(file->read()));
    auto joined = directory.join(description, config.lease);
    if (joined) {
      return std::unique_ptr<Membership>(new Membership(directory, std::move(description), std::move(config),
                                                        std::move(*joined), std::move(file), std::move(on_change)));
    }
    const bool taken = joined.error().message.find("is taken") != std::string::npos;
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
      registration_(std::move(registration)),
      keeper_([this] { keep_lease(); }) {
  if (file_) file_->write(lease_);
  if (on_change_) watcher_ = std::thread([this] { watch(); });
}

Membership::~Membership() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    stop_.notify_all();
  }
  keeper_.join();
  if (watcher_.joinable()) watcher_.join();
  static_cast<void>(directory_.leave(lease_));
  if (file_) file_->write(LeaseId(0));
}

Result<void> Membership::publish(const NodeDescription& description) {
  const std::lock_guard lock(mutex_);
  auto published = directory_.publish(lease_, description);
  if (!published) return published;
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
  bool pending = false;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      stop_.wait_for(lock, to_chrono(config_.lease / 3), [&] { return stopping_ || changed_; });
      if (stopping_) return;
      pending = std::exchange(changed_, false) || pending;
      if (pending && directory_.publish(lease_, description_)) pending = false;  // else again with the next renewal
    }
    renew_once();
  }
}

void Membership::renew_once() {
  const auto renewed = directory_.renew(lease_);
  if (renewed || !unknown_lease(renewed.error())) return;  // fine, or the directory is away: next time
  std::optional<NodeDescription> afresh;
  if (config_.on_lost) {
    afresh = config_.on_lost();
    if (!afresh) return;
  }
  const std::lock_guard lock(mutex_);
  if (afresh) description_ = std::move(*afresh);
  auto joined = directory_.join(description_, config_.lease);
  if (!joined) return;
  if (joined->node.ip != registration_.node.ip) {  // another directory than before: our address is not ours there
    static_cast<void>(directory_.leave(joined->lease));
    return;
  }
  lease_ = joined->lease;
  if (file_) file_->write(lease_);
  if (published_) static_cast<void>(directory_.publish(lease_, description_));
}

void Membership::watch() {
  std::uint64_t seen = 0;
  for (;;) {
    const auto snapshot = directory_.watch(seen, kWatch);
    if (snapshot && snapshot->revision != seen) {
      seen = snapshot->revision;
      on_change_(*snapshot);
    }
    if (!wait(snapshot ? Duration{} : Duration::milliseconds(200))) return;
  }
}

}  // namespace sluice::rack
