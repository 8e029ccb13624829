#include "cowbird/switch_channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "cowbird/entry_check.h"
#include "cowbird/request_id.h"

namespace sluice::cowbird {
namespace {

using Kind = StreamOp::Kind;

constexpr Duration kAgain = Duration::microseconds(10);  // after a full sink
constexpr std::size_t kAttachment = ChannelLayout::kErrorLog + kErrorBlock - ChannelLayout::kProgress;
constexpr Duration kStop = Duration::milliseconds(200);  // a channel that is served has something to do by then
constexpr std::uint32_t kProgressBytes = 48;             // its six words
static_assert(kAttachment <= SwitchChannel::kLeastMtu);

// Requests of `from`, or in its name, to `to`.
StreamConfig stream_config(const ConnectionEnd& from, const ConnectionEnd& to, std::uint32_t mtu, std::uint32_t reads,
                           const SwitchEngineConfig& engine) {
  const auto port = static_cast<std::uint16_t>(0xC000 | (to.qpn.value & 0x3FFF));
  return {.route = {.source_mac = from.mac,
                    .destination_mac = to.mac,
                    .source = from.gid,
                    .destination = to.gid,
                    .source_port = port},
          .destination = to.qpn,
          .first = to.expected,
          .mtu = mtu,
          .max_reads = reads,
          .timeout = engine.timeout,
          .longest_timeout = engine.longest_timeout};
}

}  // namespace

struct SwitchChannel::Connection {
  DataConnection ends;  // of the last one that was open
  std::optional<RequestStream> to_host;
  std::optional<RequestStream> to_pool;
  std::uint64_t bytes = 0;      // of READs under way
  std::uint64_t placed_to = 0;  // all requests before that go over it have their place among its WRITEs
  Time absent_since;            // while it is not open
  Time unheard_since = Time::
      never();  // of the last one, which was closed while the node owed an answer; never: it owed none, or has been heard since
  Time usable_from;

  bool open() const { return to_host.has_value(); }
  // Since when the node owes an answer; never: it owes none.
  Time silent_since() const {
    const Time here = to_pool->silent_since();  // the NIC's silence is not the memory node's fault
    return here == Time::never() ? here : std::min(here, unheard_since);
  }
};

SwitchChannel::SwitchChannel(Time now, const ChannelConfig& config, const SwitchEngineConfig& engine)
    : config_(config),
      engine_(engine),
      layout_(config.layout.channel()),
      base_(config.address + config.layout.channel_at(config.channel)),
      entries_at_once_(config.mtu / kEntryBytes),
      control_(stream_config(config.engine, config.host, config.mtu, config.max_reads, engine)),
      requests_(kWindow),
      seen_(now),
      next_probe_(now),
      interval_(engine.probe_least),
      last_work_(now) {
  SLUICE_CHECK(config.mtu >= kLeastMtu && config.max_reads > 0);
  connections_.reserve(kMaxRegions);
}

SwitchChannel::~SwitchChannel() = default;

// Connections ---------------------------------------------------------------------------------------------------------

SwitchChannel::Connection* SwitchChannel::find(std::uint32_t node) {
  const auto it =
      std::find_if(connections_.begin(), connections_.end(), [&](const auto& c) { return c->ends.node == node; });
  return it == connections_.end() ? nullptr : it->get();
}

RequestStream* SwitchChannel::stream(StreamId id) {
  if (id.stream == Stream::kControl) return &control_;
  Connection& c = *connections_[id.connection];
  if (!c.open()) return nullptr;
  return id.stream == Stream::kToHost ? &*c.to_host : &*c.to_pool;
}

std::uint32_t SwitchChannel::connect(Time now, const DataConnection& made) {
  Connection* c = find(made.node);
  if (c == nullptr) {
    c = connections_.emplace_back(std::make_unique<Connection>()).get();
    std::erase_if(absent_, [&](const Absent& absent) { return absent.node == made.node; });
  } else {
    close(*c, quiet_since(*c, now));
    c->usable_from = now + engine_.max_flight;  // what the last one has sent may still arrive
    // A node that takes connections and answers nothing does not make its requests wait for ever; one that was given up begins anew.
    if (c->unheard_since != Time::never() && now - c->unheard_since >= engine_.patience)
      c->unheard_since = Time::never();
  }
  c->ends = made;
  c->to_host.emplace(stream_config(made.pool, made.host, made.mtu, made.host_reads, engine_));
  c->to_pool.emplace(stream_config(made.host, made.pool, made.mtu, made.pool_reads, engine_));
  fetch_from_ = done_;
  connection_due_ = std::min(connection_due_, c->usable_from);
  const auto place =
      std::find_if(connections_.begin(), connections_.end(), [&](const auto& one) { return one.get() == c; });
  return static_cast<std::uint32_t>(place - connections_.begin());
}

bool SwitchChannel::disconnect(Time now, std::uint32_t node) {
  Connection* const c = find(node);
  if (c == nullptr || !c->open()) return false;
  close(*c, quiet_since(*c, now));
  return true;
}

// When it was closed, if it is; otherwise since when it has been silent, now at the latest.
Time SwitchChannel::quiet_since(const Connection& c, Time now) {
  return c.open() ? std::min(c.silent_since(), now) : c.absent_since;
}

// Whatever moved over it begins again over the next one.
void SwitchChannel::close(Connection& c, Time absent_since) {
  if (!c.open()) return;
  c.unheard_since = c.silent_since();
  c.to_host.reset();
  c.to_pool.reset();
  c.bytes = c.placed_to = 0;
  c.absent_since = absent_since;
  for (std::uint64_t i = done_; i != begun_; ++i) {
    Request& r = request(i);
    if (r.state != State::kMoving || r.connection != &c) continue;
    r.connection = nullptr;
    r.fetching = r.placed = false;
    r.in_doubt = r.touched;
  }
  fetch_from_ = done_;
  connection_due_ = Time();
  ++counters_.closed;
}

void SwitchChannel::set_regions(Time now, std::uint64_t generation, std::vector<Region> regions) {
  regions_ = std::move(regions);
  generation_ = generation;
  regions_current_ = block_generation_ <= generation_;
  std::vector<Absent> absent;
  for (const Region& region : regions_) {
    if (region.length != 0 && !region.denied) note_absent(absent, region.node, now);
  }
  for (std::uint64_t i = done_; i != begun_; ++i) {
    if (request(i).state == State::kMoving) note_absent(absent, request(i).region.node, now);
  }
  absent_ = std::move(absent);
}

// Unless it is connected or noted already; a node that was absent before has been so since then.
void SwitchChannel::note_absent(std::vector<Absent>& noted, std::uint32_t node, Time now) {
  const auto find_in = [node](const std::vector<Absent>& in) {
    return std::find_if(in.begin(), in.end(), [node](const Absent& absent) { return absent.node == node; });
  };
  if (find(node) != nullptr || find_in(noted) != noted.end()) return;
  const auto before = find_in(absent_);
  noted.push_back(before == absent_.end() ? Absent{node, now} : *before);
}

Time SwitchChannel::absent_since(std::uint32_t node) const {
  const auto it = std::find_if(absent_.begin(), absent_.end(), [node](const Absent& one) { return one.node == node; });
  SLUICE_CHECK(it != absent_.end());
  return it->since;
}

std::vector<SwitchChannel::ConnectionState> SwitchChannel::connections() const {
  std::vector<ConnectionState> all;
  for (const auto& c : connections_) all.push_back({c->ends.node, c->open(), c->ends});
  return all;
}

RequestStream& SwitchChannel::source(const Request& r) {
  return r.entry.is_write() ? *r.connection->to_host : *r.connection->to_pool;
}
RequestStream& SwitchChannel::target(const Request& r) {
  return r.entry.is_write() ? *r.connection->to_pool : *r.connection->to_host;
}

// Packets of its data that have been sent to where they belong.
std::uint32_t SwitchChannel::moved(const Request& r) {
  if (!r.placed) return 0;
  const auto sent = target(r).next_to_send().since(r.first);
  return static_cast<std::uint32_t>(std::clamp<std::int32_t>(sent, 0, static_cast<std::int32_t>(r.packets)));
}

// Packets in ----------------------------------------------------------------------------------------------------------

void SwitchChannel::on_answer(Time now, StreamId to, const std::uint8_t* frame, const wire::ParsedFrame& parsed,
                              port::FrameSink& sink) {
  RequestStream* const s = stream(to);
  if (s == nullptr || broken_) return;
  notice_stop(now);
  const RequestStream::Answer answer = s->take(now, frame, parsed, [this](const StreamOp& op) { on_written(op); });
  if (to.stream == Stream::kToPool && answer != RequestStream::Answer::kIgnored)
    connections_[to.connection]->unheard_since = Time::never();
  switch (answer) {
    case RequestStream::Answer::kIgnored: return;
    case RequestStream::Answer::kProgress: break;
    case RequestStream::Answer::kData: on_data(now, to, *s, frame, parsed, sink); break;
    case RequestStream::Answer::kGap: rewind(*s); break;
    case RequestStream::Answer::kRefused: refused(now, to, *s); break;
  }
  go_on(now, sink);
}

void SwitchChannel::on_data(Time now, StreamId id, RequestStream& s, const std::uint8_t* frame,
                            const wire::ParsedFrame& parsed, port::FrameSink& sink) {
  const StreamOp op = s.front();
  const std::uint32_t packet = s.data_packet();
  if (op.purpose == kFetch) {
    ++(relay(now, op, packet, frame, parsed, sink) ? counters_.relayed : counters_.unwanted);
    if (s.consume(now)) end_of_fetch(id, op);
    return;
  }
  s.consume(now);
  const ByteView bytes = wire::payload(frame, parsed);
  if (bytes.size() != op.length) {
    broken_ = true;
    return;
  }
  switch (op.purpose) {
    case kAttach: return take_attachment(now, bytes);
    case kProbe: return take_probe(now, bytes);
    case kEntries: return take_entries(bytes);
    default: SLUICE_CHECK(false);
  }
}

// The last packet that this READ brings has come. Whatever of it could not be passed on is fetched again.
void SwitchChannel::end_of_fetch(StreamId id, const StreamOp& read) {
  connections_[id.connection]->bytes -= read.length;
  Request& r = request(read.subject);
  if (r.index != read.subject || r.state != State::kMoving) return;
  r.fetching = false;
  if (moved(r) != r.packets) fetch_from_ = done_;
}

bool SwitchChannel::relay(Time now, const StreamOp& read, std::uint32_t packet, const std::uint8_t* frame,
                          const wire::ParsedFrame& parsed, port::FrameSink& sink) {
  Request& r = request(read.subject);
  if (r.index != read.subject || r.state != State::kMoving) return false;
  RequestStream& to = target(r);
  const std::uint32_t place = read.skip + packet;
  if (parsed.payload_length != std::min(to.mtu(), r.entry.length - place * to.mtu())) return false;
  const bool write = r.entry.is_write();
  if (!r.placed) {
    if (place != 0 || !to.all_sent() || !to.has_room() || !is_next(r)) return false;
    r.placed = true;
    r.first = to.append({.kind = Kind::kRelay,
                         .purpose = kMove,
                         .address = write ? r.region.base + r.entry.remote() : at(r.entry.local()),
                         .key = write ? wire::RKey(r.region.key) : config_.key,
                         .length = r.entry.length,
                         .subject = r.index})
                  .first;
  }
  if (to.all_sent() || to.next_to_send() != r.first + place) return false;
  if (!to.relay(now, frame, parsed, sink)) return false;
  r.touched = r.touched || write;
  return true;
}

// Whether all requests before it have their place: WRITEs may not change places when the data of one have been lost on their way here.
bool SwitchChannel::is_next(const Request& r) {
  Connection& c = *r.connection;
  for (c.placed_to = std::max(c.placed_to, done_); c.placed_to < r.index; ++c.placed_to) {
    const Request& before = request(c.placed_to);
    if (before.state == State::kMoving && before.region.node == c.ends.node && !before.placed) return false;
  }
  return true;
}

void SwitchChannel::on_written(const StreamOp& op) {
  if (op.purpose == kMove) {
    Request& r = request(op.subject);
    if (r.index == op.subject && r.state == State::kMoving) finish(r, Status::kOk);
    return;
  }
  if (op.purpose != kProgressLine) return;
  publishing_ = false;
  told_ = true;
  for (; retired_ != op.words[2]; ++retired_) {
    if (!request(retired_).entry.is_write()) --reads_open_;
  }
}

void SwitchChannel::rewind(RequestStream& s) {
  ++counters_.rewinds;
  s.rewind();
  fetch_from_ = done_;
}

void SwitchChannel::refused(Time now, StreamId id, RequestStream& s) {
  if (id.stream != Stream::kToPool) {
    broken_ = true;
    return;
  }
  if (const StreamOp* op = s.refused()) {
    Request& r = request(op->subject);
    if (r.index == op->subject && r.state == State::kMoving) finish(r, r.in_doubt ? Status::kUnknown : Status::kDenied);
  }
  Connection& c = *connections_[id.connection];
  close(c, now);
  c.unheard_since = Time::never();  // the memory node has just said something
}

// Phase II: probing ---------------------------------------------------------------------------------------------------

// Where the last engine left off; nothing of what it had not published counts.
void SwitchChannel::take_attachment(Time now, ByteView bytes) {
  std::memcpy(progress_, bytes.data(), kLine);
  std::memcpy(errors_.bytes().data(), bytes.data() + ChannelLayout::kErrorLog - ChannelLayout::kProgress, kErrorBlock);
  published_[0] = load_le<std::uint64_t>(progress_ + ProgressLine::kReads);
  published_[1] = load_le<std::uint64_t>(progress_ + ProgressLine::kWrites);
  heartbeat_ = load_le<std::uint64_t>(progress_ + ProgressLine::kHeartbeat);
  epoch_ = load_le<std::uint64_t>(progress_ + ProgressLine::kEpoch) + 1;
  errors_.adopt(published_);
  retired_ = published_to_ = done_ = fetch_from_ = begun_ = fetched_ = tail_ =
      load_le<std::uint64_t>(progress_ + ProgressLine::kHead);
  last_work_ = now;
  next_heartbeat_ = next_probe_ = now + ProgressLine::flight(progress_);
  // For the engine after this one. What is relayed here is under way as any WRITE, and this engine never says that it has ended.
  store_le(progress_ + ProgressLine::kFlight, static_cast<std::uint64_t>(engine_.max_flight.nanoseconds()));
  attached_ = true;
}

Time SwitchChannel::probe_due() const {
  return told_ && !broken_ && !probing_ && control_.can_read() ? next_probe_ : Time::never();
}

bool SwitchChannel::probe(Time now, port::FrameSink& sink) {
  probing_ = true;
  ++counters_.probes;
  control_.append({.purpose = kProbe, .address = at(ChannelLayout::kIssuer), .key = config_.key, .length = kLine});
  pump(now, control_, sink);
  return !stalled_;
}

void SwitchChannel::take_probe(Time now, ByteView line) {
  probing_ = false;
  const auto tail = load_le<std::uint64_t>(line.data() + IssuerLine::kTail);
  errors_.set_taken(load_le<std::uint64_t>(line.data() + IssuerLine::kErrorsTaken));
  block_generation_ = load_le<std::uint64_t>(line.data() + IssuerLine::kRegionsGeneration);
  regions_current_ = block_generation_ <= generation_;
  if (!doubtful_to_) doubtful_to_ = epoch_ > 1 ? tail : 0;
  if (tail < tail_ || tail - published_to_ > layout_.shape.entries) {
    broken_ = true;
    return;
  }
  tail_ = tail;
  if (tail_ != retired_) {
    interval_ = engine_.probe_least;
    last_work_ = now;
  } else if (now - last_work_ > engine_.awake) {
    interval_ = std::min(interval_ * 2, engine_.probe_most);
  }
  next_probe_ = now + interval_;
}

void SwitchChannel::read_entries() {
  if (reading_entries_ || fetched_ == tail_ || !control_.can_read()) return;
  const std::uint64_t to_end = layout_.shape.entries - (fetched_ & (layout_.shape.entries - 1));
  const std::uint64_t room = kWindow - (fetched_ - retired_);
  const auto count = std::min({tail_ - fetched_, to_end, room, std::uint64_t{entries_at_once_}});
  if (count == 0) return;
  reading_entries_ = true;
  control_.append({.purpose = kEntries,
                   .address = at(layout_.entry(fetched_)),
                   .key = config_.key,
                   .length = static_cast<std::uint32_t>(count * kEntryBytes)});
}

void SwitchChannel::take_entries(ByteView bytes) {
  reading_entries_ = false;
  for (std::size_t from = 0; from < bytes.size(); from += kEntryBytes) {
    Request& r = request(fetched_);
    r = {.entry = Entry::parse(bytes.data() + from), .index = fetched_};
    auto& newest = newest_[r.entry.is_write()];
    if (!follows(r.entry, newest, published_[r.entry.is_write()])) {
      broken_ = true;
      return;
    }
    newest = r.entry.sequence;
    r.touched = r.in_doubt = r.entry.is_write() && r.index < doubtful_to_;
    r.status = errors_.adopted(r.entry);
    // An earlier engine has completed it, or said that it failed.
    if (newest <= published_[r.entry.is_write()] || r.status != Status::kOk) r.state = State::kDone;
    ++fetched_;
  }
}

// Phase III: execution ------------------------------------------------------------------------------------------------

void SwitchChannel::go_on(Time now, port::FrameSink& sink) {
  if (attached_ && !broken_) {
    read_entries();
    begin();
    fetch(now);
    publish(now);
  }
  pump_all(now, sink);
}

bool SwitchChannel::may_begin(const Request& r) const {
  return r.entry.is_write() ? reads_open_ == 0 : writes_out_ == 0;
}

void SwitchChannel::begin() {
  if (!regions_current_) return;
  for (; begun_ != fetched_; ++begun_) {
    Request& r = request(begun_);
    if (!may_begin(r)) {
      if (!std::exchange(paused_, true)) ++counters_.paused;
      return;
    }
    paused_ = false;
    ++(r.entry.is_write() ? writes_out_ : reads_open_);
    if (r.state == State::kDone) {
      if (r.entry.is_write()) --writes_out_;
      continue;
    }
    r.state = State::kMoving;
    if (const Status bad = judge(r.entry, layout_, regions_, kMostBytes); bad != Status::kOk) {
      if (bad != Status::kDenied) ++counters_.malformed;
      finish(r, r.in_doubt ? Status::kUnknown : bad);
    } else {
      r.region = regions_[r.entry.region];
    }
  }
}

// Asks for the data of all that move and have not been asked for, or must be asked for again, in order.
void SwitchChannel::fetch(Time now) {
  if (now >= connection_due_) {
    connection_due_ = Time::never();
    fetch_from_ = done_;
  }
  for (std::uint64_t i = std::max(fetch_from_, done_); i < begun_; ++i) {
    Request& r = request(i);
    fetch_from_ = i;
    if (r.state != State::kMoving || r.fetching || (r.placed && moved(r) == r.packets)) continue;
    if (fetch_one(now, r) == Fetch::kNoRoom) return;
  }
  fetch_from_ = begun_;
}

SwitchChannel::Fetch SwitchChannel::fetch_one(Time now, Request& r) {
  Connection* const known = find(r.region.node);
  const bool open = known != nullptr && known->open();
  if (!open || now < known->usable_from) {
    const Time due = open ? known->usable_from
                          : (known != nullptr ? known->absent_since : absent_since(r.region.node)) + engine_.patience;
    if (!open && now >= due) {
      finish(r, unreachable(r));
    } else {
      connection_due_ = std::min(connection_due_, due);
    }
    return Fetch::kNoConnection;
  }
  Connection& c = *known;
  r.connection = &c;
  RequestStream& from = source(r);
  r.packets = from.packets_of(r.entry.length);
  const std::uint32_t skip = moved(r);
  const std::uint32_t left = r.entry.length - skip * from.mtu();
  if (!from.can_read() || (c.bytes != 0 && c.bytes + left > kBytesUnderWay)) return Fetch::kNoRoom;
  const bool write = r.entry.is_write();
  const std::uint64_t address = write ? at(r.entry.local()) : r.region.base + r.entry.remote();
  from.append({.purpose = kFetch,
               .address = address + std::uint64_t{skip} * from.mtu(),
               .key = write ? config_.key : wire::RKey(r.region.key),
               .length = left,
               .skip = skip,
               .subject = r.index});
  r.fetching = true;
  c.bytes += left;
  return Fetch::kAsked;
}

void SwitchChannel::finish(Request& r, Status status) {
  r.state = State::kDone;
  r.status = status;
  if (r.entry.is_write()) --writes_out_;
  ++(r.entry.is_write() ? counters_.writes : counters_.reads);
  if (status != Status::kOk) ++counters_.failed;
  if (status == Status::kDenied) ++counters_.denied;
  while (done_ != begun_ && request(done_).state == State::kDone) ++done_;
}

// Phase IV: completion ------------------------------------------------------------------------------------------------

void SwitchChannel::publish(Time now) {
  if (publishing_ || !control_.has_room()) return;
  while (done_ != begun_ && request(done_).state == State::kDone) ++done_;
  const std::uint64_t errors_before = errors_.logged();
  const std::uint64_t head = take_finished();
  if (head == retired_ && now < next_heartbeat_) return;
  publishing_ = true;
  published_to_ = head;
  next_heartbeat_ = now + engine_.heartbeat;
  if (head != retired_) ++counters_.publications;
  if (errors_.logged() != errors_before) {
    const std::uint64_t log = at(ChannelLayout::kErrorLog);
    control_.append({.kind = Kind::kWrite,
                     .purpose = kErrorLog,
                     .address = log + ErrorLog::kEntries,
                     .key = config_.key,
                     .length = kErrorBlock - ErrorLog::kEntries});
    control_.append({.kind = Kind::kWrite,
                     .purpose = kErrorCount,
                     .address = log + ErrorLog::kCount,
                     .key = config_.key,
                     .length = ErrorLog::kCountBytes});
  }
  control_.append({.kind = Kind::kWrite,
                   .purpose = kProgressLine,
                   .address = at(ChannelLayout::kProgress),
                   .key = config_.key,
                   .length = kProgressBytes,
                   .words = {published_[0], published_[1], head, ++heartbeat_, epoch_}});
}

std::uint64_t SwitchChannel::take_finished() {
  std::uint64_t head = retired_;
  for (; head != done_; ++head) {
    const Request& r = request(head);
    auto& published = published_[r.entry.is_write()];
    if (r.entry.sequence <= published) continue;
    if (r.status != Status::kOk && !errors_.add(r.entry, r.status, published_)) break;
    published = r.entry.sequence;
  }
  return head;
}

// What a WRITE of the switch's own says. The log does not grow while one of it is under way.
ByteView SwitchChannel::words_of(const StreamOp& op) {
  if (op.purpose == kErrorLog) return errors_.entries();
  if (op.purpose == kErrorCount) return errors_.count();
  for (std::size_t i = 0; i < op.words.size(); ++i) store_le(progress_ + 8 * i, op.words[i]);
  return ByteView(progress_).first(kProgressBytes);
}

// Packets out ---------------------------------------------------------------------------------------------------------

void SwitchChannel::pump(Time now, RequestStream& s, port::FrameSink& sink) {
  while (const StreamOp* op = s.unsent()) {
    if (op->kind == Kind::kRelay) return;  // its packets come by
    const bool sent = op->kind == Kind::kRead ? s.send_read(now, sink) : s.send_write(now, words_of(*op), sink);
    if (!sent) {
      stalled_ = true;
      again_ = now + kAgain;
      return;
    }
  }
}

void SwitchChannel::pump_all(Time now, port::FrameSink& sink) {
  pump(now, control_, sink);
  for (const auto& c : connections_) {
    if (!c->open()) continue;
    pump(now, *c->to_host, sink);
    pump(now, *c->to_pool, sink);
  }
}

void SwitchChannel::check_time(Time now, RequestStream& s) {
  if (!s.timed_out(now)) return;
  ++counters_.timeouts;
  rewind(s);
}

void SwitchChannel::notice_stop(Time now) {
  const Duration gone = now - std::exchange(seen_, now);
  if (gone < kStop) return;
  for (Absent& absent : absent_) absent.since = absent.since + gone;
  for (const auto& c : connections_) {
    c->absent_since = c->absent_since + gone;
    if (c->unheard_since != Time::never()) c->unheard_since = c->unheard_since + gone;
    if (c->open()) c->to_pool->forgive(gone);
  }
}

void SwitchChannel::on_deadline(Time now, port::FrameSink& sink) {
  if (broken_) return;
  notice_stop(now);
  if (!std::exchange(attaching_, true)) {
    control_.append({.purpose = kAttach,
                     .address = at(ChannelLayout::kProgress),
                     .key = config_.key,
                     .length = static_cast<std::uint32_t>(kAttachment)});
  }
  if (stalled_ && now >= again_) stalled_ = false;
  check_time(now, control_);
  for (const auto& c : connections_) {
    if (!c->open()) continue;
    // A refusal that was lost looks like this, too: the node has let go of the connection, and a new one is all that helps.
    const Time here = c->to_pool->silent_since();
    if (here != Time::never() && now - here >= std::min(engine_.silence, engine_.patience)) {
      close(*c, c->silent_since());
      continue;
    }
    check_time(now, *c->to_host);
    check_time(now, *c->to_pool);
  }
  go_on(now, sink);
}

Time SwitchChannel::next_deadline() const {
  if (broken_) return Time::never();
  if (!attaching_) return Time();
  Time next = control_.deadline();
  if (attached_) next = std::min(next, connection_due_);
  if (stalled_) next = std::min(next, again_);
  if (attached_ && !publishing_) next = std::min(next, next_heartbeat_);
  for (const auto& c : connections_) {
    if (c->open()) next = std::min({next, c->to_host->deadline(), c->to_pool->deadline()});
  }
  return next;
}

}  // namespace sluice::cowbird
