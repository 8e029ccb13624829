#include "rack/endpoint/onerma_grants.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <openssl/rand.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "base/check.h"
#include "rack/settings/json_number.h"
#include "rack/settings/private_file.h"

namespace sluice::rack {
namespace {

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

nlohmann::json to_json(const ClientGrants& client) {
  nlohmann::json regions = nlohmann::json::array();
  for (const GrantedRegion& region : client.regions) {
    regions.push_back({{"region", region.grant.region.value},
                       {"generation", region.grant.generation.value},
                       {"address", region.address},
                       {"length", region.length},
                       {"rights", region.grant.rights.bits},
                       {"key", hex_of(region.grant.key.bytes())}});
  }
  return {{"initiator", client.initiator.value}, {"regions", regions}};
}

// False: not such an entry.
bool parse_client(const nlohmann::json& one, ClientGrants& out) {
  out.initiator = onerma::InitiatorId(number_at<std::uint64_t>(one, "initiator"));
  for (const auto& region : one.at("regions")) {
    const auto key = parse_key(region.at("key").get<std::string>());
    const auto rights = number_at<std::uint64_t>(region, "rights");
    if (!key || rights > onerma::Rights::kAll) return false;
    out.regions.push_back({.grant = {.region = onerma::RegionId(number_at<std::uint32_t>(region, "region")),
                                     .generation = onerma::Generation(number_at<std::uint32_t>(region, "generation")),
                                     .initiator = out.initiator,
                                     .rights = {static_cast<std::uint8_t>(rights)},
                                     .key = *key},
                           .address = number_at<std::uint64_t>(region, "address"),
                           .length = number_at<std::uint64_t>(region, "length")});
  }
  return !out.regions.empty();
}

tl::unexpected<Error> no_grants(const std::string& path, const GrantsWriter& writer) {
  return fail(fmt::format("{} is no file of grants, as `{}` writes it", path, writer.command));
}

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file, nullptr, false);
}

Result<TakenGrants> first_of(const nlohmann::json& json, const std::string& path, const GrantsWriter& writer) {
  try {
    const auto& grants = json.at("grants");
    if (!grants.is_array()) return no_grants(path, writer);
    if (grants.empty())
      return fail(fmt::format("{} has no grant left; start its {} anew, with more --clients", path, writer.is));
    const auto mac = wire::MacAddress::parse(json.at("target").at("mac").get<std::string>());
    const auto ip = wire::Ipv4Address::parse(json.at("target").at("ip").get<std::string>());
    TakenGrants taken{.path = path, .life = json.contains("life") ? number_at<std::uint64_t>(json, "life") : 0};
    if (!mac || !ip || !parse_client(grants.front(), taken.mine)) return no_grants(path, writer);
    taken.target = {*mac, *ip, onerma::kUdpPort};
    return taken;
  } catch (const nlohmann::json::exception&) {
    return no_grants(path, writer);
  }
}

// The file's lock; whoever reads and writes it, or writes it anew, has it meanwhile.
Result<ports::Descriptor> lock_of(const std::string& path) {
  ports::Descriptor lock(::open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock && flock(lock.get(), LOCK_EX) == 0) return lock;
  return fail(fmt::format("cannot lock {}: {}", path, std::strerror(errno)));
}

}  // namespace

onerma::Secret fresh_onerma_key() {
  onerma::Secret key;
  const MutableBytes bytes = key.mutable_bytes();
  SLUICE_CHECK(RAND_priv_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1);
  return key;
}

Result<ports::Descriptor> own_grants(const std::string& path, const GrantsWriter& writer) {
  ports::Descriptor owned(::open((path + ".owner").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (owned && flock(owned.get(), LOCK_EX | LOCK_NB) == 0) return owned;
  if (owned && errno == EWOULDBLOCK)
    return fail(fmt::format("{} has the grants of another {} that runs; name another file", path, writer.is));
  return fail(fmt::format("cannot lock {}: {}", path, std::strerror(errno)));
}

Result<void> write_grants(const std::string& path, const onerma::Peer& target,
                          const std::vector<ClientGrants>& clients) {
  std::random_device chance;
  nlohmann::json out{{"target", {{"ip", target.ip.to_string()}, {"mac", target.mac.to_string()}}},
                     {"life", (std::uint64_t{chance()} << 32 | chance()) | 1},
                     {"grants", nlohmann::json::array()}};
  for (const ClientGrants& client : clients) out["grants"].push_back(to_json(client));
  // Not while a client takes an entry out: it would then write what is left of the old file over this one.
  const auto lock = lock_of(path);
  if (!lock) return tl::unexpected(lock.error());
  return write_private_file(path, out.dump(1) + "\n");
}

Result<TakenGrants> look_at_grants(const std::string& path, const GrantsWriter& writer) {
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(path, error);
  if (error)
    return fail(fmt::format("cannot read {}: {}; `{}` writes such a file", path, error.message(), writer.command));
  return regular ? first_of(read_json(path), path, writer) : no_grants(path, writer);
}

Result<TakenGrants> take_grants(const std::string& path, const GrantsWriter& writer) {
  // A lock is made beside a file that is one alone.
  if (auto looked = look_at_grants(path, writer); !looked) return looked;
  const auto lock = lock_of(path);
  if (!lock) return tl::unexpected(lock.error());
  auto json = read_json(path);
  auto taken = first_of(json, path, writer);
  if (!taken) return taken;
  json["grants"].erase(0);
  if (auto written = write_private_file(path, json.dump(1) + "\n"); !written) return tl::unexpected(written.error());
  return taken;
}

void give_back(const TakenGrants& taken) {
  const auto lock = lock_of(taken.path);
  if (!lock) return;
  auto json = read_json(taken.path);
  if (taken.life == 0 || !json.is_object() || json.value("life", nlohmann::json()) != taken.life) return;
  auto& grants = json["grants"];
  if (!grants.is_array()) return;
  grants.insert(grants.begin(), to_json(taken.mine));
  static_cast<void>(write_private_file(taken.path, json.dump(1) + "\n"));
}

}  // namespace sluice::rack
