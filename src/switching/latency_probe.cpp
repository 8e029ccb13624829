#include "switching/latency_probe.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/bytes.h"

namespace sluice::switching {

using wire::Kind;

namespace {

std::array<double, LatencyCounts::kEdges> make_edges() {
  std::array<double, LatencyCounts::kEdges> edges{};
  for (std::size_t i = 0; i < edges.size(); ++i) edges[i] = 1e-6 * std::exp2(static_cast<double>(i) / 2);
  return edges;
}

// Whose answer tells that all of it is done; nothing: of several packets, or nobody asks for an answer.
std::optional<LatencyProbe::Operation> operation_of(const wire::ParsedFrame& parsed) {
  const wire::OpcodeTraits& traits = parsed.traits();
  if (traits.transport != wire::Transport::kRc || !traits.is_request || traits.position != wire::Position::kOnly)
    return std::nullopt;
  if (traits.is_atomic()) return LatencyProbe::Operation::kAtomic;
  if (traits.kind == Kind::kReadRequest) return LatencyProbe::Operation::kRead;
  if (!parsed.ack_request) return std::nullopt;
  return traits.kind == Kind::kWrite ? LatencyProbe::Operation::kWrite : LatencyProbe::Operation::kSend;
}

// Opcodes of answers lie in one row; a look at one byte spares most frames the rest.
bool may_be_answer(ByteView frame) {
  constexpr std::size_t kBth = 42;  // IPv4 without a tag; anything else is looked at closely
  if (frame.size() < kBth + wire::Bth::kSize) return false;
  const auto is_row = [](std::uint8_t code) {
    return code >= static_cast<std::uint8_t>(wire::Opcode::kRcReadResponseFirst) &&
           code <= static_cast<std::uint8_t>(wire::Opcode::kRcAtomicAcknowledge);
  };
  return is_row(frame[kBth]) || frame[12] != 0x08;
}

}  // namespace

std::span<const double, LatencyCounts::kEdges> LatencyCounts::edges() {
  static const auto kAll = make_edges();
  return kAll;
}

void LatencyCounts::add(Duration latency) {
  const double seconds = static_cast<double>(latency.nanoseconds()) / 1e9;
  const auto all = edges();
  ++counts[static_cast<std::size_t>(std::ranges::lower_bound(all, seconds) - all.begin())];
  sum_ns += static_cast<std::uint64_t>(latency.nanoseconds());
}

std::uint64_t LatencyCounts::all() const {
  std::uint64_t n = 0;
  for (const std::uint64_t count : counts) n += count;
  return n;
}

std::string_view LatencyProbe::name_of(Operation operation) {
  switch (operation) {
    case Operation::kRead: return "read";
    case Operation::kWrite: return "write";
    case Operation::kAtomic: return "atomic";
    case Operation::kSend: return "send";
  }
  return "?";
}

// Of client, server and PSN, whichever way the packet goes. Several connections of the same two may have the same PSN at the same time: then
// one may take the other's answer for its own, about once in 2^24 pairs.
std::uint64_t LatencyProbe::key_of(const std::uint8_t* frame, const wire::ParsedFrame& parsed) {
  const std::size_t size = parsed.is_v4 ? 4 : 16;
  const std::uint8_t* const source = frame + parsed.udp_offset() - 2 * size;
  const auto hash = [size](const std::uint8_t* address) {
    std::uint64_t h = 0;
    for (std::size_t i = 0; i < size; i += 4) h = (h + load_be<std::uint32_t>(address + i)) * 0x9E3779B97F4A7C15;
    return h;
  };
  const std::uint64_t from = hash(source);
  const std::uint64_t to = hash(source + size);
  const bool is_request = parsed.traits().is_request;
  std::uint64_t key = (is_request ? from : to) * 3 + (is_request ? to : from);
  key = (key ^ parsed.psn.value() * std::uint64_t{0xBF58476D1CE4E5B9}) * 0x94D049BB133111EB;
  return (key ^ key >> 29) | std::uint64_t{1} << 63;
}

void LatencyProbe::begin(Time now, const port::Frame& frame) {
  wire::ParsedFrame parsed;
  if (wire::parse(frame.bytes(), parsed) != wire::Verdict::kOk) {
    next_ = now + kPause;
    return;
  }
  const auto operation = operation_of(parsed);
  next_ = now + (operation ? kSpacing : kPause);
  if (!operation) return;
  const std::uint64_t key = key_of(frame.data, parsed);
  Sample& sample = place_of(key);
  if (sample.key == key) return;
  if (sample.key == 0) ++open_;
  sample = {key, now, *operation};
}

void LatencyProbe::end(Time now, ByteView frame) {
  if (!may_be_answer(frame)) return;
  wire::ParsedFrame parsed;
  if (wire::parse(frame, parsed) != wire::Verdict::kOk) return;
  const wire::OpcodeTraits& traits = parsed.traits();
  if (traits.transport != wire::Transport::kRc || traits.is_request || !traits.starts_message()) return;
  const bool tells = traits.kind == Kind::kReadResponse || traits.kind == Kind::kAcknowledge ||
                     traits.kind == Kind::kAtomicAcknowledge;
  if (!tells) return;
  const std::uint64_t key = key_of(frame.data(), parsed);
  Sample& sample = place_of(key);
  if (sample.key != key) return;
  if (traits.kind == Kind::kAcknowledge && !wire::get<wire::Aeth>(frame.data(), parsed).is_ack()) return;
  counts_[static_cast<std::size_t>(sample.operation)].add(now - sample.begin);
  sample = {};
  --open_;
}

}  // namespace sluice::switching
