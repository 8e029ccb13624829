#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/guarded.h"
#include "libsluice/sluice.h"
#include "ports/run_path.h"
#include "rack/clients/store_session.h"

namespace {

namespace rack = sluice::rack;
namespace remote = sluice::remote;
using sluice::ByteView;
using sluice::Duration;
using sluice::fail;
using sluice::guarded;
using sluice::MutableBytes;
using sluice::Result;
using sluice::Time;

constexpr Duration kPause = Duration::microseconds(100);
constexpr Duration kFarewell = Duration::seconds(1);  // in which what is under way ends, by nobody's answer

thread_local std::string last_error;

int refuse(int error, std::string why) {
  last_error = std::move(why);
  return error;
}

int code_of(remote::Status status) {
  switch (status) {
    case remote::Status::kOk: return 0;
    case remote::Status::kAccessDenied: return SLUICE_DENIED;
    case remote::Status::kMisaligned: return SLUICE_OUT_OF_RANGE;
    case remote::Status::kTooLong: return SLUICE_BAD_LENGTH;
    case remote::Status::kUnreachable:
    case remote::Status::kNodeUnknown: return SLUICE_UNREACHABLE;
    case remote::Status::kUnknown: return SLUICE_UNKNOWN;
    case remote::Status::kUnsupported: return SLUICE_SYSTEM;
  }
  return SLUICE_SYSTEM;
}

std::string text_or(const char* text, const std::string& otherwise) {
  return text != nullptr && *text != 0 ? text : otherwise;
}

// As a tenant sees a memory node: with its own regions alone.
bool is_tenants(const rack::NodeDescription& node) {
  return !node.regions.empty() && !node.regions.front().owner.empty();
}

// What a number of sluice_node() stands for.
struct Node {
  remote::NodeId id;
  std::uint64_t incarnation;
  std::string name;
  remote::RemoteAddress base;
  std::uint64_t length;
  bool gone = false;
};

}  // namespace

struct sluice_client final : private rack::StoreSession {
 public:
  static Result<std::unique_ptr<sluice_client>> open(const sluice_options_t& options);
  ~sluice_client() override { detach(); }

  int node(const std::string& name);
  const char* node_name(std::uint32_t index);
  std::uint64_t node_bytes(int node) const { return valid(node) ? nodes_[static_cast<std::size_t>(node)].length : 0; }

  // The operation's remote address is an offset.
  int post(int node, remote::Operation operation, std::uint64_t* prior, void* context);
  // As often as it takes for `bytes`; `make` gives the operation of a part.
  template <class Make>
  int run(int node, std::uint64_t offset, std::size_t bytes, std::uint64_t* prior, Make make);
  int poll(sluice_completion_t* completions, int most, std::int64_t timeout_us);
  std::uint32_t under_way() const { return static_cast<std::uint32_t>(entries_.size() - free_.size()); }

 private:
  struct Entry {
    sluice_client* client = nullptr;
    remote::Operation operation;
    std::uint64_t* prior = nullptr;
    void* context = nullptr;
  };
  // An operation that somebody waits for.
  struct Awaited {
    remote::Operation operation;
    bool done = false;
  };

  // What keeps this process on the rack, and what may keep it off: from a thread of its own, and the program's output is not ours to write to.
  struct Lease {
    std::mutex mutex;
    std::string trouble;  // guarded by mutex; empty: none
  };

  explicit sluice_client(std::uint32_t entries, Duration patience) : patience_(patience), entries_(entries) {
    for (Entry& entry : entries_) free_.push_back(&entry);
  }
  bool valid(int node) const { return node >= 0 && static_cast<std::size_t>(node) < nodes_.size(); }
  // 0, or why an operation cannot begin.
  int check(int node, std::uint64_t offset, std::size_t bytes);
  remote::RemoteMemory& memory() { return remote_nodes().memory(); }
  void learn(Time now, rack::Snapshot snapshot);
  // Takes a place on the rack, again where it has begun anew and others may have the one that this client had.
  Result<void> join();
  // The transport counts time-outs from the time of the last turn: so there must be one before something is sent after a pause.
  void wake_up() {
    if (loop().now() - remote_nodes().memory().now() > kPause) loop().turn();
  }
  static void on_complete(remote::Operation& operation);
  bool connected(remote::NodeId id) { return remote_nodes().memory().connected(id); }
  std::int64_t patience_us() const { return patience_.nanoseconds() / 1000; }
  // Turns the loop until `done` or the time is over (negative: never over).
  template <class Done>
  void turn_until(std::int64_t timeout_us, Done done);

  // Why there is no connection.
  std::string reasons();

  Duration patience_;
  rack::StoreSessionConfig config_;
  std::shared_ptr<Lease> lease_ = std::make_shared<Lease>();
  rack::Snapshot rack_;
  std::vector<Node> nodes_;
  std::vector<Entry> entries_;  // as many as may be under way
  std::vector<Entry*> free_;
  std::deque<Entry*> completed_;  // not taken yet
};

Result<std::unique_ptr<sluice_client>> sluice_client::open(const sluice_options_t& options) {
  const std::uint32_t entries = options.entries != 0 ? options.entries : 1024;
  const std::uint32_t depth = options.depth != 0 ? options.depth : 128;
  if (entries > 65'536) return fail(fmt::format("options.entries = {}: must be 1 to 65536", entries));
  if (depth > 4096) return fail(fmt::format("options.depth = {}: must be 1 to 4096", depth));
  static std::atomic<std::uint64_t> clients{0};
  const char* const directory = std::getenv("SLUICE_DIR");
  rack::StoreSessionConfig config;
  config.directory = text_or(options.directory, text_or(directory, sluice::ports::default_run_directory()));
  config.name = text_or(options.name, fmt::format("program-{}-{}", getpid(), ++clients));
  config.port = text_or(options.port, "");
  config.nodes.depth = depth;
  const auto patience = Duration::milliseconds(options.timeout_ms != 0 ? options.timeout_ms : 5000);
  std::unique_ptr<sluice_client> client(new sluice_client(entries, patience));
  config.on_trouble = [lease = client->lease_](const std::string& text) {
    const std::lock_guard lock(lease->mutex);
    lease->trouble = text;
  };
  client->config_ = std::move(config);
  if (auto joined = client->join(); !joined) return tl::unexpected(joined.error());
  return client;
}

Result<void> sluice_client::join() {
  for (Node& node : nodes_) node.gone = true;  // of the rack before
  if (attached()) {
    remote_nodes().set_nodes(loop().now(), {});
    turn_until(kFarewell.nanoseconds() / 1000, [this] { return under_way() == completed_.size(); });
  }
  auto snapshot = attach(config_);
  if (!attached()) return tl::unexpected(snapshot.error());
  endpoint().on_change([this](Time now, const rack::Snapshot& changed) { learn(now, changed); });
  if (!snapshot) return tl::unexpected(snapshot.error());
  learn(loop().now(), std::move(*snapshot));
  return {};
}

void sluice_client::learn(Time now, rack::Snapshot snapshot) {
  rack_ = std::move(snapshot);
  const auto ready = rack_.ready(rack::NodeKind::kMemory);
  for (Node& node : nodes_) {
    node.gone = node.gone || std::none_of(ready.begin(), ready.end(), [&](const rack::NodeRecord* record) {
                  const auto is_its = [&node](const rack::RegionRecord& region) {
                    return region.address == node.base.address && region.key == node.base.key.value;
                  };
                  return record->id == node.id && record->incarnation == node.incarnation &&
                         std::ranges::any_of(record->description.regions, is_its);
                });
  }
  remote_nodes().set_nodes(now, rack_);
}

template <class Done>
void sluice_client::turn_until(std::int64_t timeout_us, Done done) {
  if (timeout_us == 0) {
    loop().turn();
    return;
  }
  const Time now = loop().now();
  const bool for_ever = timeout_us < 0 || timeout_us >= (Time::never() - now).microseconds();
  const Time end = for_ever ? Time::never() : now + Duration::microseconds(timeout_us);
  struct Alarm final : sluice::nic::Pollable {
    explicit Alarm(Time end_of_waiting) : when(end_of_waiting) {}
    std::size_t poll(Time) override { return 0; }
    Time next_deadline() const override { return when; }
    Time when;
  } alarm(end);
  loop().add(alarm);
  loop().run_until([&] { return done() || loop().now() >= end; });
  loop().remove(alarm);
}

std::string sluice_client::reasons() {
  const std::lock_guard lock(lease_->mutex);
  return lease_->trouble.empty() ? problems() : problems() + "; " + lease_->trouble;
}

int sluice_client::node(const std::string& name) {
  const auto find = [&] { return rack_.find_memory(name); };
  const auto connected = [&] {
    const rack::NodeRecord* const record = find().node;
    return record != nullptr && this->connected(record->id);
  };
  const auto settled = [&] { return find().are_several || connected() || endpoint().is_superseded(); };
  const bool was_here = std::ranges::any_of(nodes_, [&](const Node& node) { return node.name == name; });
  do {
    loop().turn();  // what the directory has said meanwhile
    if (endpoint().is_superseded()) {
      if (const auto joined = join(); !joined) return refuse(SLUICE_UNREACHABLE, joined.error().message);
    }
    if ((was_here || find().node != nullptr) && !settled()) turn_until(patience_us(), settled);
  } while (endpoint().is_superseded());
  const auto found = rack_.memory_called(name);
  if (!found) return refuse(SLUICE_NO_SUCH_NODE, found.error().message);
  const rack::NodeRecord* const record = found->node;
  if (!connected()) return refuse(SLUICE_UNREACHABLE, fmt::format("no connection to {}: {}", name, reasons()));
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].gone && nodes_[i].id == record->id && nodes_[i].incarnation == record->incarnation &&
        nodes_[i].base.address == found->region->address && nodes_[i].base.key.value == found->region->key)
      return static_cast<int>(i);
  }
  const rack::RegionRecord& region = *found->region;
  nodes_.push_back({record->id,
                    record->incarnation,
                    name,
                    {record->id, remote::RegionKey(region.key), region.address},
                    region.length});
  return static_cast<int>(nodes_.size() - 1);
}

const char* sluice_client::node_name(std::uint32_t index) {
  if (index == 0) loop().turn();  // what the directory has said meanwhile
  const auto ready = rack_.ready(rack::NodeKind::kMemory);
  std::vector<const std::string*> names;
  for (const rack::NodeRecord* record : ready) {
    const rack::NodeDescription& d = record->description;
    const bool is_shared_out = is_tenants(d);
    if (!is_shared_out) names.push_back(&d.name);
    for (const rack::RegionRecord& region : d.regions) {
      if (is_shared_out) names.push_back(&region.name);
    }
  }
  std::sort(names.begin(), names.end(), [](const std::string* one, const std::string* other) { return *one < *other; });
  return index < names.size() ? names[index]->c_str() : nullptr;
}

int sluice_client::check(int node, std::uint64_t offset, std::size_t bytes) {
  if (!valid(node)) return refuse(SLUICE_NO_SUCH_NODE, fmt::format("{} is no number that sluice_node() gave", node));
  const Node& n = nodes_[static_cast<std::size_t>(node)];
  if (n.gone || endpoint().is_superseded())
    return refuse(SLUICE_GONE, fmt::format("{} has left the rack, or was started anew, or was given back", n.name));
  if (bytes == 0) return refuse(SLUICE_BAD_LENGTH, "a length of 0");
  if (bytes > n.length || offset > n.length - bytes)
    return refuse(SLUICE_OUT_OF_RANGE,
                  fmt::format("{} bytes at {} do not lie in the {} of {}", bytes, offset, n.length, n.name));
  return 0;
}

int sluice_client::post(int node, remote::Operation operation, std::uint64_t* prior, void* context) {
  const bool atomic =
      operation.kind == remote::OpKind::kCompareAndSwap || operation.kind == remote::OpKind::kFetchAndAdd;
  const std::size_t bytes = atomic ? 8 : operation.local.size();
  const std::uint64_t offset = operation.remote.address;
  wake_up();
  if (const int error = check(node, offset, bytes); error != 0) return error;
  if (atomic && offset % 8 != 0)
    return refuse(SLUICE_OUT_OF_RANGE, fmt::format("an atomic at {}, which is no multiple of 8", offset));
  if (bytes > memory().capabilities().max_length)
    return refuse(SLUICE_BAD_LENGTH,
                  fmt::format("{} bytes in one operation; at most {}", bytes, memory().capabilities().max_length));
  if (free_.empty()) return refuse(SLUICE_FULL, fmt::format("{} operations are under way", entries_.size()));
  Entry& entry = *free_.back();
  free_.pop_back();
  operation.remote = nodes_[static_cast<std::size_t>(node)].base + offset;
  operation.on_complete = on_complete;
  operation.context = &entry;
  entry = {this, operation, prior, context};
  memory().submit(entry.operation);
  return 0;
}

void sluice_client::on_complete(remote::Operation& operation) {
  Entry& entry = *static_cast<Entry*>(operation.context);
  if (entry.prior != nullptr && operation.status == remote::Status::kOk) *entry.prior = operation.prior;
  entry.client->completed_.push_back(&entry);
}

template <class Make>
int sluice_client::run(int node, std::uint64_t offset, std::size_t bytes, std::uint64_t* prior, Make make) {
  wake_up();
  if (const int error = check(node, offset, bytes); error != 0) return error;
  const auto index = static_cast<std::size_t>(node);
  if (const remote::NodeId id = nodes_[index].id; !connected(id)) {
    turn_until(patience_us(), [&] { return connected(id) || nodes_[index].gone || endpoint().is_superseded(); });
    if (const int error = check(node, offset, bytes); error != 0) return error;
  }
  const std::size_t most = memory().capabilities().max_length;
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t part = std::min(most, bytes - done);
    Awaited awaited;
    awaited.operation = make(nodes_[index].base + (offset + done), done, part);
    awaited.operation.context = &awaited;
    awaited.operation.on_complete = [](remote::Operation& operation) {
      static_cast<Awaited*>(operation.context)->done = true;
    };
    memory().submit(awaited.operation);
    turn_until(-1, [&] { return awaited.done; });
    const remote::Status status = awaited.operation.status;
    if (status != remote::Status::kOk) {
      const std::string& name = nodes_[index].name;
      return refuse(code_of(status), fmt::format("{}: {}", name, sluice_strerror(code_of(status))));
    }
    if (prior != nullptr) *prior = awaited.operation.prior;
    done += part;
  }
  return 0;
}

int sluice_client::poll(sluice_completion_t* completions, int most, std::int64_t timeout_us) {
  if (most <= 0) return 0;
  if (completed_.empty()) loop().turn();
  if (completed_.empty() && timeout_us != 0 && under_way() != 0)
    turn_until(timeout_us, [this] { return !completed_.empty(); });
  int taken = 0;
  for (; taken < most && !completed_.empty(); ++taken) {
    Entry* const entry = completed_.front();
    completed_.pop_front();
    completions[taken] = {entry->context, code_of(entry->operation.status), 0};
    free_.push_back(entry);
  }
  return taken;
}

namespace {

remote::RemoteAddress offset_of(std::uint64_t offset) { return {remote::NodeId(0), remote::RegionKey(0), offset}; }
MutableBytes bytes_at(const void* at, std::size_t bytes) {
  return {static_cast<std::uint8_t*>(const_cast<void*>(at)), bytes};  // those of a write are never written to
}

}  // namespace

extern "C" {

sluice_t* sluice_open(const sluice_options_t* options) {
  return guarded(
      last_error,
      [&]() -> sluice_t* {
        auto opened = sluice_client::open(options != nullptr ? *options : sluice_options_t{});
        if (opened) return opened->release();
        last_error = opened.error().message;
        return nullptr;
      },
      nullptr);
}

void sluice_close(sluice_t* client) { delete client; }

int sluice_node(sluice_t* client, const char* name) {
  return guarded(
      last_error,
      [&] { return name != nullptr ? client->node(name) : refuse(SLUICE_NO_SUCH_NODE, "a name is needed"); },
      SLUICE_SYSTEM);
}

const char* sluice_node_name(sluice_t* client, uint32_t index) {
  return guarded(
      last_error, [&] { return client->node_name(index); }, nullptr);
}

uint64_t sluice_node_bytes(sluice_t* client, int node) { return client->node_bytes(node); }

int sluice_read(sluice_t* client, int node, uint64_t offset, void* into, size_t bytes) {
  return guarded(
      last_error,
      [&] {
        return client->run(node, offset, bytes, nullptr,
                           [&](remote::RemoteAddress at, std::size_t done, std::size_t part) {
                             return remote::read_operation(at, bytes_at(into, bytes).subspan(done, part));
                           });
      },
      SLUICE_SYSTEM);
}

int sluice_write(sluice_t* client, int node, uint64_t offset, const void* from, size_t bytes) {
  return guarded(
      last_error,
      [&] {
        return client->run(node, offset, bytes, nullptr,
                           [&](remote::RemoteAddress at, std::size_t done, std::size_t part) {
                             return remote::write_operation(at, bytes_at(from, bytes).subspan(done, part));
                           });
      },
      SLUICE_SYSTEM);
}

int sluice_compare_and_swap(sluice_t* client, int node, uint64_t offset, uint64_t compare, uint64_t swap,
                            uint64_t* prior) {
  return guarded(
      last_error,
      [&] {
        return client->run(node, offset, 8, prior, [&](remote::RemoteAddress at, std::size_t, std::size_t) {
          return remote::swap_operation(at, compare, swap);
        });
      },
      SLUICE_SYSTEM);
}

int sluice_fetch_and_add(sluice_t* client, int node, uint64_t offset, uint64_t add, uint64_t* prior) {
  return guarded(
      last_error,
      [&] {
        return client->run(node, offset, 8, prior, [&](remote::RemoteAddress at, std::size_t, std::size_t) {
          return remote::add_operation(at, add);
        });
      },
      SLUICE_SYSTEM);
}

int sluice_post_read(sluice_t* client, int node, uint64_t offset, void* into, size_t bytes, void* context) {
  return guarded(
      last_error,
      [&] {
        return client->post(node, remote::read_operation(offset_of(offset), bytes_at(into, bytes)), nullptr, context);
      },
      SLUICE_SYSTEM);
}

int sluice_post_write(sluice_t* client, int node, uint64_t offset, const void* from, size_t bytes, void* context) {
  return guarded(
      last_error,
      [&] {
        return client->post(node, remote::write_operation(offset_of(offset), bytes_at(from, bytes)), nullptr, context);
      },
      SLUICE_SYSTEM);
}

int sluice_post_compare_and_swap(sluice_t* client, int node, uint64_t offset, uint64_t compare, uint64_t swap,
                                 uint64_t* prior, void* context) {
  return guarded(
      last_error,
      [&] { return client->post(node, remote::swap_operation(offset_of(offset), compare, swap), prior, context); },
      SLUICE_SYSTEM);
}

int sluice_post_fetch_and_add(sluice_t* client, int node, uint64_t offset, uint64_t add, uint64_t* prior,
                              void* context) {
  return guarded(
      last_error, [&] { return client->post(node, remote::add_operation(offset_of(offset), add), prior, context); },
      SLUICE_SYSTEM);
}

int sluice_poll(sluice_t* client, sluice_completion_t* completions, int most, int64_t timeout_us) {
  return guarded(
      last_error, [&] { return client->poll(completions, most, timeout_us); }, 0);
}

uint32_t sluice_under_way(sluice_t* client) { return client->under_way(); }

const char* sluice_strerror(int error) {
  switch (error) {
    case 0: return "done";
    case SLUICE_OUT_OF_RANGE: return "beyond the node's memory, or an atomic not on 8 bytes: nothing happened";
    case SLUICE_DENIED: return "the memory node refuses: nothing happened";
    case SLUICE_UNREACHABLE: return "no connection to the memory node now: nothing happened";
    case SLUICE_UNKNOWN: return "the connection was lost meanwhile: it may have happened or not";
    case SLUICE_GONE: return "the memory node has left, or was started anew with other memory: ask sluice_node() again";
    case SLUICE_BAD_LENGTH: return "a length of 0, or too long to be posted at once";
    case SLUICE_FULL: return "as many operations as there are entries are under way: poll, then try again";
    case SLUICE_NO_SUCH_NODE: return "no such memory node is on the rack";
    case SLUICE_SYSTEM: return "it could not be done; sluice_last_error() says why";
    default: return "no error of libsluice";
  }
}

const char* sluice_last_error(void) { return last_error.c_str(); }
}
