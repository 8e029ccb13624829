// Store: the one small interface behind which Clover, Sherman and FUSEE are driven, measured and judged.
//
// Life:       `const GetResult r = co_await store.get(key, buffer);` from any number of coroutines of the store's thread.
// Units:      keys are 64-bit numbers; values are bytes, at most max_value_bytes().
// Errors:     an Outcome each. kUnknown: the change may have taken effect, may still do so, or never will; the linearizability
//             checker treats it so. kUnavailable and kNoSpace: it has not and never will.
// Threads:    one owner.
// Source:     YCSB (Cooper et al., SoCC 2010) §4: read, insert, update, scan; delete besides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/bytes.h"
#include "remote/task.h"

namespace sluice::workload {

using Key = std::uint64_t;

enum class Outcome : std::uint8_t {
  kOk,
  kNotFound,     // get, erase: no such key
  kExists,       // insert: the key is there already
  kNoSpace,      // out of memory: nothing happened
  kUnavailable,  // out of reach (node dead, service gone): nothing happened
  kRefused,      // the store cannot do this (value too long, operation not offered): nothing happened
  kUnknown,      // it may have happened or not
};

constexpr std::string_view to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk: return "ok";
    case Outcome::kNotFound: return "not found";
    case Outcome::kExists: return "exists";
    case Outcome::kNoSpace: return "no space";
    case Outcome::kUnavailable: return "unavailable";
    case Outcome::kRefused: return "refused";
    case Outcome::kUnknown: return "unknown";
  }
  return "?";
}

// The store has done its part: not so where it refused, found no room, or nobody was in reach.
constexpr bool is_done(Outcome outcome) {
  return outcome == Outcome::kOk || outcome == Outcome::kNotFound || outcome == Outcome::kExists;
}

struct GetResult {
  Outcome outcome = Outcome::kOk;
  std::size_t length = 0;  // of the value; kOk only
};

struct ScanResult {
  Outcome outcome = Outcome::kOk;
  std::size_t count = 0;  // of pairs found
};

// Takes what a scan finds: keys rising, each once. The bytes are the store's.
class ScanSink {
 public:
  virtual ~ScanSink() = default;
  virtual void on_pair(Key key, ByteView value) = 0;
};

// What a store can do besides get and put.
struct StoreAbilities {
  bool insert = true;  // only if the key is absent
  bool erase = true;
  bool scan = false;  // keys in order
};

// What its operations have cost so far, over the wire.
struct StoreCost {
  std::uint64_t round_trips = 0;  // waits for one-sided operations; several at once count once
  std::uint64_t remote_operations = 0;
  std::uint64_t remote_bytes = 0;  // payload
  std::uint64_t messages = 0;      // two-sided calls
  std::uint64_t atomics = 0;
  std::uint64_t atomics_failed = 0;  // lost a race
  std::uint64_t walks = 0;           // further nodes visited because the first was stale

  StoreCost& operator+=(const StoreCost& o) {
    round_trips += o.round_trips;
    remote_operations += o.remote_operations;
    remote_bytes += o.remote_bytes;
    messages += o.messages;
    atomics += o.atomics;
    atomics_failed += o.atomics_failed;
    walks += o.walks;
    return *this;
  }
  StoreCost& operator-=(const StoreCost& o) {
    round_trips -= o.round_trips;
    remote_operations -= o.remote_operations;
    remote_bytes -= o.remote_bytes;
    messages -= o.messages;
    atomics -= o.atomics;
    atomics_failed -= o.atomics_failed;
    walks -= o.walks;
    return *this;
  }
};

class Store {
 public:
  virtual ~Store() = default;

  virtual std::string_view name() const = 0;
  virtual StoreAbilities abilities() const = 0;
  virtual std::size_t max_value_bytes() const = 0;
  virtual StoreCost cost() const = 0;

  // REQUIRES of all: buffers and values stay valid until the result is there.
  // The value goes to the start of `into`, which holds max_value_bytes().
  virtual remote::Task<GetResult> get(Key key, MutableBytes into) = 0;
  // Inserts or replaces.
  virtual remote::Task<Outcome> put(Key key, ByteView value) = 0;
  // kExists when the key is there.
  virtual remote::Task<Outcome> insert(Key key, ByteView value) = 0;
  // kNotFound when it is not.
  virtual remote::Task<Outcome> erase(Key key) = 0;
  // Visits up to `count` pairs from `first` on in key order.
  virtual remote::Task<ScanResult> scan(Key first, std::size_t count, ScanSink& sink);
};

inline remote::Task<ScanResult> Store::scan(Key, std::size_t, ScanSink&) { co_return ScanResult{Outcome::kRefused, 0}; }

}  // namespace sluice::workload
