#include "ports/spec.h"

#include <fmt/core.h>

#include <charconv>

namespace sluice::ports {
namespace {

// Cuts off what stands before the next comma that is in no parentheses.
std::string_view next_piece(std::string_view& text) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '(') ++depth;
    if (text[i] == ')') --depth;
    if (text[i] != ',' || depth > 0) continue;
    const auto piece = text.substr(0, i);
    text.remove_prefix(i + 1);
    return piece;
  }
  return std::exchange(text, {});
}

}  // namespace

Result<PortSpec> parse_port_spec(std::string_view text) {
  const auto whole = text;
  const auto colon = text.find(':');
  if (colon == std::string_view::npos || colon == 0) {
    return fail(fmt::format("port \"{}\": expected KIND:ADDRESS, such as shm:/run/sluice/switch.sock", whole));
  }
  PortSpec spec;
  spec.kind = text.substr(0, colon);
  text.remove_prefix(colon + 1);
  spec.address = next_piece(text);
  if (spec.address.empty()) return fail(fmt::format("port \"{}\": nothing stands after {}:", whole, spec.kind));
  while (!text.empty()) {
    auto piece = next_piece(text);
    if (piece.starts_with("impair(") && piece.ends_with(")")) {
      piece.remove_prefix(7);
      piece.remove_suffix(1);
      auto impairment = port::parse_impairment(piece);
      if (!impairment) return fail(fmt::format("port \"{}\": {}", whole, impairment.error().message));
      spec.impairment = *impairment;
      continue;
    }
    const auto equals = piece.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return fail(fmt::format("port \"{}\": \"{}\" is neither KEY=VALUE nor impair(...)", whole, piece));
    }
    spec.options.emplace_back(piece.substr(0, equals), piece.substr(equals + 1));
  }
  return spec;
}

std::string interface_of(const PortSpec& spec) {
  if (spec.kind == "packet") return spec.address;
  if (spec.kind != "dpdk") return {};
  for (const auto& [key, value] : spec.options) {
    if (key == "iface") return value;
  }
  return {};
}

Result<HostPort> parse_host_port(std::string_view text) {
  const auto colon = text.rfind(':');
  const auto refuse = [text](std::string_view why) {
    return fail(fmt::format("address \"{}\": {}; write HOST:PORT or [IPV6]:PORT, such as 10.0.0.2:7471", text, why));
  };
  if (colon == std::string_view::npos) return refuse("the port number is missing");
  auto host = text.substr(0, colon);
  const auto number = text.substr(colon + 1);
  HostPort result;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), result.port);
  if (error != std::errc() || end != number.data() + number.size()) return refuse("the port number is not 0 to 65535");
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return refuse("an IPv6 address stands in brackets");
  }
  if (host.empty()) return refuse("the host is missing");
  result.host = host;
  return result;
}

}  // namespace sluice::ports
