// Executor: the software between a user and the command slots. Congestion windows, pacing, and turns among destinations.
//
// Life:       add_path() for each remote and direction -> submit() -> poll() issues what windows and pace allow, and tells what ended.
// Limits:     a path has at most its window's operations outstanding, all paths together at most the local window's; each is paced at its
//             window a round trip, so the more restrictive one decides (§6).
// Order:      a path's requests are issued in the order of submission; paths that may send take turns, one request each.
// Sharing:    several executors, one a user, may share one node's slots: each has its windows, and where slots are short each has its
//             share of them, however often the others are called (command_slots.h).
// End:        not while anything of it is open, unless node and slots go first: their completions would have nowhere to go.
// Errors:     a request ends once, by on_complete, with its completion.
// Threads:    one owner. submit() and poll() allocate nothing.
// Limits:     the ring's capacity of requests outstanding; as many paths as are added.
// Source:     1RMA §6 (CommandExecutor). What RTT means is ours: the smoothed total delay of what succeeded, none counted for longer than time-outs allow; so is a target delay of its own for
//             writes.
#pragma once

#include <cstdint>
#include <vector>

#include "base/time.h"
#include "onerma/command_slots.h"
#include "onerma/completion_ring.h"
#include "onerma/congestion.h"

namespace sluice::onerma {

using PathId = Strong<struct PathIdTag, std::uint32_t>;

struct ExecutorParameters {
  std::uint32_t ring = 1024;  // a power of two
  Duration base_rtt = Duration::microseconds(5);
  Duration local_target = Duration::microseconds(2);   // of issue delays
  Duration remote_target = Duration::microseconds(8);  // of remote delays of reads
  Duration write_target =
      Duration::microseconds(16);  // of writes and Rekeys: four hops, and a place in the target's window
  std::uint32_t first_local = 64 * CongestionWindow::kOne;
  std::uint32_t first_remote = 8 * CongestionWindow::kOne;
  Duration pacing_slack{};  // how much of the pace may be made up for at once, for owners that are not called often
};

// One operation on its way. Belongs to the user, who keeps it until on_complete.
struct Request {
  OpKind op{};
  GrantId grant{};
  PathId path{};
  std::uint64_t address = 0;
  MutableBytes local{};
  // Called from poll(); may submit.
  void (*on_complete)(Time now, Request& request, const Completion& completion) = nullptr;
  void* context = nullptr;
  Request* next = nullptr;  // the executor's
};

struct ExecutorCounters {
  std::uint64_t issued = 0;
  std::uint64_t by_status[kStatusCount] = {};
};

class Executor {
 public:
  // Policy and slots outlive the executor.
  Executor(const ExecutorParameters& parameters, const CongestionPolicy& policy, CommandSlots& slots);

  enum class Direction : std::uint8_t { kInbound, kOutbound };  // reads; writes and Rekeys
  PathId add_path(Direction direction = Direction::kInbound);
  void submit(Time now, Request& request);
  // Returns how many requests ended or were issued.
  std::size_t poll(Time now);
  // Ends those of the path's requests that have not been issued and that `unwanted` says yes to, as kDispatchTimeout; no window hears of it.
  void withdraw(Time now, PathId path, bool (*unwanted)(const Request& request));
  // When pacing lets the next request go. What waits for a completion or a slot is not a deadline.
  Time next_deadline() const;

  const CongestionWindow& window(PathId path) const { return paths_[path.value].window; }
  const CongestionWindow& local_window() const { return local_.window; }
  Duration rtt(PathId path) const { return paths_[path.value].rtt; }
  std::uint32_t outstanding(PathId path) const { return paths_[path.value].outstanding; }
  const ExecutorCounters& counters() const { return counters_; }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  enum class State : std::uint8_t { kIdle, kReady, kPaced, kFull };

  // What is limited and paced: a path, or all of them.
  struct Limited {
    CongestionWindow window{};
    Time next_issue{};
    Duration rtt{};
    std::uint32_t outstanding = 0;

    void on_issue(Time now, Duration slack);
    void on_growth(Time now);
    void measure(Duration total) { rtt = rtt + (total - rtt) / 8; }
  };
  struct Path : Limited {
    Request* first = nullptr;
    Request* last = nullptr;
    Duration target{};
    std::uint32_t next = kNone;  // in line
    State state = State::kIdle;
  };
  struct Paced {
    Time when;
    std::uint32_t path = 0;
    friend bool operator<(const Paced& a, const Paced& b) {  // soonest on top; then the lower number
      return a.when != b.when ? a.when > b.when : a.path > b.path;
    }
  };

  void place(Time now, std::uint32_t path);
  void wake(Time now);
  bool issue_one(Time now);
  void on_completion(Time now, const Completion& completion);
  void react(Time now, Path& path, const Completion& completion);

  ExecutorParameters parameters_;
  const CongestionPolicy& policy_;
  CommandSlots& slots_;
  CompletionRing ring_;
  std::vector<Path> paths_;
  Limited local_;
  std::uint32_t first_ready_ = kNone;
  std::uint32_t last_ready_ = kNone;
  bool refused_ = false;      // a slot, the last time
  std::vector<Paced> paced_;  // a heap; each path at most once
  ExecutorCounters counters_;
};

}  // namespace sluice::onerma
