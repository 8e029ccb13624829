#include "rack/directory/etcd_directory.h"

#include <fmt/core.h>
#include <httplib.h>
#include <openssl/evp.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>

#include "rack/directory/directory_json.h"
#include "rack/settings/http_reason.h"
#include "telemetry/http_server.h"

namespace sluice::rack {
namespace {

using nlohmann::json;

// The lease that a node's record hangs on has the number of the one that its life hangs on, and this bit.
constexpr std::uint64_t kMemoryBit = std::uint64_t{1} << 62;
constexpr std::uint64_t kFarewellBit = std::uint64_t{1} << 61;  // of a client's that has left, instead
constexpr const char* kLogin = "/v3/auth/authenticate";
constexpr int kMostTries = 20;  // of a transaction that others get in the way of

std::string encoded(std::string_view text) {
  std::string out(4 * ((text.size() + 2) / 3) + 1, '\0');  // and the terminator that OpenSSL writes
  const int n = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  out.resize(static_cast<std::size_t>(n));
  return out;
}

// Empty: it is no base64.
std::string decoded(std::string_view text) {
  std::string out(text.size() / 4 * 3, '\0');
  const int n = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  if (n < 0) return {};
  const auto padding = static_cast<std::size_t>(
      std::ranges::count(text.substr(text.size() - std::min<std::size_t>(text.size(), 2)), '='));
  out.resize(static_cast<std::size_t>(n) - padding);
  return out;
}

// 64-bit numbers are text in the gateway's JSON, and left out when they are zero.
std::uint64_t number(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return 0;
  if (found->is_number_unsigned()) return found->get<std::uint64_t>();
  if (!found->is_string()) return 0;
  return std::strtoull(found->get_ref<const std::string&>().c_str(), nullptr, 10);
}

std::string text(const json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || !found->is_string() ? std::string() : decoded(found->get_ref<const std::string&>());
}

// All keys that begin with this.
json everything_under(std::string prefix) {
  json range{{"key", encoded(prefix)}};
  ++prefix.back();
  range["range_end"] = encoded(prefix);
  return range;
}

json put(const std::string& key, const std::string& value, std::uint64_t lease) {
  return {{"request_put", {{"key", encoded(key)}, {"value", encoded(value)}, {"lease", std::to_string(lease)}}}};
}

json is_absent(const std::string& key) {
  return {{"key", encoded(key)}, {"target", "VERSION"}, {"result", "EQUAL"}, {"version", "0"}};
}

json is_as_of(const std::string& key, std::uint64_t revision) {
  if (revision == 0) return is_absent(key);
  return {{"key", encoded(key)}, {"target", "MOD"}, {"result", "EQUAL"}, {"mod_revision", std::to_string(revision)}};
}

json has_value(const std::string& key, const std::string& value) {
  return {{"key", encoded(key)}, {"target", "VALUE"}, {"result", "EQUAL"}, {"value", encoded(value)}};
}

// The pairs of one answer of a transaction or of a range.
json pairs_of(const json& range) {
  const auto found = range.find("kvs");
  return found == range.end() ? json::array() : *found;
}

const json& responses_of(const json& answer) {
  static const json kNone = json::array();
  const auto found = answer.find("responses");
  return found == answer.end() ? kNone : *found;
}

json range_of(const json& answer, std::size_t i) {
  const json& responses = responses_of(answer);
  if (i >= responses.size() || !responses[i].contains("response_range")) return json::object();
  return responses[i]["response_range"];
}

// Of everything, when it answered.
std::uint64_t revision_of(const json& answer) {
  return answer.contains("header") ? number(answer["header"], "revision") : 0;
}

// Fine, or an error that says what had been done before, by a question whose answer got lost.
Result<void> unless(const Result<json>& answer, std::string_view done) {
  if (answer || answer.error().message.find(done) != std::string::npos) return {};
  return tl::unexpected(answer.error());
}

// What it says went wrong: a text, or, of its streams (leases are kept alive in one), an object with a text in it.
std::string error_of(const json& answer, int status) {
  if (!answer.is_object()) return fmt::format("status {}, and no JSON", status);
  const json error = answer.value("error", json());
  const json said = error.is_object() ? error.value("message", json()) : error;
  return said.is_string() ? said.get<std::string>() : fmt::format("status {}", status);
}

std::chrono::milliseconds chrono_of(Duration d) { return std::chrono::milliseconds(d.milliseconds()); }

}  // namespace

Result<std::unique_ptr<EtcdDirectory>> EtcdDirectory::open(EtcdSettings settings, Subnet subnet) {
  if (settings.addresses.empty()) return fail("etcd: say at least one address, HOST:PORT");
  if (settings.prefix.empty() || settings.prefix.front() != '/' || settings.prefix.back() == '/')
    return fail(fmt::format("etcd: the prefix '{}' must begin with '/' and not end with it", settings.prefix));
  std::unique_ptr<EtcdDirectory> directory(new EtcdDirectory(std::move(settings), subnet));
  if (auto first = directory->nodes(); !first) return tl::unexpected(first.error());
  return directory;
}

EtcdDirectory::~EtcdDirectory() = default;

// --- HTTP ---

std::unique_ptr<httplib::ClientImpl> EtcdDirectory::connect(std::size_t address) const {
  const auto [host, port] = telemetry::HttpAddress{settings_.addresses[address]}.host_and_port();
  std::unique_ptr<httplib::ClientImpl> client;
  if (settings_.authority.empty()) {
    client = std::make_unique<httplib::ClientImpl>(host, port);
  } else {
    auto sealed = settings_.certificate.empty()
                      ? std::make_unique<httplib::SSLClient>(host, port)
                      : std::make_unique<httplib::SSLClient>(host, port, settings_.certificate, settings_.key);
    sealed->set_ca_cert_path(settings_.authority);
    client = std::move(sealed);
  }
  client->set_connection_timeout(chrono_of(Duration::seconds(1)));
  client->set_read_timeout(chrono_of(kAnswerWithin));
  return client;
}

Result<std::string> EtcdDirectory::post(std::size_t address, const std::string& path, const std::string& body,
                                        int& status) {
  httplib::Request request;
  request.method = "POST";
  request.path = path;
  request.body = body;
  request.set_header("Content-Type", telemetry::kJson);
  {
    const std::scoped_lock lock(mutex_);
    if (!token_.empty() && path != kLogin) request.set_header("Authorization", token_);
  }
  status = 0;
  std::string text;
  request.response_handler = [&status](const httplib::Response& response) {
    status = response.status;
    return true;
  };
  request.content_receiver = [&text](const char* data, std::size_t size, std::uint64_t, std::uint64_t) {
    text.append(data, size);
    return true;
  };
  const telemetry::NoPipeSignal quiet;
  const auto answer = connect(address)->send(request);
  // Behind its errors etcd sends a trailer, which the library takes for a broken connection.
  if (!answer && !Json::accept(text)) {
    status = 0;
    return fail(reason_of(answer.error()));
  }
  return text;
}

Result<void> EtcdDirectory::authenticate() {
  if (settings_.user.empty()) return {};
  const auto answer = call(kLogin, {{"name", settings_.user}, {"password", settings_.password}});
  if (!answer) return tl::unexpected(answer.error());
  const std::scoped_lock lock(mutex_);
  token_ = answer->value("token", "");
  return {};
}

// Asks each address in turn, the one that answered last first, until one answers or patience ends.
Result<EtcdDirectory::Json> EtcdDirectory::call(const std::string& path, const Json& body) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kPatience.nanoseconds());
  const std::string text = body.dump();
  const bool is_login = path == kLogin;
  bool logged_in = is_login;
  std::string why;
  std::size_t address = 0;
  {
    const std::scoped_lock lock(mutex_);
    address = address_;
    if (!settings_.user.empty() && !is_login && token_.empty()) logged_in = false;
  }
  for (;;) {
    int status = 0;
    const auto answer = post(address, path, text, status);
    const Json parsed = answer ? Json::parse(*answer, nullptr, false) : Json();
    if (status == 200 && parsed.is_object() && !parsed.contains("error")) {
      const std::scoped_lock lock(mutex_);
      address_ = address;
      return parsed;
    }
    why = answer ? error_of(parsed, status) : answer.error().message;
    const bool no_token = status == 401 || why.find("invalid auth token") != std::string::npos ||
                          why.find("user name is empty") != std::string::npos;
    if (no_token && !logged_in && !settings_.user.empty()) {
      logged_in = true;
      if (auto in = authenticate(); !in) return tl::unexpected(in.error());
      continue;
    }
    // What etcd itself refuses it would refuse again, unless it has no leader just now.
    const bool refused = status >= 400 && why.find("no leader") == std::string::npos &&
                         why.find("leader changed") == std::string::npos && why.find("timed out") == std::string::npos;
    if (refused || std::chrono::steady_clock::now() >= give_up) {
      return fail(fmt::format("etcd at {}: {}{}", settings_.addresses[address], why,
                              refused ? "" : "; is it up, and the way to it open?"));
    }
    address = (address + 1) % settings_.addresses.size();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// --- leases ---

Result<LeaseId> EtcdDirectory::grant(NodeKind kind, Duration lease) {
  std::random_device chance;
  const LeaseId id((std::uint64_t{chance()} << 32 | chance()) & (kFarewellBit - 1));
  if (auto made = grant_one(id.value, lease); !made) return tl::unexpected(made.error());
  if (auto made = grant_one(id.value | kMemoryBit, forget_lost_after(kind) + lease); !made)
    return tl::unexpected(made.error());
  return id;
}

Result<void> EtcdDirectory::grant_one(std::uint64_t etcd_lease, Duration length) {
  const std::int64_t seconds = std::max<std::int64_t>((length.milliseconds() + 999) / 1000, 1);
  const Json body{{"ID", std::to_string(etcd_lease)}, {"TTL", std::to_string(seconds)}};
  return unless(call("/v3/lease/grant", body), "lease already exists");
}

Result<void> EtcdDirectory::revoke(std::uint64_t etcd_lease) {
  return unless(call("/v3/lease/revoke", {{"ID", std::to_string(etcd_lease)}}), "requested lease not found");
}

// False: there is no such lease any more.
Result<bool> EtcdDirectory::keep_alive(std::uint64_t etcd_lease) {
  const auto answer = call("/v3/lease/keepalive", {{"ID", std::to_string(etcd_lease)}});
  if (!answer) return tl::unexpected(answer.error());
  return answer->contains("result") && number((*answer)["result"], "TTL") != 0;
}

Result<bool> EtcdDirectory::commit(const Json& compare, const Json& then) {
  const auto answer = call("/v3/kv/txn", {{"compare", compare}, {"success", then}});
  if (!answer) return tl::unexpected(answer.error());
  return answer->value("succeeded", false);
}

// --- nodes ---

Result<EtcdDirectory::Known> EtcdDirectory::look(const std::string& name) {
  const auto answer = call("/v3/kv/txn", {{"success",
                                           {{{"request_range", {{"key", encoded(key("/nodes/" + name))}}}},
                                            {{"request_range", {{"key", encoded(key("/alive/" + name))}}}}}}});
  if (!answer) return tl::unexpected(answer.error());
  Known known;
  for (const Json& pair : pairs_of(range_of(*answer, 0))) {
    auto record = node_from_json(Json::parse(text(pair, "value"), nullptr, false));
    if (!record) return fail(fmt::format("etcd: {}: {}", key("/nodes/" + name), record.error().message));
    known.record = std::move(*record);
    known.record_revision = number(pair, "mod_revision");
  }
  for (const Json& pair : pairs_of(range_of(*answer, 1)))
    known.alive = LeaseId(std::strtoull(text(pair, "value").c_str(), nullptr, 10));
  return known;
}

// The one that is wished for, or the one after the last given that nobody has.
Result<EtcdDirectory::Number> EtcdDirectory::free_number(remote::NodeId wish) {
  Json range = everything_under(key("/ids/"));
  range["keys_only"] = true;
  const auto answer = call(
      "/v3/kv/txn", {{"success", {{{"request_range", range}}, {{"request_range", {{"key", encoded(key("/last"))}}}}}}});
  if (!answer) return tl::unexpected(answer.error());
  std::set<std::uint32_t> taken;
  for (const Json& pair : pairs_of(range_of(*answer, 0))) {
    const std::string name = text(pair, "key");
    taken.insert(static_cast<std::uint32_t>(std::strtoul(name.substr(key("/ids/").size()).c_str(), nullptr, 10)));
  }
  Number number{.last = taken.empty() ? 0 : *taken.rbegin()};  // as long as nobody says
  for (const Json& pair : pairs_of(range_of(*answer, 1))) {
    number.last = std::strtoull(text(pair, "value").c_str(), nullptr, 10);
    number.last_revision = sluice::rack::number(pair, "mod_revision");
  }
  number.id = wish;
  if (wish.value != 0 && wish.value <= std::min<std::uint64_t>(number.last, kMaxNodes) && !taken.contains(wish.value))
    return number;
  for (std::size_t i = 0; i < kMaxNodes; ++i) {
    number.id = remote::NodeId(static_cast<std::uint32_t>(number.last++ % kMaxNodes + 1));
    if (!taken.contains(number.id.value)) return number;
  }
  return tl::unexpected(no_room_for_nodes());
}

Result<Registration> EtcdDirectory::join(const NodeDescription& description, Duration lease, remote::NodeId wish) {
  if (auto sound = check_join(description, lease); !sound) return tl::unexpected(sound.error());
  const auto granted = grant(description.kind, lease);
  if (!granted) return tl::unexpected(granted.error());
  const auto give_back = [&](Error why) -> Result<Registration> {
    static_cast<void>(revoke(granted->value));
    static_cast<void>(revoke(granted->value | kMemoryBit));
    return tl::unexpected(std::move(why));
  };
  const std::string& name = description.name;
  for (int i = 0; i < kMostTries; ++i) {
    const auto known = look(name);
    if (!known) return give_back(known.error());
    if (known->alive == *granted && known->record)
      return Registration{*known->record, *granted};  // no answer came of it
    if (known->alive) {
      return give_back({fmt::format(
          "node name '{}' is taken: its lease has not ended; stop that node or choose another name", name)});
    }
    NodeRecord node = known->record.value_or(NodeRecord{});
    Json compare{is_absent(key("/alive/" + name)), is_as_of(key("/nodes/" + name), known->record_revision)};
    Json then = Json::array();
    if (!known->record) {
      const auto number = free_number(wish);
      if (!number) return give_back(number.error());
      node.id = number->id;
      node.ip = subnet_.ip_of(node.id);
      node.mac = Subnet::mac_of(node.ip);
      compare.push_back(is_absent(key(fmt::format("/ids/{}", node.id.value))));
      compare.push_back(is_as_of(key("/last"), number->last_revision));
      then.push_back(put(key("/last"), std::to_string(number->last), 0));
    }
    node.description = description;
    node.state = NodeState::kJoining;
    node.has_left = false;
    ++node.incarnation;
    const std::uint64_t memory = granted->value | kMemoryBit;
    then.push_back(put(key("/alive/" + name), std::to_string(granted->value), granted->value));
    then.push_back(put(key("/nodes/" + name), to_json(node).dump(), memory));
    then.push_back(put(key(fmt::format("/ids/{}", node.id.value)), name, memory));
    const auto done = commit(compare, then);
    if (!done) return give_back(done.error());
    if (*done) return Registration{std::move(node), *granted};
  }
  return give_back({fmt::format("others join as '{}' at the same time; choose another name", name)});
}

Result<void> EtcdDirectory::publish(LeaseId lease, const NodeDescription& description) {
  for (int i = 0; i < kMostTries; ++i) {
    const auto known = look(description.name);
    if (!known) return tl::unexpected(known.error());
    if (!known->record || known->alive != lease) {
      const auto lives = keep_alive(lease.value);
      if (!lives) return tl::unexpected(lives.error());
      if (!*lives) return tl::unexpected(lease_is_unknown(lease));
      return fail(fmt::format("lease {} does not belong to {} '{}'", lease.value, to_string(description.kind),
                              description.name));
    }
    NodeRecord node = *known->record;
    if (node.description.kind != description.kind) {
      return tl::unexpected(lease_is_of_another(lease, node.description, description));
    }
    node.description = description;
    node.state = NodeState::kReady;
    if (node == *known->record) return renew(lease);
    const auto done =
        commit(Json::array({has_value(key("/alive/" + description.name), std::to_string(lease.value)),
                            is_as_of(key("/nodes/" + description.name), known->record_revision)}),
               Json::array({put(key("/nodes/" + description.name), to_json(node).dump(), lease.value | kMemoryBit)}));
    if (!done) return tl::unexpected(done.error());
    if (*done) return renew(lease);
  }
  return fail(fmt::format("'{}' is changed by others all the time", description.name));
}

Result<void> EtcdDirectory::renew(LeaseId lease) {
  const auto lives = keep_alive(lease.value);
  if (!lives) return tl::unexpected(lives.error());
  if (!*lives) return tl::unexpected(lease_is_unknown(lease));
  const auto remembered = keep_alive(lease.value | kMemoryBit);
  if (!remembered) return tl::unexpected(remembered.error());
  if (!*remembered) return tl::unexpected(lease_is_unknown(lease));  // nobody sees the node any more
  return {};
}

Result<void> EtcdDirectory::leave(LeaseId lease) {
  const auto lives = keep_alive(lease.value);
  if (!lives) return tl::unexpected(lives.error());
  if (!*lives) return tl::unexpected(lease_is_unknown(lease));
  static_cast<void>(keep_alive(lease.value | kMemoryBit));
  note_leaving(lease);
  return revoke(lease.value);
}

// Best effort: it is gone all the same.
void EtcdDirectory::note_leaving(LeaseId lease) {
  const auto attached = call("/v3/lease/timetolive", {{"ID", std::to_string(lease.value)}, {"keys", true}});
  const std::string alive = key("/alive/");
  for (const Json& encoded_key : attached ? attached->value("keys", Json::array()) : Json::array()) {
    const std::string name = decoded(encoded_key.is_string() ? encoded_key.get_ref<const std::string&>() : "");
    if (name.starts_with(alive)) note_leaving_of(name.substr(alive.size()), lease);
  }
}

void EtcdDirectory::note_leaving_of(const std::string& name, LeaseId lease) {
  const auto known = look(name);
  if (!known || !known->record || known->alive != lease) return;
  NodeRecord node = *known->record;
  node.has_left = true;
  node.description = what_is_kept(std::move(node.description));
  const NodeKind kind = node.description.kind;
  const bool is_shorter = forget_left_after(kind) != forget_lost_after(kind);
  const std::uint64_t memory = lease.value | (is_shorter ? kFarewellBit : kMemoryBit);
  if (is_shorter && !grant_one(memory, forget_left_after(kind))) return;
  const std::string record = key("/nodes/" + name);
  static_cast<void>(commit(Json::array({has_value(key("/alive/" + name), std::to_string(lease.value)),
                                        is_as_of(record, known->record_revision)}),
                           Json::array({put(record, to_json(node).dump(), memory)})));
}

Result<void> EtcdDirectory::evict(const std::string& name) {
  const auto known = look(name);
  if (!known) return tl::unexpected(known.error());
  return known->alive ? revoke(known->alive->value) : Result<void>{};
}

Result<VersionedText> EtcdDirectory::ledger() {
  const auto answer = call("/v3/kv/range", {{"key", encoded(key("/tenants"))}});
  if (!answer) return tl::unexpected(answer.error());
  VersionedText found;
  for (const Json& pair : pairs_of(*answer)) found = {text(pair, "value"), number(pair, "mod_revision")};
  return found;
}

Result<bool> EtcdDirectory::replace_ledger(std::uint64_t version, const std::string& text) {
  auto done = commit(Json::array({is_as_of(key("/tenants"), version)}), Json::array({put(key("/tenants"), text, 0)}));
  if (!done || *done) return done;
  // It may have been done by a question whose answer got lost.
  const auto now = ledger();
  if (!now) return tl::unexpected(now.error());
  return now->text == text;
}

Result<Snapshot> EtcdDirectory::nodes() {
  const auto answer = call("/v3/kv/txn", {{"success",
                                           {{{"request_range", everything_under(key("/nodes/"))}},
                                            {{"request_range", everything_under(key("/alive/"))}}}}});
  if (!answer) return tl::unexpected(answer.error());
  std::set<std::string> alive;
  for (const Json& pair : pairs_of(range_of(*answer, 1))) alive.insert(text(pair, "key").substr(key("/alive/").size()));
  Snapshot snapshot;
  snapshot.revision = revision_of(*answer);
  for (const Json& pair : pairs_of(range_of(*answer, 0))) {
    auto record = node_from_json(Json::parse(text(pair, "value"), nullptr, false));
    if (!record) return fail(fmt::format("etcd: {}: {}", text(pair, "key"), record.error().message));
    if (!alive.contains(record->description.name)) record->state = NodeState::kGone;
    snapshot.nodes.push_back(std::move(*record));
  }
  std::ranges::sort(snapshot.nodes, {}, &NodeRecord::id);
  const std::scoped_lock lock(mutex_);
  kinds_.clear();
  for (const NodeRecord& node : snapshot.nodes) kinds_[node.description.name] = node.description.kind;
  return snapshot;
}

// Whether it tells of a node of one of these kinds, or of what tenants have. What cannot be told does.
bool EtcdDirectory::concerns(const Json& event, NodeKinds kinds) {
  const Json pair = event.value("kv", Json::object());
  const std::string name = text(pair, "key");
  const bool is_deletion = event.value("type", "") == "DELETE";
  const auto name_under = [&](const char* part) {
    const std::string folder = key(part);
    return name.starts_with(folder) ? name.substr(folder.size()) : std::string();
  };
  // Numbers do not count: they change with their nodes.
  if (!name_under("/ids/").empty() || name == key("/last")) return false;
  const auto is_of_these = [&](const Json& record) {
    const auto node = node_from_json(Json::parse(text(record, "value"), nullptr, false));
    if (!node) return true;
    const std::scoped_lock lock(mutex_);
    kinds_[node->description.name] = node->description.kind;
    return kinds.contains(node->description.kind);
  };
  if (!name_under("/nodes/").empty()) {
    // A name may have been another kind's.
    const bool was = event.contains("prev_kv") ? is_of_these(event["prev_kv"]) : is_deletion;
    return (!is_deletion && is_of_these(pair)) || was;
  }
  const std::string node = name_under("/alive/");
  if (node.empty()) return true;
  if (!is_deletion) return false;  // its record comes with it
  const std::scoped_lock lock(mutex_);
  const auto known = kinds_.find(node);
  return known == kinds_.end() || kinds.contains(known->second);
}

// From where on changes are not known yet to who has seen this revision.
std::uint64_t EtcdDirectory::quiet_until(std::uint64_t seen, NodeKinds kinds) {
  const std::scoped_lock lock(mutex_);
  const auto known = quiet_.find(kinds);
  const bool covered = known != quiet_.end() && seen >= known->second.since && seen <= known->second.until;
  return covered ? known->second.until : seen;
}

void EtcdDirectory::note_quiet(Quiet stretch, NodeKinds kinds) {
  const std::scoped_lock lock(mutex_);
  Quiet& known = quiet_[kinds];
  const bool apart = stretch.since > known.until || stretch.until < known.since;
  if (!apart) stretch = {std::min(stretch.since, known.since), std::max(stretch.until, known.until)};
  if (stretch.until >= known.until) known = stretch;
}

// stop_watches() and cut_watches() are heeded between two of these.
constexpr auto kWatchAtOnce = std::chrono::milliseconds(500);

Result<Snapshot> EtcdDirectory::watch(std::uint64_t seen, Duration timeout, NodeKinds kinds) {
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(std::max<std::int64_t>(timeout.nanoseconds(), 0));
  const auto is_over = [this, cuts = cuts_.load()] { return stopping_ || cuts_ != cuts; };
  Json create = everything_under(settings_.prefix + "/");
  create["prev_kv"] = true;
  std::uint64_t looked = quiet_until(seen, kinds);  // nothing has changed up to here
  httplib::Request request;
  request.method = "POST";
  request.path = "/v3/watch";
  request.set_header("Content-Type", telemetry::kJson);
  std::size_t address = 0;
  {
    const std::scoped_lock lock(mutex_);
    address = address_;
    if (!token_.empty()) request.set_header("Authorization", token_);
  }
  bool changed = false;
  std::string line;
  request.content_receiver = [&](const char* data, std::size_t size, std::uint64_t, std::uint64_t) {
    line.append(data, size);
    for (std::size_t end = line.find('\n'); end != std::string::npos; end = line.find('\n')) {
      const Json message = Json::parse(line.substr(0, end), nullptr, false);
      line.erase(0, end + 1);
      // An event, or that what we have seen is compacted: both mean to look anew.
      const Json result = message.is_object() ? message.value("result", Json::object()) : Json::object();
      if (result.contains("canceled")) changed = true;
      for (const Json& event : result.value("events", Json::array())) {
        changed = changed || concerns(event, kinds);
        looked = std::max(looked, number(event.value("kv", Json::object()), "mod_revision"));
      }
    }
    return !changed && !is_over();
  };
  const telemetry::NoPipeSignal quiet;
  while (seen != 0 && !changed && !is_over()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0) break;
    const auto client = connect(address);
    client->set_read_timeout(std::min(left, kWatchAtOnce));
    create["start_revision"] = std::to_string(looked + 1);
    request.body = Json{{"create_request", create}}.dump();
    line.clear();
    const auto answer = client->send(request);
    if (!changed && answer.error() == httplib::Error::Connection) break;  // nodes() looks for one that answers
    if (answer && answer->status != 200) break;
    if (!changed && answer.error() != httplib::Error::Read) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  auto snapshot = nodes();
  if (!snapshot) return snapshot;
  snapshot->keep(kinds);
  if (changed || seen == 0) return snapshot;
  // Others' keys have revisions too; ours are as they were.
  snapshot->revision = seen;
  note_quiet({seen, looked}, kinds);
  return snapshot;
}

void EtcdDirectory::expire() {
  const auto now = std::chrono::steady_clock::now();
  {
    const std::scoped_lock lock(mutex_);
    if (now < compact_at_) return;
    compact_at_ = now + kCompactAfter;
  }
  static_cast<void>(compact());  // or the next time
}

Result<void> EtcdDirectory::compact() {
  const auto now = call("/v3/kv/range", {{"key", encoded(key("/tenants"))}, {"count_only", true}});
  if (!now) return tl::unexpected(now.error());
  const std::uint64_t to = [&] {
    const std::scoped_lock lock(mutex_);
    return std::exchange(compact_to_, revision_of(*now));
  }();
  if (to == 0) return {};
  return unless(call("/v3/kv/compaction", {{"revision", std::to_string(to)}}), "has been compacted");
}

}  // namespace sluice::rack
