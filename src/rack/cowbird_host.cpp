#include "rack/cowbird_host.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "ports/unix_socket.h"

namespace sluice::rack {
namespace {

// The block's place in the address space of MappedMemory; engines see nothing else there.
const remote::RemoteAddress kBlock{remote::NodeId(0), remote::RegionKey(1), 0x10000};

}  // namespace

struct CowbirdHost::Application {
  ports::Descriptor socket;
  ports::SharedBlock block;
  std::unique_ptr<remote::MappedMemory> memory;
  std::vector<std::unique_ptr<cowbird::Engine>> engines;
  std::shared_ptr<std::size_t> running = std::make_shared<std::size_t>(0);
  bool gone = false;
};

CowbirdHost::CowbirdHost(std::string path, nic::PollLoop& loop, remote::Scheduler& scheduler,
                         remote::RemoteMemory& pool, const Options& options)
    : path_(std::move(path)), loop_(loop), scheduler_(scheduler), pool_(pool), options_(options) {}

Result<std::unique_ptr<CowbirdHost>> CowbirdHost::open(const std::string& path, nic::PollLoop& loop,
                                                       remote::Scheduler& scheduler, remote::RemoteMemory& pool,
                                                       const Options& options) {
  auto listener = ports::listen_unix(path, ports::UnixKind::kMessages);
  if (!listener) return tl::unexpected(listener.error());
  std::unique_ptr<CowbirdHost> host(new CowbirdHost(path, loop, scheduler, pool, options));
  host->listener_ = std::move(*listener);
  auto* const self = host.get();
  loop.watch(host->listener_.get(), [self](Time) { self->accept(); });
  return host;
}

CowbirdHost::~CowbirdHost() {
  for (const auto& application : applications_) {
    if (application->socket) loop_.unwatch(application->socket.get());
  }
  if (listener_) loop_.unwatch(listener_.get());
  unlink(path_.c_str());
}

void CowbirdHost::accept() {
  ports::Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return;
  if (applications_.size() >= options_.instances) {
    ++counters_.refused;
    ports::send_message(socket.get(), cowbird::error_answer(fmt::format("the engine serves {} applications already",
                                                                        applications_.size())));
    return;
  }
  auto& application = *applications_.emplace_back(std::make_unique<Application>());
  application.socket = std::move(socket);
  loop_.watch(application.socket.get(), [this, &application](Time) { listen_to(application); });
}

void CowbirdHost::listen_to(Application& application) {
  ports::Message message;
  switch (ports::receive_message(application.socket.get(), message)) {
    case ports::Arrival::kNothing: return;
    case ports::Arrival::kGone: let_go(application); return;
    case ports::Arrival::kMessage: break;
  }
  const std::string said = answer(application, message);
  const bool bad = cowbird::attach_error(said).has_value() && application.engines.empty();
  if (bad) ++counters_.refused;
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
  if (!application.engines.empty()) return fail("this connection has an instance already");
  if (!message.descriptor) return fail("the instance's memory did not come with the message");
  auto block = ports::SharedBlock::adopt(std::move(message.descriptor), *bytes);
  if (!block) return tl::unexpected(block.error());
  const auto layout = cowbird::InstanceLayout::parse(block->bytes());
  if (!layout) return tl::unexpected(layout.error());
  if (layout->bytes() > *bytes) {
    return fail(fmt::format("{} channels need {} bytes; there are {}", layout->channels, layout->bytes(), *bytes));
  }
  application.block = std::move(*block);
  application.memory = std::make_unique<remote::MappedMemory>(scheduler_);
  application.memory->add(kBlock, application.block.bytes());
  for (std::uint32_t i = 0; i < layout->channels; ++i) {
    application.engines.push_back(
        std::make_unique<cowbird::Engine>(scheduler_, *application.memory, kBlock, *layout, i, pool_, options_.engine));
    ++*application.running;
    scheduler_.spawn(run(*application.engines.back(), application.running));
  }
  ++counters_.accepted;
  return {};
}

remote::Task<void> CowbirdHost::run(cowbird::Engine& engine, std::shared_ptr<std::size_t> running) {
  co_await engine.run();
  --*running;
}

// The exported memory of the node is one piece for applications: its first region.
Result<cowbird::Region> CowbirdHost::find_region(const cowbird::RegionRequest& request) const {
  const NodeRecord* node = nodes_.find(request.node);
  if (node == nullptr || node->description.kind != NodeKind::kMemory || node->description.regions.empty()) {
    std::string known;
    for (const NodeRecord* one : nodes_.ready(NodeKind::kMemory)) known += " " + one->description.name;
    return fail(
        fmt::format("no memory node \"{}\" on the rack; there are:{}", request.node, known.empty() ? " none" : known));
  }
  const RegionRecord& memory = node->description.regions.front();
  if (request.length == 0 || request.length > memory.length || request.offset > memory.length - request.length) {
    return fail(fmt::format("{} exports {} bytes; {} bytes from {} on are not all inside", request.node, memory.length,
                            request.length, request.offset));
  }
  return cowbird::Region{
      .node = node->id.value, .key = memory.key, .base = memory.address + request.offset, .length = request.length};
}

void CowbirdHost::let_go(Application& application) {
  loop_.unwatch(application.socket.get());
  application.socket.close();
  application.gone = true;
  for (const auto& engine : application.engines) engine->stop();
}

void CowbirdHost::stop() {
  for (const auto& application : applications_) {
    if (!application->gone) let_go(*application);
  }
}

std::size_t CowbirdHost::poll(Time) {
  return std::erase_if(applications_, [this](const std::unique_ptr<Application>& application) {
    if (!application->gone || *application->running != 0) return false;
    for (const auto& engine : application->engines) {
      if (engine->broken()) ++counters_.broken;
    }
    return true;
  });
}

cowbird::EngineCounters CowbirdHost::engine_counters() const {
  cowbird::EngineCounters sum;
  for (const auto& application : applications_) {
    for (const auto& engine : application->engines) {
      const auto& c = engine->counters();
      sum.probes += c.probes;
      sum.reads += c.reads;
      sum.writes += c.writes;
      sum.publications += c.publications;
      sum.response_writes += c.response_writes;
      sum.waited += c.waited;
      sum.retries += c.retries;
      sum.failed += c.failed;
      sum.malformed += c.malformed;
    }
  }
  return sum;
}

}  // namespace sluice::rack
