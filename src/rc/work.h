// Work requests and completions: what is asked of a queue pair and what it answers.
//
// Units:   lengths in bytes; immediate data in host order; atomics' values in host order.
// Source:  IBTA vol. 1 ch. 11 (verbs), ibv_post_send(3); names and numbers of statuses as ibv_wc_status.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "base/strong.h"
#include "base/time.h"
#include "memory/region.h"
#include "wire/address.h"
#include "wire/types.h"

namespace sluice::rc {

using wire::Psn;
using wire::Qpn;

// One piece of local memory. kReservedKey as the key: `address` is a pointer of this process.
struct Sge {
  std::uint64_t address = 0;
  std::uint32_t length = 0;
  memory::Key key = memory::kReservedKey;

  static Sge of(ByteView bytes) {
    return {reinterpret_cast<std::uintptr_t>(bytes.data()), static_cast<std::uint32_t>(bytes.size()),
            memory::kReservedKey};
  }
};

enum class SendOp : std::uint8_t {
  kSend,
  kSendWithImmediate,
  kSendWithInvalidate,
  kWrite,
  kWriteWithImmediate,
  kRead,
  kCompareAndSwap,
  kFetchAndAdd,
};

constexpr bool is_atomic(SendOp op) { return op == SendOp::kCompareAndSwap || op == SendOp::kFetchAndAdd; }
// They are answered with data.
constexpr bool reads(SendOp op) { return op == SendOp::kRead || is_atomic(op); }

inline constexpr std::uint32_t kLongestMessage = 1u << 31;  // IBTA vol. 1 §9.7.8

constexpr std::uint32_t packets_for(std::uint32_t length, std::uint32_t mtu) {
  return length <= mtu ? 1 : (length + mtu - 1) / mtu;  // mostly one: no division
}

struct SendFlags {
  bool signaled : 1 = true;      // leave a completion when it succeeds (a failure always leaves one)
  bool fence : 1 = false;        // wait for all earlier READs and atomics of this queue pair
  bool solicited : 1 = false;    // wake the receiver if it waits for solicited events only
  bool inline_data : 1 = false;  // copy the payload now; the sges are free again when post returns
};

// Where a UD message goes.
struct UdDestination {
  wire::Gid gid{};
  wire::MacAddress mac{};
  wire::Gid source{};  // whom it comes from; all zero: the queue pair's own
  Qpn qpn{};
  wire::QKey qkey{};
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = 64;
};

struct SendRequest {
  std::uint64_t id = 0;
  SendOp op = SendOp::kSend;
  SendFlags flags{};
  std::span<const Sge> sges{};
  std::uint32_t immediate = 0;       // kSendWithImmediate, kWriteWithImmediate
  memory::Key invalidate_key{};      // kSendWithInvalidate
  std::uint64_t remote_address = 0;  // one-sided operations
  memory::Key remote_key{};
  std::uint64_t compare = 0;                   // kCompareAndSwap
  std::uint64_t swap_or_add = 0;               // atomics; their sge receives 8 bytes, the value before
  const UdDestination* destination = nullptr;  // UD only
  // No packet of it leaves later, for the first time or again (to the millisecond, and not later): the queue pair breaks instead. RC and UC.
  Time not_after = Time::never();
};

struct ReceiveRequest {
  std::uint64_t id = 0;
  std::span<const Sge> sges{};
};

enum class CompletionStatus : std::uint8_t {
  kSuccess = 0,
  kLocalLengthError = 1,
  kLocalQpOperationError = 2,
  kLocalProtectionError = 4,
  kFlushed = 5,
  kBadResponse = 7,
  kLocalAccessError = 8,
  kRemoteInvalidRequest = 9,
  kRemoteAccessError = 10,
  kRemoteOperationError = 11,
  kRetryExceeded = 12,
  kRnrRetryExceeded = 13,
  kGeneralError = 21,
};
std::string_view to_string(CompletionStatus status);

enum class CompletionKind : std::uint8_t {
  kSend,
  kWrite,
  kRead,
  kCompareAndSwap,
  kFetchAndAdd,
  kReceive,
  kReceiveWithImmediate,  // of a WRITE; a SEND's immediate shows in has_immediate
};

struct Completion {
  std::uint64_t id = 0;
  CompletionStatus status = CompletionStatus::kSuccess;
  CompletionKind kind = CompletionKind::kSend;
  bool has_immediate = false;
  bool has_invalidate = false;
  bool has_grh = false;    // UD: 40 bytes of GRH stand before the message
  bool over_ipv6 = false;  // UD
  bool solicited = false;
  // Of what has failed. Neither: any part of it may have been executed, also behind one that is refused: a READ is refused when its answer
  // is due, and a box on the path takes up what the responder leaves.
  bool never_sent : 1 = false;  // no packet of it has left: the peer knows nothing of it
  bool begun : 1 = false;       // a SEND or WRITE whose first packets have been executed
  std::uint32_t length = 0;     // received, or read
  std::uint32_t immediate = 0;  // or the invalidated key
  Qpn qpn{};                    // whose completion this is
  Qpn source_qpn{};             // UD
};
static_assert(sizeof(Completion) == 32);

// Why a post was refused; nothing has been queued then.
enum class PostError : std::uint8_t {
  kNone,
  kQueueFull,
  kTooManySges,
  kInlineTooLong,
  kTooLong,
  kTooShort,
  kWrongState,
  kUnsupportedOp,
  kBadLocalKey,
  kNoDestination,
};
std::string_view to_string(PostError error);

}  // namespace sluice::rc
