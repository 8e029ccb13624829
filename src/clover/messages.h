// The calls between Clover's clients and its metadata server, as bytes.
//
// Request:    u8 version | u8 type | u16 count | u32 client | u32 sequence | u32 store | body
// Answer:     u8 version | u8 type + 0x80 | u16 count | u8 result | u8 flags (below) | u16 0 | u32 view | u32 lease_us | u64 clock | body
//             All little-endian; `count` counts the entries of the body; nothing may follow them.
//
//   type        request body                      answer body
//   kRegister   -                                 u32 client, u32 value_bytes, u32 cursor_us, u32 flight_us, count volumes (below), u32 store
//   kRefresh    -                                 the same
//   kLookup     keys, u64 each                    nodes, u64 each, to begin walks at (0: no such key)
//   kCreate     u64 key, u64 node                 u64: the node itself, or with kExists a node of the chain that is there
//   kReport     {u64 key, u64 node, u64 stamp}    -
//   kSealed     u64 key, u64 node                 -   (the chain ended at `node` for good)
//   kAllocate   u64 wanted [u64 volume]           slots (of that volume first), u64 each; none: u64 wait_us until one comes free (0: nobody knows)
//   kRelease    slots, u64 each                   -   (not linked, never will be)
//   kOrphan     slots, u64 each                   -   (perhaps linked, by a CAS whose outcome is not known)
//   kWork       -                                 {u64 kind, u64 key, u64 node} each, see WorkKind; the request's count: at most
//   kChecked    {u64 key, u64 slot}               -   (orphans that no walk along the chain of the key they hold has met; in journals of old slots alone)
//   kSuspect    u32 node id                       -
//   kLeave      -                                 -   (count 1: nothing that the client did is under way)
//   kSettled    u32 view                          -   (what the client did under views before that has been reported)
//   kLetGo      u32 view                          -   (nothing that the client did under that view, or one before, is under way, and it does no more)
//   volume      u64 length | u64 base of pointers | u32 replicas | u32 live mask + primary << 8 + dead mask << 16 | {u32 node, u32 region key, u64 base} a replica
//
// clock:      how many versions, and orphans that were not met, the server has been told of. A client that begins a CAS or a READ after it has seen clock c
//             stamps what it reports about it with c: all that the server had been told of by then is older.
// lease_us:   the client may act on the answer's view for so long after it sent the request.
// flags:      1: there is work (kWork). 2: the view ends as soon as all clients have let go of it (kLetGo). 4: few slots are free: whoever has more
//             than it needs is to give them back (kRelease).
// sequence:   a repeated kAllocate with the sequence of the one before gets the same slots again.
// store:      the number of the store that the client is one of. In any other nobody knows it (kExpired), whoever has its number there.
// Invariant:  parsing never reads past the end and never trusts a count; what is malformed is answered with kMalformed.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "clover/volumes.h"
#include "remote/message_channel.h"

namespace sluice::clover {

inline constexpr std::uint8_t kMessageVersion = 3;
inline constexpr std::size_t kRequestHeader = 16;
inline constexpr std::size_t kAnswerHeader = 24;

enum class Request : std::uint8_t {
  kRegister = 1,
  kRefresh,
  kLookup,
  kCreate,
  kReport,
  kSealed,
  kAllocate,
  kRelease,
  kOrphan,
  kWork,
  kChecked,
  kSuspect,
  kLeave,
  kSettled,
  kLetGo,
};

enum class Answer : std::uint8_t {
  kOk,
  kExists,
  kNoSpace,
  kExpired,  // no such client (any more): register again
  kRefused,  // understood and not possible (a slot that is not the client's)
  kMalformed,
};

enum class WorkKind : std::uint64_t {
  kSettle = 1,  // walk from `node` to the tail and report it
  kSeal = 2,    // the same; if the tail is a tombstone, seal it and answer kSealed
  kOrphan = 3,  // read `node`, walk the chain of the key it holds: report `node` when met, else answer kChecked
};

struct RequestHeader {
  Request type{};
  std::uint16_t count = 0;
  std::uint32_t client = 0;
  std::uint32_t sequence = 0;
  std::uint32_t store = 0;
};

struct AnswerHeader {
  std::uint8_t type = 0;  // Request + 0x80
  std::uint16_t count = 0;
  Answer result{};
  bool work_waits = false;
  bool view_ends = false;
  bool slots_short = false;
  std::uint32_t view = 0;
  std::uint32_t lease_us = 0;
  std::uint64_t clock = 0;
};

// `node` is in the chain of `key`, and all that the server had been told of by `stamp` comes before it.
struct Link {
  Key key = 0;
  NodePointer node;
  std::uint64_t stamp = 0;
};

struct Work {
  WorkKind kind{};
  Key key = 0;
  NodePointer node;
};

// How many of each fit into one message: of the two headers the answer's is the longer.
inline constexpr std::size_t kMaxSlotsPerMessage = (remote::kMaxMessage - kAnswerHeader) / 8;  // keys and nodes as well
inline constexpr std::size_t kMaxLinksPerMessage = (remote::kMaxMessage - kAnswerHeader) / 24;  // work as well
static_assert(kAnswerHeader >= kRequestHeader);

// What a client must know of the store.
struct StoreView {
  std::uint32_t client = 0;
  std::uint32_t value_bytes = 0;
  Duration cursor_lifetime;
  Duration max_flight;
  std::uint32_t number = 0;  // from the answer's header
  std::vector<Volume> volumes;
  std::uint32_t store = 0;
};

// Writes little-endian numbers one after the other. What no longer fits is not written and makes ok() false.
class MessageWriter {
 public:
  explicit MessageWriter(MutableBytes bytes) : bytes_(bytes) {}
  template <std::unsigned_integral T>
  void put(T value) {
    if (bytes_.size() - length_ < sizeof value) {
      ok_ = false;
      return;
    }
    store_le(bytes_.data() + length_, value);
    length_ += sizeof value;
  }
  bool ok() const { return ok_; }
  std::size_t length() const { return length_; }

 private:
  MutableBytes bytes_;
  std::size_t length_ = 0;
  bool ok_ = true;
};

// Reads them back. What is not there reads as 0 and makes ok() false.
class MessageReader {
 public:
  explicit MessageReader(ByteView bytes) : bytes_(bytes) {}
  template <std::unsigned_integral T>
  T take() {
    if (bytes_.size() - at_ < sizeof(T)) {
      ok_ = false;
      return 0;
    }
    const T value = load_le<T>(bytes_.data() + at_);
    at_ += sizeof(T);
    return value;
  }
  std::uint64_t take64() { return take<std::uint64_t>(); }
  bool ok() const { return ok_; }
  std::size_t left() const { return bytes_.size() - at_; }

 private:
  ByteView bytes_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

void put_header(MessageWriter& out, const RequestHeader& header);
void put_header(MessageWriter& out, const AnswerHeader& header);
std::optional<RequestHeader> take_request_header(MessageReader& in);
std::optional<AnswerHeader> take_answer_header(MessageReader& in);

// The body of kRegister's and kRefresh's answers; the number of volumes stands in the header.
void put_view(MessageWriter& out, const StoreView& view);
std::optional<StoreView> take_view(MessageReader& in, std::uint16_t volumes);

}  // namespace sluice::clover
