// A FASTER device whose log lies in a rack's remote memory, through Cowbird: for FASTER's C++ store, compiled against your own checkout.
//
// Use:        include FASTER's headers, then this one; in place of FASTER's disk type
//                 using disk_t = sluice::faster::CowbirdDisk<FASTER::device::FileSystemDisk<handler_t, 1073741824L>>;
//             and give the store the configuration "memory_node=memory1,capacity=17179869184". Link libcowbird (its header: installed, or -I<sluice>/src).
//             Checkpoints stay files of the disk type that is wrapped; only the log is remote. `sluice cowbird engine` must run.
// Life:       ReadAsync, WriteAsync -> TryComplete() of any thread calls back. Nothing calls back before. A callback may read again.
//             A full ring is absorbed: what does not fit is issued by later calls. An absent engine only delays.
// Order:      reads of what has been written see it once the write has called back, as the store uses it.
// Limits:     64 bytes of alignment of offsets and lengths; what lies between the log's begin and its end: `capacity` bytes. A write
//             beyond that calls back with IOError, and so does a request that the memory node refuses.
// Begin:      Truncate's offset; 0 before there was any. A store that recovers tells nobody where its log begins: on one that is longer than `capacity` already the
//             device knows it from the setting `begin`, or from the first Truncate on. Until then it lets writes go on, over what lies `capacity` behind them.
// Node:       one that lost its lease or was started anew refuses for good: whether the log is still there, nobody here can tell. A new process
//             may recover from it.
// Threads:    any. Each thread issues on a lane (`lanes`, [4]) with a lock of its own, never held in a callback.
// Source:     Cowbird §5 (FASTER); FASTER C++, its device interface.
#pragma once

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#if __has_include("libcowbird/cowbird.h")
#include "libcowbird/cowbird.h"  // of a build tree
#else
#include <cowbird.h>
#endif

namespace sluice::faster {

struct CowbirdLogOptions {
  std::string memory_node = "memory1";
  std::string engine{};               // its socket; empty: of the rack in its usual place
  std::uint64_t offset = 0;           // in the node's memory
  std::uint64_t capacity = 1u << 30;  // bytes, a multiple of 64
  std::uint32_t lanes = 4;
  static constexpr std::uint64_t kUnknown = UINT64_MAX;
  std::uint64_t begin = kUnknown;  // of a log that is there already: what Truncate was last told

  // "memory_node=memory1,capacity=17179869184,offset=0,lanes=4,begin=0,engine=/path". Throws std::invalid_argument.
  static CowbirdLogOptions parse(std::string_view text) {
    CowbirdLogOptions o;
    while (!text.empty()) {
      const auto comma = std::min(text.find(','), text.size());
      const std::string_view one = text.substr(0, comma);
      text.remove_prefix(std::min(comma + 1, text.size()));
      const auto equals = one.find('=');
      if (equals == one.npos) throw std::invalid_argument("cowbird: name=value expected: " + std::string(one));
      o.set(one.substr(0, equals), one.substr(equals + 1));
    }
    return o;
  }

 private:
  void set(std::string_view name, std::string_view value) {
    if (name == "memory_node") {
      memory_node = value;
    } else if (name == "engine") {
      engine = value;
    } else if (name == "offset") {
      offset = number(value);
    } else if (name == "capacity") {
      capacity = number(value);
    } else if (name == "lanes") {
      lanes = static_cast<std::uint32_t>(std::min<std::uint64_t>(number(value), UINT32_MAX));
    } else if (name == "begin") {
      begin = number(value);
    } else {
      throw std::invalid_argument("cowbird: no such setting: " + std::string(name));
    }
  }
  static std::uint64_t number(std::string_view text) {
    std::uint64_t n = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (error != std::errc() || end != text.data() + text.size()) {
      throw std::invalid_argument("cowbird: a number expected: " + std::string(text));
    }
    return n;
  }
};

// What every log has that is no file: nothing to open or delete, an alignment of its own.
class LogInMemory {
 public:
  using Status = FASTER::core::Status;
  using Context = FASTER::core::IAsyncContext;
  using Callback = FASTER::core::AsyncIOCallback;

  template <class Handler>
  Status Open(Handler*) {
    return Status::Ok;
  }
  Status Close() { return Status::Ok; }
  Status Delete() { return Status::Ok; }
  // Not a disk's sector: what remote memory saves is read amplification.
  static constexpr std::uint32_t alignment() { return 64; }
};

// The log: FASTER's log_file_t.
class CowbirdLog : public LogInMemory {
 public:
  CowbirdLog() = default;  // of a store without storage: never used
  // Throw std::invalid_argument or std::runtime_error, which say what to do.
  explicit CowbirdLog(const std::string& config) : CowbirdLog(CowbirdLogOptions::parse(config)) {}
  explicit CowbirdLog(const CowbirdLogOptions& options) : capacity_(options.capacity), begin_(options.begin) {
    if (options.capacity == 0 || options.capacity % alignment() != 0) {
      throw std::invalid_argument("cowbird: capacity must be a multiple of 64 bytes");
    }
    if (options.lanes < 1 || options.lanes > 256) throw std::invalid_argument("cowbird: lanes must be from 1 to 256");
    cowbird_options_t o{};
    o.engine = options.engine.empty() ? nullptr : options.engine.c_str();
    o.threads = options.lanes;
    o.request_bytes = o.response_bytes = kRingBytes;
    cowbird_.reset(cowbird_open(&o));
    if (cowbird_ == nullptr) throw std::runtime_error(cowbird_last_error());
    const int region =
        cowbird_region_add(cowbird_.get(), options.memory_node.c_str(), options.offset, options.capacity, 0);
    if (region < 0) throw std::runtime_error(cowbird_last_error());
    region_ = static_cast<std::uint16_t>(region);
    for (std::uint32_t i = 0; i < options.lanes; ++i) {
      lanes_.push_back(std::make_unique<Lane>());
      lanes_.back()->thread = cowbird_thread(cowbird_.get(), i);
    }
  }

  // What lies before `offset` is given up, and the store's garbage collection is told so.
  template <class GcState>
  void Truncate(std::uint64_t offset, const GcState& gc_state) {
    std::uint64_t begin = begin_.load();
    while ((begin == kUnknown || begin < offset) && !begin_.compare_exchange_weak(begin, offset)) {
    }
    if constexpr (std::is_pointer_v<GcState>) {  // older FASTER: a function, or none
      if (gc_state != nullptr) gc_state(offset);
    } else {
      gc_state.IssueTruncateCallback(offset);
    }
  }

  // The context is copied before the call returns; `to` and `from` stay until the callback.
  Status ReadAsync(std::uint64_t offset, void* to, std::uint32_t length, Callback callback, Context& context) const {
    return start(false, offset, static_cast<std::uint8_t*>(to), length, callback, context);
  }
  Status WriteAsync(const void* from, std::uint64_t offset, std::uint32_t length, Callback callback, Context& context) {
    auto* const bytes = static_cast<std::uint8_t*>(const_cast<void*>(from));  // never written to
    return start(true, offset, bytes, length, callback, context);
  }

  // Calls back what has completed: what this thread has issued; that of others from time to time, in case they do not ask any more. True: something has.
  bool TryComplete() {
    if (lanes_.empty()) return false;
    Lane& mine = lane();
    bool any = false;
    {
      const std::scoped_lock lock(mine.mutex);
      advance(mine);
      if (mine.ended.empty() && ++mine.vain_turns % kVainTurns != 0) return false;
    }
    any = call_back(mine);
    if (any) return true;
    for (const auto& other : lanes_) {
      {
        const std::unique_lock lock(other->mutex, std::try_to_lock);
        if (!lock) continue;  // its owner is at it
        advance(*other);
      }
      any = call_back(*other) || any;
    }
    return any;
  }

 private:
  static constexpr std::uint32_t kRingBytes = 1u << 20;
  static constexpr std::uint32_t kPiece = 64u << 10;  // of a request in the rings
  static constexpr std::uint32_t kVainTurns = 64;     // before a turn for the others

  struct Operation {
    bool write = false;
    bool failed = false;
    std::uint64_t offset = 0;
    std::uint8_t* bytes = nullptr;
    std::uint32_t length = 0;
    std::uint32_t issued = 0;
    std::uint32_t completed = 0;
    Callback callback = nullptr;
    Context* context = nullptr;
  };
  struct Piece {
    std::int64_t id;
    std::uint32_t length;
    Operation* operation;
  };
  struct Lane {
    std::mutex mutex;
    cowbird_thread_t* thread = nullptr;
    std::deque<Operation> operations;  // all there are
    std::vector<Operation*> idle;      // of them
    std::deque<Operation*> waiting;    // not wholly issued
    std::deque<Piece> under_way[2];    // reads, writes: each complete in their order
    std::deque<Operation*> ended;      // to be called back
    std::uint32_t vain_turns = 0;
  };
  struct Closer {
    void operator()(cowbird_t* cowbird) const { cowbird_close(cowbird); }
  };

  Lane& lane() const {
    static std::atomic<std::uint32_t> threads{0};
    thread_local const std::uint32_t mine = threads++;
    return *lanes_[mine % lanes_.size()];
  }

  Status start(bool write, std::uint64_t offset, std::uint8_t* bytes, std::uint32_t length, Callback callback,
               Context& context) const {
    if (lanes_.empty()) return Status::IOError;
    Context* copy = nullptr;
    if (const Status copied = context.DeepCopy(copy); copied != Status::Ok) return copied;
    Lane& mine = lane();
    const std::scoped_lock lock(mine.mutex);
    if (mine.idle.empty()) mine.idle.push_back(&mine.operations.emplace_back());
    Operation* const o = mine.idle.back();
    mine.idle.pop_back();
    const bool beyond = length > capacity_ || (write && !has_room(offset, length));
    *o = {write, beyond, offset, bytes, length, 0, 0, callback, copy};
    if (length == 0 || beyond) {
      mine.ended.push_back(o);
      return Status::Ok;  // the store looks at the callback alone
    }
    if (!mine.waiting.empty() || !issue(mine, *o)) mine.waiting.push_back(o);
    return Status::Ok;
  }

  // Whether a write there spares what the log has before it.
  bool has_room(std::uint64_t offset, std::uint32_t length) const {
    std::uint64_t begin = begin_.load();
    // The log grows at its end alone: one that still fits was never truncated, or it may be taken so.
    if (begin == kUnknown && offset + length <= capacity_ && begin_.compare_exchange_strong(begin, 0)) begin = 0;
    return begin == kUnknown || offset + length <= begin + capacity_;
  }

  // Issues what the rings take of it. False: they take no more now.
  bool issue(Lane& lane, Operation& o) const {
    while (o.issued < o.length && !o.failed) {
      const std::uint64_t at = (o.offset + o.issued) % capacity_;
      const auto length =
          static_cast<std::uint32_t>(std::min<std::uint64_t>({o.length - o.issued, kPiece, capacity_ - at}));
      auto& pieces = lane.under_way[o.write];
      pieces.push_back({0, length, &o});  // before it is issued: then it must have its place
      const std::int64_t id = o.write ? cowbird_async_write(lane.thread, region_, o.bytes + o.issued, at, length)
                                      : cowbird_async_read(lane.thread, region_, at, o.bytes + o.issued, length);
      if (id < 0) pieces.pop_back();
      if (COWBIRD_IS_FULL(id)) return false;
      o.failed = id < 0;
      if (o.failed) break;
      pieces.back().id = id;
      o.issued += length;
    }
    if (o.failed && o.completed == o.issued) lane.ended.push_back(&o);
    return true;
  }

  // Takes what is complete, and issues what waits. Under the lane's lock.
  void advance(Lane& lane) const {
    if (!(lane.under_way[0].empty() && lane.under_way[1].empty())) collect(lane);
    while (!lane.waiting.empty() && issue(lane, *lane.waiting.front())) lane.waiting.pop_front();
  }
  void collect(Lane& lane) const {
    cowbird_completion_t done[64];
    const int n = cowbird_collect(lane.thread, done, 64);  // an engine that is absent only delays
    for (int i = 0; i < n; ++i) {
      auto& reads = lane.under_way[0];
      auto& pieces = !reads.empty() && reads.front().id == done[i].request ? reads : lane.under_way[1];
      const Piece piece = pieces.front();
      pieces.pop_front();
      Operation& o = *piece.operation;
      o.completed += piece.length;
      o.failed = o.failed || done[i].status != 0;
      const bool waits = !lane.waiting.empty() && lane.waiting.front() == &o;
      if (!waits && o.completed == o.issued) lane.ended.push_back(&o);
    }
  }

  // Each is taken off before it is called back: a callback may come here again while it waits for others to be called back.
  bool call_back(Lane& lane) const {
    bool any = false;
    while (true) {
      Operation o;
      {
        const std::scoped_lock lock(lane.mutex);
        if (lane.ended.empty()) return any;
        o = *lane.ended.front();
        lane.idle.push_back(lane.ended.front());
        lane.ended.pop_front();
      }
      o.callback(o.context, o.failed ? Status::IOError : Status::Ok, o.failed ? 0 : o.length);
      any = true;
    }
  }

  static constexpr std::uint64_t kUnknown = CowbirdLogOptions::kUnknown;

  std::uint64_t capacity_ = 0;
  mutable std::atomic<std::uint64_t> begin_{kUnknown};
  std::unique_ptr<cowbird_t, Closer> cowbird_;
  std::uint16_t region_ = 0;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

// FASTER's disk type: LocalDisk's files for checkpoints, a Log in place of its log.
template <class LocalDisk, class Log>
class DiskWithLog : public LocalDisk {
 public:
  using log_file_t = Log;

  // As LocalDisk's, but for the configuration, which is the log's. Throws as Log does. Without a root path the store has no storage (FASTER's compaction
  // makes one for a while): nothing is opened.
  template <class Epoch>
  DiskWithLog(const std::string& folder, Epoch& epoch, const std::string& config = "")
      : LocalDisk(folder, epoch, "", false, kUnbuffered), log_(folder.empty() ? Log() : Log(config)) {}

  static constexpr std::uint32_t sector_size() { return Log::alignment(); }
  const log_file_t& log() const { return log_; }
  log_file_t& log() { return log_; }
  bool TryComplete() {
    const bool local = LocalDisk::TryComplete();
    return log_.TryComplete() || local;
  }

 private:
  // Of checkpoint files: they are written from memory that is aligned for the log, not for a disk.
  static constexpr bool kUnbuffered = false;

  log_file_t log_;
};

template <class LocalDisk>
using CowbirdDisk = DiskWithLog<LocalDisk, CowbirdLog>;

}  // namespace sluice::faster
