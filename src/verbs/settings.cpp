#include "verbs/settings.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "port/impairment.h"
#include "ports/interface_address.h"

namespace sluice::verbs {
namespace {

constexpr std::string_view kLoopback = "loopback";
constexpr std::uint64_t kMostLineRate = 1'000'000;  // Mb/s
constexpr const char* kLoopbackIp = "10.77.0.1";    // nobody else is there

// fe80:: with the modified EUI-64 of the MAC (RFC 4291 appendix A).
wire::Gid link_local(const wire::MacAddress& mac) {
  wire::Gid gid;
  gid.bytes = {0xFE, 0x80};
  const auto& m = mac.bytes;
  const std::uint8_t identifier[] = {static_cast<std::uint8_t>(m[0] ^ 2), m[1], m[2], 0xFF, 0xFE, m[3], m[4], m[5]};
  std::copy(std::begin(identifier), std::end(identifier), gid.bytes.begin() + 8);
  return gid;
}

wire::MacAddress mac_of(wire::Ipv4Address ip) {
  const auto byte = [&](int i) { return static_cast<std::uint8_t>(ip.value >> (24 - 8 * i)); };
  return {{0x02, 0x00, byte(0), byte(1), byte(2), byte(3)}};
}

Result<void> read_addresses(const Environment& environment, std::string_view port, Settings& settings) {
  const char* ip_text = environment("SLUICE_IP");
  if (ip_text == nullptr && port == kLoopback) ip_text = kLoopbackIp;
  if (ip_text == nullptr) return fail("SLUICE_IP is not set: give this program's NIC an IPv4 address of its own");
  const auto ip = wire::Ipv4Address::parse(ip_text);
  if (!ip) return fail(fmt::format("SLUICE_IP: {}", ip.error().message));
  settings.mac = mac_of(*ip);
  if (const char* const text = environment("SLUICE_MAC")) {
    const auto mac = wire::MacAddress::parse(text);
    if (!mac) return fail(fmt::format("SLUICE_MAC: {}", mac.error().message));
    if (mac->is_multicast()) return fail(fmt::format("SLUICE_MAC: {} is a multicast address", text));
    settings.mac = *mac;
  }
  const wire::Gid v4 = wire::Gid::from(*ip);
  wire::Gid v6 = link_local(settings.mac);
  settings.gids = {v6, v4, v6, v4};
  if (const char* const text = environment("SLUICE_IP6")) {
    const auto more = wire::Gid::parse(text);
    if (!more) return fail(fmt::format("SLUICE_IP6: {}", more.error().message));
    settings.gids[2] = *more;
  }
  return {};
}

Result<void> read_mtu(const Environment& environment, std::string_view port, Settings& settings) {
  const char* const text = environment("SLUICE_MTU");
  // Where there is no such interface, opening the port says so better.
  const std::uint32_t held = ports::path_mtu_of_port(port).value_or(settings.mtu);
  if (text == nullptr) return settings.mtu = held, Result<void>();
  const std::string_view digits = text;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), settings.mtu);
  constexpr std::uint32_t kAllowed[] = {256, 512, 1024, 2048, 4096};
  if (error != std::errc() || end != digits.end() || std::ranges::find(kAllowed, settings.mtu) == std::end(kAllowed)) {
    return fail(fmt::format("SLUICE_MTU={}: must be 256, 512, 1024, 2048 or 4096", text));
  }
  if (settings.mtu > held)
    return fail(fmt::format("SLUICE_MTU={}: {} holds {} at most; raise its interface's MTU", text, port, held));
  return {};
}

Result<void> read_rnr(const Environment& environment, Settings& settings) {
  const char* const text = environment("SLUICE_RNR");
  if (text == nullptr) return {};
  const auto ppm = port::parse_probability(text);
  if (!ppm) return fail(fmt::format("SLUICE_RNR={}: must be a probability such as 1% or 250ppm", text));
  settings.feigned_rnr_ppm = *ppm;
  return {};
}

Result<void> read_dcqcn(const Environment& environment, Settings& settings) {
  const char* const text = environment("SLUICE_DCQCN");
  if (text == nullptr || text == std::string_view("0")) return {};
  if (text != std::string_view("1")) return fail(fmt::format("SLUICE_DCQCN={}: must be 0 or 1", text));
  settings.dcqcn = true;
  const char* const rate = environment("SLUICE_LINE_RATE");
  if (rate == nullptr) return {};
  const std::string_view digits = rate;
  std::uint64_t mbps = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), mbps);
  if (error != std::errc() || end != digits.end() || mbps < 1 || mbps > kMostLineRate)
    return fail(fmt::format("SLUICE_LINE_RATE={}: must be a number of Mb/s from 1 to {}", rate, kMostLineRate));
  settings.line_rate = mbps * 1'000'000;
  return {};
}

}  // namespace

std::optional<Result<Settings>> read_settings(const Environment& environment) {
  const char* const port_text = environment("SLUICE_PORT");
  if (port_text == nullptr || *port_text == '\0') return std::nullopt;
  const std::string_view port = port_text;
  Settings settings;
  if (const char* const name = environment("SLUICE_DEVICE")) settings.device = name;
  if (settings.device.empty() || settings.device.size() > 63) return fail("SLUICE_DEVICE must have 1 to 63 characters");
  if (auto read = read_addresses(environment, port, settings); !read) return tl::unexpected(read.error());
  if (auto read = read_mtu(environment, port, settings); !read) return tl::unexpected(read.error());
  if (auto read = read_rnr(environment, settings); !read) return tl::unexpected(read.error());
  if (auto read = read_dcqcn(environment, settings); !read) return tl::unexpected(read.error());
  if (const char* const file = environment("SLUICE_COUNTERS")) settings.counters = file;
  if (port == kLoopback) return settings;
  if (const char* const host = environment("SLUICE_HOST")) settings.host = host;
  settings.port = port;
  if (const char* const file = environment("SLUICE_TRACE")) {
    if (std::string_view(file).find(',') != std::string_view::npos)
      return fail(fmt::format("SLUICE_TRACE={}: must have no comma, which ends an option of a port", file));
    settings.port += fmt::format(",record={}", file);
  }
  if (const char* const impair = environment("SLUICE_IMPAIR")) settings.port += fmt::format(",impair({})", impair);
  return settings;
}

std::uint8_t ipv4_index(const std::vector<wire::Gid>& gids) {
  const auto found = std::ranges::find_if(gids, [](const wire::Gid& gid) { return gid.is_v4(); });
  return found == gids.end() ? std::uint8_t{0} : static_cast<std::uint8_t>(found - gids.begin());
}

}  // namespace sluice::verbs
