#include "cli/cowbird_cost.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

#include "cowbird/channel_impl.h"
#include "cowbird/poll_group.h"

namespace sluice::cli {
namespace {

using cowbird::Channel;
using cowbird::Completion;
using cowbird::PollGroup;
using rack::CowbirdWorld;
using std::chrono::steady_clock;

constexpr std::size_t kBlock = 1000;       // reads
constexpr std::uint64_t kVerbsOneIn = 50;  // blocks
constexpr auto kSilence = std::chrono::seconds(10);

double ns_of(steady_clock::duration d) { return std::chrono::duration<double, std::nano>(d).count(); }

double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Nanoseconds of a core's cycle, now: by a chain of additions, each of which waits for the one before.
double cycle_ns() {
  constexpr int kAdds = 2000;
  std::uint64_t x = 1;
  const auto begin = steady_clock::now();
  for (int i = 0; i < kAdds; ++i) {
    ++x;
    asm volatile("" : "+r"(x));
  }
  return ns_of(steady_clock::now() - begin) / kAdds;
}

// Nanoseconds until what one thread stores is seen by another that runs on another core: half of a message and its answer. What Cowbird
// costs is above all lines that cross; on cores that share a cache it is a fifth of what it is on others.
double crossing_ns() {
  constexpr int kBatches = 31;
  constexpr std::uint64_t kRounds = 500;
  struct alignas(2 * cowbird::kLine) Word {
    std::atomic<std::uint64_t> value{0};
  };
  Word there, back;
  const auto wait = [](const Word& word, std::uint64_t wanted) {
    for (std::uint64_t spins = 1; word.value.load(std::memory_order_acquire) != wanted; ++spins) {
      if (spins % 4096 == 0) std::this_thread::yield();
    }
  };
  std::jthread echo([&] {
    for (std::uint64_t i = 1; i <= kBatches * kRounds; ++i) {
      wait(there, i);
      back.value.store(i, std::memory_order_release);
    }
  });
  std::vector<double> batches;
  for (std::uint64_t i = 1; i <= kBatches * kRounds;) {
    const auto begin = steady_clock::now();
    for (const std::uint64_t end = i + kRounds; i < end; ++i) {
      there.value.store(i, std::memory_order_release);
      wait(back, i);
    }
    batches.push_back(ns_of(steady_clock::now() - begin) / (2 * kRounds));
  }
  return median(batches);
}

// What blocks of one way took.
class Blocks {
 public:
  void add(double issue_ns, double complete_ns) {
    issue_.push_back(issue_ns / kBlock);
    complete_.push_back(complete_ns / kBlock);
    total_.push_back((issue_ns + complete_ns) / kBlock);
    cycles_.push_back(total_.back() / cycle_ns());
    sum_ += total_.back();
  }
  CowbirdRow row(std::string way, const CowbirdCostPlan& plan) const {
    return {.part = "cost",
            .way = std::move(way),
            .bytes = plan.bytes,
            .depth = plan.depth,
            .values = {{"issue_ns", median(issue_)},
                       {"complete_ns", median(complete_)},
                       {"both_ns", median(total_)},
                       {"both_cycles", median(cycles_)},
                       {"mean_ns", sum_ / static_cast<double>(total_.size())},
                       {"reads", static_cast<double>(total_.size() * kBlock)}}};
  }

 private:
  std::vector<double> issue_, complete_, total_, cycles_;
  double sum_ = 0;
};

// Reads of Cowbird's, in rounds.
class CowbirdReader {
 public:
  CowbirdReader(CowbirdWorld& world, std::size_t instance, const CowbirdCostPlan& plan)
      : progress_(world.channel(instance).data() + cowbird::ChannelLayout::kProgress + cowbird::ProgressLine::kReads),
        plan_(plan),
        into_(plan.depth * plan.bytes),
        span_(world.pool_bytes() - plan.bytes) {
    issued_ = progress();
  }

  std::uint64_t next() { return offset_ = (offset_ + 4096 + 64) % span_; }
  std::uint8_t* into(std::size_t i) { return into_.data() + i * plan_.bytes; }
  // Until the engine has published so many more; touches the line as seldom as a busy application does.
  bool wait_for(std::size_t more) {
    issued_ += more;
    const auto begin = steady_clock::now();
    for (std::uint64_t looks = 0; progress() < issued_; ++looks) {
      for (int i = 0; i < 50; ++i) asm volatile("" ::: "memory");
      if (looks % 4096 != 4095) continue;
      std::this_thread::yield();
      if (steady_clock::now() - begin > kSilence) return false;
    }
    return true;
  }

 private:
  std::uint64_t progress() const {
    return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(progress_)).load(std::memory_order_acquire);
  }
  std::uint8_t* progress_;
  CowbirdCostPlan plan_;
  std::vector<std::uint8_t> into_;
  std::uint64_t span_;
  std::uint64_t issued_ = 0;
  std::uint64_t offset_ = 0;
};

bool all_well(std::span<const Completion> done, std::size_t n, std::size_t wanted) {
  return n == wanted &&
         std::ranges::all_of(done.first(n), [](const Completion& c) { return c.status == cowbird::Status::kOk; });
}

const Error kEngineSilent{"Cowbird's engine did not complete what it was asked for"};
const Error kVerbsFailed{"a READ through the verbs library failed"};

class CostBench {
 public:
  CostBench(CowbirdWorld& world, std::size_t instance, VerbsPool& verbs, const CowbirdCostPlan& plan)
      : regions_(world.regions()),
        channel_(world.channel(instance), world.layout().channel(), regions_),
        group_(channel_),
        reader_(world, instance, plan),
        verbs_(verbs),
        plan_(plan),
        done_(plan.depth) {
    channel_.set_regions_generation(1);
  }

  // `Issue` issues read i and `complete` returns how many it took.
  template <class Issue, class Complete>
  bool cowbird_block(Blocks& blocks, Issue issue, Complete complete) {
    double issuing = 0, completing = 0;
    for (std::size_t round = 0; round < kBlock / plan_.depth; ++round) {
      const auto begin = steady_clock::now();
      for (std::size_t i = 0; i < plan_.depth; ++i) issue(i);
      issuing += ns_of(steady_clock::now() - begin);
      if (!reader_.wait_for(plan_.depth)) return false;
      const auto again = steady_clock::now();
      const std::size_t n = complete();
      completing += ns_of(steady_clock::now() - again);
      if (!all_well(done_, n, plan_.depth)) return false;
    }
    blocks.add(issuing, completing);
    return true;
  }
  bool collected(Blocks& blocks) {
    return cowbird_block(
        blocks, [this](std::size_t i) { channel_.async_read(0, reader_.next(), reader_.into(i), plan_.bytes); },
        [this] { return channel_.collect(done_); });
  }
  bool grouped(Blocks& blocks) {
    return cowbird_block(
        blocks,
        [this](std::size_t i) {
          group_.add(cowbird::RequestId(channel_.async_read(0, reader_.next(), reader_.into(i), plan_.bytes)));
        },
        [this] { return group_.collect(done_); });
  }

  enum class Verbs : std::uint8_t { kReady, kReadyOneCall, kPolling };
  bool verbs_block(Blocks& blocks, Verbs kind) {
    double issuing = 0, completing = 0;
    for (std::size_t round = 0; round < kBlock / plan_.depth; ++round) {
      std::memset(verbs_.local(), 0, plan_.depth * plan_.bytes);
      const auto begin = steady_clock::now();
      if (kind == Verbs::kReadyOneCall) {
        std::array<VerbsPool::Read, VerbsPool::kDepth> reads{};
        for (std::size_t i = 0; i < plan_.depth; ++i) reads.at(i) = {reader_.next(), i * plan_.bytes};
        verbs_.post_reads(std::span(reads).first(plan_.depth), plan_.bytes);
      } else {
        for (std::size_t i = 0; i < plan_.depth; ++i) verbs_.post_read(reader_.next(), i * plan_.bytes, plan_.bytes);
      }
      issuing += ns_of(steady_clock::now() - begin);
      if (verbs_.failed() || (kind != Verbs::kPolling && !arrived())) return false;
      const auto again = steady_clock::now();
      for (std::size_t n = 0; n < plan_.depth;) {
        n += verbs_.poll();
        if (verbs_.failed() || steady_clock::now() - again > kSilence) return false;
      }
      completing += ns_of(steady_clock::now() - again);
    }
    blocks.add(issuing, completing);
    return true;
  }

  Result<CowbirdRows> run() {
    Blocks collected_blocks, grouped_blocks, ready, one_call, polling;
    const std::uint64_t blocks = std::max<std::uint64_t>(plan_.reads / kBlock, 1);
    for (std::uint64_t i = 0; i < blocks; ++i) {
      if (!collected(collected_blocks)) return tl::unexpected(kEngineSilent);
      if (i % 2 == 0 && !grouped(grouped_blocks)) return tl::unexpected(kEngineSilent);
      if (i % kVerbsOneIn != 0) continue;
      if (plan_.on_progress) plan_.on_progress(static_cast<double>(i) / static_cast<double>(blocks));
      if (!verbs_block(ready, Verbs::kReady) || !verbs_block(one_call, Verbs::kReadyOneCall) ||
          !verbs_block(polling, Verbs::kPolling)) {
        return tl::unexpected(kVerbsFailed);
      }
    }
    CowbirdRows rows{collected_blocks.row("Cowbird, collect", plan_), grouped_blocks.row("Cowbird, poll group", plan_),
                     ready.row("verbs, polled when all is done", plan_),
                     one_call.row("verbs, posted in one call", plan_), polling.row("verbs, polled for at once", plan_)};
    const double least = rows[0].value("both_ns");
    for (CowbirdRow& row : rows) row.values.emplace_back("times", row.value("both_ns") / least);
    return rows;
  }

 private:
  // READs take effect in their order; the NIC's own thread does them.
  bool arrived() {
    volatile std::uint8_t* const last = verbs_.local() + plan_.depth * plan_.bytes - 1;
    const auto begin = steady_clock::now();
    while (*last == 0) {
      std::this_thread::yield();
      if (steady_clock::now() - begin > kSilence) return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(5));
    return true;
  }

  std::vector<cowbird::Region> regions_;
  Channel channel_;
  PollGroup group_;
  CowbirdReader reader_;
  VerbsPool& verbs_;
  CowbirdCostPlan plan_;
  std::vector<Completion> done_;
};

// ------------------------------------------------------------------------------------------------------------ breakdown

#if defined(__x86_64__)
// After everything before it has been executed, loads included.
std::uint64_t ticks() {
  unsigned ignored = 0;
  return __builtin_ia32_rdtscp(&ignored);
}

struct Stamps {
  enum Part : std::uint8_t { kPrepare, kEntry, kTail, kLook, kErrors, kCopy, kParts };
  std::array<std::uint64_t, kParts> sums{};
  std::array<std::uint64_t, kParts> counts{};
  std::uint64_t last = 0;

  void begin() { last = ticks(); }
  void end(Part part) {
    const std::uint64_t now = ticks();
    // An interrupt is not the part's doing.
    constexpr std::uint64_t kInterrupted = 20'000;
    if (now - last < kInterrupted) {
      sums.at(part) += now - last;
      ++counts.at(part);
    }
    last = ticks();
  }
};

// PlainWords that look at the clock between the parts of a call.
class TimedWords {
 public:
  TimedWords(std::uint8_t* block, Stamps& stamps) : plain_(block), stamps_(&stamps) {}
  std::uint64_t load(std::size_t at) const {
    const std::uint64_t value = plain_.load(at);
    if (at == cowbird::ChannelLayout::kProgress + cowbird::ProgressLine::kWrites) stamps_->end(Stamps::kLook);
    if (at == cowbird::ChannelLayout::kErrorLog) stamps_->end(Stamps::kErrors);
    return value;
  }
  void store(std::size_t at, std::uint64_t value) {
    if (at >= cowbird::ChannelLayout::kMetadata &&
        (at - cowbird::ChannelLayout::kMetadata) % cowbird::kEntryBytes == 0) {
      stamps_->end(Stamps::kPrepare);  // the first word of an entry
    }
    plain_.store(at, value);
  }
  void publish(std::size_t at, std::uint64_t value) {
    plain_.publish(at, value);
    stamps_->end(at == cowbird::ChannelLayout::kIssuer + cowbird::IssuerLine::kTail ? Stamps::kTail : Stamps::kEntry);
  }
  void copy_in(std::size_t at, const void* from, std::size_t length) { plain_.copy_in(at, from, length); }
  void copy_out(void* to, std::size_t at, std::size_t length) const {
    plain_.copy_out(to, at, length);
    stamps_->end(Stamps::kCopy);
  }
  void own(std::size_t at) { plain_.own(at); }
  void look_soon(std::size_t at) const { plain_.look_soon(at); }

 private:
  cowbird::PlainWords plain_;
  Stamps* stamps_;
};

double ns_per_tick() {
  const auto begin = steady_clock::now();
  const std::uint64_t from = ticks();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::uint64_t to = ticks();
  return ns_of(steady_clock::now() - begin) / static_cast<double>(to - from);
}

// What a look at the counter takes by itself.
double empty_ticks() {
  Stamps stamps;
  stamps.begin();
  for (int i = 0; i < 20'000; ++i) stamps.end(Stamps::kLook);
  return static_cast<double>(stamps.sums[Stamps::kLook]) / static_cast<double>(stamps.counts[Stamps::kLook]);
}

Result<CowbirdRows> cowbird_parts(CowbirdWorld& world, std::size_t instance, const CowbirdCostPlan& plan) {
  const std::vector<cowbird::Region> regions = world.regions();
  Stamps stamps;
  cowbird::BasicChannel<TimedWords> channel(TimedWords(world.channel(instance).data(), stamps),
                                            world.layout().channel(), regions);
  channel.set_regions_generation(1);
  CowbirdReader reader(world, instance, plan);
  std::vector<Completion> done(plan.depth);
  stamps = {};
  const std::uint64_t rounds = std::max<std::uint64_t>(plan.reads / 20 / plan.depth, 1);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < plan.depth; ++i) {
      const std::uint64_t from = reader.next();
      stamps.begin();
      channel.async_read(0, from, reader.into(i), plan.bytes);
    }
    if (!reader.wait_for(plan.depth)) return tl::unexpected(kEngineSilent);
    stamps.begin();
    if (!all_well(done, channel.collect(done), plan.depth)) return tl::unexpected(kEngineSilent);
  }
  const double tick = ns_per_tick(), empty = empty_ticks();
  const std::pair<Stamps::Part, const char*> names[] = {
      {Stamps::kPrepare, "Cowbird, issue: check, find room"}, {Stamps::kEntry, "Cowbird, issue: fill the entry"},
      {Stamps::kTail, "Cowbird, issue: move the tail"},       {Stamps::kLook, "Cowbird, poll: look at the progress"},
      {Stamps::kErrors, "Cowbird, poll: look for errors"},    {Stamps::kCopy, "Cowbird, poll: take the bytes"}};
  const double reads = static_cast<double>(rounds * plan.depth);
  CowbirdRows rows;
  for (const auto& [part, name] : names) {
    const double once = static_cast<double>(stamps.sums.at(part)) / static_cast<double>(stamps.counts.at(part));
    const double each = std::max(once - empty, 0.0) * tick;
    const double times = static_cast<double>(stamps.counts.at(part)) / reads;
    rows.push_back({.part = "breakdown",
                    .way = name,
                    .bytes = plan.bytes,
                    .depth = plan.depth,
                    .values = {{"once_ns", each}, {"a_read_ns", each * times}}});
  }
  return rows;
}
#else
Result<CowbirdRows> cowbird_parts(CowbirdWorld&, std::size_t, const CowbirdCostPlan&) { return CowbirdRows{}; }
#endif

}  // namespace

double CowbirdRow::value(std::string_view name) const {
  for (const auto& [key, value] : values) {
    if (key == name) return value;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

Result<CowbirdRows> measure_cowbird_cost(CowbirdWorld& world, std::size_t instance, VerbsPool& verbs,
                                         const CowbirdCostPlan& plan) {
  const double before = crossing_ns();
  auto rows = CostBench(world, instance, verbs, plan).run();
  if (rows) {
    rows->push_back({.part = "machine",
                     .way = "a store seen on the other core, before and after",
                     .bytes = 8,
                     .depth = 1,
                     .values = {{"before_ns", before}, {"after_ns", crossing_ns()}}});
  }
  return rows;
}

Result<CowbirdRows> measure_cowbird_breakdown(CowbirdWorld& world, std::size_t instance, VerbsPool& verbs,
                                              const CowbirdCostPlan& plan) {
  auto rows = cowbird_parts(world, instance, plan);
  if (!rows) return rows;
  CostBench bench(world, instance, verbs, plan);
  Blocks single, chained;
  const std::uint64_t blocks = std::max<std::uint64_t>(plan.reads / kBlock / kVerbsOneIn, 1);
  for (std::uint64_t i = 0; i < blocks; ++i) {
    if (!bench.verbs_block(single, CostBench::Verbs::kReady) ||
        !bench.verbs_block(chained, CostBench::Verbs::kReadyOneCall)) {
      return tl::unexpected(kVerbsFailed);
    }
  }
  constexpr int kVainPolls = 1000;
  const auto begin = steady_clock::now();
  for (int i = 0; i < kVainPolls; ++i) verbs.poll();
  const double vain = ns_of(steady_clock::now() - begin) / kVainPolls;
  const double one = single.row("", plan).value("issue_ns"), many = chained.row("", plan).value("issue_ns");
  const double poll = single.row("", plan).value("complete_ns");
  // one = call + read, many = call / depth + read
  const double depth = static_cast<double>(plan.depth);
  const double call = plan.depth == 1 ? one : (one - many) * depth / (depth - 1);
  const auto add = [&](const char* name, double once, double a_read) {
    rows->push_back({.part = "breakdown",
                     .way = name,
                     .bytes = plan.bytes,
                     .depth = plan.depth,
                     .values = {{"once_ns", once}, {"a_read_ns", a_read}}});
  };
  add("verbs, post: the call (lock, doorbell, hand-over)", call, call);
  add("verbs, post: the work request", one - call, one - call);
  add("verbs, poll: a poll that finds nothing", vain, vain / std::min(depth, 32.0));
  add("verbs, poll: completions", poll, poll);
  return rows;
}

}  // namespace sluice::cli
