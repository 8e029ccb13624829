// What the wire costs: ICRC whole (beside zlib's crc32 as a peer) and patched, parse, build.
//
// Run: wire_bench --benchmark_repetitions=5 --benchmark_report_aggregates_only=true
#include <benchmark/benchmark.h>
#include <zlib.h>

#include <array>
#include <cstdint>
#include <vector>

#include "wire/frame.h"
#include "wire/frame_editor.h"
#include "wire/icrc.h"

namespace sluice::wire {
namespace {

AddressVector address() {
  return {.source_mac = MacAddress::parse("02:00:00:00:00:01").value(),
          .destination_mac = MacAddress::parse("02:00:00:00:00:02").value(),
          .source = Gid::parse("10.0.0.1").value(),
          .destination = Gid::parse("10.0.0.2").value()};
}

// Writes a WRITE_ONLY of `length` bytes (payload bytes as they are) and returns its frame length.
std::size_t build(const HeaderTemplate& headers, std::uint8_t* out, std::size_t length, std::uint32_t psn) {
  const std::size_t transport = Bth::kSize + Reth::kSize + length;
  std::uint8_t* p = out + headers.write(out, transport);
  Bth{.opcode = Opcode::kRcWriteOnly, .destination = Qpn(0x11), .ack_request = true, .psn = Psn(psn)}.write(p);
  Reth{.virtual_address = 0x7000, .rkey = RKey(7), .length = static_cast<std::uint32_t>(length)}.write(p + Bth::kSize);
  return static_cast<std::size_t>(p - out) + transport;
}

struct Sample {
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(kMaxFrameSize);
  std::size_t length = 0;
  ParsedFrame parsed;

  explicit Sample(std::size_t payload) {
    const HeaderTemplate headers(address());
    length = headers.seal(bytes.data(), build(headers, bytes.data(), payload, 5));
    parse({bytes.data(), length}, parsed);
  }
};

// Payload such that the ICRC covers exactly the benchmark's argument.
std::size_t payload_of(const benchmark::State& state) {
  return static_cast<std::size_t>(state.range(0)) - Ipv4Header::kSize - UdpHeader::kSize - Bth::kSize - Reth::kSize;
}

void IcrcWhole(benchmark::State& state) {
  const Sample sample(payload_of(state));
  for (auto _ : state) benchmark::DoNotOptimize(icrc(sample.bytes.data(), sample.parsed));
}
BENCHMARK(IcrcWhole)->Arg(64)->Arg(128)->Arg(1024)->Arg(4096);

// The limit: ISA-L over the same bytes, nothing masked.
void IsalCrc32OfTheSameBytes(benchmark::State& state) {
  const Sample sample(payload_of(state));
  const ByteView bytes{sample.bytes.data() + sample.parsed.ip_offset, static_cast<std::size_t>(state.range(0))};
  for (auto _ : state) benchmark::DoNotOptimize(crc32::update(0, bytes));
}
BENCHMARK(IsalCrc32OfTheSameBytes)->Arg(64)->Arg(128)->Arg(1024)->Arg(4096);

void ZlibCrc32OfTheSameLength(benchmark::State& state) {
  const std::vector<std::uint8_t> bytes(static_cast<std::size_t>(state.range(0)), 0x5A);
  for (auto _ : state) benchmark::DoNotOptimize(::crc32(0, bytes.data(), static_cast<uInt>(bytes.size())));
}
BENCHMARK(ZlibCrc32OfTheSameLength)->Arg(64)->Arg(128)->Arg(1024)->Arg(4096);

// The patch alone, over a ring of frames as a box sees them: one word's effect on the ICRC, and its store.
void IcrcPatchOneWord(benchmark::State& state) {
  constexpr std::size_t kRing = 16;
  std::vector<Sample> samples(kRing, Sample(payload_of(state)));
  const ParsedFrame& parsed = samples.front().parsed;
  const auto distance = static_cast<std::uint32_t>(parsed.icrc_offset() - parsed.bth_offset - 12);
  std::uint32_t word = 1;
  for (auto _ : state) {
    std::uint8_t* icrc_field = samples[word % kRing].bytes.data() + parsed.icrc_offset();
    const crc32::Change change{++word, distance};
    store_le(icrc_field, load_le<std::uint32_t>(icrc_field) ^ crc32::effect_of({&change, 1}));
    benchmark::ClobberMemory();
  }
}
BENCHMARK(IcrcPatchOneWord)->Arg(64)->Arg(1024)->Arg(4096);

// A whole edit: the PSN in the frame, the view of it and the ICRC.
void EditPsn(benchmark::State& state) {
  Sample sample(payload_of(state));
  std::uint32_t psn = 0;
  for (auto _ : state) {
    FrameEditor editor(sample.bytes.data(), sample.parsed);
    editor.set_psn(Psn(++psn));
    benchmark::DoNotOptimize(editor.commit());
  }
}
BENCHMARK(EditPsn)->Arg(64)->Arg(1024)->Arg(4096);

// What a box does to a packet that it sends on over another connection: QPN, PSN and both addresses.
void EditRouteQpnPsn(benchmark::State& state) {
  Sample sample(payload_of(state));
  const AddressVector route = address();
  std::uint32_t psn = 0;
  for (auto _ : state) {
    FrameEditor editor(sample.bytes.data(), sample.parsed);
    editor.set_route(route);
    editor.set_destination(Qpn(++psn));
    editor.set_psn(Psn(psn));
    benchmark::DoNotOptimize(editor.commit());
  }
}
BENCHMARK(EditRouteQpnPsn)->Arg(64)->Arg(1024)->Arg(4096);

void EditAckToAtomicAckAndBack(benchmark::State& state) {
  Sample sample(0);
  std::array<std::uint8_t, Aeth::kSize + AtomicAckEth::kSize> extended{};
  for (auto _ : state) {
    FrameEditor grow(sample.bytes.data(), sample.parsed);
    grow.replace_extended(Opcode::kRcAtomicAcknowledge, extended);
    grow.commit();
    FrameEditor shrink(sample.bytes.data(), sample.parsed);
    shrink.replace_extended(Opcode::kRcAcknowledge, {extended.data(), Aeth::kSize});
    benchmark::DoNotOptimize(shrink.commit());
  }
}
BENCHMARK(EditAckToAtomicAckAndBack);

void Parse(benchmark::State& state) {
  const Sample sample(8);
  ParsedFrame parsed;
  for (auto _ : state) {
    benchmark::DoNotOptimize(parse({sample.bytes.data(), sample.length}, parsed));
    benchmark::DoNotOptimize(parsed);
  }
}
BENCHMARK(Parse);

void ParseAndVerify(benchmark::State& state) {
  const Sample sample(8);
  ParsedFrame parsed;
  for (auto _ : state) benchmark::DoNotOptimize(parse_and_verify({sample.bytes.data(), sample.length}, parsed));
}
BENCHMARK(ParseAndVerify);

void BuildWriteOnlyHeaders(benchmark::State& state) {
  const HeaderTemplate headers(address());
  std::array<std::uint8_t, 256> frame{};
  std::uint32_t psn = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(build(headers, frame.data(), 8, ++psn));
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BuildWriteOnlyHeaders);

void BuildWriteOnlyAndSeal(benchmark::State& state) {
  const HeaderTemplate headers(address());
  std::array<std::uint8_t, 256> frame{};
  std::uint32_t psn = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(headers.seal(frame.data(), build(headers, frame.data(), 8, ++psn)));
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BuildWriteOnlyAndSeal);

}  // namespace
}  // namespace sluice::wire
