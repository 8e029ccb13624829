// sluice bench locks: contended locks in far memory, with and without SwordBox in the switch.
#include <fmt/core.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/bench_commands.h"
#include "cli/child.h"
#include "cli/result_format.h"
#include "rack/clients/lock_bench.h"

namespace sluice::cli {
namespace {

struct Settings {
  std::uint64_t clients = 64;
  std::uint64_t locks = 1;
  std::string release = "write";
  std::string turn = "lock";
  Duration duration = Duration::seconds(3);
  std::uint64_t seed = 1;
  std::string out;

  void declare(rack::Schema& s) {
    s.integer("clients", clients, 1, 4096, "closed loops, each with a connection of its own")
        .integer("locks", locks, 1, 1u << 20, "locks; a client draws one each turn")
        .choice(
            "turn", turn, {"lock", "ticket"},
            "lock: take it, change its record, let go; ticket: one fetch-and-add, of which each value must come once, "
            "going on through failures")
        .choice("release", release, {"write", "cas"}, "how a lock is let go")
        .duration("duration", duration, Duration::milliseconds(100), Duration::seconds(3600), "how long to run")
        .integer("seed", seed, 0, ~std::uint64_t{0}, "of all that is drawn")
        .text("out", out, "write the result to this file instead of stdout", "a file's path");
  }
};

class BenchLocks final : public Command {
 public:
  explicit BenchLocks(CLI::App& group)
      : Command(group, "locks", "Contend for locks in the rack's memory: CAS takes one, a WRITE or CAS lets it go",
                {"sluice rack up --no-metadata --box words && sluice bench locks",
                 "sluice bench locks --locks 1024 --release cas --csv"}) {
    settings_.declare(schema_);
    use_rack();
    use("bench-locks", schema_);
    format_.declare(*this);
  }

 private:
  Result<int> run() override {
    if (auto possible = check_output(settings_.out); !possible) return tl::unexpected(possible.error());
    rack::StopSignals signals;
    const auto result = rack::bench_locks({.directory = rack().dir,
                                           .name = fmt::format("locks-{}", getpid()),
                                           .clients = static_cast<std::uint32_t>(settings_.clients),
                                           .locks = static_cast<std::uint32_t>(settings_.locks),
                                           .release_by_write = settings_.release == "write",
                                           .tickets = settings_.turn == "ticket",
                                           .duration = settings_.duration,
                                           .seed = settings_.seed,
                                           .interrupted = [&signals] { return has_come(signals); }});
    if (!result && has_come(signals)) {
      say("sluice bench locks: interrupted");
      return kExitInterrupted;
    }
    if (!result) return tl::unexpected(result.error());
    const std::string text = format_.text([&] { return nlohmann::json(facts_of(*result)); },
                                          [&] { return csv_of(*result); }, [&] { return as_text(*result); });
    if (auto written = write_output(settings_.out, text); !written) return tl::unexpected(written.error());
    if (!result->whole) return kExitInterrupted;
    return result->sound() ? 0 : kExitFailed;
  }

  static double us(const rack::LockBenchResult& r, double quantile) {
    return static_cast<double>(r.turn_ns.at_quantile(quantile)) / 1e3;
  }
  static std::string as_text(const rack::LockBenchResult& r) {
    const double turns = static_cast<double>(r.turns);
    return fmt::format(
        "{} turns in {:.2f} s: {:.0f} a second; p50 {:.1f} us, p99 {:.1f} us\n"
        "{} CASes for locks ({:.0f} a second), {} found them taken; {:.1f} frames a turn\n"
        "in memory: {} turns, {} unknown: {}\n",
        r.turns, r.seconds, turns / r.seconds, us(r, .5), us(r, .99), r.swaps, static_cast<double>(r.swaps) / r.seconds,
        r.swaps_failed, static_cast<double>(r.wire_frames) / std::max(turns, 1.0), r.counted, r.unknown,
        r.sound() ? "right" : "WRONG, two held a lock at once, or one was counted twice or not at all");
  }
  static nlohmann::ordered_json facts_of(const rack::LockBenchResult& r) {
    return {{"turns", r.turns},
            {"seconds", r.seconds},
            {"turns_a_second", static_cast<double>(r.turns) / r.seconds},
            {"swaps", r.swaps},
            {"swaps_failed", r.swaps_failed},
            {"wire_frames", r.wire_frames},
            {"p50_us", us(r, .5)},
            {"p99_us", us(r, .99)},
            {"counted", r.counted},
            {"unknown", r.unknown},
            {"reconnects", r.reconnects},
            {"sound", r.sound()}};
  }
  // What was measured stands before what came of it: lines of several runs make one file.
  std::string csv_of(const rack::LockBenchResult& r) const {
    nlohmann::ordered_json row{{"clients", settings_.clients},
                               {"locks", settings_.locks},
                               {"turn", settings_.turn},
                               {"release", settings_.release},
                               {"seed", settings_.seed}};
    row.update(facts_of(r));
    return csv_text({row});
  }

  Settings settings_;
  rack::Schema schema_;
  ResultFormat format_;
};

}  // namespace

std::unique_ptr<Command> make_bench_locks(CLI::App& group) { return std::make_unique<BenchLocks>(group); }

}  // namespace sluice::cli
