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

RemoteMemory::StatusAwaitable RemoteMemory::read(RemoteAddress from, MutableBytes into) {
  return {*this, Operation{.kind = OpKind::kRead, .remote = from, .local = into}};
}

RemoteMemory::StatusAwaitable RemoteMemory::write(RemoteAddress to, ByteView bytes) {
  // The one const_cast of the contract: a backend never writes to the bytes of a kWrite.
  const MutableBytes local{const_cast<std::uint8_t*>(bytes.data()), bytes.size()};
  return {*this, Operation{.kind = OpKind::kWrite, .remote = to, .local = local}};
}

RemoteMemory::AtomicAwaitable RemoteMemory::compare_and_swap(RemoteAddress at, std::uint64_t compare,
                                                             std::uint64_t swap) {
  return {*this, Operation{.kind = OpKind::kCompareAndSwap, .remote = at, .compare = compare, .swap_or_add = swap}};
}

RemoteMemory::AtomicAwaitable RemoteMemory::fetch_and_add(RemoteAddress at, std::uint64_t add) {
  return {*this, Operation{.kind = OpKind::kFetchAndAdd, .remote = at, .swap_or_add = add}};
}

}  // namespace sluice::remote
