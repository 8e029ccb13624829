#include "sim/edm/edm_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <queue>
#include <unordered_map>

#include "base/check.h"
#include "edm/mega_message.h"
#include "sim/world/event_loop.h"
#include "sim/world/trace.h"

namespace sluice::sim {
namespace {

using Blocks = std::int64_t;
using Row = std::uint32_t;
constexpr Row kNone = ~Row{0};
constexpr Blocks kEnd = std::numeric_limits<Blocks>::max();

constexpr Blocks blocks_of(std::uint32_t bytes) { return (Blocks{bytes} + 7) / 8; }

// Rows in a line, many lines at once: a row stands in one line at a time.
class Lines {
 public:
  Lines(std::size_t lines, std::size_t rows) : first_(lines, kNone), last_(lines, kNone), next_(rows, kNone) {}
  bool empty(std::size_t line) const { return first_[line] == kNone; }
  Row first(std::size_t line) const { return first_[line]; }
  void push(std::size_t line, Row row) {
    next_[row] = kNone;
    (empty(line) ? first_[line] : next_[last_[line]]) = row;
    last_[line] = row;
  }
  void pop(std::size_t line) { first_[line] = next_[first_[line]]; }

 private:
  std::vector<Row> first_;
  std::vector<Row> last_;
  std::vector<Row> next_;
};

// A link from the switch to a host. Chunks come when they were planned to; blocks of requests and grants go first.
class Downlink {
 public:
  struct Chunk {
    Blocks comes = 0;
    Blocks length = 0;
    Row row = kNone;  // whose last one this is
  };

  void plan(const Chunk& chunk) {
    SLUICE_CHECK(chunk.comes >= planned_until_);  // zero queueing: no chunk finds another
    planned_until_ = chunk.comes + chunk.length;
    waiting_.push_back(chunk);
  }
  // `done(chunk, end)` is called for each chunk that is over, in order.
  template <class Done>
  void control(Blocks now, Blocks length, const Done& done) {
    advance(now, done);
    if (sending_ && until_ > now) {
      until_ += length;
    } else {
      until_ = std::max(until_, now) + length;
    }
  }
  template <class Done>
  void advance(Blocks now, const Done& done) {
    for (;;) {
      if (sending_ && until_ <= now) {
        done(chunk_, until_);
        sending_ = false;
      }
      if (sending_ || waiting_.empty() || waiting_.front().comes > now) return;
      chunk_ = waiting_.front();
      waiting_.pop_front();
      until_ = std::max(until_, chunk_.comes) + chunk_.length;
      sending_ = true;
    }
  }

 private:
  std::deque<Chunk> waiting_;
  Chunk chunk_;
  bool sending_ = false;
  Blocks until_ = 0;
  Blocks planned_until_ = 0;
};

// A link from a host to the switch. Granted chunks leave when they were planned to; requests wait for gaps.
class Uplink {
 public:
  void plan(Blocks now, Blocks from, Blocks length) {
    SLUICE_CHECK(from >= planned_until_);
    while (!planned_.empty() && planned_.front().until <= now) planned_.pop_front();
    planned_until_ = from + length;
    planned_.push_back({from, planned_until_});
  }
  // The first block from now on that no chunk is known to take; all that begin by now are known.
  Blocks gap(Blocks now) {
    while (!planned_.empty() && planned_.front().until <= now) planned_.pop_front();
    return planned_.empty() || planned_.front().from > now ? now : planned_.front().until;
  }

  struct Request {
    Row row = kNone;
    Blocks ready = 0;
  };
  std::deque<Request> requests;
  Blocks blocks_left = 0;  // of the first one
  Blocks free_from = 0;

 private:
  struct Span {
    Blocks from = 0;
    Blocks until = 0;
  };
  std::deque<Span> planned_;
  Blocks planned_until_ = 0;
};

class Cluster {
 public:
  Cluster(const EdmHardware& hardware, const ClusterSettings& settings, const std::vector<TraceRow>& rows)
      : hardware_(hardware),
        settings_(settings),
        rows_(rows),
        hop_(hardware.hop_blocks()),
        scheduler_(scheduler_config()),
        uplinks_(settings.nodes),
        downlinks_(settings.nodes),
        active_(std::size_t{settings.nodes} * settings.nodes * 2),
        held_back_(active_.size(), rows.size()),
        demands_(std::size_t{settings.nodes} * settings.nodes, rows.size()) {
    outcome_.times.resize(rows.size());
    for (std::uint32_t node = 0; node < settings.nodes; ++node) pumps_.emplace_back(*this, node);
  }

  ClusterOutcome run() {
    if (!rows_.empty()) loop_.schedule(arrivals_, time_of(rows_.front().slot));
    loop_.run_until(Time::never(), [] { return false; });
    for (Downlink& link : downlinks_) drain(link, kEnd);
    for (const MessageTimes& times : outcome_.times) SLUICE_CHECK(times.finished >= 0);
    SLUICE_CHECK(scheduler_.waiting_bytes() == 0);
    outcome_.chunks = scheduler_.counters().grants;
    outcome_.iterations = scheduler_.counters().rounds;
    outcome_.events = loop_.fired();
    outcome_.trace_hash = trace_.hash();
    return std::move(outcome_);
  }

 private:
  // Sends a host's requests as soon as its link has a gap.
  class Pump final : public Event {
   public:
    Pump(Cluster& cluster, std::uint32_t node) : cluster_(cluster), node_(node) {}
    void fire(Time now) override { cluster_.pump(node_, cluster_.block_of(now)); }

   private:
    Cluster& cluster_;
    std::uint32_t node_;
  };
  struct Arrival {
    Blocks when = 0;
    Row row = 0;
  };
  struct Mega {
    edm::MegaMessage message;
    std::vector<Row> rows;
  };
  // The last grant of a write that comes, or when a read's last byte should.
  struct Answered {
    Blocks when = 0;
    Row row = 0;

    friend bool operator>(const Answered& a, const Answered& b) { return a.when > b.when; }
  };

  edm::SchedulerConfig scheduler_config() const {
    Blocks request = std::max<Blocks>(1, settings_.longest_request_blocks);
    if (settings_.longest_request_blocks == 0) {
      for (const TraceRow& row : rows_) request = std::max(request, row.reads() ? blocks_of(row.bytes) : 1);
    }
    return {.ports = settings_.nodes,
            .active_per_pair = settings_.active_per_pair,
            .policy = settings_.policy,
            .matching = settings_.matching,
            .chunk_bytes = settings_.chunk_bytes,
            .block_time = hardware_.block(),
            .framing_blocks = settings_.framing_blocks,
            .gap_blocks = settings_.gap_blocks,
            .response_lead = hardware_.block() * (request - 1 + hardware_.answer_blocks() - hardware_.host_blocks()),
            .iteration = hardware_.iteration,
            .iterations = settings_.iterations,
            .patience = settings_.patience};
  }
  Time time_of(Blocks blocks) const { return Time::at(hardware_.block() * blocks); }
  // The block that begins then, or next.
  Blocks block_of(Time time) const {
    const std::int64_t block = hardware_.block().picoseconds();
    return (time.since_start().picoseconds() + block - 1) / block;
  }
  // Of requests that one host may have under way.
  std::size_t line_of(const TraceRow& row) const {
    return (std::size_t{row.source} * settings_.nodes + row.destination) * 2 + (row.reads() ? 1 : 0);
  }
  std::size_t pair_of(std::uint32_t source, std::uint32_t destination) const {
    return std::size_t{source} * settings_.nodes + destination;
  }

  void arrive(Time now) {
    const Blocks block = block_of(now);
    for (; next_ < rows_.size() && rows_[next_].slot <= block; ++next_) {
      const std::size_t line = line_of(rows_[next_]);
      if (active_[line] == settings_.active_per_pair) {
        held_back_.push(line, next_);
      } else {
        ++active_[line];
        request(next_, block);
      }
    }
    if (next_ < rows_.size()) loop_.schedule(arrivals_, time_of(rows_[next_].slot));
  }
  void answered(Time now) {
    const Blocks block = block_of(now);
    if (next_ < rows_.size() && rows_[next_].slot <= block) arrive(now);
    while (!answered_.empty() && answered_.top().when <= block) {
      const Row last = answered_.top().row;
      answered_.pop();
      if (const Blocks there = last_byte(last, block); there > block) {
        answered_.push({there, last});  // requests and grants have displaced it
        continue;
      }
      const std::size_t line = line_of(rows_[last]);
      if (held_back_.empty(line)) {
        --active_[line];
        continue;
      }
      const Row row = held_back_.first(line);
      held_back_.pop(line);
      if (settings_.mega_bytes != 0 && !rows_[row].reads()) ask_with_others(row, line);
      request(row, block);
    }
    if (!answered_.empty()) loop_.schedule(answers_, time_of(answered_.top().when));
  }

  // As many of the line's writes with the first of them as fit.
  void ask_with_others(Row first, std::size_t line) {
    Mega mega{edm::MegaMessage(layout()), {first}};
    mega.message.add(rows_[first].bytes);
    for (; !held_back_.empty(line); held_back_.pop(line)) {
      const Row row = held_back_.first(line);
      if (mega.message.bytes_with(rows_[row].bytes) > settings_.mega_bytes) break;
      mega.message.add(rows_[row].bytes);
      mega.rows.push_back(row);
    }
    if (mega.rows.size() == 1) return;
    outcome_.batched += mega.rows.size();
    megas_.emplace(first, std::move(mega));
  }
  edm::MegaLayout layout() const { return {settings_.chunk_bytes, settings_.framing_blocks}; }
  std::uint32_t asked_bytes(Row row) const {
    const auto mega = megas_.find(row);
    return mega == megas_.end() ? rows_[row].data_bytes() : mega->second.message.bytes();
  }

  // When it comes, as far as is known by now.
  Blocks last_byte(Row row, Blocks now) {
    if (!rows_[row].reads()) return now;
    drain(downlinks_[rows_[row].source], now);
    const Blocks finished = outcome_.times[row].finished;
    return finished < 0 ? now + 1 : finished - hardware_.receive_blocks();
  }

  void request(Row row, Blocks now) {
    const std::uint32_t node = rows_[row].source;
    Uplink& link = uplinks_[node];
    link.requests.push_back({row, now + hardware_.request_blocks()});
    if (link.requests.size() == 1) {
      link.blocks_left = request_blocks(row);
      pump(node, now);
    }
  }
  Blocks request_blocks(Row row) const { return rows_[row].reads() ? blocks_of(rows_[row].bytes) : 1; }
  void pump(std::uint32_t node, Blocks now) {
    Uplink& link = uplinks_[node];
    if (link.requests.empty()) return;
    const Blocks gap = std::max({link.gap(now), link.free_from, link.requests.front().ready});
    if (gap > now) return loop_.schedule(pumps_[node], time_of(gap));
    link.free_from = now + 1;
    if (--link.blocks_left == 0) {
      const Row row = link.requests.front().row;
      link.requests.pop_front();
      outcome_.times[row].requested = now;
      comes({now + hop_ + hardware_.notify_blocks(), row});
      if (link.requests.empty()) return;
      link.blocks_left = request_blocks(link.requests.front().row);
    }
    loop_.schedule(pumps_[node], time_of(now + 1));
  }

  void comes(const Arrival& arrival) {
    auto place = coming_.end();
    const auto later = [&](const Arrival& a) {
      return a.when == arrival.when && rows_[a.row].source > rows_[arrival.row].source;
    };
    while (place != coming_.begin() && later(*std::prev(place))) --place;
    coming_.insert(place, arrival);
    loop_.schedule_no_later(switch_, time_of(coming_.front().when));
  }

  void schedule(Time now) {
    const Blocks block = block_of(now);
    for (; !coming_.empty() && coming_.front().when <= block; coming_.pop_front()) demand(now, coming_.front());
    while (scheduler_.next_deadline() <= now) {
      scheduler_.on_deadline(now);
      for (edm::Grant grant; scheduler_.poll_grant(grant);) granted(block, grant);
    }
    Time next = scheduler_.next_deadline();
    if (!coming_.empty()) next = std::min(next, time_of(coming_.front().when));
    if (next != Time::never()) loop_.schedule(switch_, next);
  }
  void demand(Time now, const Arrival& arrival) {
    const TraceRow& row = rows_[arrival.row];
    const bool reads = row.reads();
    const edm::PortId source(reads ? row.destination : row.source);
    const edm::PortId destination(reads ? row.source : row.destination);
    const auto verdict = scheduler_.notify(now, {.source = source,
                                                 .destination = destination,
                                                 .id = edm::MessageId(static_cast<std::uint8_t>(arrival.row)),
                                                 .kind = reads ? edm::DemandKind::kResponse : edm::DemandKind::kWrite,
                                                 .bytes = asked_bytes(arrival.row)});
    SLUICE_CHECK(verdict == edm::NotifyVerdict::kAccepted);  // hosts keep to X
    demands_.push(pair_of(source.value, destination.value), arrival.row);
    outcome_.times[arrival.row].demanded = arrival.when;
  }

  // What follows a grant is fixed with it.
  void granted(Blocks now, const edm::Grant& grant) {
    const std::size_t pair = pair_of(grant.source.value, grant.destination.value);
    const Row row = demands_.first(pair);
    SLUICE_CHECK(grant.id == edm::MessageId(static_cast<std::uint8_t>(row)));
    const Blocks leaves = block_of(grant.at);
    const bool is_request = grant.first && grant.kind == edm::DemandKind::kResponse;
    const Blocks control = is_request ? request_blocks(row) : 1;
    Downlink& back = downlinks_[grant.source.value];
    back.control(leaves, control, [this](const auto& chunk, Blocks end) { over(chunk, end); });
    const Blocks starts =
        leaves + control - 1 + hop_ + (is_request ? hardware_.answer_blocks() : hardware_.host_blocks());
    const auto mega = megas_.find(row);
    Blocks length = blocks_of(grant.bytes) + settings_.framing_of(rows_[row]);
    if (mega != megas_.end()) length = next_pieces(mega->second, grant.bytes);
    uplinks_[grant.source.value].plan(now, starts, length);
    const Blocks comes = starts + hop_ + hardware_.switch_blocks();
    Downlink& link = downlinks_[grant.destination.value];
    if (mega != megas_.end()) {
      plan_pieces(mega->second, link, comes, {.granted = leaves, .started = starts});
      if (grant.last) megas_.erase(mega);
    } else {
      link.plan({.comes = comes, .length = length, .row = grant.last ? row : kNone});
    }
    drain(link, leaves);
    if (grant.first) {
      outcome_.times[row].granted = leaves;
      outcome_.times[row].started = starts;
    }
    if (!grant.last) return;
    demands_.pop(pair);
    // Who writes knows with the last grant, who reads with the last byte.
    answered_.push({rows_[row].reads() ? comes + length - 1 + hop_ : leaves + hop_, row});
    loop_.schedule_no_later(answers_, time_of(answered_.top().when));
  }
  // Of a chunk with several writes in it; how long it is.
  Blocks next_pieces(Mega& mega, std::uint32_t bytes) {
    mega.message.grant(bytes, pieces_);
    SLUICE_CHECK(!pieces_.empty());
    return Blocks{pieces_.back().block} + pieces_.back().blocks;
  }
  void plan_pieces(const Mega& mega, Downlink& link, Blocks comes, const MessageTimes& chunk) {
    const MessageTimes asked = outcome_.times[mega.rows.front()];
    for (const edm::MegaMessage::Piece& piece : pieces_) {
      const Row row = mega.rows[piece.write];
      link.plan({.comes = comes + piece.block, .length = piece.blocks, .row = piece.last_of_write ? row : kNone});
      if (piece.from != 0) continue;
      outcome_.times[row] = {.requested = asked.requested,
                             .demanded = asked.demanded,
                             .granted = chunk.granted,
                             .started = chunk.started + piece.block};
    }
  }
  void drain(Downlink& link, Blocks now) {
    link.advance(now, [this](const auto& chunk, Blocks end) { over(chunk, end); });
  }
  void over(const Downlink::Chunk& chunk, Blocks end) {
    outcome_.most_displaced = std::max(outcome_.most_displaced, end - chunk.comes - chunk.length);
    if (chunk.row == kNone) return;
    outcome_.times[chunk.row].finished = end - 1 + hop_ + hardware_.receive_blocks();
    trace_.note(static_cast<std::uint64_t>(end) << 32 ^ chunk.row);
  }

  const EdmHardware& hardware_;
  const ClusterSettings& settings_;
  const std::vector<TraceRow>& rows_;
  Blocks hop_;
  EventLoop loop_;
  edm::Scheduler scheduler_;
  std::vector<Uplink> uplinks_;
  std::vector<Downlink> downlinks_;
  std::vector<std::uint32_t> active_;    // by line
  Lines held_back_;                      // by X
  Lines demands_;                        // by pair of the data: what the scheduler has, oldest first
  std::unordered_map<Row, Mega> megas_;  // by the first row; looked up alone
  std::vector<edm::MegaMessage::Piece> pieces_;
  std::deque<Arrival> coming_;  // requests on their way to the switch
  std::priority_queue<Answered, std::vector<Answered>, std::greater<>> answered_;
  Row next_ = 0;
  std::deque<Pump> pumps_;
  MemberEvent<Cluster, &Cluster::arrive> arrivals_{*this};
  MemberEvent<Cluster, &Cluster::answered> answers_{*this};
  MemberEvent<Cluster, &Cluster::schedule> switch_{*this};
  Trace trace_;
  ClusterOutcome outcome_;
};

}  // namespace

ClusterOutcome run_cluster(const EdmHardware& hardware, const ClusterSettings& settings,
                           const std::vector<TraceRow>& rows) {
  for (const TraceRow& row : rows) SLUICE_CHECK(row.type != TraceRow::Type::kFrame);
  return Cluster(hardware, settings, rows).run();
}

std::int64_t alone_blocks(const EdmHardware& hardware, const ClusterSettings& settings, const TraceRow& row) {
  const Blocks request = row.reads() ? blocks_of(row.bytes) : 1;
  const Blocks chunks = (Blocks{row.data_bytes()} + settings.chunk_bytes - 1) / settings.chunk_bytes;
  const Blocks length = blocks_of(row.data_bytes()) + chunks * settings.framing_of(row);
  return hardware.request_blocks() + (request - 1) * 2 + hardware.hop_blocks() * 4 + hardware.notify_blocks() +
         (row.reads() ? hardware.answer_blocks() : hardware.host_blocks()) + hardware.switch_blocks() + length - 1 +
         hardware.receive_blocks();
}

std::int64_t ideal_blocks(const EdmHardware& hardware, const TraceRow& row) {
  const Blocks through = hardware.hop_blocks() * 2 + hardware.switch_blocks();
  const Blocks request = row.reads() ? blocks_of(row.bytes) - 1 + through + hardware.answer_blocks() : 0;
  return request + through + blocks_of(row.data_bytes()) - 1 + hardware.receive_blocks();
}

PublishedIdeal published_ideal(std::int64_t hop, const TraceRow& row) {
  constexpr std::uint32_t kChunk = 256;
  const Blocks own = row.bytes / 8 + 4 * hop;
  if (!row.reads()) return {.data = own + (row.bytes > kChunk ? 4 * hop : 0) + std::min(4 * kChunk, row.bytes) / 8};
  const Blocks data = row.request_bytes / 8;
  const bool longer = row.request_bytes > kChunk;
  const Blocks request = own + (longer ? data + 4 * hop : 0);
  const Blocks chunks = (row.request_bytes / kChunk + 1) * (kChunk / 8);
  return {.request = request, .data = data + 2 * hop + (longer ? chunks + request - data : 0)};
}

PublishedSlowdown published_slowdown(const EdmHardware& hardware, const TraceRow& row, const MessageTimes& times) {
  const PublishedIdeal ideal = published_ideal(hardware.hop_blocks(), row);
  // Of less than a block over links of no length it is nothing.
  const auto times_of = [](Blocks took, Blocks of) {
    return std::max(1.0, static_cast<double>(took) / static_cast<double>(std::max<Blocks>(of, 1)));
  };
  if (!row.reads()) return {.request = 0, .data = times_of(times.finished - row.slot, ideal.data)};
  // The answer's row begins when the request has come to the memory node.
  const Blocks asked = times.started - hardware.answer_blocks();
  return {.request = times_of(asked - row.slot, ideal.request),
          .data = times_of(times.finished - times.started, ideal.data)};
}

std::string format_outcome(const EdmHardware& hardware, const std::vector<TraceRow>& rows,
                           const ClusterOutcome& outcome) {
  fmt::memory_buffer out;
  const auto line = [&](const TraceRow& r, int type, std::uint32_t bytes, Blocks start, Blocks finish,
                        double slowdown) {
    const MessageTimes& t = outcome.times[static_cast<std::size_t>(&r - rows.data())];
    fmt::format_to(std::back_inserter(out), "{},{},{},{},{},{},{},{},{},{},{},{:.2f}\n", r.id, type,
                   type == 2 ? r.destination : r.source, type == 2 ? r.source : r.destination, bytes, r.slot,
                   t.requested, t.granted + hardware.hop_blocks(), start, finish, finish - r.slot, slowdown);
  };
  for (const TraceRow& row : rows) {
    const MessageTimes& t = outcome.times[static_cast<std::size_t>(&row - rows.data())];
    const PublishedSlowdown slowdown = published_slowdown(hardware, row, t);
    if (row.reads()) {
      line(row, 1, row.bytes, t.requested, t.started - hardware.answer_blocks(), slowdown.request);
      line(row, 2, row.request_bytes, t.started, t.finished, slowdown.data);
    } else {
      line(row, 3, row.bytes, t.started, t.finished, slowdown.data);
    }
  }
  return fmt::to_string(out);
}

}  // namespace sluice::sim
