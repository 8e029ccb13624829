#include "cli/cowbird_probe.h"

#include <fmt/core.h>

#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/histogram.h"
#include "base/rng.h"
#include "cowbird/channel.h"
#include "cowbird/poll_group.h"

namespace sluice::cli {
namespace {

using cowbird::Channel;
using cowbird::Completion;
using cowbird::PollGroup;
using rack::CowbirdWorld;
using std::chrono::steady_clock;

constexpr std::uint8_t kFill = CowbirdWorld::kFill;
constexpr std::uint64_t kLocalIn = 20;  // one record of so many is local
constexpr std::uint64_t kSpins = 32;    // vain looks before a yield
constexpr auto kSilence = std::chrono::seconds(10);

// Ways to read a record into a slot; completions come in the order of issue.
class LocalWay {
 public:
  LocalWay(const std::vector<std::uint8_t>& table, std::size_t depth, std::uint32_t bytes)
      : table_(table), into_(depth * bytes), bytes_(bytes) {}
  void read(std::uint64_t at, std::size_t slot) {
    std::memcpy(into(slot), table_.data() + at, bytes_);
    ++done_;
  }
  std::size_t poll() { return std::exchange(done_, 0); }
  std::uint8_t* into(std::size_t slot) { return into_.data() + slot * bytes_; }
  bool failed() const { return false; }

 private:
  const std::vector<std::uint8_t>& table_;
  std::vector<std::uint8_t> into_;
  std::uint32_t bytes_;
  std::size_t done_ = 0;
};

// Reads nothing: what the program does by itself.
class NoWay {
 public:
  NoWay(std::size_t depth, std::uint32_t bytes) : into_(depth * bytes, kFill), bytes_(bytes) {}
  void read(std::uint64_t, std::size_t slot) {
    *into(slot) = kFill;
    ++done_;
  }
  std::size_t poll() { return std::exchange(done_, 0); }
  std::uint8_t* into(std::size_t slot) { return into_.data() + slot * bytes_; }
  bool failed() const { return false; }

 private:
  std::vector<std::uint8_t> into_;
  std::uint32_t bytes_;
  std::size_t done_ = 0;
};

class VerbsWay {
 public:
  VerbsWay(VerbsPool& pool, std::uint32_t bytes) : pool_(pool), bytes_(bytes) {}
  void read(std::uint64_t at, std::size_t slot) { pool_.post_read(at, slot * bytes_, bytes_); }
  std::size_t poll() { return pool_.poll(); }
  std::uint8_t* into(std::size_t slot) { return pool_.local() + slot * bytes_; }
  bool failed() const { return pool_.failed(); }

 private:
  VerbsPool& pool_;
  std::uint32_t bytes_;
};

class CowbirdWay {
 public:
  CowbirdWay(Channel& channel, std::size_t depth, std::uint32_t bytes)
      : channel_(channel), group_(channel), into_(depth * bytes), done_(depth), bytes_(bytes) {}
  void read(std::uint64_t at, std::size_t slot) {
    const auto id = channel_.async_read(0, at, into(slot), bytes_);
    failed_ |= id < 0;
    if (id >= 0) group_.add(cowbird::RequestId(id));
  }
  std::size_t poll() {
    const std::size_t n = group_.collect(done_);
    for (std::size_t i = 0; i < n; ++i) failed_ |= done_[i].status != cowbird::Status::kOk;
    return n;
  }
  std::uint8_t* into(std::size_t slot) { return into_.data() + slot * bytes_; }
  bool failed() const { return failed_; }

 private:
  Channel& channel_;
  PollGroup group_;
  std::vector<std::uint8_t> into_;
  std::vector<Completion> done_;
  std::uint32_t bytes_;
  bool failed_ = false;
};

// Where each key's record is: a table of its own, so that a probe begins with a look into local memory.
using HashIndex = std::vector<std::uint32_t>;

HashIndex make_index(std::uint64_t records) {
  constexpr std::uint64_t kScatter = 2'654'435'761;  // a prime, and no divisor of so few: every record once
  HashIndex index(records);
  for (std::uint64_t key = 0; key < records; ++key) index[key] = static_cast<std::uint32_t>(key * kScatter % records);
  return index;
}

struct ProbePoint {
  std::string way;
  std::uint32_t bytes = 8;
  std::size_t depth = 1;
  std::chrono::nanoseconds duration{};
};

// Looks records up for a while with `depth` reads under way.
template <class Way>
Result<CowbirdRow> probe(const ProbePoint& point, Way&& way, const HashIndex& index,
                         const std::vector<std::uint8_t>& local) {
  Rng rng(point.bytes);
  std::vector<steady_clock::time_point> issued_at(point.depth);
  Histogram latency_ns;
  std::uint64_t issued = 0, done = 0, probes = 0, wrong = 0, vain = 0;
  const auto begin = steady_clock::now();
  const auto end = begin + point.duration;
  auto now = begin;
  while (now < end || done != issued) {
    while (issued - done < point.depth && now < end) {
      ++probes;
      const std::uint64_t record = index[rng.below(index.size())];
      if (record % kLocalIn == 0) {
        wrong += local[record * point.bytes] != kFill ? 1u : 0u;
        continue;
      }
      const std::size_t slot = issued++ % point.depth;
      if (slot % 8 == 0 || point.depth == 1) now = steady_clock::now();  // the clock is dear
      issued_at[slot] = now;
      *way.into(slot) = 0;
      way.read(record * point.bytes, slot);
    }
    const std::size_t n = way.poll();
    // Engine and pool may be waiting for this core: one that only spins keeps them from it.
    if (n == 0 && ++vain % kSpins == 0) std::this_thread::yield();
    now = steady_clock::now();
    if (way.failed()) return fail(fmt::format("{}: a read failed", point.way));
    if (now - end > kSilence) return fail(fmt::format("{}: reads do not complete", point.way));
    for (std::size_t i = 0; i < n; ++i, ++done) {
      const std::size_t slot = done % point.depth;
      wrong += way.into(slot)[0] != kFill || way.into(slot)[point.bytes - 1] != kFill ? 1u : 0u;
      latency_ns.record(std::chrono::nanoseconds(now - issued_at[slot]).count());
    }
  }
  if (wrong != 0) return fail(fmt::format("{}: {} records of {} bytes were wrong", point.way, wrong, point.bytes));
  return CowbirdRow{.part = "probe",
                    .way = point.way,
                    .bytes = point.bytes,
                    .depth = point.depth,
                    .values = {{"probes_per_second",
                                static_cast<double>(probes) / std::chrono::duration<double>(now - begin).count()},
                               {"p50_us", static_cast<double>(latency_ns.at_quantile(0.5)) / 1e3},
                               {"p99_us", static_cast<double>(latency_ns.at_quantile(0.99)) / 1e3}}};
}

}  // namespace

struct CowbirdProbe::Ways {
  Ways(CowbirdWorld& world, VerbsPool& pool) : verbs(pool), regions(world.regions()) {
    for (std::size_t i = 0; i < 2; ++i) {
      channels.at(i).emplace(world.channel(i), world.layout().channel(), regions);
      channels.at(i)->set_regions_generation(1);
    }
  }
  VerbsPool& verbs;
  std::vector<cowbird::Region> regions;
  std::array<std::optional<Channel>, 2> channels;
};

CowbirdProbe::CowbirdProbe(CowbirdWorld& world, VerbsPool& verbs, std::size_t depth, Duration duration)
    : ways_(std::make_unique<Ways>(world, verbs)),
      local_(world.pool_bytes(), kFill),
      depth_(depth),
      duration_(duration) {}

CowbirdProbe::~CowbirdProbe() = default;

Result<CowbirdRows> CowbirdProbe::measure(std::uint32_t bytes,
                                          const std::function<void(std::string_view way)>& on_way) {
  CowbirdRows rows;
  const HashIndex index = make_index(local_.size() / bytes);
  const auto point = [&](const char* way, std::size_t depth) {
    on_way(way);
    return ProbePoint{way, bytes, depth, std::chrono::nanoseconds(duration_.nanoseconds())};
  };
  Error error;
  const auto take = [&](Result<CowbirdRow> row) {
    if (!row) return error = row.error(), false;
    rows.push_back(std::move(*row));
    return true;
  };
  if (!take(probe(point("local", depth_), LocalWay(local_, depth_, bytes), index, local_)) ||
      !take(probe(point("index alone", depth_), NoWay(depth_, bytes), index, local_)))
    return tl::unexpected(error);
  std::vector<std::size_t> depths{depth_};
  if (depth_ != 1) depths.push_back(1);
  for (const std::size_t depth : depths) {
    if (!take(probe(point("verbs", depth), VerbsWay(ways_->verbs, bytes), index, local_)) ||
        !take(probe(point("cowbird", depth), CowbirdWay(*ways_->channels[0], depth, bytes), index, local_)) ||
        !take(probe(point("cowbird, not batched", depth), CowbirdWay(*ways_->channels[1], depth, bytes), index,
                    local_))) {
      return tl::unexpected(error);
    }
  }
  for (CowbirdRow& row : rows) {
    row.values.emplace_back("of_local", row.value("probes_per_second") / rows.front().value("probes_per_second"));
  }
  return rows;
}

}  // namespace sluice::cli
