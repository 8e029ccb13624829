// RemoteMemory: one-sided access to the memory of other nodes; what every data structure is written against.
//
// Life:       fill an Operation -> submit() -> it completes with a Status, once -> its coroutine goes on the ready queue.
//             Or simply: `const Status s = co_await remote.write(address, bytes);`
// Order:      operations that one RemoteMemory submits to one node take effect in the order of submission where
//             capabilities().ordered says so; operations to different nodes are not ordered. A read may take effect at any time
//             until it completes (a retransmitted READ executes again): await it before submitting what writes those bytes, or
//             lets others write them.
// Units:      bytes. Atomics act on 8 aligned bytes, in the byte order of the memory node (little-endian).
// Errors:     every operation ends in a Status; none throws. kUnknown says that the effect may or may not have taken place.
// Threads:    one owner, the thread of the Scheduler.
// Source:     ARCHITECTURE.md "Contracts".
#pragma once

#include <coroutine>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "base/strong.h"
#include "remote/scheduler.h"

namespace sluice::remote {

using NodeId = Strong<struct NodeIdTag, std::uint32_t>;
// The key of a region as its owner published it (an RC rkey, a 1RMA region key).
using RegionKey = Strong<struct RegionKeyTag, std::uint32_t>;

struct RemoteAddress {
  NodeId node;
  RegionKey key;
  std::uint64_t address = 0;

  friend constexpr auto operator<=>(const RemoteAddress&, const RemoteAddress&) = default;
  friend constexpr RemoteAddress operator+(RemoteAddress a, std::uint64_t offset) {
    a.address += offset;
    return a;
  }
};

enum class Status : std::uint8_t {
  kOk,
  kAccessDenied,  // bad key, out of bounds, right not granted: nothing happened
  kMisaligned,    // atomic not on 8 bytes: nothing happened
  kUnsupported,   // this backend has no such operation: nothing happened
  kNodeUnknown,   // no such node in this RemoteMemory: nothing happened
  kUnreachable,   // no connection to the node: nothing happened
  kTooLong,       // longer than capabilities().max_length: nothing happened
  kUnknown,       // the connection was lost meanwhile: it may have happened or not
};
std::string_view to_string(Status status);

enum class OpKind : std::uint8_t { kRead, kWrite, kCompareAndSwap, kFetchAndAdd };

// One operation. Lives (usually in a coroutine's frame) until it has completed; its local bytes too.
struct Operation {
  bool is_atomic() const { return kind == OpKind::kCompareAndSwap || kind == OpKind::kFetchAndAdd; }

  OpKind kind{};
  Status status = Status::kOk;  // valid once completed
  RemoteAddress remote{};
  MutableBytes local{};           // kRead: destination; kWrite: source (never written to)
  std::uint64_t compare = 0;      // kCompareAndSwap
  std::uint64_t swap_or_add = 0;  // kCompareAndSwap: new value; kFetchAndAdd: addend
  std::uint64_t prior = 0;        // atomics, once completed: the value before
  // Called once, by the backend. May submit other operations, must not resume coroutines.
  void (*on_complete)(Operation&) = nullptr;
  void* context = nullptr;
  Operation* next = nullptr;  // for the backend's own queues, until completed
  // Of a WRITE or an atomic, where the backend knows when packets leave: none does later. Until completed.
  Time not_after = Time::never();
};

Operation read_operation(RemoteAddress from, MutableBytes into);
Operation write_operation(RemoteAddress to, ByteView bytes);
Operation swap_operation(RemoteAddress at, std::uint64_t compare, std::uint64_t swap);
Operation add_operation(RemoteAddress at, std::uint64_t add);

struct Capabilities {
  bool atomics = false;
  bool ordered = false;          // see "Order" above
  std::uint32_t max_length = 0;  // of one read or write
  std::string_view name;         // "rc", "local", …
};

// What has gone over the wire for whom: for bytes and round trips an operation.
struct Traffic {
  std::uint64_t operations = 0;
  std::uint64_t payload_bytes = 0;
};

struct AtomicResult {
  Status status;
  std::uint64_t prior;
};

class MappedMemory;

class RemoteMemory {
 public:
  explicit RemoteMemory(Scheduler& scheduler) : scheduler_(scheduler) {}
  virtual ~RemoteMemory() = default;

  virtual Capabilities capabilities() const = 0;
  // Takes the operation; completes it later or at once, always through on_complete. May be called from on_complete.
  virtual void submit(Operation& operation) = 0;
  // The part of it that is memory of this process, for whoever wants to reach that without operations (mapped.h). Null: there is none.
  virtual MappedMemory* mapped() { return nullptr; }

  Scheduler& scheduler() const { return scheduler_; }
  const Traffic& traffic() const { return traffic_; }

  // An operation that can be awaited; submitted when it is, or earlier by start() so that several run at once.
  class [[nodiscard]] Awaitable {
   public:
    // Submits now; a later co_await only waits. The object must then stay where it is.
    Awaitable& start();
    bool await_ready() {
      start();
      return done_;
    }
    void await_suspend(std::coroutine_handle<> handle) { waiter_ = handle; }

    // Neither copied nor moved: the backend holds on to it. (g++ 12 silently copies the operand of `co_await f()` when f returns a
    // reference; so it does not compile. Name it first: `auto& a = f(); co_await a;`)
    Awaitable(const Awaitable&) = delete;
    Awaitable& operator=(const Awaitable&) = delete;

   protected:
    friend class RemoteMemory;
    Awaitable(RemoteMemory& remote, const Operation& operation) : remote_(remote), operation_(operation) {}

    RemoteMemory& remote_;
    Operation operation_;
    std::coroutine_handle<> waiter_;
    bool started_ = false;
    bool done_ = false;
  };
  struct StatusAwaitable : Awaitable {
    using Awaitable::Awaitable;
    Status await_resume() const { return operation_.status; }
  };
  struct AtomicAwaitable : Awaitable {
    using Awaitable::Awaitable;
    AtomicResult await_resume() const { return {operation_.status, operation_.prior}; }
  };

  // Submits several operations at once and waits for all of them; their results stand in them.
  class [[nodiscard]] BatchAwaitable {
   public:
    BatchAwaitable(RemoteMemory& remote, std::span<Operation> operations) : remote_(remote), operations_(operations) {}
    BatchAwaitable(const BatchAwaitable&) = delete;
    BatchAwaitable& operator=(const BatchAwaitable&) = delete;
    bool await_ready() const { return operations_.empty(); }
    bool await_suspend(std::coroutine_handle<> handle);
    void await_resume() const {}

   private:
    RemoteMemory& remote_;
    std::span<Operation> operations_;
    std::coroutine_handle<> waiter_;
    std::size_t open_ = 0;
  };
  // REQUIRES: operations made by the functions below; they and their bytes stay where they are until all have completed.
  BatchAwaitable all(std::span<Operation> operations) { return {*this, operations}; }

  // REQUIRES: the local bytes stay valid until the result is there.
  StatusAwaitable read(RemoteAddress from, MutableBytes into);
  StatusAwaitable write(RemoteAddress to, ByteView bytes);
  AtomicAwaitable compare_and_swap(RemoteAddress at, std::uint64_t compare, std::uint64_t swap);
  AtomicAwaitable fetch_and_add(RemoteAddress at, std::uint64_t add);

 protected:
  void count(const Operation& operation) {
    ++traffic_.operations;
    traffic_.payload_bytes += operation.local.size();
  }
  static void complete(Operation& operation, Status status) {
    operation.status = status;
    operation.not_after = Time::never();
    operation.on_complete(operation);
  }

 private:
  Scheduler& scheduler_;
  Traffic traffic_;
};

}  // namespace sluice::remote
