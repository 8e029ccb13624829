#include "rack/onerma_end.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <openssl/rand.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/check.h"
#include "ports/open.h"
#include "rack/endpoint.h"
#include "rack/open_end.h"
#include "rack/sqlite_directory.h"

namespace sluice::rack {
namespace {

using onerma::Grant;
using onerma::OpKind;

constexpr std::uint64_t kAddress = 0x10'0000;
constexpr remote::NodeId kTarget{1};

std::uint8_t pattern(std::uint64_t offset) { return static_cast<std::uint8_t>(offset * 7 + 3); }

onerma::Secret fresh_key() {
  onerma::Secret key;
  const MutableBytes bytes = key.mutable_bytes();
  SLUICE_CHECK(RAND_priv_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1);
  return key;
}

std::string hex_of(ByteView bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::optional<onerma::Secret> parse_key(const std::string& hex) {
  std::array<std::uint8_t, onerma::Secret::kSize> bytes{};
  if (hex.size() != 2 * bytes.size() || hex.find_first_not_of("0123456789abcdef") != std::string::npos) return {};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(std::stoul(hex.substr(2 * i, 2), nullptr, 16));
  }
  return onerma::Secret(bytes);
}

Result<void> write_secret(const std::string& path, const std::string& text) {
  const std::string draft = path + ".new";
  unlink(draft.c_str());
  const int file = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const bool written = file >= 0 && write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (file >= 0) close(file);
  if (written && rename(draft.c_str(), path.c_str()) == 0) return {};
  return fail(fmt::format("cannot write the file of grants {}: {}", path, strerror(errno)));
}

Result<void> write_grants(const OnermaTargetEnd& end, onerma::Node& node, onerma::RegionId region) {
  nlohmann::json out{{"target", {{"ip", end.ip.to_string()}, {"mac", node.address().mac.to_string()}}},
                     {"region", region.value},
                     {"generation", 1},
                     {"address", kAddress},
                     {"length", end.memory},
                     {"grants", nlohmann::json::array()}};
  for (std::uint64_t i = 1; i <= end.clients; ++i) {
    const Grant grant = *node.regions().grant(region, onerma::InitiatorId(i), onerma::kMayRead | onerma::kMayWrite);
    out["grants"].push_back({{"initiator", i}, {"rights", grant.rights.bits}, {"key", hex_of(grant.key.bytes())}});
  }
  return write_secret(end.grants, out.dump(1) + "\n");
}

struct Taken {
  onerma::Peer peer{};
  Grant grant{};
  std::uint64_t address = 0;
  std::uint64_t length = 0;
};

// Takes the first grant out of the file: an initiator's number names one life of it.
Result<Taken> take_grant(const std::string& path) {
  const std::string wrong = fmt::format("{} is no file of grants, as `sluice onerma target` writes it", path);
  const int lock = ::open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0 || flock(lock, LOCK_EX) != 0) return fail(fmt::format("cannot lock {}: {}", path, strerror(errno)));
  Result<Taken> result = fail(wrong);
  std::ifstream file(path);
  auto json = nlohmann::json::parse(file, nullptr, false);
  try {
    auto& grants = json.at("grants");
    if (grants.empty()) {
      result = fail(fmt::format("{} has no grant left; start the target anew, with more --clients", path));
    } else {
      const auto one = grants.front();
      grants.erase(grants.begin());
      const auto mac = wire::MacAddress::parse(json.at("target").at("mac").get<std::string>());
      const auto ip = wire::Ipv4Address::parse(json.at("target").at("ip").get<std::string>());
      const auto key = parse_key(one.at("key").get<std::string>());
      if (mac && ip && key) {
        result = Taken{.peer = {*mac, *ip, onerma::kUdpPort},
                       .grant = {.region = onerma::RegionId(json.at("region").get<std::uint32_t>()),
                                 .generation = onerma::Generation(json.at("generation").get<std::uint32_t>()),
                                 .initiator = onerma::InitiatorId(one.at("initiator").get<std::uint64_t>()),
                                 .rights = {one.at("rights").get<std::uint8_t>()},
                                 .key = *key},
                       .address = json.at("address").get<std::uint64_t>(),
                       .length = json.at("length").get<std::uint64_t>()};
        if (auto written = write_secret(path, json.dump(1) + "\n"); !written) result = tl::unexpected(written.error());
      }
    }
  } catch (const nlohmann::json::exception&) {
    result = fail(wrong);
  }
  close(lock);
  return result;
}

}  // namespace

onerma::NodeConfig real_time_node(wire::Ipv4Address ip) {
  onerma::NodeConfig config;
  config.mac = Subnet::mac_of(ip);
  config.ip = ip;
  config.boot = onerma::Boot(std::random_device{}() & 0xFF'FFFF);
  config.window_bytes = 1u << 20;
  config.slots = {.slots = 1024, .dispatch_timeout = Duration::milliseconds(5), .timeout = Duration::milliseconds(20)};
  config.target.pull_timeout = Duration::milliseconds(20);
  config.target.nack_bytes = 4u << 20;
  config.target.pulls = 1024;
  return config;
}

onerma::RemoteOnerma::Parameters real_time_client() {
  onerma::RemoteOnerma::Parameters p;
  p.executor.base_rtt = Duration::microseconds(50);
  p.executor.local_target = Duration::microseconds(500);
  p.executor.remote_target = Duration::milliseconds(2);
  p.executor.write_target = Duration::milliseconds(4);
  p.executor.first_local = 256 * onerma::CongestionWindow::kOne;
  p.executor.first_remote = 64 * onerma::CongestionWindow::kOne;
  p.executor.pacing_slack = Duration::milliseconds(1);
  p.give_up = Duration::seconds(5);
  return p;
}

Result<void> serve_onerma(const OnermaTargetEnd& end, const std::function<void()>& ready) {
  StopSignals signals;
  nic::PollLoop loop;
  signals.stop_on_signal(loop);
  onerma::NodeConfig config = real_time_node(end.ip);
  config.allow_plain = end.allow_plain;
  onerma::Node node(config);
  std::vector<std::uint8_t> memory(end.memory);
  for (std::uint64_t i = 0; i < memory.size(); ++i) memory[i] = pattern(i);
  const auto region = node.regions().add(memory, kAddress, memory::kAllAccess, fresh_key());
  if (!region) return tl::unexpected(region.error());
  if (auto written = write_grants(end, node, *region); !written) return written;
  std::unique_ptr<port::Listener> listener;
  auto port = open_end(end.port, end.listen, loop, ready, listener);
  if (!port && loop.stopping()) return {};
  if (!port) return tl::unexpected(port.error());
  nic::MachinePoll<onerma::Node> shard(node, std::move(*port));
  shard.attach(loop);
  loop.run();
  return {};
}

// Turns the client library behind the node.
namespace {
class ClientPoll final : public nic::Pollable {
 public:
  explicit ClientPoll(onerma::RemoteOnerma& remote) : remote_(remote) {}
  std::size_t poll(Time now) override { return remote_.poll(now); }
  Time next_deadline() const override { return remote_.next_deadline(); }

 private:
  onerma::RemoteOnerma& remote_;
};
}  // namespace

Result<std::unique_ptr<OnermaClient>> OnermaClient::open(const OnermaClientEnd& end) {
  const auto taken = take_grant(end.grants);
  if (!taken) return tl::unexpected(taken.error());
  if (taken->length < 4 * std::uint64_t{kMaxBytes}) return fail("the target's memory is smaller than 4 MiB");
  std::unique_ptr<OnermaClient> client(new OnermaClient);
  auto port = ports::open_port(end.port, ports::Absent::kWait);
  if (!port) return tl::unexpected(port.error());
  onerma::NodeConfig config = real_time_node(end.ip);
  config.protection = end.protection;
  client->node_ = std::make_unique<onerma::Node>(config);
  client->shard_ = std::make_unique<nic::MachinePoll<onerma::Node>>(*client->node_, std::move(*port));
  client->shard_->attach(client->loop_);
  client->remote_ = std::make_unique<onerma::RemoteOnerma>(client->scheduler_, client->node_->initiator(),
                                                           client->policy_, real_time_client());
  client->remote_poll_ = std::make_unique<ClientPoll>(*client->remote_);
  client->loop_.add(*client->remote_poll_);
  client->remote_->add_node(kTarget, taken->peer);
  client->remote_->add_grant(kTarget, taken->grant);
  client->base_ = {kTarget, remote::RegionKey(taken->grant.region.value), taken->address};
  client->length_ = taken->length;
  client->local_.resize(kMaxBytes);
  return client;
}

OnermaClient::~OnermaClient() = default;

// Keeps `depth` operations under way.
class OnermaClient::Driver final : public nic::Pollable {
 public:
  Driver(OnermaClient& client, const OnermaPoint& point) : client_(client), point_(point), works_(point.depth) {
    for (Work& work : works_) work.driver = this;
  }

  std::size_t poll(Time now) override {
    if (begun_) return 0;
    begun_ = true;
    start_ = end_ = now;
    for (Work& work : works_) submit(work);
    return works_.size();
  }
  bool done() const { return begun_ && under_way_ == 0; }
  const std::string& failure() const { return failure_; }
  OnermaMeasured measured() const {
    OnermaMeasured m{.operations = completed_, .latency_ns = latency_};
    const std::int64_t ns = (end_ - start_).nanoseconds();
    if (ns > 0) m.rate = static_cast<double>(completed_) * 1e9 / static_cast<double>(ns);
    return m;
  }

 private:
  struct Work {
    Driver* driver = nullptr;
    remote::Operation operation;
    Time submitted;
  };

  void submit(Work& work) {
    const MutableBytes local = MutableBytes(client_.local_).first(point_.bytes);
    work.operation = point_.op == OpKind::kRead ? remote::read_operation(client_.base_, local)
                                                : remote::write_operation(client_.base_, local);
    work.operation.context = &work;
    work.operation.on_complete = [](remote::Operation& operation) {
      auto& self = *static_cast<Work*>(operation.context);
      self.driver->take(self);
    };
    work.submitted = client_.loop_.now();
    ++under_way_;
    client_.remote_->submit(work.operation);
  }
  void take(Work& work) {
    const Time now = client_.loop_.now();
    --under_way_;
    if (work.operation.status != remote::Status::kOk) failure_ = std::string(to_string(work.operation.status));
    latency_.record((now - work.submitted).nanoseconds());
    ++completed_;
    end_ = now;
    if (failure_.empty() && now - start_ < point_.duration && !client_.loop_.stopping()) submit(work);
  }

  OnermaClient& client_;
  OnermaPoint point_;
  std::vector<Work> works_;
  std::uint32_t under_way_ = 0;
  std::uint64_t completed_ = 0;
  Histogram latency_;
  Time start_;
  Time end_;
  bool begun_ = false;
  std::string failure_;
};

Result<OnermaMeasured> OnermaClient::measure(const OnermaPoint& point) {
  if (auto sound = verify(point.bytes); !sound) return tl::unexpected(sound.error());
  const std::uint64_t retries = remote_->counters().retries;
  Driver driver(*this, point);
  loop_.add(driver);
  loop_.run_until([&] { return driver.done(); });
  loop_.remove(driver);
  if (!driver.failure().empty()) return fail(fmt::format("an operation failed: {}", driver.failure()));
  OnermaMeasured measured = driver.measured();
  measured.retries = remote_->counters().retries - retries;
  if (auto sound = verify(point.bytes); !sound) return tl::unexpected(sound.error());
  return measured;
}

Result<void> OnermaClient::run(remote::Operation operation) {
  bool done = false;
  operation.context = &done;
  operation.on_complete = [](remote::Operation& o) { *static_cast<bool*>(o.context) = true; };
  remote_->submit(operation);
  loop_.run_until([&] { return done; });
  if (!done) return fail("interrupted");
  if (operation.status == remote::Status::kOk) return {};
  return fail(fmt::format("no answer as it should be over {}: {}; is the target there, and are these its grants?",
                          port_name(), to_string(operation.status)));
}

// What nobody has written is as the target made it; what is written is read back. Where measured operations do not come.
Result<void> OnermaClient::verify(std::uint32_t bytes) {
  std::vector<std::uint8_t> there(std::max<std::uint32_t>(bytes, 8));
  std::vector<std::uint8_t> back(there.size());
  if (auto read = run(remote::read_operation(base_ + kMaxBytes, back)); !read) return read;
  for (std::size_t i = 0; i < back.size(); ++i) {
    if (back[i] != pattern(kMaxBytes + i)) return fail("a read brought other bytes than the target has");
  }
  for (std::size_t i = 0; i < there.size(); ++i) there[i] = static_cast<std::uint8_t>(i * 31 + bytes);
  if (auto wrote = run(remote::write_operation(base_ + 2 * std::uint64_t{kMaxBytes}, there)); !wrote) return wrote;
  if (auto read = run(remote::read_operation(base_ + 2 * std::uint64_t{kMaxBytes}, back)); !read) return read;
  return back == there ? Result<void>() : fail("bytes did not arrive as they were sent");
}

}  // namespace sluice::rack
