#include "remote/remote_memory.h"

namespace sluice::remote {

std::string_view to_string(Status status) {
  switch (status) {
    case Status::kOk: return "ok";
    case Status::kAccessDenied: return "access denied";
    case Status::kMisaligned: return "misaligned atomic";
    case Status::kUnsupported: return "not supported by this transport";
    case Status::kNodeUnknown: return "no such node";
    case Status::kUnreachable: return "node unreachable";
    case Status::kTooLong: return "longer than this transport allows";
    case Status::kUnknown: return "connection lost, outcome unknown";
  }
  return "?";
}

RemoteMemory::Awaitable& RemoteMemory::Awaitable::start() {
  if (started_) return *this;
  started_ = true;
  operation_.context = this;
  operation_.on_complete = [](Operation& operation) {
    auto& self = *static_cast<Awaitable*>(operation.context);
    self.done_ = true;
    if (self.waiter_) self.remote_.scheduler().post(self.waiter_);
  };
  remote_.submit(operation_);
  return *this;
}

bool RemoteMemory::BatchAwaitable::await_suspend(std::coroutine_handle<> handle) {
  waiter_ = handle;
  open_ = operations_.size() + 1;  // one for ourselves: completions may come from within submit()
  for (auto& operation : operations_) {
    operation.context = this;
    operation.on_complete = [](Operation& completed) {
      auto& self = *static_cast<BatchAwaitable*>(completed.context);
      if (--self.open_ == 0) self.remote_.scheduler().post(self.waiter_);
    };
    remote_.submit(operation);
  }
  return --open_ != 0;
}

Operation read_operation(RemoteAddress from, MutableBytes into) {
  return {.kind = OpKind::kRead, .remote = from, .local = into};
}

Operation write_operation(RemoteAddress to, ByteView bytes) {
  // The one const_cast of the contract: a backend never writes to the bytes of a kWrite.
  const MutableBytes local{const_cast<std::uint8_t*>(bytes.data()), bytes.size()};
  return {.kind = OpKind::kWrite, .remote = to, .local = local};
}

Operation swap_operation(RemoteAddress at, std::uint64_t compare, std::uint64_t swap) {
  return {.kind = OpKind::kCompareAndSwap, .remote = at, .compare = compare, .swap_or_add = swap};
}

Operation add_operation(RemoteAddress at, std::uint64_t add) {
  return {.kind = OpKind::kFetchAndAdd, .remote = at, .swap_or_add = add};
}

RemoteMemory::StatusAwaitable RemoteMemory::read(RemoteAddress from, MutableBytes into) {
  return {*this, read_operation(from, into)};
}

RemoteMemory::StatusAwaitable RemoteMemory::write(RemoteAddress to, ByteView bytes) {
  return {*this, write_operation(to, bytes)};
}

RemoteMemory::AtomicAwaitable RemoteMemory::compare_and_swap(RemoteAddress at, std::uint64_t compare,
                                                             std::uint64_t swap) {
  return {*this, swap_operation(at, compare, swap)};
}

RemoteMemory::AtomicAwaitable RemoteMemory::fetch_and_add(RemoteAddress at, std::uint64_t add) {
  return {*this, add_operation(at, add)};
}

}  // namespace sluice::remote
