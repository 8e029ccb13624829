#include "rack/switch/capture.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "rack/process/ask.h"
#include "switching/host_stage.h"

namespace sluice::rack {
namespace {

namespace pcapng = ports::pcapng;
using switching::Direction;
using switching::PortNumber;

bool asks_the_kernel(const bpf_insn& instruction) {
  constexpr std::uint32_t kAncillary = 0xFFFFF000;  // SKF_AD_OFF
  return BPF_CLASS(instruction.code) == BPF_LD && BPF_MODE(instruction.code) == BPF_ABS && instruction.k >= kAncillary;
}

// The programs that share a node's NIC have its address, but for one byte: see switching/host_stage.h.
std::string is_of(const wire::MacAddress& mac) {
  static_assert(switching::HostStage::kPlaceByte == 1);
  const std::uint8_t first = mac.bytes[0];
  const auto rest = load_be<std::uint32_t>(mac.bytes.data() + 2);
  return fmt::format("(ether[0] = {0} and ether[2:4] = {1}) or (ether[6] = {0} and ether[8:4] = {1})", first, rest);
}

std::string expression_of(const CaptureWish& wish) {
  std::string hosts;
  for (const wire::MacAddress& mac : wish.of) hosts += (hosts.empty() ? "" : " or ") + is_of(mac);
  if (hosts.empty() || wish.filter.empty()) return hosts + wish.filter;
  return fmt::format("({}) and ({})", hosts, wish.filter);
}

}  // namespace

Result<std::shared_ptr<Capture>> Capture::make(const CaptureWish& wish) {
  std::shared_ptr<Capture> capture(new Capture());
  capture->wish_ = wish;
  if (wish.of.size() > kMostNodes) return fail(fmt::format("nodes: at most {}", kMostNodes));
  if (!ports::ShmRegion::is_ring_size(wish.buffer))
    return fail(fmt::format("buffer: must be a power of two from {} to {} bytes", ports::kMinRing, ports::kMaxRing));
  if (wish.filter.size() > kMostFilter)
    return fail(fmt::format("filter: has {} letters, and may have {}", wish.filter.size(), kMostFilter));
  const std::unique_ptr<pcap_t, void (*)(pcap_t*)> kind(pcap_open_dead(DLT_EN10MB, port::kMaxFrame), pcap_close);
  if (!kind) return fail("no memory for a capture");
  if (pcap_compile(kind.get(), &capture->filter_, expression_of(wish).c_str(), 1, PCAP_NETMASK_UNKNOWN) != 0)
    return fail(fmt::format("filter = \"{}\": {}; pcap-filter(7) says what there is, `udp port 4791` is RoCEv2",
                            wish.filter, pcap_geterr(kind.get())));
  const std::span program(capture->filter_.bf_insns, capture->filter_.bf_len);
  if (program.size() > kMostInstructions)
    return fail(fmt::format("filter: takes {} instructions, and may take {}", program.size(), kMostInstructions));
  // What the kernel knows of a packet of its own besides its bytes.
  if (std::ranges::any_of(program, asks_the_kernel))
    return fail(
        fmt::format("filter = \"{}\": asks for more than a frame's bytes; --direction says in or out", wish.filter));
  auto region = ports::ShmRegion::create(wish.buffer);
  if (!region) return tl::unexpected(region.error());
  capture->region_ = std::move(*region);
  capture->writer_ = capture->region_.writer(0);
  capture->reader_ = capture->region_.reader(1);
  return capture;
}

Capture::~Capture() { pcap_freecode(&filter_); }

void Capture::sees(PortNumber port, Direction direction, ByteView frame) {
  if (!(direction == Direction::kIn ? wish_.in : wish_.out)) return;
  const auto length = static_cast<std::uint32_t>(frame.size());
  if (bpf_filter(filter_.bf_insns, frame.data(), length, length) == 0) return;
  constexpr std::size_t kMostKept = port::kMaxFrame - sizeof(Head);  // one record of the ring has both
  const std::size_t wanted = wish_.snap == 0 ? kMostKept : std::min<std::size_t>(wish_.snap, kMostKept);
  const std::size_t kept = std::min(frame.size(), wanted);
  const Head head{.at_ns = pcapng::wall_clock_ns(),
                  .lost = lost_.load(std::memory_order_relaxed),
                  .length = length,
                  .port = port.value,
                  .what = static_cast<std::uint8_t>(direction),
                  .unused = 0};
  if (!tell_gone() || !put(head, frame.first(kept))) lost_.fetch_add(1, std::memory_order_relaxed);
}

void Capture::detached(PortNumber port) {
  gone_.push_back(port.value);
  tell_gone();
}

// Before any frame, so that the next port of that number does not go by the name of the one before.
bool Capture::tell_gone() {
  while (!gone_.empty()) {
    const Head head{.at_ns = 0, .lost = 0, .length = 0, .port = gone_.back(), .what = kGone, .unused = 0};
    if (!put(head, {})) return false;
    gone_.pop_back();
  }
  return true;
}

bool Capture::put(const Head& head, ByteView bytes) {
  std::uint8_t* const room = writer_.reserve(sizeof head + bytes.size());
  if (room == nullptr) return false;
  std::memcpy(room, &head, sizeof head);
  std::ranges::copy(bytes, room + sizeof head);
  writer_.commit(sizeof head + bytes.size());
  return true;
}

std::string Capture::next(const std::function<PortNames(PortNumber)>& names_of) {
  std::string out;
  // A capture without any interface is none to libpcap.
  if (interfaces_made_ == 0) add_interface(out, {"switch", "all ports: what was lost"});
  std::array<port::Frame, 64> burst;
  while (out.size() < kMostAtOnce) {
    const std::size_t count = reader_.receive(burst);
    if (count == 0) break;
    for (const port::Frame& record : std::span(burst).first(count)) {
      Head head;
      std::memcpy(&head, record.data, sizeof head);
      if (head.what == kGone) {
        interfaces_.erase(head.port);
        continue;
      }
      const auto [interface, is_new] = interfaces_.try_emplace(head.port, interfaces_made_);
      if (is_new) add_interface(out, names_of(PortNumber{head.port}));
      pcapng::append_packet(
          out, {.interface = interface->second,
                .at_ns = head.at_ns,
                .direction = head.what == static_cast<std::uint8_t>(Direction::kIn) ? pcapng::Direction::kIn
                                                                                    : pcapng::Direction::kOut,
                .lost_before = head.lost - std::exchange(lost_told_, head.lost),
                .original_length = head.length,
                .bytes = record.bytes().subspan(sizeof head)});
    }
  }
  // What was lost since the last packet that was not.
  const std::uint64_t lost = lost_.load(std::memory_order_relaxed);
  if (lost != lost_told_by_statistics_)
    pcapng::append_statistics(out, 0, pcapng::wall_clock_ns(), lost_told_by_statistics_ = lost);
  return out;
}

void Capture::add_interface(std::string& out, const PortNames& names) {
  ++interfaces_made_;
  pcapng::append_interface(out, names.name, names.description, wish_.snap);
}

Captures::Captures(nic::PollLoop& loop, switching::LearningSwitch& machine) : loop_(loop), machine_(machine) {
  loop_.add(*this);
}

Captures::~Captures() {
  machine_.set_tap(nullptr);
  loop_.remove(*this);
}

Result<std::shared_ptr<Capture>> Captures::begin(const CaptureWish& wish) {
  auto capture = Capture::make(wish);
  if (!capture) return capture;
  const auto begun = ask<bool>(loop_, [this, capture = *capture](Time) -> Result<bool> {
    if (auto added = add(capture); !added) return tl::unexpected(added.error());
    return true;
  });
  if (!begun) return tl::unexpected(begun.error());
  return capture;
}

Result<void> Captures::add(std::shared_ptr<Capture> capture) {
  forget_left();
  if (open_.size() == kMost) return fail(fmt::format("{} captures are under way already; end one of them", kMost));
  open_.push_back(std::move(capture));
  machine_.set_tap(this);
  return {};
}

void Captures::sees(PortNumber port, Direction direction, ByteView frame) {
  for (const auto& capture : open_) capture->sees(port, direction, frame);
}

void Captures::detached(PortNumber port) {
  for (const auto& capture : open_) capture->detached(port);
}

void Captures::transmit(Time) {
  if (open_.empty()) return;
  for (const auto& capture : open_) capture->flush();
  forget_left();
}

// Whose reader has let it go.
void Captures::forget_left() {
  std::erase_if(open_, [](const auto& capture) { return capture.use_count() == 1; });
  if (open_.empty()) machine_.set_tap(nullptr);
}

}  // namespace sluice::rack
