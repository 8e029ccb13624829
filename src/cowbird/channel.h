// Channel: the issuing side of one thread. A request is a few stores into rings; an engine elsewhere moves the data.
//
// Life:       Channel(block) -> async_read/async_write return ids -> collect() copies what has arrived to its destinations and says which
//             requests are complete; or advance() does so, and poll groups (poll_group.h) pick from what is complete.
// Order:      requests of one type complete in the order of issue. A read sees every earlier write of this channel that it overlaps.
// Cost:       no system call, no lock, no read-modify-write; plain stores and three release stores a request (free on x86).
// Units:      bytes.
// Errors:     a refused call returns its Status negated, and nothing has been issued; what befalls a request later is in its Completion.
// Threads:    one owner a channel. The block is shared with an engine.
// Limits:     a request's length: its data ring. Requests under way: shape.entries, or what the data rings hold. Requests of a type in its life: what ids have
//             room for (request_id.h); then its ring is full for ever.
// Source:     Cowbird §4.1 (Table 2), §4.3.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "cowbird/layout.h"
#include "cowbird/request_id.h"
#include "cowbird/ring_words.h"
#include "cowbird/status.h"

namespace sluice::cowbird {

struct Completion {
  RequestId id;
  Status status = Status::kOk;
};

struct ChannelCounters {
  std::uint64_t reads = 0;
  std::uint64_t writes = 0;
  std::uint64_t full = 0;  // calls refused for a full ring
  std::uint64_t refused = 0;
  std::uint64_t failed = 0;  // requests that an engine reported as failed
};

// `Words`: how it touches the block, PlainWords but for the test that tries every order (ring_explorer_test.cpp).
template <class Words>
class BasicChannel {
 public:
  // `words`: the channel's block, 8-byte aligned (64: no line is shared with a neighbour), zero or as an earlier issuer left them when all its requests were complete.
  // `regions`: by id; must outlive the channel.
  BasicChannel(Words words, const ChannelLayout& layout, const std::vector<Region>& regions);
  // REQUIRES: block.size() >= layout.bytes.
  BasicChannel(MutableBytes block, const ChannelLayout& layout, const std::vector<Region>& regions)
      : BasicChannel(Words(checked(block, layout)), layout, regions) {}

  // The id of the request, or a negated Status. The destination must stay valid until the request is complete.
  std::int64_t async_read(std::uint16_t region, std::uint64_t from, void* to, std::uint32_t length);
  // The source may be used again at once.
  std::int64_t async_write(std::uint16_t region, const void* from, std::uint64_t to, std::uint32_t length);

  // Takes what the engine has completed: reads' bytes are at their destinations afterwards. Cheap when there is nothing.
  void advance();
  // The same for at most out.size() requests, and says which: oldest first of each type. Neither type waits for the other for ever.
  std::size_t collect(std::span<Completion> out);
  // Complete, as of the last advance().
  bool is_complete(RequestId id) const { return id.sequence() <= done_[id.is_write()]; }
  // Issued, so that it can be waited for.
  bool is_issued(RequestId id) const {
    return id.value() > 0 && id.sequence() != 0 && id.sequence() <= issued_[id.is_write()];
  }
  // What became of a complete request. Failures one after the other for the same reason are one memory; of those that the last kRemembered
  // do not reach, and of what completed before them, it is kForgotten. What has just been collected is always known.
  Status status_of(RequestId id) const {
    const bool write = id.is_write();
    return id.sequence() > newest_failure_[write] ? Status::kOk : look_up(failures_[write], id.sequence());
  }

  std::uint64_t under_way() const { return issued_[0] + issued_[1] - done_[0] - done_[1]; }
  std::uint64_t completed(RwType type) const { return done_[type == RwType::kWrite]; }
  // A request of it is under way, as of what the engine has published by now.
  bool is_in_use(std::uint16_t region) const;
  // Changes as long as an engine lives, even an idle one.
  std::uint64_t heartbeat() const { return words_.load(ChannelLayout::kProgress + ProgressLine::kHeartbeat); }
  // Regions have changed: the engine reads the table again before the next request.
  void set_regions_generation(std::uint64_t generation);
  const ChannelCounters& counters() const { return counters_; }

  static constexpr std::size_t kRemembered = 1024;

 private:
  // A data ring of which only this side knows how far it is filled. Positions count bytes and never turn back.
  struct DataRing {
    // Where `at` is the offset in the ring, and new_tail the position behind it. at == size: there is no room.
    struct Place {
      std::uint64_t at;
      std::uint64_t new_tail;
    };
    std::size_t start = 0;  // in the channel
    std::uint64_t size = 0;
    std::uint64_t head = 0;
    std::uint64_t tail = 0;
    std::uint64_t tail_at = 0;  // tail modulo size: a division costs as much as all stores of a request
    // Room for `length` bytes in one piece. Moves nothing.
    Place place(std::uint64_t length) const;
    // From the start of the ring, if it is empty: what lies behind the tail may be too short.
    bool begin_anew();
    void take(const Place& place, std::uint64_t length);
  };
  struct Pending {
    std::uint64_t new_head = 0;  // of its data ring, once complete
    void* to = nullptr;          // reads: where the bytes go
    std::uint32_t length = 0;
    std::uint32_t at = 0;  // reads: offset in the response ring
    std::uint16_t region = 0;
  };
  struct Done {
    std::uint64_t reads;
    std::uint64_t writes;
  };
  // Requests of one type, one after the other, that failed alike.
  struct Failed {
    std::uint64_t first;
    std::uint64_t last;
    Status status;
  };
  // In the order of sequence. All that lie before kRemembered others are forgotten.
  struct Failures {
    std::deque<Failed> runs;
    std::uint64_t forgotten = 0;  // all that failed up to here
  };

  Status check(std::uint16_t region, std::uint64_t offset, std::uint32_t length, std::uint64_t ring);
  bool has_room(RwType type);
  void put(const Entry& entry);
  void own_next();
  Done progress() const;
  Status take_read(const Pending& read, RequestId id);
  Completion take_oldest(RwType type);
  void take_errors();
  bool note_failure(RequestId id, Status status);  // true: it is news
  static Status look_up(const Failures& failures, std::uint64_t sequence);
  std::int64_t refuse(Status status);

  static std::uint8_t* checked(MutableBytes block, const ChannelLayout& layout);

  Words words_;
  ChannelLayout layout_;
  const std::vector<Region>& regions_;
  std::uint64_t mask_;
  std::uint64_t tail_ = 0;
  std::uint64_t head_ = 0;  // of the metadata ring, as last seen
  DataRing requests_;
  DataRing responses_;
  std::uint64_t issued_[2] = {};     // reads, writes
  std::uint64_t done_[2] = {};       // taken by advance() or collect()
  std::vector<Pending> pending_[2];  // by sequence
  bool writes_first_ = false;        // in the next collect()
  std::uint64_t errors_taken_ = 0;
  std::uint64_t newest_failure_[2] = {};
  Failures failures_[2];
  ChannelCounters counters_;
};

using Channel = BasicChannel<PlainWords>;
extern template class BasicChannel<PlainWords>;

}  // namespace sluice::cowbird
