#include "rack/cowbird/cowbird_host.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "ports/unix_socket.h"

namespace sluice::rack {
namespace {
constexpr std::size_t kMostRefusals = 32;  // that the log tells apart: an application says what it likes
ports::Descriptor open_spare() { return ports::Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }
}  // namespace

std::vector<cowbird::Region> exports_of(const Snapshot& snapshot, const std::string& tenant) {
  std::vector<cowbird::Region> all;
  for (const NodeRecord* node : snapshot.ready(NodeKind::kMemory)) {
    for (const RegionRecord& region : node->description.regions) {
      if (!region.owner.empty() && region.owner != tenant) continue;
      all.push_back({.node = node->id.value, .key = region.key, .base = region.address, .length = region.length});
    }
  }
  return all;
}

struct CowbirdHost::Application {
  ports::Descriptor socket;
  ports::SharedBlock block;
  std::unique_ptr<CowbirdServing> serving;
  Time since;  // when it has connected
  bool gone = false;
  bool waits() const { return !gone && !serving; }
};

CowbirdHost::CowbirdHost(std::string path, nic::PollLoop& loop, CowbirdService& service, std::size_t instances)
    : path_(std::move(path)), loop_(loop), service_(service), most_(instances) {}

Result<std::unique_ptr<CowbirdHost>> CowbirdHost::open(const std::string& path, nic::PollLoop& loop,
                                                       CowbirdService& service, std::size_t instances) {
  auto listener = ports::listen_unix(path, ports::UnixKind::kMessages);
  if (!listener) return tl::unexpected(listener.error());
  std::unique_ptr<CowbirdHost> host(new CowbirdHost(path, loop, service, instances));
  host->listener_ = std::move(*listener);
  host->spare_ = open_spare();
  auto* const self = host.get();
  loop.watch(host->listener_.get(), [self](Time now) { self->accept(now); });
  return host;
}

CowbirdHost::~CowbirdHost() {
  for (const auto& application : applications_) {
    if (!application->gone) loop_.unwatch(application->socket.get());
  }
  close_listener();
}

void CowbirdHost::close_listener() {
  if (!listener_) return;
  loop_.unwatch(listener_.get());
  listener_.close();
  unlink(path_.c_str());
}

void CowbirdHost::accept(Time now) {
  ports::Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket && (errno == EMFILE || errno == ENFILE)) return turn_away();
  if (!socket) return;
  auto& application = *applications_.emplace_back(std::make_unique<Application>());
  application.socket = std::move(socket);
  application.since = now;
  loop_.watch(application.socket.get(), [this, &application](Time) { listen_to(application); });
  let_go_of_waiting(now);
}

void CowbirdHost::let_go_of_waiting(Time now) {
  auto waiting = std::ranges::count_if(applications_, [](const auto& one) { return one->waits(); });
  for (const auto& one : applications_) {  // the oldest first
    if (!one->waits()) continue;
    if (waiting <= std::ptrdiff_t{kMostWaiting} && now < one->since + kPatience) return;
    --waiting;
    dismiss(*one, "no instance was handed over in time");
  }
}

void CowbirdHost::dismiss(Application& application, const std::string& why) {
  ports::send_message(application.socket.get(), refuse(why));
  let_go(application);
}

std::size_t CowbirdHost::served() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(applications_, [](const auto& one) { return one->serving != nullptr; }));
}

Time CowbirdHost::next_deadline() const {
  for (const auto& one : applications_) {
    if (one->waits()) return one->since + kPatience;
  }
  return Time::never();
}

// One that is left to wait would keep the loop awake.
void CowbirdHost::turn_away() {
  spare_.close();
  ports::Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const std::string said = refuse("the engine has no file descriptors left (ulimit -n)");
  if (socket) ports::send_message(socket.get(), said);
  socket.close();
  spare_ = open_spare();
}

std::string CowbirdHost::refuse(const std::string& why) {
  ++counters_.refused;
  if (refusals_.size() < kMostRefusals && refusals_.insert(why).second) {
    spdlog::warn("cowbird: an application is not served: {}", why);
  }
  return cowbird::error_answer(why);
}

void CowbirdHost::listen_to(Application& application) {
  ports::Message message;
  switch (ports::receive_message(application.socket.get(), message)) {
    case ports::Arrival::kNothing: return;
    case ports::Arrival::kGone: let_go(application); return;
    case ports::Arrival::kMessage: break;
  }
  const std::string said = answer(application, message);
  const auto why = cowbird::attach_error(said);
  const bool bad = why && application.serving == nullptr;
  if (bad) refuse(*why);
  if (!ports::send_message(application.socket.get(), said) || bad) let_go(application);
}

std::string CowbirdHost::answer(Application& application, ports::Message& message) {
  const auto kind = cowbird::message_kind(message.text);
  if (kind == "instance") {
    auto taken = take_instance(application, message);
    return taken ? "ok" : cowbird::error_answer(taken.error().message);
  }
  if (kind == "region") {
    auto request = cowbird::parse_region_request(message.text);
    auto region = request ? find_region(*request) : tl::unexpected(request.error());
    return region ? cowbird::region_answer(*region) : cowbird::error_answer(region.error().message);
  }
  return cowbird::error_answer("neither \"instance\" nor \"region\"");
}

Result<void> CowbirdHost::take_instance(Application& application, ports::Message& message) {
  const auto bytes = cowbird::parse_instance(message.text);
  if (!bytes) return tl::unexpected(bytes.error());
  if (application.serving) return fail("this connection has an instance already");
  if (served() >= most_) return fail(fmt::format("the engine serves {} applications already", served()));
  if (!message.descriptor) return fail("the instance's memory did not come with the message");
  auto block = ports::SharedBlock::adopt(std::move(message.descriptor), *bytes);
  if (!block) return tl::unexpected(block.error());
  if (still_served(*block)) return fail("what this application asked for before is still being ended; try again");
  const auto layout = cowbird::InstanceLayout::parse(block->bytes());
  if (!layout) return tl::unexpected(layout.error());
  if (layout->bytes() > *bytes) {
    return fail(fmt::format("{} channels need {} bytes; there are {}", layout->channels, layout->bytes(), *bytes));
  }
  application.block = std::move(*block);
  try {
    auto serving = service_.serve(application.block.bytes(), *layout);
    if (!serving) return tl::unexpected(serving.error());
    application.serving = std::move(*serving);
  } catch (const std::bad_alloc&) {
    return fail(fmt::format("the engine has no memory left for rings of {} bytes", *bytes));
  }
  ++counters_.accepted;
  return {};
}

// It has hung up and come again. Of two engines on one ring each would undo what the other has done.
bool CowbirdHost::still_served(const ports::SharedBlock& block) const {
  struct stat asked {};
  return fstat(block.descriptor(), &asked) == 0 && std::ranges::any_of(applications_, [&](const auto& one) {
           struct stat other {};
           return one->serving && fstat(one->block.descriptor(), &other) == 0 && other.st_ino == asked.st_ino &&
                  other.st_dev == asked.st_dev;
         });
}

Result<cowbird::Region> CowbirdHost::find_region(const cowbird::RegionRequest& request) const {
  const auto found = nodes_.memory_called(request.node);
  if (!found) return tl::unexpected(found.error());
  const RegionRecord& memory = *found->region;
  if (request.length == 0 || request.length > memory.length || request.offset > memory.length - request.length) {
    return fail(fmt::format("{} exports {} bytes; {} bytes from {} on are not all inside", request.node, memory.length,
                            request.length, request.offset));
  }
  return cowbird::Region{.node = found->node->id.value,
                         .key = memory.key,
                         .base = memory.address + request.offset,
                         .length = request.length};
}

void CowbirdHost::let_go(Application& application) {
  loop_.unwatch(
      application.socket.get());  // which closes once its serving has ended: only then may the next engine begin
  application.gone = true;
  if (application.serving) application.serving->stop();
}

void CowbirdHost::stop() {
  close_listener();
  for (const auto& application : applications_) {
    if (!application->gone) let_go(*application);
  }
}

std::size_t CowbirdHost::poll(Time now) {
  if (now >= next_deadline()) let_go_of_waiting(now);
  return std::erase_if(applications_, [this](const std::unique_ptr<Application>& application) {
    if (!application->gone || (application->serving && !application->serving->ended())) return false;
    if (application->serving) {
      counters_.broken += application->serving->broken();
      engines_gone_ += application->serving->engines();
    }
    return true;
  });
}

CowbirdHost::Counters CowbirdHost::counters() const {
  Counters now = counters_;
  for (const auto& application : applications_) {
    if (application->serving) now.broken += application->serving->broken();
  }
  return now;
}

cowbird::EngineCounters CowbirdHost::engines() const {
  cowbird::EngineCounters sum = engines_gone_;
  for (const auto& application : applications_) {
    if (application->serving) sum += application->serving->engines();
  }
  return sum;
}

}  // namespace sluice::rack
