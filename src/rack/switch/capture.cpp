#include "rack/switch/capture.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "rack/process/ask.h"

namespace sluice::rack {
namespace {

namespace pcapng = ports::pcapng;
using switching::Direction;
using switching::PortNumber;

std::int64_t wall_clock_ns() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string expression_of(const CaptureWish& wish) {
  std::string hosts;
  for (const wire::MacAddress& mac : wish.of)
    hosts += fmt::format("{}ether host {}", hosts.empty() ? "" : " or ", mac.to_string());
  if (hosts.empty() || wish.filter.empty()) return hosts + wish.filter;
  return fmt::format("({}) and ({})", hosts, wish.filter);
}

}  // namespace

Result<std::shared_ptr<Capture>> Capture::make(const CaptureWish& wish) {
  std::shared_ptr<Capture> capture(new Capture());
  capture->wish_ = wish;
  const std::unique_ptr<pcap_t, void (*)(pcap_t*)> kind(pcap_open_dead(DLT_EN10MB, port::kMaxFrame), pcap_close);
  if (!kind) return fail("no memory for a capture");
  if (pcap_compile(kind.get(), &capture->filter_, expression_of(wish).c_str(), 1, PCAP_NETMASK_UNKNOWN) != 0)
    return fail(fmt::format("filter = \"{}\": {}; pcap-filter(7) says what there is, `udp port 4791` is RoCEv2",
                            wish.filter, pcap_geterr(kind.get())));
  auto region = ports::ShmRegion::create(kRing);
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
  const std::size_t kept = wish_.snap == 0 ? frame.size() : std::min<std::size_t>(frame.size(), wish_.snap);
  const Head head{.at_ns = wall_clock_ns(),
                  .lost = lost_,
                  .length = length,
                  .port = port.value,
                  .what = static_cast<std::uint8_t>(direction),
                  .unused = 0};
  if (!tell_gone() || !put(head, frame.first(kept))) ++lost_;
}

void Capture::detached(PortNumber port) {
  gone_.push_back(port.value);
  tell_gone();
}

// Before any frame, so that the next port of that number does not go by the name of the one before.
bool Capture::tell_gone() {
  while (!gone_.empty()) {
    const Head head{.at_ns = 0, .lost = lost_, .length = 0, .port = gone_.back(), .what = kGone, .unused = 0};
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
      if (is_new) {
        const PortNames names = names_of(PortNumber{head.port});
        pcapng::append_interface(out, names.name, names.description, wish_.snap);
        ++interfaces_made_;
      }
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
  return out;
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

void Captures::flush(Time) {
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
