#include "sim/edm/edm_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "edm/types.h"
#include "sim/edm/published_trace.h"

namespace sluice::sim {
namespace {

__extension__ using Wide = unsigned __int128;

// -log2(draw / 2^64), in 2^-32ths: the whole part by counting zeros, each further bit by squaring.
std::uint64_t negative_log2(std::uint64_t draw) {
  if (draw == 0) draw = 1;
  const auto zeros = static_cast<std::uint64_t>(std::countl_zero(draw));
  std::uint64_t x = draw << zeros;  // in [1, 2), its one in the topmost bit
  std::uint64_t fraction = 0;
  for (int i = 0; i < 32; ++i) {
    const Wide square = Wide{x} * x;
    const auto high = static_cast<std::uint64_t>(square >> 64);
    const bool two = high >> 63 != 0;
    x = two ? high : static_cast<std::uint64_t>(square >> 63);
    fraction = fraction << 1 | (two ? 1u : 0u);
  }
  return ((zeros + 1) << 32) - fraction;
}

constexpr std::uint64_t kLn2 = 2'977'044'472;  // times 2^32

// A message every so many femtoseconds, all nodes together.
Wide interval_fs(const TraceSpec& spec) {
  const Wide bits = Wide{spec.sizes.mean_bytes()} * 8;
  return bits * 1'000'000'000'000'000u / spec.bits_per_second / spec.nodes;
}

// The seven numbers of a line.
bool numbers_of(std::string_view line, std::array<std::int64_t, 7>& out) {
  const char* at = line.data();
  const char* const end = at + line.size();
  for (std::size_t i = 0; i < out.size(); ++i) {
    while (at != end && *at == ' ') ++at;
    const auto [next, error] = std::from_chars(at, end, out[i]);
    if (error != std::errc{}) return false;
    at = next;
    while (at != end && (*at == ' ' || *at == '\r')) ++at;
    if (i + 1 < out.size() && (at == end || *at++ != ',')) return false;
  }
  return at == end;
}

// Nothing: the row is as it should be.
std::string problem_of(const std::array<std::int64_t, 7>& n, std::uint32_t nodes, std::int64_t first_slot,
                       std::int64_t last_slot) {
  const auto [id, type, source, destination, bytes, request, slot] = n;
  const auto wrong = [](std::string_view column, std::int64_t value, std::string_view allowed) {
    return fmt::format("{} = {}: must be {}", column, value, allowed);
  };
  if (id < 0 || id > UINT32_MAX) return wrong("id", id, "a 32-bit number");
  if (type != 1 && type != 3 && type != 100) return wrong("type", type, "1 (RREQ), 3 (WREQ) or 100 (a frame)");
  for (const auto& [column, node] : {std::pair{"src", source}, std::pair{"dst", destination}}) {
    if (node < 0 || node >= nodes)
      return wrong(column, node, fmt::format("a node from 0 to {}; there are {}", nodes - 1, nodes));
  }
  if (source == destination) return fmt::format("src and dst = {}: must be two nodes", source);
  const auto fits = [](std::int64_t size) { return size > 0 && size <= edm::kMaxMessageBytes; };
  const std::string sizes = fmt::format("1 to {}", edm::kMaxMessageBytes);
  if (!fits(bytes)) return wrong("size_bytes", bytes, sizes);
  if (type == 1 && !fits(request)) return wrong("request_bytes", request, sizes + ", what the RREQ reads");
  if (type != 1 && request != -1) return wrong("request_bytes", request, "-1: only an RREQ asks for any");
  if (slot > last_slot) return wrong("timeslot", slot, fmt::format("at most {}", last_slot));
  if (slot < first_slot)
    return wrong("timeslot", slot,
                 fmt::format("{} or more, as in the row before: rows are in order of time", first_slot));
  return {};
}

// A share from 0 to 1, of three decimals at most, in thousandths.
std::optional<std::uint64_t> thousandths(std::string_view text) {
  if (text.empty() || (text[0] != '0' && text[0] != '1')) return std::nullopt;
  std::uint64_t value = text[0] == '1' ? 1'000 : 0;
  if (text.size() == 1) return value;
  if (text[1] != '.' || text.size() > 5) return std::nullopt;
  std::uint64_t worth = 100;
  for (const char digit : text.substr(2)) {
    if (digit < '0' || digit > '9') return std::nullopt;
    value += worth * static_cast<std::uint64_t>(digit - '0');
    worth /= 10;
  }
  return value <= 1'000 ? std::optional(value) : std::nullopt;
}

// What stands between blanks and commas.
std::vector<std::string_view> words_of(std::string_view line) {
  constexpr std::string_view kBetween = " ,\t\r";
  std::vector<std::string_view> words;
  for (std::size_t at = line.find_first_not_of(kBetween); at != std::string_view::npos;
       at = line.find_first_not_of(kBetween, at)) {
    const std::size_t end = std::min(line.find_first_of(kBetween, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

// The names of the columns, which may stand in the first line.
bool is_header(std::string_view line) {
  std::string bare(line);
  std::erase_if(bare, [](char c) { return c == ' ' || c == '\r'; });
  return bare == kTraceColumns;
}

}  // namespace

Result<std::vector<TraceRow>> parse_trace(std::string_view text, std::uint32_t nodes, std::int64_t last_slot) {
  std::vector<TraceRow> rows;
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view one = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (one.empty() || one == "\r") continue;
    std::array<std::int64_t, 7> n{};
    if (rows.empty() && is_header(one)) continue;
    if (!numbers_of(one, n)) {
      return fail(fmt::format("line {} = \"{}\": must be {}, whole numbers", line, one.substr(0, one.find('\r')),
                              kTraceColumns));
    }
    const std::string problem = problem_of(n, nodes, rows.empty() ? 0 : rows.back().slot, last_slot);
    if (!problem.empty()) return fail(fmt::format("line {}: {}", line, problem));
    rows.push_back({.id = static_cast<std::uint32_t>(n[0]),
                    .type = static_cast<TraceRow::Type>(n[1]),
                    .source = static_cast<std::uint16_t>(n[2]),
                    .destination = static_cast<std::uint16_t>(n[3]),
                    .bytes = static_cast<std::uint32_t>(n[4]),
                    .request_bytes = n[5] < 0 ? 0 : static_cast<std::uint32_t>(n[5]),
                    .slot = n[6]});
  }
  return rows;
}

std::string format_trace(const std::vector<TraceRow>& rows) {
  fmt::memory_buffer out;
  for (const TraceRow& r : rows) {
    const std::int64_t request = r.reads() ? std::int64_t{r.request_bytes} : -1;
    fmt::format_to(std::back_inserter(out), "{},{},{},{},{},{},{}\n", r.id, static_cast<int>(r.type), r.source,
                   r.destination, r.bytes, request, r.slot);
  }
  return fmt::to_string(out);
}

Result<SizeDistribution> parse_sizes(std::string_view text, std::uint32_t unit_bytes) {
  SizeDistribution sizes{.points = {}, .unit_bytes = unit_bytes};
  const std::uint64_t most = edm::kMaxMessageBytes / unit_bytes;
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view one = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::vector<std::string_view> words = words_of(one);
    if (words.empty()) continue;
    std::uint64_t units = 0;
    const auto parsed = std::from_chars(words[0].data(), words[0].data() + words[0].size(), units);
    const bool number = parsed.ec == std::errc{} && parsed.ptr == words[0].data() + words[0].size();
    if (!number && sizes.points.empty() && line == 1) continue;  // names
    const auto share = words.size() == 3 ? thousandths(words[2]) : std::nullopt;
    const auto before = sizes.points.empty() ? SizeDistribution::Point{1, 0} : sizes.points.back();
    if (!number || !share || units < before.units || units > most || *share < before.up_to_per_mille) {
      return fail(
          fmt::format("line {} = \"{}\": must be a size of 1 to {} units, a number, and the share of messages up to "
                      "it, 0 to 1 in three decimals at most; both rise",
                      line, one.substr(0, one.find('\r')), most));
    }
    sizes.points.push_back({units, *share});
  }
  if (sizes.points.empty() || sizes.points.back().up_to_per_mille != 1'000)
    return fail("the last line's share must be 1: all messages");
  return sizes;
}

std::uint32_t SizeDistribution::draw(Rng& rng) const {
  constexpr std::uint64_t kFine = 1'000'000;  // parts of a thousandth
  const std::uint64_t u = rng.below(1'000 * kFine);
  std::size_t i = 0;
  while (u >= points[i].up_to_per_mille * kFine) ++i;
  std::uint64_t units = points[i].units;
  if (i != 0) {
    const Point& before = points[i - 1];
    const std::uint64_t width = (points[i].up_to_per_mille - before.up_to_per_mille) * kFine;
    units = before.units + (points[i].units - before.units) * (u - before.up_to_per_mille * kFine) / width;
  }
  return static_cast<std::uint32_t>(units * unit_bytes);
}

std::uint64_t SizeDistribution::mean_bytes() const {
  // Of the straight lines: twice the mean times a thousand, in units.
  std::uint64_t sum = points.front().units * points.front().up_to_per_mille * 2;
  for (std::size_t i = 1; i < points.size(); ++i)
    sum += (points[i].units + points[i - 1].units) * (points[i].up_to_per_mille - points[i - 1].up_to_per_mille);
  return sum * unit_bytes / 2'000;
}

std::uint64_t draw_exponential(Rng& rng, std::uint64_t mean) {
  const auto ln = Wide{negative_log2(rng.next())} * kLn2 >> 32;  // in 2^-32ths
  return static_cast<std::uint64_t>(ln * mean >> 32);
}

bool lasts_too_long(const TraceSpec& spec) {
  constexpr std::uint64_t kMostMeans = 45;  // -ln(2^-64)
  return interval_fs(spec) * kMostMeans * spec.messages >> 64 != 0;
}

namespace {

std::vector<TraceRow> draw_messages(const TraceSpec& spec, std::uint64_t seed) {
  Rng times = Rng(seed).fork("times");
  Rng places = Rng(seed).fork("places");
  Rng sizes = Rng(seed).fork("sizes");
  const auto interval = static_cast<std::uint64_t>(interval_fs(spec));
  std::vector<TraceRow> rows;
  rows.reserve(spec.messages);
  std::uint64_t now_fs = 0;
  const std::uint64_t slot_fs = static_cast<std::uint64_t>(spec.slot_ps) * 1'000;
  for (std::uint64_t i = 0; i < spec.messages; ++i) {
    now_fs += draw_exponential(times, interval);
    const std::uint64_t source = places.below(spec.nodes);
    const std::uint64_t destination = (source + 1 + places.below(spec.nodes - 1)) % spec.nodes;
    rows.push_back({.id = static_cast<std::uint32_t>(i),
                    .type = TraceRow::Type::kWrite,
                    .source = static_cast<std::uint16_t>(source),
                    .destination = static_cast<std::uint16_t>(destination),
                    .bytes = spec.sizes.draw(sizes),
                    .request_bytes = 0,
                    .slot = static_cast<std::int64_t>(now_fs / slot_fs)});
  }
  return rows;
}

}  // namespace

std::vector<TraceRow> generate_trace(const TraceSpec& spec, std::uint64_t seed) {
  SLUICE_CHECK(spec.nodes >= 2 && spec.bits_per_second != 0 && !spec.sizes.points.empty());
  SLUICE_CHECK(!lasts_too_long(spec));
  std::vector<TraceRow> rows = spec.published ? published_messages(spec) : draw_messages(spec, seed);
  Rng kinds = Rng(seed).fork("kinds");
  for (TraceRow& row : rows) {
    if (kinds.below(1'000) >= spec.reads_per_mille) continue;
    row.type = TraceRow::Type::kRead;
    row.request_bytes = std::exchange(row.bytes, spec.request_bytes);
  }
  return rows;
}

}  // namespace sluice::sim
