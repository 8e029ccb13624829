#include "rack/endpoint/onerma_grants.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <openssl/rand.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

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

Result<TakenGrants> take_first(const std::string& path, const tl::unexpected<Error>& wrong) {
  std::ifstream file(path);
  auto json = nlohmann::json::parse(file, nullptr, false);
  try {
    auto& grants = json.at("grants");
    if (grants.empty())
      return fail(fmt::format("{} has no grant left; start the target anew, with more --clients", path));
    const auto mac = wire::MacAddress::parse(json.at("target").at("mac").get<std::string>());
    const auto ip = wire::Ipv4Address::parse(json.at("target").at("ip").get<std::string>());
    TakenGrants taken;
    if (!mac || !ip || !parse_client(grants.front(), taken.mine)) return wrong;
    taken.target = {*mac, *ip, onerma::kUdpPort};
    grants.erase(grants.begin());
    if (auto written = write_private_file(path, json.dump(1) + "\n"); !written) return tl::unexpected(written.error());
    return taken;
  } catch (const nlohmann::json::exception&) {
    return wrong;
  }
}

// The file's lock, to be closed; whoever reads and writes it, or writes it anew, has it meanwhile.
Result<int> lock_of(const std::string& path) {
  const int lock = ::open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock >= 0 && flock(lock, LOCK_EX) == 0) return lock;
  const auto why = fail(fmt::format("cannot lock {}: {}", path, std::strerror(errno)));
  if (lock >= 0) close(lock);
  return why;
}

}  // namespace

onerma::Secret fresh_onerma_key() {
  onerma::Secret key;
  const MutableBytes bytes = key.mutable_bytes();
  SLUICE_CHECK(RAND_priv_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1);
  return key;
}

Result<void> write_grants(const std::string& path, const onerma::Peer& target,
                          const std::vector<ClientGrants>& clients) {
  nlohmann::json out{{"target", {{"ip", target.ip.to_string()}, {"mac", target.mac.to_string()}}},
                     {"grants", nlohmann::json::array()}};
  for (const ClientGrants& client : clients) out["grants"].push_back(to_json(client));
  // Not while a client takes an entry out: it would then write what is left of the old file over this one.
  const auto lock = lock_of(path);
  if (!lock) return tl::unexpected(lock.error());
  auto written = write_private_file(path, out.dump(1) + "\n");
  close(*lock);
  return written;
}

Result<TakenGrants> take_grants(const std::string& path, const std::string& as) {
  const auto wrong = fail(fmt::format("{} is no file of grants, as `{}` writes it", path, as));
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(path, error);
  if (error) return fail(fmt::format("cannot read {}: {}; `{}` writes such a file", path, error.message(), as));
  if (!regular) return wrong;
  const auto lock = lock_of(path);
  if (!lock) return tl::unexpected(lock.error());
  auto taken = take_first(path, wrong);
  close(*lock);
  return taken;
}

}  // namespace sluice::rack
