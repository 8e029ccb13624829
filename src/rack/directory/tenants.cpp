#include "rack/directory/tenants.h"

#include <fmt/core.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <utility>

#include "rack/directory/directory_json.h"
#include "rack/directory/directory_store.h"
#include "rack/settings/json_number.h"
#include "rack/settings/names.h"
#include "rack/settings/schema.h"

namespace sluice::rack {
namespace {

using nlohmann::json;

constexpr std::string_view kTokenPrefix = "sluice_";  // so that those who look for leaked secrets know it
constexpr std::size_t kTokenBytes = 32;
constexpr int kMostTries = 20;  // of a change that others get in the way of

std::string hex(std::span<const unsigned char> bytes) {
  std::string out;
  for (const unsigned char byte : bytes) out += fmt::format("{:02x}", byte);
  return out;
}

std::string hash_of(std::string_view token) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  if (EVP_Digest(token.data(), token.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1) return {};
  return hex(std::span(digest).first(size));
}

Result<std::string> new_token() {
  std::array<unsigned char, kTokenBytes> bytes{};
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1)
    return fail("OpenSSL has no random numbers; try again");
  return std::string(kTokenPrefix) + hex(bytes);
}

std::uint64_t new_birth() {
  std::random_device chance;
  return std::uint64_t{chance()} << 32 | chance();
}

Result<void> check_new_name(std::string_view what, const std::string& name) {
  if (name == kMainRegion) return fail(fmt::format("{} must not be named '{}'", what, kMainRegion));
  return check_name(what, name);
}

std::uint64_t number_attribute(const NodeDescription& node, const char* name) {
  const auto found = node.attributes.find(name);
  return found == node.attributes.end() ? 0 : std::strtoull(found->second.c_str(), nullptr, 10);
}

// What daemons are called unless told otherwise: one that comes later must find its name free. Cowbird's engine may be another machine's, too.
bool is_daemons_name(std::string_view name) {
  if (name == "cowbird" || name.ends_with(".cowbird")) return true;
  const std::string_view stem = name.substr(0, name.find_last_not_of("0123456789") + 1);
  return stem == "switch" || stem == "memory" || stem == "metadata" || stem == "box-agent";
}

bool is_shared(const NodeDescription& node) { return node.attributes.contains(kSharedAttribute); }

// That it says itself.
std::size_t attribute_bytes(const NodeDescription& node) {
  std::size_t bytes = 0;
  for (const auto& [name, value] : node.attributes)
    bytes += name == kTenantAttribute || name == kMachineAttribute ? 0 : name.size() + value.size();
  return bytes;
}

}  // namespace

std::string tenant_of(const NodeDescription& node) {
  const auto found = node.attributes.find(kTenantAttribute);
  return found == node.attributes.end() ? std::string() : found->second;
}

bool has_shared_memory(const Snapshot& snapshot) {
  return std::ranges::any_of(snapshot.nodes, [](const NodeRecord& node) {
    return node.description.kind == NodeKind::kMemory && is_shared(node.description);
  });
}

void ClientsByAddress::learn(const Snapshot& snapshot) {
  has_learned_ = true;
  has_tenants_ = snapshot.has_tenants;
  owners_.clear();
  for (const NodeRecord& node : snapshot.nodes) {
    if (node.state != NodeState::kGone) owners_[wire::Gid::from(node.ip)] = tenant_of(node.description);
  }
}

std::optional<std::string> ClientsByAddress::owner(const wire::Gid& address) const {
  if (!has_learned_) return std::nullopt;
  if (!has_tenants_) return std::string();
  const auto known = owners_.find(address);
  return known == owners_.end() ? std::nullopt : std::optional(known->second);
}

// All that the directory keeps of tenants.
struct Tenants::Ledger {
  struct Tenant {
    std::string name;
    std::string token_hash;
    Quota quota;
    bool is_operator = false;
    bool is_revoked = false;
  };
  std::uint64_t version = 0;
  std::vector<Tenant> tenants;
  std::vector<TenantRegion> regions;
  std::vector<std::string> draining;

  Tenant* find(std::string_view name) {
    const auto found = std::ranges::find(tenants, name, &Tenant::name);
    return found == tenants.end() ? nullptr : &*found;
  }
  // All of them are looked at, whichever it is, each in the same time.
  const Tenant* who_shows(std::string_view token) const {
    const std::string hash = hash_of(token);
    const Tenant* found = nullptr;
    for (const Tenant& tenant : tenants) {
      const bool same = tenant.token_hash.size() == hash.size() && !hash.empty() &&
                        CRYPTO_memcmp(tenant.token_hash.data(), hash.data(), hash.size()) == 0;
      if (same) found = &tenant;
    }
    return found;
  }
  Quota used_by(const std::string& tenant) const {
    Quota used;
    for (const TenantRegion& region : regions) {
      if (region.tenant != tenant) continue;
      used.bytes += region.length;
      ++used.regions;
    }
    return used;
  }
  std::string text() const;
  static Result<Ledger> parse(const VersionedText& from);
};

std::string Tenants::Ledger::text() const {
  json out{{"tenants", json::array()}, {"regions", json::array()}, {"draining", draining}};
  for (const Tenant& t : tenants) {
    out["tenants"].push_back({{"name", t.name},
                              {"token_sha256", t.token_hash},
                              {"quota_bytes", t.quota.bytes},
                              {"quota_regions", t.quota.regions},
                              {"operator", t.is_operator},
                              {"revoked", t.is_revoked}});
  }
  for (const TenantRegion& region : regions) out["regions"].push_back(to_json(region));
  return out.dump(1) + "\n";
}

Result<Tenants::Ledger> Tenants::Ledger::parse(const VersionedText& from) {
  Ledger out;
  out.version = from.version;
  if (from.version == 0) return out;  // there is none
  try {
    const json in = json::parse(from.text);
    // What is no list is none, and would be a rack without tenants.
    for (const char* const list : {"tenants", "regions"})
      static_cast<void>(in.at(list).get_ref<const json::array_t&>());
    for (const json& t : in.at("tenants")) {
      out.tenants.push_back(
          {t.at("name").get<std::string>(), t.at("token_sha256").get<std::string>(),
           Quota{number_at<std::uint64_t>(t, "quota_bytes"), number_at<std::uint64_t>(t, "quota_regions")},
           t.at("operator").get<bool>(), t.at("revoked").get<bool>()});
    }
    for (const json& r : in.at("regions")) {
      auto region = tenant_region_from_json(r);
      if (!region) return tl::unexpected(region.error());
      out.regions.push_back(std::move(*region));
    }
    out.draining = in.at("draining").get<std::vector<std::string>>();
  } catch (const json::exception& e) {
    return fail(
        fmt::format("the directory's record of tenants makes no sense: {}; bring it back from a copy, or remove "
                    "it to begin without tenants",
                    e.what()));
  }
  return out;
}

std::string_view Tenants::to_string(Refusal refusal) {
  switch (refusal) {
    case Refusal::kMissing: return "missing";
    case Refusal::kWrong: return "wrong";
    case Refusal::kRevoked: return "revoked";
    case Refusal::kForbidden: return "forbidden";
    case Refusal::kOverQuota: return "over_quota";
  }
  return "?";
}

tl::unexpected<Error> Tenants::refuse(Refusal refusal, std::string why) {
  ++refused_[static_cast<std::size_t>(refusal)];
  return fail(std::move(why));
}

// --- the ledger ---

Result<std::shared_ptr<const Tenants::Ledger>> Tenants::fetch() {
  const auto text = directory_.ledger();
  if (!text) return tl::unexpected(text.error());
  {
    const std::scoped_lock lock(mutex_);
    if (ledger_ && ledger_->version == text->version) {
      asked_at_ = std::chrono::steady_clock::now();
      return ledger_;
    }
  }
  auto parsed = Ledger::parse(*text);
  if (!parsed) return tl::unexpected(parsed.error());
  auto fresh = std::make_shared<const Ledger>(std::move(*parsed));
  const std::scoped_lock lock(mutex_);
  // Of two answers that have crossed the later counts; a ledger that was removed begins anew.
  if (!ledger_ || fresh->version > ledger_->version || fresh->version == 0) ledger_ = fresh;
  asked_at_ = std::chrono::steady_clock::now();
  return fresh;
}

// An etcd that does not answer for a while must not shut out who is in: what was known last counts.
Result<std::shared_ptr<const Tenants::Ledger>> Tenants::current() {
  std::shared_ptr<const Ledger> known;
  {
    const std::scoped_lock lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (ledger_ && now - asked_at_ < kLedgerAge) return ledger_;
    known = ledger_;
    asked_at_ = now;  // others go on with what is known meanwhile
  }
  auto fresh = fetch();
  if (!fresh && known) return known;
  return fresh;
}

Result<void> Tenants::change(const Change& change) {
  for (int i = 0; i < kMostTries; ++i) {
    const auto before = fetch();
    if (!before) return tl::unexpected(before.error());
    Ledger ledger = **before;
    if (auto done = change(ledger); !done) return done;
    const auto replaced = directory_.replace_ledger((*before)->version, ledger.text());
    if (!replaced) return tl::unexpected(replaced.error());
    if (!*replaced) continue;
    const auto after = fetch();  // with its version
    return after ? Result<void>{} : tl::unexpected(after.error());
  }
  return fail("others change the rack's tenants all the time; try again");
}

Result<void> Tenants::check() {
  const auto ledger = fetch();
  if (!ledger) return tl::unexpected(ledger.error());
  return {};
}

// --- who asks, and what that one may see ---

Result<Tenants::Asker> Tenants::identify(std::string_view token, bool at_socket) {
  if (token.empty() && at_socket) return Asker{.is_rack = true};
  const auto ledger = current();
  if (!ledger) return tl::unexpected(ledger.error());
  if (token.empty()) {
    if ((*ledger)->tenants.empty()) return Asker{.is_rack = true};
    return refuse(
        Refusal::kMissing,
        "this rack has tenants: show a token, with --token-file FILE or SLUICE_TOKEN_FILE; its operator makes "
        "one by `sluice tenant add NAME`");
  }
  const Ledger::Tenant* const found = (*ledger)->who_shows(token);
  if (found == nullptr)
    return refuse(
        Refusal::kWrong,
        "the token is of no tenant of this rack: it is wrong, or has been replaced by another (`sluice tenant "
        "rotate`); ask the rack's operator");
  if (found->is_revoked)
    return refuse(Refusal::kRevoked,
                  fmt::format("the token of tenant '{}' was revoked; ask the rack's operator", found->name));
  return found->is_operator ? Asker{.is_rack = true} : Asker{.tenant = found->name};
}

bool Tenants::is_rack(std::string_view token, bool at_socket) {
  if (token.empty() && at_socket) return true;
  const auto ledger = current();
  if (!ledger) return false;
  if (token.empty()) return (*ledger)->tenants.empty();
  const Ledger::Tenant* const found = (*ledger)->who_shows(token);
  return found != nullptr && found->is_operator && !found->is_revoked;
}

Result<Snapshot> Tenants::view(Snapshot snapshot, const Asker& asker) {
  // Not as it was a moment ago: who watches would take what it sees for all that belongs to this revision.
  const auto ledger = fetch();
  if (!ledger) return tl::unexpected(ledger.error());
  snapshot.has_tenants = !(*ledger)->tenants.empty();
  if (asker.is_rack) {
    snapshot.regions = (*ledger)->regions;
    snapshot.draining = (*ledger)->draining;
    return snapshot;
  }
  for (const TenantRegion& region : (*ledger)->regions) {
    if (region.tenant == asker.tenant) snapshot.regions.push_back(region);
  }
  const bool any_shared = has_shared_memory(snapshot);
  std::erase_if(snapshot.nodes, [&](NodeRecord& node) {
    NodeDescription& d = node.description;
    switch (d.kind) {
      case NodeKind::kSwitch: return false;
      case NodeKind::kMetadata: return !any_shared;  // the rack's own store lies in memory that is not theirs
      case NodeKind::kClient: return tenant_of(d) != asker.tenant;
      case NodeKind::kMemory:
        std::erase_if(d.regions, [&](const RegionRecord& region) {
          return region.owner.empty() ? !is_shared(d) : region.owner != asker.tenant;
        });
        return d.regions.empty();
    }
    return true;
  });
  return snapshot;
}

Result<NodeDescription> Tenants::admitted(NodeDescription description, const Asker& asker) {
  description.attributes.erase(kTenantAttribute);
  if (asker.is_rack) return description;
  if (description.kind != NodeKind::kClient)
    return refuse(Refusal::kForbidden,
                  fmt::format("tenant '{}' may join as a client, not as a {}: that needs an operator's token",
                              asker.tenant, rack::to_string(description.kind)));
  const auto snapshot = directory_.nodes();
  if (!snapshot) return tl::unexpected(snapshot.error());
  const NodeRecord* const known = snapshot->find(description.name);
  if (is_daemons_name(description.name))
    return refuse(
        Refusal::kForbidden,
        fmt::format("'{}' is a name for the rack's own daemons; choose one of your own (--name)", description.name));
  if (known != nullptr &&
      (known->description.kind != NodeKind::kClient || tenant_of(known->description) != asker.tenant))
    return refuse(Refusal::kForbidden,
                  fmt::format("the name '{}' is another's on this rack; choose one of your own", description.name));
  if (known == nullptr || known->state == NodeState::kGone) {
    if (auto room = room_for_client(*snapshot, asker.tenant); !room) return tl::unexpected(room.error());
  }
  return owned_by(*snapshot, std::move(description), asker.tenant);
}

// All tenants share the rack's numbers, and everybody is told of every node.
Result<void> Tenants::room_for_client(const Snapshot& snapshot, const std::string& tenant) {
  std::size_t remembered = 0;
  std::size_t here = 0;
  for (const NodeRecord& node : snapshot.nodes) {
    if (tenant_of(node.description) != tenant) continue;
    ++remembered;
    here += node.state == NodeState::kGone ? 0 : 1;
  }
  if (here >= kMostClients)
    return refuse(Refusal::kOverQuota,
                  fmt::format("over quota: tenant '{}' has {} clients on the rack, and more are not "
                              "allowed; end one",
                              tenant, here));
  if (remembered >= kMostRemembered)
    return refuse(
        Refusal::kOverQuota,
        fmt::format("over quota: the rack knows {} clients of tenant '{}', and more are not allowed; wait: one "
                    "that has left is forgotten after {} s, one that was lost after {} s",
                    remembered, tenant, Directory::kForgetClientAfter.milliseconds() / 1000,
                    Directory::kForgetAfter.milliseconds() / 1000));
  return {};
}

// Everybody is told, of every node, what it says; gone ones, too, as long as the directory has it.
Result<NodeDescription> Tenants::owned_by(const Snapshot& snapshot, NodeDescription description,
                                          const std::string& tenant) {
  const std::size_t own = attribute_bytes(description);
  std::size_t others = 0;
  for (const NodeRecord& node : snapshot.nodes) {
    const NodeDescription& d = node.description;
    if (tenant_of(d) == tenant && d.name != description.name) others += attribute_bytes(d);
  }
  if (own > kMostAttributes)
    return refuse(Refusal::kOverQuota, fmt::format("over quota: node '{}' says more than {} of itself",
                                                   description.name, bytes_text(kMostAttributes)));
  if (own > 0 && own + others > kMostAttributesInAll)
    return refuse(
        Refusal::kOverQuota,
        fmt::format("over quota: tenant '{}' has clients that say {} bytes of themselves, and more than {} in "
                    "all are not allowed; end one",
                    tenant, others, bytes_text(kMostAttributesInAll)));
  description.regions.clear();
  // What the rack itself acts on.
  for (const char* const name : {kHttpAttribute, kSharedAttribute, kTenantBytesAttribute})
    description.attributes.erase(name);
  description.attributes[kTenantAttribute] = tenant;
  return description;
}

Result<void> Tenants::still(const Asker& asker) {
  if (asker.is_rack) return {};
  const auto ledger = fetch();
  if (!ledger) return tl::unexpected(ledger.error());
  const auto known = std::ranges::find((*ledger)->tenants, asker.tenant, &Ledger::Tenant::name);
  if (known != (*ledger)->tenants.end() && !known->is_revoked) return {};
  return refuse(Refusal::kRevoked,
                fmt::format("the token of tenant '{}' was revoked; ask the rack's operator", asker.tenant));
}

Result<NodeDescription> Tenants::published(NodeDescription description) {
  description.attributes.erase(kTenantAttribute);
  const auto snapshot = directory_.nodes();
  if (!snapshot) return tl::unexpected(snapshot.error());
  const NodeRecord* const known = snapshot->find(description.name);
  const std::string tenant = known == nullptr ? std::string() : tenant_of(known->description);
  if (tenant.empty()) return description;
  return owned_by(*snapshot, std::move(description), tenant);
}

// --- tenants ---

namespace {

Error no_such_tenant(const std::string& name) {
  return {fmt::format("there is no tenant '{}'; `sluice tenant list` shows them", name)};
}

}  // namespace

Result<std::string> Tenants::add(const std::string& name, Quota quota, bool is_operator) {
  if (auto sound = check_new_name("tenant", name); !sound) return tl::unexpected(sound.error());
  auto token = new_token();
  if (!token) return token;
  const std::string hash = hash_of(*token);
  const auto added = change([&](Ledger& ledger) -> Result<void> {
    if (ledger.find(name) != nullptr)
      return fail(
          fmt::format("there is a tenant '{}' already; `sluice tenant rotate {}` gives it another token", name, name));
    if (ledger.tenants.size() >= kMostTenants) return fail(fmt::format("a rack has at most {} tenants", kMostTenants));
    ledger.tenants.push_back({name, hash, quota, is_operator, false});
    return {};
  });
  if (!added) return tl::unexpected(added.error());
  return token;
}

Result<std::string> Tenants::rotate(const std::string& name) {
  auto token = new_token();
  if (!token) return token;
  const std::string hash = hash_of(*token);
  const auto done = change([&](Ledger& ledger) -> Result<void> {
    Ledger::Tenant* const tenant = ledger.find(name);
    if (tenant == nullptr) return tl::unexpected(no_such_tenant(name));
    tenant->token_hash = hash;
    tenant->is_revoked = false;
    return {};
  });
  if (!done) return tl::unexpected(done.error());
  return token;
}

Result<void> Tenants::revoke(const std::string& name) {
  auto done = change([&](Ledger& ledger) -> Result<void> {
    Ledger::Tenant* const tenant = ledger.find(name);
    if (tenant == nullptr) return tl::unexpected(no_such_tenant(name));
    tenant->is_revoked = true;
    return {};
  });
  if (done) evict_nodes_of(name);
  return done;
}

Result<void> Tenants::remove(const std::string& name, Regions regions) {
  auto done = change([&](Ledger& ledger) -> Result<void> {
    if (ledger.find(name) == nullptr) return tl::unexpected(no_such_tenant(name));
    const Quota used = ledger.used_by(name);
    if (used.regions != 0 && regions == Regions::kKeep)
      return fail(
          fmt::format("tenant '{}' has {} region{}, {}: what is in them would be lost; remove them first, or say "
                      "--with-regions",
                      name, used.regions, used.regions == 1 ? "" : "s", bytes_text(used.bytes)));
    std::erase_if(ledger.regions, [&](const TenantRegion& region) { return region.tenant == name; });
    std::erase_if(ledger.tenants, [&](const Ledger::Tenant& tenant) { return tenant.name == name; });
    return {};
  });
  if (done) evict_nodes_of(name);
  return done;
}

// Best effort: they are refused from now on, and memory nodes end the connections of those who are gone.
void Tenants::evict_nodes_of(const std::string& tenant) {
  const auto snapshot = directory_.nodes();
  if (!snapshot) return;
  for (const NodeRecord& node : snapshot->nodes) {
    if (tenant_of(node.description) == tenant && node.state != NodeState::kGone)
      static_cast<void>(directory_.evict(node.description.name));
  }
}

Result<Tenants::Quota> Tenants::set_quota(const std::string& name, QuotaChange to) {
  Quota quota;
  const auto changed = change([&](Ledger& ledger) -> Result<void> {
    Ledger::Tenant* const tenant = ledger.find(name);
    if (tenant == nullptr) return tl::unexpected(no_such_tenant(name));
    tenant->quota.bytes = to.bytes.value_or(tenant->quota.bytes);
    tenant->quota.regions = to.regions.value_or(tenant->quota.regions);
    quota = tenant->quota;
    return {};
  });
  if (!changed) return tl::unexpected(changed.error());
  return quota;
}

Result<std::vector<Tenants::Standing>> Tenants::list() {
  const auto ledger = fetch();
  if (!ledger) return tl::unexpected(ledger.error());
  std::vector<Standing> all;
  for (const Ledger::Tenant& t : (*ledger)->tenants)
    all.push_back({t.name, t.quota, (*ledger)->used_by(t.name), t.is_operator, t.is_revoked});
  std::ranges::sort(all, {}, &Standing::name);
  return all;
}

Result<void> Tenants::drain(const std::string& node, bool on) {
  if (on) {
    const auto snapshot = directory_.nodes();
    if (!snapshot) return tl::unexpected(snapshot.error());
    const NodeRecord* const known = snapshot->find(node);
    if (known == nullptr || known->description.kind != NodeKind::kMemory)
      return fail(fmt::format("there is no memory node '{}'; `sluice rack status` shows the nodes", node));
  }
  return change([&](Ledger& ledger) -> Result<void> {
    std::erase(ledger.draining, node);
    if (on) ledger.draining.push_back(node);
    return {};
  });
}

// --- regions ---

Result<std::string> Tenants::choose_node(const Ledger& ledger, const Snapshot& snapshot, const std::string& wanted,
                                         std::uint64_t length) const {
  std::string best;
  std::uint64_t most = 0;
  bool any = false;
  for (const NodeRecord* node : snapshot.ready(NodeKind::kMemory)) {
    const std::string& name = node->description.name;
    if (!wanted.empty() && name != wanted) continue;
    if (std::ranges::find(ledger.draining, name) != ledger.draining.end()) {
      if (!wanted.empty()) return fail(fmt::format("memory node '{}' is being drained; choose another", name));
      continue;
    }
    const std::uint64_t given = number_attribute(node->description, kTenantBytesAttribute);
    if (given == 0 || is_shared(node->description)) continue;
    std::uint64_t taken = 0;
    for (const TenantRegion& region : ledger.regions)
      taken += region.node == name || region.moving_to == name ? region.length : 0;
    const std::uint64_t room = given > taken ? given - taken : 0;
    if (!any || room > most) {
      best = name;
      most = room;
    }
    any = true;
  }
  if (!any)
    return fail(wanted.empty() ? "no memory node has memory for tenants: `sluice memory --tenant-size SIZE` gives some"
                               : fmt::format("memory node '{}' is not there, or has no memory for tenants", wanted));
  if (most < length)
    return fail(fmt::format("{} for one region: {} has the most room, {}; regions lie on one memory node each",
                            bytes_text(length), best, bytes_text(most)));
  return best;
}

Result<TenantRegion> Tenants::add_region(const std::string& tenant, const std::string& name, std::uint64_t length,
                                         const std::string& node) {
  if (auto sound = check_new_name("region", name); !sound) return tl::unexpected(sound.error());
  if (length == 0) return fail("a region of 0 bytes; say how long it is to be");
  const auto snapshot = directory_.nodes();
  if (!snapshot) return tl::unexpected(snapshot.error());
  // Others' clients it does not see, and is not to learn of.
  if (const NodeRecord* const known = snapshot->find(name);
      known != nullptr && (tenant_of(known->description).empty() || tenant_of(known->description) == tenant))
    return fail(fmt::format("'{}' is the name of a node of the rack; choose another", name));
  TenantRegion made{tenant, name, {}, length, new_birth()};
  const auto done = change([&](Ledger& ledger) -> Result<void> {
    const Ledger::Tenant* const owner = ledger.find(tenant);
    if (owner == nullptr) return tl::unexpected(no_such_tenant(tenant));
    const bool taken = std::ranges::any_of(
        ledger.regions, [&](const TenantRegion& region) { return region.tenant == tenant && region.name == name; });
    if (taken) return fail(fmt::format("tenant '{}' has a region '{}' already", tenant, name));
    const Quota used = ledger.used_by(tenant);
    if (length > owner->quota.bytes || used.bytes > owner->quota.bytes - length)
      return refuse(Refusal::kOverQuota,
                    fmt::format("over quota: tenant '{}' asked for {}, uses {}, and is allowed {}; remove a region, or "
                                "ask the rack's operator for more",
                                tenant, bytes_text(length), bytes_text(used.bytes), bytes_text(owner->quota.bytes)));
    if (used.regions >= owner->quota.regions)
      return refuse(
          Refusal::kOverQuota,
          fmt::format("over quota: tenant '{}' asked for 1 region, uses {}, and is allowed {}; remove one, or "
                      "ask the rack's operator for more",
                      tenant, used.regions, owner->quota.regions));
    if (ledger.regions.size() >= kMostRegions) return fail(fmt::format("a rack has at most {} regions", kMostRegions));
    auto chosen = choose_node(ledger, *snapshot, node, length);
    if (!chosen) return tl::unexpected(chosen.error());
    made.node = std::move(*chosen);
    ledger.regions.push_back(made);
    return {};
  });
  if (!done) return tl::unexpected(done.error());
  return made;
}

Result<void> Tenants::remove_region(const std::string& tenant, const std::string& name) {
  return change([&](Ledger& ledger) -> Result<void> {
    const auto gone = std::erase_if(
        ledger.regions, [&](const TenantRegion& region) { return region.tenant == tenant && region.name == name; });
    if (gone == 0) return fail(fmt::format("tenant '{}' has no region '{}'", tenant, name));
    return {};
  });
}

Result<TenantRegion> Tenants::change_region(const std::string& tenant, const std::string& name,
                                            const std::function<Result<void>(Ledger&, TenantRegion&)>& how) {
  TenantRegion changed;
  const auto done = change([&](Ledger& ledger) -> Result<void> {
    for (TenantRegion& region : ledger.regions) {
      if (region.tenant != tenant || region.name != name) continue;
      if (auto sound = how(ledger, region); !sound) return sound;
      changed = region;
      return {};
    }
    return fail(fmt::format("tenant '{}' has no region '{}'", tenant, name));
  });
  if (!done) return tl::unexpected(done.error());
  return changed;
}

Result<TenantRegion> Tenants::begin_move(const std::string& tenant, const std::string& name, const std::string& node) {
  const auto snapshot = directory_.nodes();
  if (!snapshot) return tl::unexpected(snapshot.error());
  return change_region(tenant, name, [&](Ledger& ledger, TenantRegion& region) -> Result<void> {
    if (!region.moving_to.empty()) {
      if (node.empty() || region.moving_to == node) return {};  // goes on with what was begun
      return fail(fmt::format("region '{}/{}' is being moved to {}; finish that, or --undo it", tenant, name,
                              region.moving_to));
    }
    // Any but the one where it is.
    Snapshot others = *snapshot;
    std::erase_if(others.nodes, [&](const NodeRecord& n) { return n.description.name == region.node; });
    if (node == region.node) return fail(fmt::format("region '{}/{}' is on {} already", tenant, name, node));
    auto chosen = choose_node(ledger, others, node, region.length);
    if (!chosen) return tl::unexpected(chosen.error());
    region.moving_to = std::move(*chosen);
    region.next_birth = new_birth();
    return {};
  });
}

Result<TenantRegion> Tenants::end_move(const std::string& tenant, const std::string& name, std::uint64_t next_birth,
                                       std::uint64_t incarnation) {
  const auto snapshot = directory_.nodes();
  if (!snapshot) return tl::unexpected(snapshot.error());
  return change_region(tenant, name, [&](Ledger&, TenantRegion& region) -> Result<void> {
    if (region.moving_to.empty() || region.next_birth != next_birth)
      return fail(fmt::format("region '{}/{}' is not being moved so any more", tenant, name));
    const NodeRecord* const node = snapshot->find(region.moving_to);
    if (node == nullptr || node->state != NodeState::kReady || node->incarnation != incarnation)
      return fail(fmt::format("memory node '{}' has left the rack or joined it anew meanwhile", region.moving_to));
    region.node = std::exchange(region.moving_to, {});
    region.birth = std::exchange(region.next_birth, 0);
    return {};
  });
}

Result<TenantRegion> Tenants::undo_move(const std::string& tenant, const std::string& name) {
  return change_region(tenant, name, [](Ledger&, TenantRegion& region) -> Result<void> {
    region.moving_to.clear();
    region.next_birth = 0;
    return {};
  });
}

}  // namespace sluice::rack
