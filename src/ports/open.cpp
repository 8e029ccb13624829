#include "ports/open.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "port/impaired.h"
#include "ports/packet_port.h"
#include "ports/pcap_port.h"
#include "ports/spec.h"
#include "ports/udp_port.h"

namespace sluice::ports {
namespace {

using port::Listener;
using port::Port;

// The options of one port: each is taken by name; what nobody took is an error.
class Options {
 public:
  explicit Options(const PortSpec& spec) : kind_(spec.kind), left_(spec.options) {}

  std::optional<std::string> take(std::string_view key) {
    allowed_ += fmt::format("{}{}", allowed_.empty() ? "" : ", ", key);
    for (auto option = left_.begin(); option != left_.end(); ++option) {
      if (option->first != key) continue;
      auto value = std::move(option->second);
      left_.erase(option);
      return value;
    }
    return std::nullopt;
  }

  // Leaves `number` alone when the option is absent; remembers what is wrong with it for finish().
  void take_number(std::string_view key, std::size_t& number) {
    const auto value = take(key);
    if (!value) return;
    const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), number);
    if (error != std::errc() || end != value->data() + value->size()) {
      complaint_ = fmt::format("{}: {}={}: {} must be a whole number", kind_, key, *value, key);
    }
  }

  // What nobody has taken: somebody else's to understand.
  const std::vector<std::pair<std::string, std::string>>& rest() const { return left_; }

  std::optional<Error> finish() const {
    if (!complaint_.empty()) return Error{complaint_};
    if (left_.empty()) return std::nullopt;
    return Error{fmt::format("{}: unknown option {}={}; allowed: {}", kind_, left_.front().first, left_.front().second,
                             allowed_.empty() ? "none" : allowed_)};
  }

 private:
  std::string kind_;
  std::vector<std::pair<std::string, std::string>> left_;
  std::string allowed_;
  std::string complaint_;
};

template <class T>
Result<std::unique_ptr<Port>> as_port(Result<std::unique_ptr<T>> made) {
  if (!made) return tl::unexpected(made.error());
  return std::unique_ptr<Port>(std::move(*made));
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): one signature for all
Result<std::unique_ptr<Port>> open_shm(const PortSpec& spec, Options options, Absent absent) {
  if (const auto wrong = options.finish()) return tl::unexpected(*wrong);
  return as_port(ShmPort::connect(spec.address, absent));
}

Result<std::unique_ptr<Port>> open_cable(const PortSpec& spec, Options options, Absent) {
  ShmOptions shm;
  options.take_number("ring", shm.ring_bytes);
  if (const auto wrong = options.finish()) return tl::unexpected(*wrong);
  return as_port(ShmPort::listen_one(spec.address, shm));
}

Result<std::unique_ptr<Port>> open_udp(const PortSpec& spec, Options options, Absent) {
  UdpOptions udp;
  options.take_number("datagram", udp.datagram_bytes);
  if (const auto wrong = options.finish()) return tl::unexpected(*wrong);
  const auto peer = parse_host_port(spec.address);
  if (!peer) return tl::unexpected(peer.error());
  if (peer->port == 0) return fail(fmt::format("address \"{}\": port 0 is nobody's", spec.address));
  return as_port(UdpPort::connect(*peer, udp));
}

Result<std::unique_ptr<Port>> open_packet(const PortSpec& spec, Options options, Absent) {
  const auto filter = options.take("filter").value_or("roce");
  if (const auto wrong = options.finish()) return tl::unexpected(*wrong);
  if (filter != "roce" && filter != "all") return fail(fmt::format("filter={}: filter must be roce or all", filter));
  return as_port(PacketPort::open(spec.address, filter == "all" ? PacketFilter::kAll : PacketFilter::kRoce));
}

Result<std::unique_ptr<Port>> open_pcap(const PortSpec& spec, Options options, Absent) {
  const auto pace = options.take("pace").value_or("fast");
  if (const auto wrong = options.finish()) return tl::unexpected(*wrong);
  if (pace != "fast" && pace != "recorded") return fail(fmt::format("pace={}: pace must be fast or recorded", pace));
  return as_port(PcapPort::open(spec.address, pace == "fast" ? Pace::kAsPolled : Pace::kAsRecorded));
}

// Those that programs have added.
std::map<std::string, PortOpener, std::less<>>& added_kinds() {
  static std::map<std::string, PortOpener, std::less<>> kinds;
  return kinds;
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): one signature for all
Result<std::unique_ptr<Port>> open_dpdk(const PortSpec& spec, Options options, Absent) {
  const auto opener = added_kinds().find("dpdk");
  if (opener == added_kinds().end()) {
    return fail(
        "this program has no DPDK in it. `sluice` has it when libdpdk was there at build time: "
        "scripts/install-packages, "
        "configure and build again; other programs reach such a device through a switch");
  }
  PortSpec device = spec;
  device.options = options.rest();
  return opener->second(device);
}

struct Kind {
  std::string_view name;
  std::string_view shape;
  Result<std::unique_ptr<Port>> (*open)(const PortSpec&, Options, Absent);
};

constexpr Kind kKinds[] = {
    {"shm", "shm:/path", open_shm},     {"cable", "cable:/path", open_cable},
    {"udp", "udp:HOST:PORT", open_udp}, {"packet", "packet:INTERFACE", open_packet},
    {"pcap", "pcap:FILE", open_pcap},   {"dpdk", "dpdk:DEVICE", open_dpdk},
};

std::string shapes() {
  std::string text;
  for (const auto& kind : kKinds) text += fmt::format("{}{}", text.empty() ? "" : ", ", kind.shape);
  return text;
}

}  // namespace

void add_port_kind(std::string_view name, PortOpener opener) { added_kinds()[std::string(name)] = opener; }

Result<std::unique_ptr<Port>> open_port(std::string_view text, Absent absent) {
  const auto spec = parse_port_spec(text);
  if (!spec) return tl::unexpected(spec.error());
  const auto same = [&](const Kind& kind) { return kind.name == spec->kind; };
  const auto* kind = std::find_if(std::begin(kKinds), std::end(kKinds), same);
  if (kind == std::end(kKinds)) {
    return fail(fmt::format("port \"{}\": unknown kind {}; allowed are {}", text, spec->kind, shapes()));
  }
  Options options(*spec);
  const auto record = options.take("record");
  auto made = kind->open(*spec, std::move(options), absent);
  if (made && record) made = as_port(recording(std::move(*made), *record));
  if (!made) return fail(fmt::format("port \"{}\": {}", text, made.error().message));
  if (spec->impairment) return port::impaired(std::move(*made), *spec->impairment);
  return made;
}

Result<std::unique_ptr<Listener>> open_listener(std::string_view text) {
  const auto spec = parse_port_spec(text);
  if (!spec) return tl::unexpected(spec.error());
  const auto refuse = [text](std::string_view why) { return fail(fmt::format("listener \"{}\": {}", text, why)); };
  if (spec->impairment) return refuse("impair(...) belongs to a port, not to a listener");
  Options options(*spec);
  if (spec->kind == "shm") {
    ShmOptions shm;
    options.take_number("ring", shm.ring_bytes);
    if (const auto wrong = options.finish()) return refuse(wrong->message);
    auto made = ShmListener::listen(spec->address, shm);
    if (!made) return refuse(made.error().message);
    return std::unique_ptr<Listener>(std::move(*made));
  }
  if (spec->kind == "udp") {
    UdpOptions udp;
    options.take_number("datagram", udp.datagram_bytes);
    options.take_number("peers", udp.most_peers);
    if (const auto wrong = options.finish()) return refuse(wrong->message);
    const auto local = parse_host_port(spec->address);
    if (!local) return refuse(local.error().message);
    auto made = UdpListener::listen(*local, udp);
    if (!made) return refuse(made.error().message);
    return std::unique_ptr<Listener>(std::move(*made));
  }
  return refuse(fmt::format("nothing listens by {}; allowed are shm:/path, udp:HOST:PORT", spec->kind));
}

}  // namespace sluice::ports
