// Spot engine: carries out the requests of one channel of a Cowbird instance, over RemoteMemory on both sides.
//
// Life:       Engine(...) -> spawn(run()) -> probes the issuer line, fetches new entries, moves the data, publishes progress -> stop();
//             run() ends when nothing of it is in flight. A new engine takes up where the last one left off.
// Order:      requests of one type complete in the order of issue. A read waits for earlier writes that it overlaps to be submitted
//             (to be complete, where the pool is not ordered); a write waits until earlier reads that it overlaps are published,
//             because until then they may be executed again, by the transport or by the next engine. All others overlap in time.
// Batches:    what is complete goes into one publication: response data in as few WRITEs as the ring allows, then one WRITE of the progress
//             line. Nothing ever waits for a batch to fill. On an ordered compute node kMostPublications are under way at once, on others
//             one; reads are moved meanwhile. None follows one that has failed, or that tells of errors, before that one has ended.
// Limits:     kMostAtOnce requests are looked at at once, whatever the ring holds: what must wait for what costs the product of two of them, each time that
//             something of theirs has come to an end. Regions are read again every 10 ms at most, however often they change.
// Probes:     every `probe_least` while there is something to do and for `awake` after it, then ever rarer, down to every `probe_most`. While awake, of
//             an ordered compute node that is not mapped, the READ of the issuer line is followed at once by one of the next entries.
// Near:       what of the pool is memory of the engine's own process (remote/mapped.h) is read and written on the spot, a slice of the new entries at
//             a time: while one is copied, the next is on its way from memory, and what has been copied leaves. Whatever else the loop does has its turn
//             after `copied_a_turn`, also amid a longer request.
// Denied:     a region that contradicts what its memory node exports is not asked for (exports.h), nor is one that the node has refused, until the
//             application changes its regions, or with exports known until those change. A request is judged by the regions as they are when it is moved.
// Errors:     of a memory node: its requests are tried again until it has been out of reach for `patience`, then reported to the issuer, and
//             later ones at once; those to other nodes go on, the next kMostAtOnce of them. Of the compute node: tried again for ever.
// Late work:  an engine beside the rings ends before others get them. One elsewhere may be shut out unawares, stopped or cut off: a WRITE to the pool leaves
//             within `leaves_within` of the last look at the rings that came through, or not at all. How long it may be on its way stands in
//             the progress line before the first look, for the next engine to wait (layout.h).
// Stops:      time in which the program itself stood still is no node's fault: `patience` does not count it.
// Trust:      the block's bytes are checked: entries may point nowhere but into their channel and region.
// Threads:    the scheduler's.
// Source:     Cowbird §5.2 (phases), §5.3 (consistency), §6 (spot: overlap checks, batching).
#pragma once

#include <array>
#include <coroutine>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cowbird/error_log.h"
#include "cowbird/exports.h"
#include "cowbird/layout.h"
#include "cowbird/request_id.h"
#include "cowbird/status.h"
#include "remote/mapped.h"
#include "remote/remote_memory.h"

namespace sluice::cowbird {

struct EngineConfig {
  Duration probe_least = Duration::microseconds(2);
  Duration probe_most = Duration::milliseconds(1);
  Duration awake = Duration::milliseconds(20);
  std::uint32_t batch_size = 256;         // reads in one publication at most; 1: each by itself
  std::size_t copied_a_turn = 128 << 10;  // near bytes; then whatever else the loop does has its turn
  Duration heartbeat = Duration::milliseconds(50);
  Duration retry = Duration::milliseconds(1);  // after an operation that did not happen
  // An operation of a lost connection may still take effect for so long. Nothing is repeated sooner: a late WRITE would undo a newer one.
  Duration max_flight = Duration::milliseconds(100);
  Duration leaves_within = Duration::milliseconds(250);  // see Late work
  Duration patience = Duration::seconds(5);  // with a memory node that cannot be reached, from the first that failed on
  Exports* exports = nullptr;                // of the pool; null: nothing is known. Outlives the engine
};

struct EngineCounters {
  std::uint64_t probes = 0;
  std::uint64_t fetches = 0;  // READs of entries that did not come with a probe
  std::uint64_t reads = 0;    // completed, with success or not
  std::uint64_t writes = 0;
  std::uint64_t publications = 0;
  std::uint64_t response_writes = 0;  // WRITEs of response data
  std::uint64_t waited = 0;           // requests that had to wait for one that they overlap
  std::uint64_t looks = 0;            // at all writes that wait, whether they still must
  std::uint64_t retries = 0;
  std::uint64_t refused = 0;    // by a memory node that was asked
  std::uint64_t failed = 0;     // reported to the issuer as failed
  std::uint64_t denied = 0;     // of them, those that their memory node does not export, or refuses
  std::uint64_t malformed = 0;  // of them, those that made no sense

  EngineCounters& operator+=(const EngineCounters& more);
};

class Engine {
 public:
  static constexpr std::uint64_t kMostAtOnce = 1024;
  static constexpr std::size_t kMostPublications = 4;

  // Channel `channel` of the instance that lies at `block` in `compute`. The pool's nodes are those that the region table names.
  Engine(remote::Scheduler& scheduler, remote::RemoteMemory& compute, remote::RemoteAddress block,
         const InstanceLayout& layout, std::uint32_t channel, remote::RemoteMemory& pool, const EngineConfig& config);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  remote::Task<void> run();
  // run() ends soon: nothing new is begun.
  void stop();
  // The issuer's memory has made no sense (its tail or an entry): the engine has let go of the channel.
  bool broken() const { return broken_; }
  const EngineCounters& counters() const { return counters_; }
  std::uint64_t under_way() const { return fetched_ - retired_; }
  // Memory nodes to which the last operation did not come through.
  std::size_t troubled_nodes() const { return troubles_.size(); }

 private:
  static constexpr std::uint64_t kLeastAhead = 2;
  static constexpr std::uint64_t kMostAhead = 64;
  enum class State : std::uint8_t {
    kNew,
    kFetching,
    kReady,
    kMoving,
    kDone,
    kPublished
  };  // the last: by an earlier engine
  struct Request {
    Entry entry;
    const std::uint8_t* near = nullptr;  // where what a new read asks for is in this process; null: elsewhere
    State state = State::kNew;
    Status status = Status::kOk;
    bool waits = false;           // for one that it overlaps, as last looked
    std::uint32_t judged_by = 0;  // the reading of the regions
  };
  // Of a request, to a memory that is not near.
  struct Move {
    remote::Operation operation;
    Engine* engine = nullptr;
    std::uint64_t index = 0;
    Move* next_free = nullptr;
  };
  // A memory node to which the last operation did not come through.
  struct Trouble {
    std::uint32_t node;
    Time since;
    Time retry_at;            // nothing is moved there before
    bool is_nobodys = false;  // the pool does not know it
  };
  // Its operations are submitted in order, progress last; on an ordered compute node all at once, on others data first, then one after the other.
  struct Publication {
    std::vector<remote::Operation> operations;
    Engine* engine = nullptr;
    std::size_t data = 0;       // operations that tell the issuer nothing yet
    std::size_t submitted = 0;  // operations
    std::size_t open = 0;       // of them, not completed
    bool errors = false;        // are told, too: nothing follows it before it has ended
    std::uint64_t reads = 0;    // confirmed by it: the sequence of the last read,
    std::uint64_t retired = 0;  // and all requests before
    std::uint8_t progress[kLine] = {};
  };
  // One coroutine waits; whoever has something for it sets it.
  struct Signal {
    std::coroutine_handle<> waiter;
    bool set = false;
  };

  Request& request(std::uint64_t index) { return requests_[index & (layout_.shape.entries - 1)]; }
  const Request& request(std::uint64_t index) const { return requests_[index & (layout_.shape.entries - 1)]; }
  remote::RemoteAddress at(std::size_t offset) const { return channel_ + offset; }
  remote::RemoteAddress target(const Entry& entry) const;

  remote::Task<bool> attach();
  // Writes the progress line, alone, until that has come through; false: told to end before.
  remote::Task<bool> tell(Duration flight);
  // What the pool was asked for may still take effect for so long, should this engine be shut out now.
  Duration flight() const { return beside_rings_ ? config_.max_flight : config_.leaves_within * 2; }
  remote::Task<void> probe();
  remote::Task<bool> read_block(std::size_t offset, MutableBytes into);
  remote::Task<bool> read_regions(std::uint64_t generation);
  std::uint64_t exports_generation() const { return config_.exports == nullptr ? 0 : config_.exports->generation(); }
  bool regions_are_old(std::uint64_t generation) const {
    return !regions_known_ || generation != regions_generation_ || exports_generation() != exports_generation_;
  }
  // What was said of nodes that no region names any more. `before`: the regions until now.
  void forget_troubles(const std::vector<Region>& before);
  // Its memory node has refused the operation.
  void deny(const Request& r, const remote::Operation& operation);
  void find_near();
  bool near_is_known() const { return near_ == nullptr || near_->generation() == near_generation_; }
  // Where the next entries go when they are read, so many at most; not beyond the ring's end.
  MutableBytes room_for(std::uint64_t entries);
  MutableBytes room_ahead() { return ahead_pays_ ? room_for(ahead_) : MutableBytes(); }
  remote::Task<void> fetch(std::uint64_t tail);
  enum class Read : std::uint8_t { kWithTail, kAfterTail };
  // Those from fetched_ on, up to the first that makes no sense. False: there is one.
  bool take_entries(ByteView entries, Read when);
  bool accept(ByteView entries, Read when);
  void ask_for_next_slice();

  remote::Task<void> move();
  bool dispatch();
  std::uint32_t node_of(const Request& request) const { return regions_[request.entry.region].node; }
  // Null: all is well with its node.
  Trouble* trouble_of(const Request& request) { return troubles_.empty() ? nullptr : find_trouble(node_of(request)); }
  Trouble* find_trouble(std::uint32_t node);
  static Status out_of_reach(const Request& r) {
    return r.status == Status::kUnknown ? Status::kUnknown : Status::kUnreachable;
  }
  bool gave_up(const Trouble& trouble) const { return scheduler_.now() - trouble.since >= config_.patience; }
  // Its node is not to be tried just now, and there is still hope.
  bool held(const Request& request);
  // A successor may be at work already: nothing is written before the rings have been seen again.
  bool may_write() const { return beside_rings_ || scheduler_.now() < looked_ + config_.leaves_within; }
  void notice_stop();
  bool dispatch_new();
  bool dispatch_writes();
  bool dispatch_waiting_reads();
  // Moves what of a queue need not wait, in order. True: something, or that there is more to look at in the next turn.
  template <class MustWait>
  bool submit_unless(std::vector<std::uint64_t>& queue, MustWait must_wait);
  // Whether one of `writes`, by index, is earlier than the request, not done, and overlaps it.
  template <class Writes>
  bool waits_for_one_of(const Writes& writes, std::uint64_t index) const;
  bool read_must_wait(std::uint64_t index) const;
  bool write_must_wait(std::uint64_t index) const;
  bool overlaps_earlier_write(std::uint64_t index) const;
  bool overlaps_earlier_read(std::uint64_t index) const;
  // REQUIRES: near_is_known().
  const std::uint8_t* near_bytes(const Request& r) const {
    const bool read = r.entry.type == RwType::kRead && r.state == State::kNew;
    const std::uint8_t* const start = read ? near_regions_[r.entry.region] : nullptr;
    return start == nullptr ? nullptr : start + r.entry.req_addr;
  }
  std::uint8_t* staged(const Entry& entry) const { return staging_.get() + entry.local() - layout_.requests; }
  void submit_fetch(std::uint64_t index);
  void submit_move(std::uint64_t index);
  // Moves the request's bytes from `place` to where they are staged, or from there to it.
  void submit(std::uint64_t index, remote::RemoteMemory& memory, State state, remote::OpKind kind,
              const remote::RemoteAddress& place);
  static void on_complete(remote::Operation& operation);
  // Near, and so long that others would wait too long for it: it is moved a piece a turn.
  bool is_long(const Request& r) const { return r.entry.length > config_.copied_a_turn && is_all_near(r); }
  bool is_all_near(const Request& r) const;
  void begin_in_pieces(std::uint64_t index);
  remote::Task<void> move_in_pieces(std::uint64_t index);
  void notice_turn();
  void completed(std::uint64_t index, const remote::Operation& operation);
  void try_again(std::uint64_t index, const remote::Operation& operation);
  // In its old place: what overlaps it and comes later waits for it again.
  void queue_again(std::uint64_t index);
  remote::Task<void> fetch_again(std::uint64_t index);
  void finish(Request& r, Status status) {
    r.state = State::kDone;
    r.status = status;
    ++(r.entry.is_write() ? counters_.writes : counters_.reads);
    if (status == Status::kOk) return;
    ++counters_.failed;
    if (status == Status::kDenied) ++counters_.denied;
  }

  bool has_finished();
  bool ready_to_publish(const Request& request) const {
    return request.state == State::kDone &&
           (request.status == Status::kOk || errors_.has_room_for(request.entry, published_));
  }
  // To the first read that is in no publication yet; its index, or fetched_.
  std::uint64_t next_read() {
    for (; read_cursor_ != fetched_; ++read_cursor_) {
      const Request& r = request(read_cursor_);
      if (r.entry.type == RwType::kRead && r.state != State::kPublished) break;
    }
    return read_cursor_;
  }
  remote::Task<void> publish_all();
  Publication& publication(std::uint64_t index) { return publications_[index % kMostPublications]; }
  bool any_publication() const { return first_publication_ != next_publication_; }
  bool may_publish();
  void publish();
  void submit_rest(Publication& publication);
  void confirm();
  remote::Task<void> publish_again();
  void merge_publications();
  bool take_finished(Publication& publication);
  bool take(const Request& r) {
    if (r.state != State::kDone || (r.status != Status::kOk && !errors_.add(r.entry, r.status, published_)))
      return false;
    published_[r.entry.is_write()] = r.entry.sequence;
    return true;
  }
  // What has been staged for this part of the channel leaves in one WRITE.
  void add_responses(Publication& publication, std::size_t begin, std::size_t end);
  void compose_progress(std::uint8_t* line, Duration flight);
  static bool all_well(std::span<const remote::Operation> operations);

  // Nothing new is begun, and nothing of requests is in flight.
  bool over() const { return (stopping_ || broken_) && in_flight_ == 0 && !probing_; }
  void set(Signal& signal);
  void signal();  // both
  static auto wait_for(Signal& signal) {
    struct Awaiter {
      Signal& signal;
      bool await_ready() const { return signal.set; }
      void await_suspend(std::coroutine_handle<> handle) { signal.waiter = handle; }
      void await_resume() const { signal.set = false; }
    };
    return Awaiter{signal};
  }

  remote::Scheduler& scheduler_;
  remote::RemoteMemory& compute_;
  remote::RemoteMemory& pool_;
  remote::RemoteAddress block_;
  remote::RemoteAddress channel_;
  ChannelLayout layout_;
  EngineConfig config_;
  bool pool_ordered_;
  bool compute_ordered_;
  bool beside_rings_;           // they are memory of this process
  bool ahead_pays_;             // entries are read right behind the tail: one round trip less until they are there
  remote::MappedMemory* near_;  // what of the pool is memory of this process; null: nothing
  std::uint32_t longest_;       // that the pool moves at once
  bool stopping_ = false;
  bool broken_ = false;
  bool probing_ = false;  // probe() runs
  bool moving_ = false;   // move() runs
  bool cut_off_ = false;  // stopped, and a publication failed: none may follow it

  std::vector<Region> regions_;
  std::vector<const std::uint8_t*> near_regions_;  // where they start in this process; null: elsewhere
  std::uint64_t near_generation_ = 0;              // of near_, when that was found
  std::uint64_t regions_generation_ = 0;
  std::uint64_t exports_generation_ = 0;  // when the regions were last compared with them
  std::uint32_t regions_read_ = 0;        // times
  Time regions_again_;                    // when they may be read again
  bool regions_known_ = false;

  std::vector<Request> requests_;      // by index
  std::vector<std::uint8_t> entries_;  // as they have just been fetched
  std::uint64_t ahead_ = 0;            // entries that are read then: about as many as the last probes have found
  std::uint64_t retired_ = 0;          // all before are published, or in a publication under way
  std::uint64_t confirmed_ = 0;        // all before are published for certain
  std::uint64_t dispatched_ = 0;       // all before are no longer kNew, or wait in waiting_reads_
  std::uint64_t asked_ = 0;    // to the end of the next slice; beyond dispatched_ unless nothing may be dispatched now
  std::uint64_t fetched_ = 0;  // all before have been fetched
  // Writes before may have been carried out by an engine that did not live to publish them. Not known before the first look.
  std::optional<std::uint64_t> doubtful_to_;
  std::uint64_t sequence_[2] = {};         // of the newest fetched one
  std::uint64_t read_cursor_ = 0;          // all reads before are in a publication
  std::deque<Move> moves_;                 // as many as ever were in flight at once
  Move* free_moves_ = nullptr;             // the one that was used last comes first: its lines are still near
  std::deque<std::uint64_t> unpublished_;  // writes, by index
  std::vector<std::uint64_t> writes_;      // not yet submitted to the pool, by index
  std::vector<std::uint64_t> waiting_reads_;
  bool look_at_all_ = false;     // what waited for another need not wait any more, perhaps
  bool looking_at_all_ = false;  // in this dispatch()
  bool in_pieces_ = false;       // a long one is moved
  std::size_t copied_ = 0;       // near bytes in this turn of the loop, about
  Time turn_;
  std::vector<Trouble> troubles_;  // of nodes that regions name, and a few more until these are read again
  Time looked_;                    // when the last look at the rings that came through was begun
  Time seen_;                      // when this engine was last seen to run
  Time certain_from_;              // until then, what has ended without an answer may take effect
  Time retry_at_ = Time::never();  // when what waits for a node may be tried again
  std::uint64_t in_flight_ = 0;    // operations of requests

  std::uint64_t published_[2] = {};  // sequences of the last ones, those of publications under way included
  std::uint64_t reads_confirmed_ = 0;
  std::uint64_t heartbeat_ = 0;
  std::uint64_t epoch_ = 0;
  Time next_heartbeat_;
  std::array<Publication, kMostPublications> publications_;
  std::uint64_t first_publication_ = 0;  // that is under way
  std::uint64_t next_publication_ = 0;
  ErrorLog errors_;
  struct Free {
    void operator()(std::uint8_t* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::uint8_t[], Free> staging_;  // as the channel's two data rings lie, so that runs stay runs

  Signal to_move_;
  Signal to_publish_;
  EngineCounters counters_;
};

}  // namespace sluice::cowbird
