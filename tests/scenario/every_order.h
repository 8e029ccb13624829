// Clients of a store in passive memory, in every order in which what they submit may be executed: each state once. What runs is the clients' own code.
//
// A step      executes one operation that is under way (or a piece of one); or ends a connection, all of whose operations then end as unknown and may be
//             executed later, or never; or kills a client; or lets time pass until somebody wakes. An answer comes with the execution, for to submit what
//             follows later is to be executed later; but a few come later, which tells what time it is.
// Order       of one client to one memory node, if `ordered`; else any. What a lost connection has left: no later one before or without an earlier, and
//             nothing so late as `flight` after it was submitted; time does not pass while an operation of the living would become as old as that.
// A state     is memory, what is under way, all that each client has been told and when, and which operations began after the end of which.
//             Clients must be deterministic.
// Threads:    one owner.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/effort_test.h"
#include "remote/remote_memory.h"
#include "workload/history.h"
#include "workload/linearizability.h"

namespace sluice {

struct OrderLimits {
  std::uint32_t losses = 0;  // of connections
  std::uint32_t deaths = 0;
  std::uint32_t late = 0;    // answers to what changes memory that come after something else
  std::uint32_t passes = 0;  // of time, while somebody alive has something under way
  std::uint32_t piece = 0;   // bytes of a READ or WRITE that are executed at once; 0: all
  bool falling = false;      // the last piece first
};

class OrderedRack {
 public:
  OrderedRack(std::uint32_t nodes, std::size_t node_bytes, bool ordered, Duration flight, const OrderLimits& limits)
      : memory_(nodes, std::vector<std::uint8_t>(node_bytes)), ordered_(ordered), flight_(flight), left_(limits) {}

  // One with a scheduler of its own: a program.
  class Program : public remote::RemoteMemory {
   public:
    Program(OrderedRack& rack, std::size_t number) : RemoteMemory(own), rack_(rack), number_(number) {}
    remote::Capabilities capabilities() const override {
      return {.atomics = true, .ordered = rack_.ordered_, .max_length = 1 << 20, .name = "ordered"};
    }
    void submit(remote::Operation& operation) override { rack_.submit(number_, operation); }

    remote::Scheduler own;
    bool dead = false;

   private:
    friend class OrderedRack;
    OrderedRack& rack_;
    std::size_t number_;
    std::uint32_t connections_ = 0;  // that it has lost
    std::uint64_t past_ = 14695981039346656037u;
  };
  Program& add_program() { return *programs_.emplace_back(std::make_unique<Program>(*this, programs_.size())); }
  std::size_t programs() const { return programs_.size(); }
  Program& program(std::size_t number) { return *programs_[number]; }

  remote::RemoteAddress address(std::uint32_t node, std::uint64_t offset) const {
    return {remote::NodeId(node), remote::RegionKey(1), offset};
  }
  MutableBytes bytes(std::uint32_t node) { return memory_[node]; }
  Time now() const { return now_; }

  // From now on the orders are tried in which these may go on.
  void begin(std::size_t first, std::size_t end) {
    first_ = first;
    end_ = end;
    at_once_ = false;
  }
  // All that is done at once, as it was submitted, and nobody else gets on: for what is before and after that.
  template <class T>
  T wait_for(Program& program, remote::Task<T> task) {
    const auto outside = std::exchange(at_once_, true);
    std::optional<T> result;
    const auto keep = [](remote::Task<T> t, std::optional<T>& into) -> remote::Task<void> {
      into = co_await std::move(t);
    };
    program.own.spawn(keep(std::move(task), result));
    program.own.run(now_);
    while (!result) {
      const Time next = program.own.next_deadline();
      SLUICE_CHECK(next != Time::never());
      now_ = std::max(now_, next);
      program.own.run(now_);
    }
    at_once_ = outside;
    return std::move(*result);
  }
  // Whoever lives goes on in the same way.
  void run_for(Duration time) {
    at_once_ = true;
    links_.clear();
    for (const Time end = now_ + time; now_ < end;) {
      Time next = end;
      for (const auto& p : programs_) {
        if (!p->dead) next = std::min(next, p->own.next_deadline());
      }
      now_ = std::max(now_, next);
      for (const auto& p : programs_) {
        if (!p->dead) p->own.run(now_);
      }
    }
  }

  // ------------------------------------------------------------------------------------------------ the ways to go on

  std::size_t choices(bool all_done) {
    drop_empty();
    ways_.clear();
    for (std::size_t i = 0; i < links_.size(); ++i) ways_.push_back({What::kExecute, i});
    const auto late = [](const Link& link) { return link.pending.front().submitted == nullptr; };
    if (all_done && std::ranges::any_of(links_, late)) ways_.push_back({What::kForget, 0});
    if (all_done) return ways_.size();
    for (std::size_t i = 0; i < links_.size(); ++i) {
      const Pending& p = links_[i].pending.front();
      const bool told = p.submitted != nullptr && p.copy.kind != remote::OpKind::kRead;
      if (left_.late > 0 && told && p.done < pieces(p)) ways_.push_back({What::kHoldBack, i});
    }
    for (std::size_t i = first_; i < end_; ++i) {
      if (left_.losses > 0 && under_way(i)) ways_.push_back({What::kLose, i});
    }
    for (std::size_t i = first_; i < end_; ++i) {
      if (left_.deaths > 0 && !programs_[i]->dead) ways_.push_back({What::kDie, i});
    }
    const bool idle = nothing_under_way();
    if ((idle || left_.passes > 0) && may_pass()) ways_.push_back({What::kPass, idle});
    return ways_.size();
  }
  // What it was, in words. REQUIRES: choices() since the last one.
  std::string choose(std::size_t which) {
    const Way way = ways_[which];
    switch (way.what) {
      case What::kExecute: return execute(way.of);
      case What::kForget:
        std::erase_if(links_, [](const Link& link) { return link.pending.front().submitted == nullptr; });
        return "the rest is never executed";
      case What::kHoldBack: return hold_back(way.of);
      case What::kLose: lose(way.of); return "lose " + std::to_string(way.of);
      case What::kDie:
        --left_.deaths;
        die(way.of);
        return "die " + std::to_string(way.of);
      case What::kPass:
        if (way.of == 0) --left_.passes;
        pass();
        return "pass";
    }
    return {};
  }
  void die(std::size_t number) {
    programs_[number]->dead = true;
    orphan(number);
    if (on_death) on_death(number);
  }
  // Is told who has died, once that cannot be told from its memory.
  std::function<void(std::size_t)> on_death;

  // Appends all that the future depends on, of the first `used` bytes of each memory node.
  void state(std::string& s, std::size_t from) const {
    const auto add = [&s](std::uint64_t v) { s.append(reinterpret_cast<const char*>(&v), sizeof v); };
    for (const auto& node : memory_) s.append(reinterpret_cast<const char*>(node.data() + from), node.size() - from);
    for (std::size_t i = first_; i < end_; ++i) add(programs_[i]->dead ? 1 : programs_[i]->past_);
    std::vector<std::string> open;
    for (const Link& link : links_) {
      std::string one;
      const auto say = [&one](std::uint64_t v) { one.append(reinterpret_cast<const char*>(&v), sizeof v); };
      say(link.program);
      say(link.connection);
      for (const Pending& p : link.pending) {
        say(p.submitted == nullptr ? 1 : 2);
        say(p.done);
        say(static_cast<std::uint64_t>(p.at.since_start().picoseconds()));
        say(p.copy.remote.node.value);
        say(p.copy.remote.address);
        say(static_cast<std::uint64_t>(p.copy.kind));
        say(p.copy.compare);
        say(p.copy.swap_or_add);
        one.append(reinterpret_cast<const char*>(p.bytes.data()), p.bytes.size());
        // What has been read of it so far.
        if (p.copy.kind == remote::OpKind::kRead && p.done != 0 && p.submitted != nullptr)
          one.append(reinterpret_cast<const char*>(p.copy.local.data()), p.copy.local.size());
      }
      open.push_back(std::move(one));
    }
    std::ranges::sort(open);
    for (const auto& one : open) s += one;
    add(std::uint64_t{left_.late} << 60 | std::uint64_t{left_.losses} << 40 | std::uint64_t{left_.deaths} << 20 |
        left_.passes);
    add(static_cast<std::uint64_t>(now_.since_start().picoseconds()));
  }

 private:
  struct Pending {
    remote::Operation* submitted = nullptr;  // nullptr: nobody hears of it any more
    remote::Operation copy;
    std::vector<std::uint8_t> bytes;  // of a WRITE
    std::size_t done = 0;             // pieces
    Time at;
  };
  // What is executed one after the other.
  struct Link {
    std::size_t program = 0;
    std::uint32_t node = 0;
    std::uint32_t connection = 0;
    std::deque<Pending> pending;
  };
  enum class What : std::uint8_t { kExecute, kForget, kHoldBack, kLose, kDie, kPass };
  struct Way {
    What what{};
    std::size_t of = 0;
  };

  void submit(std::size_t program, remote::Operation& operation) {
    Pending p{.submitted = &operation, .copy = operation, .bytes = {}, .at = now_};
    if (operation.kind == remote::OpKind::kWrite) p.bytes.assign(operation.local.begin(), operation.local.end());
    if (at_once_) {
      for (std::size_t i = 0; i < pieces(p); ++i) execute_piece(p, i);
      finish(program, p, remote::Status::kOk);
      return;
    }
    // Where nothing has been read yet there is always the same: a part of the state.
    if (operation.kind == remote::OpKind::kRead) std::ranges::fill(operation.local, std::uint8_t{0});
    const std::uint32_t node = operation.remote.node.value;
    const std::uint32_t connection = programs_[program]->connections_;
    const auto same = std::ranges::find_if(links_, [&](const Link& link) {
      return ordered_ && link.program == program && link.node == node && link.connection == connection;
    });
    if (same != links_.end()) return same->pending.push_back(std::move(p));
    links_.push_back({program, node, connection, {}});
    links_.back().pending.push_back(std::move(p));
  }

  std::size_t pieces(const Pending& p) const {
    const std::size_t length = p.copy.local.size();
    return p.copy.is_atomic() || left_.piece == 0 ? 1 : (length + left_.piece - 1) / left_.piece;
  }
  void execute_piece(Pending& p, std::size_t piece) {
    remote::Operation& o = p.copy;
    const std::span<std::uint8_t> there = std::span(memory_.at(o.remote.node.value)).subspan(o.remote.address);
    if (o.is_atomic()) {
      o.prior = load_le<std::uint64_t>(there.data());
      const bool add = o.kind == remote::OpKind::kFetchAndAdd;
      if (add || o.prior == o.compare) store_le(there.data(), o.swap_or_add + (add ? o.prior : 0));
      return;
    }
    const std::size_t length = o.local.size();
    const std::size_t offset = left_.piece * (left_.falling ? pieces(p) - 1 - piece : piece);
    const std::size_t size = left_.piece == 0 ? length : std::min<std::size_t>(left_.piece, length - offset);
    SLUICE_CHECK(there.size() >= length);
    if (o.kind == remote::OpKind::kWrite) {
      std::ranges::copy(std::span(p.bytes).subspan(offset, size), there.begin() + static_cast<std::ptrdiff_t>(offset));
    } else if (p.submitted != nullptr) {
      std::ranges::copy(there.subspan(offset, size), o.local.begin() + static_cast<std::ptrdiff_t>(offset));
    }
  }
  void finish(std::size_t number, const Pending& p, remote::Status status) {
    if (p.submitted == nullptr) return;
    auto& program = *programs_[number];
    // Of operations that wait together, which one it is shows in where it went.
    hear(program, p.copy.remote.address * 31 + static_cast<std::uint64_t>(status));
    if (status == remote::Status::kOk && p.copy.is_atomic()) hear(program, p.copy.prior);
    if (status == remote::Status::kOk && p.copy.kind == remote::OpKind::kRead) {
      hear(program,
           std::hash<std::string_view>{}({reinterpret_cast<const char*>(p.copy.local.data()), p.copy.local.size()}));
    }
    p.submitted->prior = p.copy.prior;
    program.complete(*p.submitted, status);
  }
  void hear(Program& program, std::uint64_t what) const {
    const auto time = static_cast<std::uint64_t>(now_.since_start().picoseconds());
    program.past_ = (program.past_ ^ what ^ time * 0x9E37'79B9'7F4A'7C15) * 1099511628211u;
  }

  std::string execute(std::size_t which) {
    Link& link = links_[which];
    const std::size_t number = link.program;
    Pending& p = link.pending.front();
    std::string said = std::to_string(number) + (p.submitted == nullptr ? " late " : " ") +
                       std::array{"read", "write", "cas", "add"}[static_cast<std::size_t>(p.copy.kind)] + '@' +
                       std::to_string(p.copy.remote.node.value) + ':' + std::to_string(p.copy.remote.address);
    if (p.done < pieces(p)) execute_piece(p, p.done++);
    if (p.done < pieces(p)) return said + " in part";
    const Pending whole = std::move(p);
    link.pending.pop_front();
    finish(number, whole, remote::Status::kOk);
    if (!programs_[number]->dead) programs_[number]->own.run(now_);
    return said;
  }
  // Executes it, and says nothing yet.
  std::string hold_back(std::size_t which) {
    --left_.late;
    Pending& p = links_[which].pending.front();
    while (p.done < pieces(p)) execute_piece(p, p.done++);
    return std::to_string(links_[which].program) + " answered later";
  }
  // What it has under way is nobody's any more. Returns what it was.
  std::vector<Pending> orphan(std::size_t number) {
    std::vector<Pending> all;
    for (Link& link : links_) {
      if (link.program != number) continue;
      std::deque<Pending> left;
      for (Pending& p : link.pending) {
        if (p.submitted != nullptr) all.push_back(p);
        p.submitted = nullptr;
        if (p.copy.kind != remote::OpKind::kRead && p.done < pieces(p)) left.push_back(std::move(p));
      }
      link.pending = std::move(left);
    }
    ++programs_[number]->connections_;
    return all;
  }
  void lose(std::size_t number) {
    --left_.losses;
    for (const Pending& p : orphan(number)) finish(number, p, remote::Status::kUnknown);
    programs_[number]->own.run(now_);
  }

  void drop_empty() {
    std::erase_if(links_, [](const Link& link) { return link.pending.empty(); });
  }
  bool under_way(std::size_t number) const {
    return std::ranges::any_of(links_, [number](const Link& link) {
      return link.program == number && link.pending.front().submitted != nullptr;
    });
  }
  bool nothing_under_way() const {
    return std::ranges::none_of(links_, [](const Link& link) { return link.pending.front().submitted != nullptr; });
  }
  Time next_wake() const {
    Time next = Time::never();
    for (std::size_t i = first_; i < end_; ++i) {
      if (!programs_[i]->dead) next = std::min(next, programs_[i]->own.next_deadline());
    }
    return next;
  }
  bool may_pass() const {
    const Time next = next_wake();
    if (next == Time::never()) return false;
    return std::ranges::none_of(links_, [&](const Link& link) {
      return link.pending.front().submitted != nullptr && link.pending.front().at + flight_ <= next;
    });
  }
  void pass() {
    now_ = std::max(now_, next_wake());
    std::erase_if(links_, [this](const Link& link) {
      return link.pending.front().submitted == nullptr && link.pending.front().at + flight_ <= now_;
    });
    for (std::size_t i = first_; i < end_; ++i) {
      if (programs_[i]->dead || programs_[i]->own.next_deadline() > now_) continue;
      hear(*programs_[i], 1);
      programs_[i]->own.run(now_);
    }
  }

  std::vector<std::vector<std::uint8_t>> memory_;
  bool ordered_;
  Duration flight_;
  OrderLimits left_;
  Time now_;
  std::vector<std::unique_ptr<Program>> programs_;
  std::size_t first_ = 0;
  std::size_t end_ = 0;
  bool at_once_ = true;
  std::vector<Link> links_;
  std::vector<Way> ways_;
};

// Which operations began after the end of which.
inline void append_order(std::string& s, const workload::History& history) {
  for (const workload::Event& event : history.events()) {
    s.push_back(event.end == workload::Event::kNever ? 2 : 3);
    for (const workload::Event& before : history.events()) s.push_back(before.end < event.begin ? 1 : 0);
  }
}

// The search. What is tried is made of a Case, and has choices(), choose(), state() and judge().
template <class Case, class Tried>
class EveryOrder : public testing::Test {
 protected:
  void every(const Case& c, std::uint64_t most = 2'000'000) {
    if (HasFailure()) return;
    std::unordered_set<std::size_t> known;
    std::vector<std::vector<std::uint8_t>> open = {{}};
    std::uint64_t ends = 0;
    while (!open.empty() && !HasFailure()) {
      auto path = std::move(open.back());
      open.pop_back();
      Tried run(c);
      for (const std::uint8_t choice : path) {
        run.choices();
        run.choose(choice);
      }
      // On from there, and at each state the other ways are for later.
      while (!HasFailure()) {
        const std::size_t choices = run.choices();
        if (!known.insert(std::hash<std::string>{}(run.state())).second) break;
        if (choices == 0) {
          ++ends;
          run.judge();
          break;
        }
        for (std::size_t i = 1; i < choices; ++i) {
          open.push_back(path);
          open.back().push_back(static_cast<std::uint8_t>(i));
        }
        path.push_back(0);
        run.choose(0);
      }
      if (HasFailure()) ADD_FAILURE() << "after\n" << told(c, path);
      ASSERT_LT(known.size(), most) << "too many states";
      // A sanitizer finds what it looks for on any way.
      if ((kAddressSanitizer || kThreadSanitizer) && known.size() > 500 && ends > 10) break;
    }
    EXPECT_GT(ends, 0u);
    if (std::getenv("SLUICE_SHOW") != nullptr) fmt::print("{} states, {} ends\n", known.size(), ends);
    states_ += known.size();
    ends_ += ends;
  }
  void TearDown() override {
    RecordProperty("states", std::to_string(states_));
    RecordProperty("ends", std::to_string(ends_));
  }

 private:
  static std::string told(const Case& c, const std::vector<std::uint8_t>& path) {
    std::string all;
    Tried run(c);
    for (const std::uint8_t choice : path) {
      run.choices();
      all += run.choose(choice) + '\n';
    }
    return all;
  }
  std::uint64_t states_ = 0;
  std::uint64_t ends_ = 0;
};

}  // namespace sluice
