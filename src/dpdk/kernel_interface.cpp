#include "dpdk/kernel_interface.h"

#include <fmt/core.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#ifdef SLUICE_HAS_LIBBPF
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#endif

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "ports/descriptor.h"

namespace sluice::dpdk {
namespace {

constexpr std::uint32_t kTaggedHeader = 18;  // Ethernet with a VLAN tag

bool stands_on_interface(std::string_view driver) { return driver == "af_packet" || driver == "af_xdp"; }

std::string value_of(std::string_view key, std::string_view arguments) {
  while (!arguments.empty()) {
    const auto end = std::min(arguments.find(','), arguments.size());
    const auto option = arguments.substr(0, end);
    if (option.size() > key.size() && option.starts_with(key) && option[key.size()] == '=')
      return std::string(option.substr(key.size() + 1));
    arguments.remove_prefix(std::min(end + 1, arguments.size()));
  }
  return {};
}

bool ask(const std::string& interface, unsigned long what, ifreq& request) {
  const ports::Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  interface.copy(request.ifr_name, IFNAMSIZ - 1);
  return socket && ioctl(socket.get(), what, &request) == 0;
}

// 1 where the driver cannot tell: then there is no more.
std::uint32_t receive_channels(const std::string& interface) {
  ethtool_channels channels{};
  channels.cmd = ETHTOOL_GCHANNELS;
  ifreq request{};
  request.ifr_data = reinterpret_cast<char*>(&channels);
  return ask(interface, SIOCETHTOOL, request) ? channels.rx_count + channels.combined_count : 1;
}

// Empty: none, or that of a process that was killed, which a new start takes over.
std::string foreign_program(const std::string& interface) {
#ifdef SLUICE_HAS_LIBBPF
  __u32 number = 0;
  if (bpf_xdp_query_id(static_cast<int>(if_nametoindex(interface.c_str())), 0, &number) != 0 || number == 0) return {};
  const ports::Descriptor program(bpf_prog_get_fd_by_id(number));
  bpf_prog_info about{};
  __u32 length = sizeof about;
  if (!program || bpf_obj_get_info_by_fd(program.get(), &about, &length) != 0) return fmt::format("number {}", number);
  return std::string_view(about.name) == "xsk_def_prog" ? std::string() : std::string(about.name);
#else
  static_cast<void>(interface);
  return {};
#endif
}

Result<void> check_for_xdp(const std::string& interface, const std::string& arguments) {
  const std::uint32_t channels = receive_channels(interface);
  if (channels > 1 && value_of("start_queue", arguments).empty())
    return fail(fmt::format(
        "{} spreads frames over {} receive channels, and af_xdp takes those of one: `ethtool -L {} combined "
        "1` first (`rx 1` where channels are not combined), or name the one that all frames are steered to "
        "with start_queue=NUMBER",
        interface, channels, interface));
  ifreq request{};
  const std::uint32_t most = kXdpFrame - kTaggedHeader;
  if (ask(interface, SIOCGIFMTU, request) && static_cast<std::uint32_t>(request.ifr_mtu) > most)
    return fail(fmt::format(
        "{} has an MTU of {}, and af_xdp loses frames of more than {} bytes: `ip link set {} mtu {}` or less "
        "first, on the other end too, or use packet:{}",
        interface, request.ifr_mtu, kXdpFrame, interface, most, interface));
  if (const std::string program = foreign_program(interface); !program.empty())
    return fail(fmt::format(
        "{} has an XDP program already ({}): take it off first, by `sluice xdp detach {}` if it is Sluice's steering, "
        "else by `ip link set {} xdp off`",
        interface, program, interface, interface));
  return {};
}

}  // namespace

std::string interface_of(const std::string& driver, const std::string& arguments) {
  return stands_on_interface(driver) ? value_of("iface", arguments) : std::string();
}

InterfaceNow look_at(const std::string& interface) {
  ifreq request{};
  const bool up = ask(interface, SIOCGIFFLAGS, request) && (request.ifr_flags & IFF_UP) != 0;
  return {if_nametoindex(interface.c_str()), up};
}

Result<void> check_interface(const std::string& driver, const std::string& arguments) {
  if (!stands_on_interface(driver)) return {};
  const std::string interface = interface_of(driver, arguments);
  if (interface.empty()) return fail(fmt::format("{}: say on which interface, iface=NAME", driver));
  const InterfaceNow now = look_at(interface);
  if (now.number == 0)
    return fail(fmt::format("{}: no interface is named {}; `ip link` shows them", driver, interface));
  if (!now.up) return fail(fmt::format("interface {} is down: `ip link set {} up` first", interface, interface));
  return driver == "af_xdp" ? check_for_xdp(interface, arguments) : Result<void>();
}

std::vector<int> xdp_sockets() {
  std::vector<int> all;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const std::string name = entry.path().filename();
    int fd = -1;
    std::from_chars(name.data(), name.data() + name.size(), fd);
    int domain = 0;
    socklen_t length = sizeof domain;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_XDP) all.push_back(fd);
  }
  std::ranges::sort(all);
  return all;
}

}  // namespace sluice::dpdk
