// Drives the FASTER device as a store's log does: pages are appended, flushed and truncated round and round the remote memory, while threads
// read back pieces of what has been flushed. Every byte is checked, and that nothing calls back outside of TryComplete.
//
// device_check ENGINE-SOCKET [MEGABYTES [THREADS]]: "begins" once it has an engine; exit code 0 when all was right; what was wrong
// stands on stderr.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/rng.h"
#include "integrations/faster/stand_in.h"
// The device comes after the headers of the store.
#include "integrations/faster/cowbird_device.h"

namespace {

using namespace sluice;
using FASTER::core::IAsyncContext;
using FASTER::core::Status;
using Disk = faster::CowbirdDisk<faster::stand_in::LocalDisk>;

constexpr std::uint64_t kCapacity = 8u << 20;
constexpr std::uint64_t kPage = 1u << 18;
constexpr std::uint64_t kPages = kCapacity / kPage;
constexpr std::uint32_t kLongest = 4096;
constexpr std::size_t kReadsAhead = 32;

std::uint64_t word_at(std::uint64_t offset) { return offset * 0x9e3779b97f4a7c15; }

std::atomic<std::uint64_t> truncated_to{0};

struct Run {
  explicit Run(const std::string& engine)
      : disk("store", epoch, fmt::format("memory_node=memory1,capacity={},engine={}", kCapacity, engine)) {}
  void complain(const std::string& what) {
    if (wrong++ == 0) fmt::print(stderr, "{}\n", what);
  }
  faster::stand_in::Epoch epoch;
  Disk disk;
  std::atomic<std::uint64_t> begin{0}, flushed{0}, wrong{0}, reads{0}, refused{0};
  std::atomic<bool> stop{false};
};

thread_local bool completing = false;

void try_complete(Run& run) {
  completing = true;
  if (!run.disk.TryComplete()) std::this_thread::yield();
  completing = false;
}

// What FASTER's contexts are: copied by the device, freed by who is called back.
template <class T>
class Context final : public IAsyncContext {
 public:
  explicit Context(T held) : value(held) {}
  Status DeepCopy(IAsyncContext*& copy) override {
    copy = new Context(value);
    return Status::Ok;
  }
  T value;
};

struct Flush {
  Run* run;
  bool expected_to_fail;
  std::atomic<bool>* done;
};

void flushed(IAsyncContext* context, Status result, std::size_t) {
  const std::unique_ptr<IAsyncContext> owned(context);
  const Flush flush = static_cast<Context<Flush>*>(context)->value;
  if (!completing) flush.run->complain("a flush was called back outside of TryComplete");
  if ((result != Status::Ok) != flush.expected_to_fail) flush.run->complain("a flush ended as it should not");
  if (result != Status::Ok) ++flush.run->refused;
  *flush.done = true;
}

// Appends pages, and gives up the oldest ones before the memory is full.
void append(Run& run, std::uint64_t pages) {
  std::vector<std::uint8_t> page(kPage);
  for (std::uint64_t n = 0; n < pages && run.wrong == 0; ++n) {
    const std::uint64_t at = n * kPage;
    const auto write = [&](bool expected_to_fail) {
      std::atomic<bool> done{false};
      Context<Flush> context({&run, expected_to_fail, &done});
      run.disk.log().WriteAsync(page.data(), at, kPage, flushed, context);
      while (!done) try_complete(run);
    };
    for (std::uint64_t i = 0; i < kPage; i += 8) store_le(page.data() + i, word_at(at + i));
    if (n >= kPages) {
      if (n == kPages) write(true);  // there is no room until something is given up
      // Half a log at once: readers keep away from what is about to go.
      const std::uint64_t begin = at - kCapacity / 2;
      if (begin > run.begin + kCapacity / 4) {
        run.begin = begin;
        std::this_thread::sleep_for(
            std::chrono::milliseconds(20));  // reads under way there may find other bytes: they do not count
      }
      run.disk.log().Truncate(begin, FASTER::core::GcState{[](std::uint64_t offset) { truncated_to = offset; }});
      if (truncated_to != begin) run.complain("garbage collection was not told of a truncation");
    }
    write(false);
    run.flushed = at + kPage;
  }
}

// Called back by whichever thread completes it.
struct Piece {
  Run* run;
  std::uint64_t seed;  // of where it reads
  std::atomic<bool>* under_way;
  std::uint8_t* into;
  std::uint64_t offset;
  std::uint32_t length;
  bool again;  // the callback reads another piece
};

void read_piece(Piece piece);

void arrived(IAsyncContext* context, Status result, std::size_t bytes) {
  const std::unique_ptr<IAsyncContext> owned(context);
  Piece piece = static_cast<Context<Piece>*>(context)->value;
  Run& run = *piece.run;
  if (!completing) run.complain("a read was called back outside of TryComplete");
  if (result != Status::Ok || bytes != piece.length) run.complain("a read failed");
  bool same = true;
  for (std::uint32_t i = 0; i < piece.length; i += 8) {
    same = same && load_le<std::uint64_t>(piece.into + i) == word_at(piece.offset + i);
  }
  if (!same && piece.offset >= run.begin)
    run.complain(fmt::format("other bytes than were written at {}", piece.offset));
  if (piece.offset >= run.begin) ++run.reads;
  if (piece.again) {
    piece.again = false;
    read_piece(piece);
  } else {
    *piece.under_way = false;
  }
}

void read_piece(Piece piece) {
  const std::uint64_t begin = piece.run->begin, end = piece.run->flushed;
  Rng rng(piece.seed);
  piece.seed = rng.next();
  piece.length = 64 * (1 + static_cast<std::uint32_t>(rng.below(kLongest / 64)));
  piece.offset = begin + 64 * rng.below((end - begin - kLongest) / 64);
  Context<Piece> context(piece);
  piece.run->disk.log().ReadAsync(piece.offset, piece.into, piece.length, arrived, context);
}

void read(Run& run, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<std::uint8_t> into(kReadsAhead * kLongest);
  std::array<std::atomic<bool>, kReadsAhead> under_way{};
  const auto busy = [&] {
    return std::any_of(under_way.begin(), under_way.end(), [](const auto& one) { return one.load(); });
  };
  while (!run.stop || busy()) {
    for (std::size_t i = 0; i < kReadsAhead && !run.stop && run.flushed - run.begin >= 2 * kPage; ++i) {
      if (under_way[i].exchange(true)) continue;
      read_piece({&run, rng.next(), &under_way[i], into.data() + i * kLongest, 0, 0, i % 4 == 0});
    }
    try_complete(run);
  }
}

int check(const std::string& engine, std::uint64_t megabytes, std::uint64_t threads) {
  Run run(engine);
  fmt::print("begins\n");
  std::fflush(stdout);
  const auto began = std::chrono::steady_clock::now();
  std::vector<std::thread> readers;
  for (std::uint64_t i = 0; i < threads; ++i) readers.emplace_back([&run, i] { read(run, i + 1); });
  append(run, (megabytes << 20) / kPage);
  run.stop = true;
  for (auto& reader : readers) reader.join();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  fmt::print("{} MiB appended, {} pieces read and checked, {} refused, {} wrong, {:.1f} s\n", megabytes,
             run.reads.load(), run.refused.load(), run.wrong.load(), seconds);
  return run.wrong == 0 && run.reads > 0 && run.refused == 1 ? 0 : 1;
}

// One request at a time, of a device that a test has opened.
void ended(IAsyncContext* context, Status result, std::size_t) {
  const std::unique_ptr<IAsyncContext> owned(context);
  *static_cast<Context<Status*>*>(context)->value = result;
}
template <class Issue>
Status wait_for(Disk& disk, Issue issue) {
  Status result = Status::Pending;
  Context<Status*> context(&result);
  issue(disk.log(), context);
  while (result == Status::Pending) disk.TryComplete();
  return result;
}

// What a process finds that recovers a store: FASTER reads and writes on, and tells the device nothing before it truncates.
bool goes_on_behind_a_log_that_went_round(const std::string& engine) {
  constexpr std::uint64_t kSmall = 1u << 16;
  const std::string config = fmt::format("memory_node=memory1,capacity={},engine={}", 8 * kSmall, engine);
  faster::stand_in::Epoch epoch;
  std::vector<std::uint8_t> bytes(kSmall);
  bool good = true;
  const auto write = [&](Disk& disk, std::uint64_t page, Status expected) {
    std::fill(bytes.begin(), bytes.end(), static_cast<std::uint8_t>(page));
    const Status status = wait_for(
        disk, [&](auto& log, auto& context) { log.WriteAsync(bytes.data(), page * kSmall, kSmall, ended, context); });
    if (status != expected) fmt::print(stderr, "the write of page {} ended with {}\n", page, static_cast<int>(status));
    good = good && status == expected;
  };
  const auto read = [&](Disk& disk, std::uint64_t page) {
    const Status status = wait_for(
        disk, [&](auto& log, auto& context) { log.ReadAsync(page * kSmall, bytes.data(), kSmall, ended, context); });
    if (status != Status::Ok || bytes.front() != page || bytes.back() != page) {
      fmt::print(stderr, "page {} is not read again: {}\n", page, static_cast<int>(status));
      good = false;
    }
  };
  const auto truncate = [](Disk& disk, std::uint64_t page) {
    disk.log().Truncate(page * kSmall, FASTER::core::GcState{});
  };
  {
    Disk first("store", epoch, config);
    for (std::uint64_t page = 0; page < 12; ++page) {
      if (page >= 8) truncate(first, page - 7);
      write(first, page, Status::Ok);
    }
  }
  {
    Disk again("store", epoch, config);
    for (const std::uint64_t page : {4u, 11u}) read(again, page);
    write(again, 12, Status::Ok);
    truncate(again, 5);
    write(again, 13, Status::IOError);
  }
  Disk told("store", epoch, fmt::format("{},begin={}", config, 5 * kSmall));
  read(told, 5);
  write(told, 13, Status::IOError);
  truncate(told, 6);
  write(told, 13, Status::Ok);
  Disk short_one("store", epoch, config);
  write(short_one, 6, Status::Ok);
  write(short_one, 8, Status::IOError);
  return good;
}

// Threads of the store are shared out among the lanes.
bool refuses_lanes_that_cannot_be(const std::string& engine) {
  for (const char* const lanes : {"0", "257", "4294967296"}) {
    try {
      const faster::CowbirdLog log(fmt::format("engine={},lanes={}", engine, lanes));
    } catch (const std::invalid_argument&) {
      continue;
    }
    fmt::print(stderr, "a log with {} lanes\n", lanes);
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string engine = argc > 1 ? argv[1] : "";
    if (!refuses_lanes_that_cannot_be(engine) || !goes_on_behind_a_log_that_went_round(engine)) return 1;
    return check(engine, argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 64,
                 argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 2);
  } catch (const std::exception& error) {
    fmt::print(stderr, "device_check: {}\n", error.what());
    return 1;
  }
}
