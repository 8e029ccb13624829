#include "cowbird/engine.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "base/check.h"
#include "cowbird/entry_check.h"
#include "memory/access.h"

namespace sluice::cowbird {

using remote::Operation;
using remote::RemoteAddress;
using remote::Task;

namespace {

constexpr std::uint32_t kMostFetched = 512;  // entries of one metadata READ
// A slice of what comes from a near pool: reads, and bytes. Two of them stay in the first cache.
constexpr std::size_t kMostCopied = 64;
constexpr std::size_t kMostCopiedBytes = 8 << 10;
constexpr Duration kNextTurn = Duration::nanoseconds(1);
constexpr Duration kStop = Duration::milliseconds(500);  // no engine that runs is not seen for so long
constexpr Duration kRegionsRest = Duration::milliseconds(10);

// A node that is not known may become so: a new engine has to connect first.
bool is_final(remote::Status status) {
  return status != remote::Status::kUnknown && status != remote::Status::kUnreachable &&
         status != remote::Status::kNodeUnknown;
}

bool overlap(const RemoteAddress& a, std::uint64_t a_bytes, const RemoteAddress& b, std::uint64_t b_bytes) {
  return a.node == b.node && a.address < b.address + b_bytes && b.address < a.address + a_bytes;
}

RemoteAddress start_of(const Region& region) {
  return {remote::NodeId(region.node), remote::RegionKey(region.key), region.base};
}

}  // namespace

EngineCounters& EngineCounters::operator+=(const EngineCounters& more) {
  probes += more.probes;
  fetches += more.fetches;
  reads += more.reads;
  writes += more.writes;
  publications += more.publications;
  response_writes += more.response_writes;
  waited += more.waited;
  looks += more.looks;
  retries += more.retries;
  refused += more.refused;
  failed += more.failed;
  denied += more.denied;
  malformed += more.malformed;
  return *this;
}

Engine::Engine(remote::Scheduler& scheduler, remote::RemoteMemory& compute, RemoteAddress block,
               const InstanceLayout& layout, std::uint32_t channel, remote::RemoteMemory& pool,
               const EngineConfig& config)
    : scheduler_(scheduler),
      compute_(compute),
      pool_(pool),
      block_(block),
      channel_(block + layout.channel_at(channel)),
      layout_(layout.channel()),
      config_(config),
      pool_ordered_(pool.capabilities().ordered),
      compute_ordered_(compute.capabilities().ordered),
      beside_rings_(compute.mapped() != nullptr),
      ahead_pays_(compute_ordered_ && !beside_rings_),
      near_(pool.mapped()),
      longest_(pool.capabilities().max_length),
      requests_(layout.shape.entries),
      entries_(std::min(layout.shape.entries, kMostFetched) * kEntryBytes),
      // Zero without being touched: most of large rings is never used.
      staging_(static_cast<std::uint8_t*>(
          std::calloc(std::size_t{layout.shape.request_bytes} + layout.shape.response_bytes, 1))) {
  SLUICE_CHECK(config.batch_size > 0 && config.copied_a_turn >= 2 * kDataAlignment);
  if (!staging_) throw std::bad_alloc();
}

Engine::~Engine() = default;

void Engine::stop() {
  stopping_ = true;
  signal();
}

void Engine::set(Signal& signal) {
  signal.set = true;
  if (signal.waiter) scheduler_.post(std::exchange(signal.waiter, nullptr));
}

void Engine::signal() {
  set(to_move_);
  set(to_publish_);
}

Task<void> Engine::run() {
  // (g++ 12 lays the frame out wrongly when `if (!co_await f())` stands alone: the result gets a name, here and below.)
  const bool attached = co_await attach();
  if (!attached) co_return;
  const bool told = co_await tell(flight());
  if (!told) co_return;
  probing_ = moving_ = true;
  scheduler_.spawn(probe());
  scheduler_.spawn(move());
  co_await publish_all();
  if (!cut_off_) co_await tell(std::max(certain_from_ - scheduler_.now(), Duration{}));
}

// Setting up ----------------------------------------------------------------------------------------------------------

Task<bool> Engine::read_block(std::size_t offset, MutableBytes into) {
  while (!stopping_) {
    const auto status = co_await compute_.read(at(offset), into);
    if (status == remote::Status::kOk) co_return true;
    ++counters_.retries;
    co_await scheduler_.sleep_for(config_.retry);
  }
  co_return false;
}

// Where the last engine left off; nothing of what it had not published counts.
Task<bool> Engine::attach() {
  std::uint8_t progress[kLine];
  bool good = co_await read_block(ChannelLayout::kProgress, progress);
  if (!good) co_return false;
  good = co_await read_block(ChannelLayout::kErrorLog, errors_.bytes());
  if (!good) co_return false;
  published_[0] = load_le<std::uint64_t>(progress + ProgressLine::kReads);
  published_[1] = load_le<std::uint64_t>(progress + ProgressLine::kWrites);
  reads_confirmed_ = published_[0];
  retired_ = confirmed_ = read_cursor_ = dispatched_ = asked_ = fetched_ =
      load_le<std::uint64_t>(progress + ProgressLine::kHead);
  heartbeat_ = load_le<std::uint64_t>(progress + ProgressLine::kHeartbeat);
  epoch_ = load_le<std::uint64_t>(progress + ProgressLine::kEpoch) + 1;
  errors_.adopt(published_);
  const Duration flight = ProgressLine::flight(progress);
  if (flight > Duration{}) co_await scheduler_.sleep_for(flight);
  seen_ = scheduler_.now();
  co_return true;
}

Task<bool> Engine::tell(Duration flight) {
  std::uint8_t line[kLine] = {};
  compose_progress(line, flight);
  next_heartbeat_ = scheduler_.now() + config_.heartbeat;
  for (;;) {
    const auto status = co_await compute_.write(at(ChannelLayout::kProgress), line);
    if (status == remote::Status::kOk) co_return true;
    ++counters_.retries;
    if (stopping_) co_return false;
    co_await scheduler_.sleep_for(config_.max_flight);
  }
}

Task<bool> Engine::read_regions(std::uint64_t generation) {
  std::vector<std::uint8_t> table(kMaxRegions * kRegionBytes);
  const auto status = co_await compute_.read(block_ + InstanceLayout::kRegions, table);
  if (status != remote::Status::kOk) co_return false;
  const std::vector<Region> before = std::exchange(regions_, {});
  exports_generation_ = exports_generation();
  for (std::size_t i = 0; i < kMaxRegions; ++i) {
    Region& region = regions_.emplace_back(Region::parse(table.data() + i * kRegionBytes));
    region.denied = config_.exports != nullptr && config_.exports->denies(region);
  }
  ++regions_read_;
  regions_again_ = scheduler_.now() + kRegionsRest;
  find_near();
  forget_troubles(before);
  look_at_all_ = true;
  set(to_move_);
  regions_generation_ = generation;
  regions_known_ = true;
  co_return true;
}

// What waits for one of them that the pool does not know has nothing to wait for.
void Engine::forget_troubles(const std::vector<Region>& before) {
  if (troubles_.empty()) return;
  std::array<bool, kMaxRegions> gone{};
  for (std::size_t i = 0; i < before.size(); ++i) {
    const Trouble* const trouble = find_trouble(before[i].node);
    gone[i] = before[i].node != regions_[i].node && trouble != nullptr && trouble->is_nobodys;
  }
  for (auto* const queue : {&writes_, &waiting_reads_}) {
    std::erase_if(*queue, [&](std::uint64_t index) {
      Request& r = request(index);
      if (!gone[r.entry.region] || (r.state != State::kReady && r.state != State::kNew)) return false;
      finish(r, out_of_reach(r));
      return true;
    });
  }
  std::erase_if(troubles_, [&](const Trouble& trouble) {
    return std::ranges::none_of(regions_, [&](const Region& region) { return region.node == trouble.node; });
  });
}

void Engine::find_near() {
  near_regions_.assign(regions_.size(), nullptr);
  if (near_ == nullptr) return;
  near_generation_ = near_->generation();
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    if (regions_[i].length != 0) near_regions_[i] = near_->place_of(start_of(regions_[i]), regions_[i].length);
  }
  for (std::uint64_t index = dispatched_; index != fetched_; ++index) {
    Request& r = request(index);  // which the regions may no longer allow
    r.near = judge(r.entry, layout_, regions_, longest_) == Status::kOk ? near_bytes(r) : nullptr;
  }
}

// Phase II: probing ---------------------------------------------------------------------------------------------------

Task<void> Engine::probe() {
  Duration interval = config_.probe_least;
  Time last_work = scheduler_.now();
  std::uint8_t line[kLine];
  std::array<Operation, 2> looks;
  while (!stopping_ && !broken_) {
    const Time begun = scheduler_.now();
    const MutableBytes ahead = interval == config_.probe_least ? room_ahead() : MutableBytes();
    looks = {remote::read_operation(at(ChannelLayout::kIssuer), line),
             remote::read_operation(at(layout_.entry(fetched_)), ahead)};
    co_await compute_.all(std::span(looks).first(ahead.empty() ? 1 : 2));
    ++counters_.probes;
    if (!all_well(looks)) {
      co_await scheduler_.sleep_for(config_.retry);
      continue;
    }
    looked_ = begun;
    notice_stop();
    const auto tail = load_le<std::uint64_t>(line + IssuerLine::kTail);
    const auto generation = load_le<std::uint64_t>(line + IssuerLine::kRegionsGeneration);
    errors_.set_taken(load_le<std::uint64_t>(line + IssuerLine::kErrorsTaken));
    if (regions_are_old(generation) && scheduler_.now() >= regions_again_) {
      const bool known = co_await read_regions(generation);
      if (!known) continue;
    }
    if (!doubtful_to_) doubtful_to_ = epoch_ > 1 ? tail : 0;
    if (tail < fetched_ || tail - retired_ > layout_.shape.entries) {
      broken_ = true;
      break;
    }
    const std::uint64_t count = regions_are_old(generation) ? 0 : tail - fetched_;
    const bool found = count != 0;
    ahead_ = std::clamp(std::max(count, ahead_ - ahead_ / 8), kLeastAhead, kMostAhead);
    if (found && !ahead.empty()) {
      take_entries(ahead.first(std::min(ahead.size(), count * kEntryBytes)), Read::kWithTail);
    }
    if (found) co_await fetch(tail);
    if (under_way() != 0) {
      interval = config_.probe_least;
      last_work = scheduler_.now();
    } else if (scheduler_.now() - last_work > config_.awake) {
      interval = std::min(interval * 2, config_.probe_most);
    }
    if (asked_ != dispatched_ || scheduler_.now() >= retry_at_) set(to_move_);
    if (has_finished() || scheduler_.now() >= next_heartbeat_) set(to_publish_);
    const Duration rest = std::max(begun + interval - scheduler_.now(), Duration{});
    if (found) {
      co_await scheduler_.sleep_for(rest);
    } else {
      co_await scheduler_.rest_for(rest);
    }
  }
  probing_ = false;
  signal();
}

MutableBytes Engine::room_for(std::uint64_t entries) {
  const std::uint64_t to_end = layout_.shape.entries - (fetched_ & (layout_.shape.entries - 1));
  return MutableBytes(entries_).first(std::min({entries, to_end, std::uint64_t{kMostFetched}}) * kEntryBytes);
}

Task<void> Engine::fetch(std::uint64_t tail) {
  while (fetched_ != tail && !broken_) {
    const MutableBytes into = room_for(tail - fetched_);
    ++counters_.fetches;
    const auto status = co_await compute_.read(at(layout_.entry(fetched_)), into);
    if (status != remote::Status::kOk) co_return;  // the next probe begins again here
    broken_ = !take_entries(into, Read::kAfterTail);
    if (fetched_ != tail) co_await scheduler_.yield();
  }
}

bool Engine::take_entries(ByteView entries, Read when) {
  if (!near_is_known()) find_near();
  const bool good = accept(entries, when);
  if (near_ == nullptr || asked_ == dispatched_) ask_for_next_slice();
  return good;
}

bool Engine::accept(ByteView entries, Read when) {
  for (std::size_t i = 0; i < entries.size(); i += kEntryBytes) {
    const std::uint64_t index = fetched_;
    Request& r = request(index);
    r = {.entry = Entry::parse(entries.data() + i), .judged_by = regions_read_};
    const bool write = r.entry.is_write();
    if (!follows(r.entry, sequence_[write], published_[write])) return false;
    const bool published = r.entry.sequence <= published_[write];
    // What stood there a lap ago, if the NIC has read it before the tail, against the order: it is read again.
    if (published && when == Read::kWithTail) return false;
    sequence_[write] = r.entry.sequence;
    ++fetched_;
    if (published) {  // by an earlier engine
      r.state = State::kPublished;
      continue;
    }
    if (write) unpublished_.push_back(index);
    if (write && index < doubtful_to_) r.status = Status::kUnknown;
    if (const Status failed = errors_.adopted(r.entry); failed != Status::kOk) {
      finish(r, failed);
    } else if (const Status bad = judge(r.entry, layout_, regions_, longest_); bad != Status::kOk) {
      if (bad != Status::kDenied) ++counters_.malformed;
      finish(r, r.status == Status::kOk ? bad : r.status);
    } else {
      r.near = near_bytes(r);
    }
  }
  return true;
}

// One directly after the other and nothing between: a prefetch that misses keeps its place in the processor's window until the line has come, so that as many
// are under way as stand there together. On pages of 4 KiB, whose translations are missed too, that is worth as much as all the rest of the engine takes.
void Engine::ask_for_next_slice() {
  const std::uint64_t end = retired_ + std::min(fetched_ - retired_, kMostAtOnce);
  if (near_ == nullptr) {
    asked_ = end;
    return;
  }
  const std::size_t most = std::min<std::size_t>(kMostCopied, config_.batch_size);
  std::size_t reads = 0;
  std::size_t bytes = 0;
  for (; asked_ != end && reads < most && bytes < kMostCopiedBytes; ++asked_) {
    const Request& r = request(asked_);
    if (r.near == nullptr) continue;
    remote::prefetch_bytes(r.near, std::min<std::size_t>(r.entry.length, kMostCopiedBytes));
    ++reads;
    bytes += r.entry.length;
  }
}

RemoteAddress Engine::target(const Entry& entry) const { return start_of(regions_[entry.region]) + entry.remote(); }

// Phase III: execution ------------------------------------------------------------------------------------------------

Task<void> Engine::move() {
  for (;;) {
    notice_turn();
    const bool moved = dispatch();
    if (moved) {
      set(to_publish_);
      if (copied_ < config_.copied_a_turn) {
        co_await scheduler_.yield();  // what is complete leaves first, and others have their turn
      } else {
        co_await scheduler_.sleep_for(kNextTurn);
      }
    } else if (over()) {
      break;
    } else {
      co_await wait_for(to_move_);
    }
  }
  moving_ = false;
  signal();
}

bool Engine::dispatch() {
  if (stopping_ || broken_ || !regions_known_) return false;
  notice_stop();
  if (!near_is_known()) find_near();
  retry_at_ = Time::never();
  looking_at_all_ = std::exchange(look_at_all_, false);
  if (looking_at_all_ && !writes_.empty()) ++counters_.looks;
  bool moved = dispatch_new();
  moved = dispatch_writes() || moved;
  looking_at_all_ = looking_at_all_ || look_at_all_;
  return dispatch_waiting_reads() || moved;
}

Engine::Trouble* Engine::find_trouble(std::uint32_t node) {
  const auto it = std::find_if(troubles_.begin(), troubles_.end(), [&](const Trouble& t) { return t.node == node; });
  return it == troubles_.end() ? nullptr : &*it;
}

void Engine::notice_stop() {
  const Duration gone = scheduler_.now() - seen_;
  seen_ = scheduler_.now();
  if (gone < std::max(kStop, config_.probe_least * 2)) return;
  for (Trouble& trouble : troubles_) trouble.since = trouble.since + gone;
}

bool Engine::held(const Request& r) {
  const Trouble* const trouble = trouble_of(r);
  if (trouble == nullptr || scheduler_.now() >= trouble->retry_at || gave_up(*trouble)) return false;
  retry_at_ = std::min(retry_at_, trouble->retry_at);
  return true;
}

bool Engine::dispatch_new() {
  const std::uint64_t end = asked_;
  const bool any = dispatched_ != end;
  std::size_t copied = 0;
  ask_for_next_slice();
  for (; dispatched_ != end && copied_ < config_.copied_a_turn; ++dispatched_) {
    Request& r = request(dispatched_);
    if (r.state != State::kNew) continue;
    if (r.entry.is_write()) {
      writes_.push_back(dispatched_);
      submit_fetch(dispatched_);
    } else if (!unpublished_.empty() && read_must_wait(dispatched_)) {
      ++counters_.waited;
      r.waits = true;
      waiting_reads_.push_back(dispatched_);
    } else if (r.near != nullptr && r.entry.length <= config_.copied_a_turn) {
      memory::copy_out(staged(r.entry), r.near, r.entry.length);
      copied += r.entry.length;
      finish(r, Status::kOk);
    } else if (held(r) || is_long(r)) {
      waiting_reads_.push_back(dispatched_);
    } else {
      submit_move(dispatched_);
    }
  }
  copied_ += copied;
  return any || asked_ != dispatched_;
}

template <class Writes>
bool Engine::waits_for_one_of(const Writes& writes, std::uint64_t index) const {
  const Entry& one = request(index).entry;
  for (const std::uint64_t earlier : writes) {
    if (earlier >= index) break;
    const Request& write = request(earlier);
    if (write.state < State::kDone && overlap(target(write.entry), write.entry.length, target(one), one.length))
      return true;
  }
  return false;
}

// A read may not overtake an earlier write that it overlaps. On an ordered pool the write need only be on its way.
bool Engine::read_must_wait(std::uint64_t index) const { return overlaps_earlier_write(index); }

bool Engine::write_must_wait(std::uint64_t index) const {
  return overlaps_earlier_read(index) || overlaps_earlier_write(index);
}

bool Engine::overlaps_earlier_write(std::uint64_t index) const {
  return pool_ordered_ ? waits_for_one_of(writes_, index) : waits_for_one_of(unpublished_, index);
}

// One that is not published yet.
bool Engine::overlaps_earlier_read(std::uint64_t index) const {
  if (sequence_[0] <= reads_confirmed_) return false;
  const Entry& write = request(index).entry;
  // A request whose place another one has taken was seen by the application: it is published.
  const std::uint64_t kept = fetched_ - std::min<std::uint64_t>(fetched_, layout_.shape.entries);
  for (std::uint64_t earlier = std::max(confirmed_, kept); earlier < index; ++earlier) {
    const Entry& read = request(earlier).entry;
    if (read.is_write() || read.sequence <= reads_confirmed_) continue;
    if (read.region >= regions_.size()) continue;  // refused, whoever looks at it
    if (overlap(target(read), read.length, target(write), write.length)) return true;
  }
  return false;
}

bool Engine::dispatch_writes() {
  if (writes_.empty()) return false;
  if (!may_write()) {
    retry_at_ = scheduler_.now();
    look_at_all_ = look_at_all_ || looking_at_all_;
    return false;
  }
  return submit_unless(
      writes_, [this](std::uint64_t index) { return request(index).state != State::kReady || write_must_wait(index); });
}

bool Engine::dispatch_waiting_reads() {
  return submit_unless(waiting_reads_, [this](std::uint64_t index) { return read_must_wait(index); });
}

template <class MustWait>
bool Engine::submit_unless(std::vector<std::uint64_t>& queue, MustWait must_wait) {
  bool moved = false;
  for (std::size_t i = 0; i < queue.size();) {
    const std::uint64_t index = queue[i];
    Request& r = request(index);
    if (r.waits && !looking_at_all_) {
      ++i;
      continue;
    }
    if (copied_ >= config_.copied_a_turn) {
      look_at_all_ = look_at_all_ || looking_at_all_;
      return true;
    }
    r.waits = must_wait(index);
    if (r.waits || held(r)) {
      ++i;
      continue;
    }
    const bool is_long = this->is_long(r);
    if (is_long && in_pieces_) {  // one at a time
      ++i;
      continue;
    }
    moved = true;
    if (is_long) begin_in_pieces(index);
    if (is_long && r.entry.is_write()) {  // in its place until it is done: what overlaps it waits
      ++i;
      continue;
    }
    queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(i));
    if (!is_long) submit_move(index);
    look_at_all_ = look_at_all_ || r.state >= State::kMoving;
  }
  return moved;
}

void Engine::submit_fetch(std::uint64_t index) {
  submit(index, compute_, State::kFetching, remote::OpKind::kRead, at(request(index).entry.local()));
}

void Engine::submit_move(std::uint64_t index) {
  Request& r = request(index);
  // The application has changed its regions since, and the memory node would refuse what they do not allow any more.
  if (r.judged_by != regions_read_) {
    r.judged_by = regions_read_;
    if (const Status bad = judge(r.entry, layout_, regions_, longest_); bad != Status::kOk) {
      if (bad != Status::kDenied) ++counters_.malformed;
      return finish(r, r.status == Status::kOk ? bad : r.status);
    }
  }
  const RemoteAddress place = target(r.entry);
  if (near_ != nullptr) {
    const MutableBytes bytes(staged(r.entry), r.entry.length);
    const auto status = r.entry.is_write() ? near_->write_now(place, bytes) : near_->read_now(place, bytes);
    if (status == remote::Status::kOk) {
      copied_ += r.entry.length;
      return finish(r, Status::kOk);
    }
  }
  // A refusal costs the connection, and everybody on it a new one: once is enough.
  if (regions_[r.entry.region].denied) return finish(r, r.status == Status::kOk ? Status::kDenied : r.status);
  if (const Trouble* const trouble = trouble_of(r); trouble != nullptr && scheduler_.now() < trouble->retry_at) {
    return finish(r, out_of_reach(r));
  }
  submit(index, pool_, State::kMoving, r.entry.is_write() ? remote::OpKind::kWrite : remote::OpKind::kRead, place);
}

bool Engine::is_all_near(const Request& r) const {
  return near_ != nullptr && judge(r.entry, layout_, regions_, longest_) == Status::kOk &&
         near_->place_of(target(r.entry), r.entry.length) != nullptr;
}

void Engine::begin_in_pieces(std::uint64_t index) {
  request(index).state = State::kMoving;
  in_pieces_ = true;
  ++in_flight_;
  scheduler_.spawn(move_in_pieces(index));
}

void Engine::notice_turn() {
  if (std::exchange(turn_, scheduler_.now()) != scheduler_.now()) copied_ = 0;
}

// The regions may become others meanwhile; what has been begun goes on where it was begun. Near memory that is taken back is not touched any more.
Task<void> Engine::move_in_pieces(std::uint64_t index) {
  Request& r = request(index);
  const bool write = r.entry.is_write();
  const RemoteAddress place = target(r.entry);
  std::size_t done = 0;
  while (done != r.entry.length && !stopping_ && !broken_) {
    co_await scheduler_.sleep_for(write && !may_write() ? config_.retry : kNextTurn);
    if (write && !may_write()) continue;
    notice_turn();
    // Half of a turn, so that what is short goes on beside it.
    const std::size_t whole_words =
        std::max<std::size_t>(config_.copied_a_turn / 2, kDataAlignment) - (place.address + done) % kDataAlignment;
    const MutableBytes piece(staged(r.entry) + done, std::min(r.entry.length - done, whole_words));
    if (write) r.status = Status::kUnknown;  // until all is there
    const auto status = write ? near_->write_now(place + done, piece) : near_->read_now(place + done, piece);
    if (status != remote::Status::kOk) break;
    done += piece.size();
    copied_ += piece.size();
  }
  --in_flight_;
  in_pieces_ = false;
  if (write) std::erase(writes_, index);
  if (done == r.entry.length) {
    finish(r, Status::kOk);
  } else {
    queue_again(index);
  }
  look_at_all_ = true;
  signal();
}

void Engine::submit(std::uint64_t index, remote::RemoteMemory& memory, State state, remote::OpKind kind,
                    const RemoteAddress& place) {
  Request& r = request(index);
  Move& move = free_moves_ != nullptr ? *std::exchange(free_moves_, free_moves_->next_free) : moves_.emplace_back();
  move.operation = {.kind = kind,
                    .remote = place,
                    .local = {staged(r.entry), r.entry.length},
                    .on_complete = on_complete,
                    .context = &move};
  if (!beside_rings_ && kind == remote::OpKind::kWrite) move.operation.not_after = looked_ + config_.leaves_within;
  move.engine = this;
  move.index = index;
  r.state = state;
  ++in_flight_;
  memory.submit(move.operation);
}

void Engine::on_complete(Operation& operation) {
  auto& move = *static_cast<Move*>(operation.context);
  Engine& engine = *move.engine;
  move.next_free = std::exchange(engine.free_moves_, &move);
  engine.completed(move.index, operation);
}

void Engine::completed(std::uint64_t index, const Operation& operation) {
  const remote::Status status = operation.status;
  Request& r = request(index);
  --in_flight_;
  const bool fetching = r.state == State::kFetching;
  const bool answered = !fetching && (status == remote::Status::kOk || is_final(status));
  // (What was under way when another one failed says nothing.)
  if (answered && !troubles_.empty()) {
    std::erase_if(troubles_, [node = operation.remote.node.value, now = scheduler_.now()](const Trouble& t) {
      return t.node == node && now >= t.retry_at;
    });
  }
  if (status == remote::Status::kOk) {
    look_at_all_ = true;
    if (fetching) {
      r.state = State::kReady;
    } else {
      finish(r, r.status == Status::kUnknown ? Status::kOk : r.status);
    }
  } else if (is_final(status) && !fetching) {
    ++counters_.refused;
    look_at_all_ = true;
    if (status == remote::Status::kAccessDenied) deny(r, operation);
    finish(r, r.status == Status::kOk ? Status::kDenied : r.status);
  } else {
    try_again(index, operation);
  }
  signal();
}

void Engine::deny(const Request& r, const Operation& operation) {
  const RemoteAddress& place = operation.remote;
  Region& region = regions_[r.entry.region];  // which may be another one by now
  if (start_of(region).node == place.node && start_of(region).key == place.key) region.denied = true;
  if (config_.exports != nullptr) config_.exports->refused(place, operation.local.size());
}

void Engine::try_again(std::uint64_t index, const Operation& operation) {
  Request& r = request(index);
  ++counters_.retries;
  if (r.state == State::kFetching) {  // it still has its place in writes_
    r.state = State::kNew;
    ++in_flight_;
    scheduler_.spawn(fetch_again(index));
    return;
  }
  notice_stop();
  const Time now = scheduler_.now();
  const bool unknown = operation.status == remote::Status::kUnknown;
  if (unknown) certain_from_ = now + config_.max_flight;
  const std::uint32_t node = operation.remote.node.value;  // which its region may not name any more
  Trouble* trouble = find_trouble(node);
  if (trouble == nullptr) trouble = &troubles_.emplace_back(Trouble{node, now, now});
  trouble->is_nobodys = operation.status == remote::Status::kNodeUnknown;
  trouble->retry_at = std::max(trouble->retry_at, now + (unknown ? config_.max_flight : config_.retry));
  if (r.entry.is_write() && unknown) r.status = Status::kUnknown;
  if (stopping_) {  // the next engine does it
    r.state = State::kNew;
    return;
  }
  if (gave_up(*trouble) || (trouble->is_nobodys && node != node_of(r))) {
    look_at_all_ = true;
    return finish(r, out_of_reach(r));
  }
  queue_again(index);
  retry_at_ = std::min(retry_at_, trouble->retry_at);
}

void Engine::queue_again(std::uint64_t index) {
  Request& r = request(index);
  auto& queue = r.entry.is_write() ? writes_ : waiting_reads_;
  r.state = r.entry.is_write() ? State::kReady : State::kNew;
  queue.insert(std::lower_bound(queue.begin(), queue.end(), index), index);
}

Task<void> Engine::fetch_again(std::uint64_t index) {
  co_await scheduler_.sleep_for(config_.retry);
  --in_flight_;
  if (!stopping_ && !broken_) submit_fetch(index);
  signal();
}

// Phase IV: completion ------------------------------------------------------------------------------------------------

bool Engine::has_finished() {
  if (next_read() != fetched_ && ready_to_publish(request(read_cursor_))) return true;
  return !unpublished_.empty() && ready_to_publish(request(unpublished_.front()));
}

Task<void> Engine::publish_all() {
  for (;;) {
    Publication& first = publication(first_publication_);
    if (any_publication() && first.open == 0) {
      if (!all_well(first.operations)) {
        co_await publish_again();
      } else if (first.submitted != first.operations.size()) {
        submit_rest(first);
      } else {
        confirm();
      }
    } else if (may_publish() && (has_finished() || scheduler_.now() >= next_heartbeat_)) {
      publish();
    } else if (over() && !moving_ && !any_publication()) {
      co_return;
    } else {
      co_await wait_for(to_publish_);
    }
  }
}

bool Engine::may_publish() {
  if (cut_off_ || next_publication_ - first_publication_ == (compute_ordered_ ? kMostPublications : 1)) return false;
  for (std::uint64_t i = first_publication_; i != next_publication_; ++i) {
    if (publication(i).errors || !all_well(publication(i).operations)) return false;
  }
  return true;
}

void Engine::publish() {
  ++counters_.publications;
  Publication& next = publication(next_publication_++);
  next.operations.clear();
  next.errors = take_finished(next);
  const RemoteAddress log = at(ChannelLayout::kErrorLog);
  if (next.errors) next.operations.push_back(remote::write_operation(log + ErrorLog::kEntries, errors_.entries()));
  next.data = next.operations.size();
  if (next.errors) next.operations.push_back(remote::write_operation(log + ErrorLog::kCount, errors_.count()));
  compose_progress(next.progress, flight());
  next.operations.push_back(remote::write_operation(at(ChannelLayout::kProgress), next.progress));
  next.reads = published_[0];
  next.retired = retired_;
  next_heartbeat_ = scheduler_.now() + config_.heartbeat;
  next.engine = this;
  next.submitted = 0;
  submit_rest(next);
}

void Engine::submit_rest(Publication& publication) {
  const std::size_t begin = publication.submitted;
  const std::size_t next = begin < publication.data ? publication.data : begin + 1;
  const std::size_t end = compute_ordered_ ? publication.operations.size() : next;
  publication.submitted = end;
  publication.open = end - begin;
  for (Operation& operation : std::span(publication.operations).subspan(begin, end - begin)) {
    operation.context = &publication;
    operation.on_complete = [](Operation& completed) {
      auto& its = *static_cast<Publication*>(completed.context);
      if (--its.open == 0) its.engine->set(its.engine->to_publish_);
    };
    compute_.submit(operation);
  }
}

void Engine::confirm() {
  const Publication& first = publication(first_publication_++);
  if (reads_confirmed_ == first.reads && confirmed_ == first.retired) return;  // a heartbeat
  reads_confirmed_ = first.reads;
  confirmed_ = first.retired;
  look_at_all_ = true;
  set(to_move_);  // writes may have waited for these reads
}

Task<void> Engine::publish_again() {
  for (std::uint64_t i = first_publication_; i != next_publication_; ++i) {
    while (publication(i).open != 0) co_await wait_for(to_publish_);
  }
  ++counters_.retries;
  if (stopping_) {  // nothing may follow it
    cut_off_ = true;
    first_publication_ = next_publication_;
    co_return;
  }
  co_await scheduler_.sleep_for(config_.max_flight);
  merge_publications();
  Publication& first = publication(first_publication_);
  for (Operation& operation : first.operations) operation = remote::write_operation(operation.remote, operation.local);
  first.submitted = 0;
  submit_rest(first);
}

// Into the first: the last one's progress may have been seen, and must not be followed by less.
void Engine::merge_publications() {
  Publication& first = publication(first_publication_);
  for (std::uint64_t i = first_publication_ + 1; i != next_publication_; ++i) {
    const Publication& last = publication(i);
    first.operations.pop_back();
    first.data = first.operations.size() + last.data;
    first.operations.insert(first.operations.end(), last.operations.begin(), last.operations.end());
    first.errors = last.errors;
    first.reads = last.reads;
    first.retired = last.retired;
    std::ranges::copy(last.progress, first.progress);
    first.operations.back().local = first.progress;
  }
  next_publication_ = first_publication_ + 1;
}

bool Engine::all_well(std::span<const Operation> operations) {
  return std::all_of(operations.begin(), operations.end(),
                     [](const Operation& o) { return o.status == remote::Status::kOk; });
}

// Moves finished requests of both types, in order, into this publication. True: errors were noted.
bool Engine::take_finished(Publication& publication) {
  const std::uint64_t errors_before = errors_.logged();
  const std::size_t ring_end = layout_.responses + layout_.shape.response_bytes;
  std::size_t begin = 0;  // of responses that leave in one WRITE
  std::size_t end = 0;
  for (std::uint32_t n = 0; n < config_.batch_size && next_read() != fetched_; ++n) {
    const Request& r = request(read_cursor_);
    if (!take(r)) break;
    ++read_cursor_;
    if (r.status != Status::kOk) continue;
    if (r.entry.resp_addr != end) {
      add_responses(publication, begin, end);
      begin = r.entry.resp_addr;
    }
    end = std::min(r.entry.resp_addr + aligned(r.entry.length), ring_end);
  }
  add_responses(publication, begin, end);
  for (std::uint32_t n = 0; n < config_.batch_size && !unpublished_.empty(); ++n) {
    if (!take(request(unpublished_.front()))) break;
    unpublished_.pop_front();
  }
  retired_ = unpublished_.empty() ? next_read() : std::min(next_read(), unpublished_.front());
  return errors_.logged() != errors_before;
}

void Engine::add_responses(Publication& publication, std::size_t begin, std::size_t end) {
  if (begin == end) return;
  ++counters_.response_writes;
  const MutableBytes bytes(staging_.get() + (begin - layout_.requests), end - begin);
  publication.operations.push_back(remote::write_operation(at(begin), bytes));
}

void Engine::compose_progress(std::uint8_t* line, Duration flight) {
  store_le(line + ProgressLine::kReads, published_[0]);
  store_le(line + ProgressLine::kWrites, published_[1]);
  store_le(line + ProgressLine::kHead, retired_);
  store_le(line + ProgressLine::kHeartbeat, ++heartbeat_);
  store_le(line + ProgressLine::kEpoch, epoch_);
  store_le(line + ProgressLine::kFlight, static_cast<std::uint64_t>(flight.nanoseconds()));
}

}  // namespace sluice::cowbird
