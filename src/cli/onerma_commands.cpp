// sluice onerma target, sluice onerma bench: 1RMA in real time.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/child.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/result_format.h"
#include "rack/clients/onerma_end.h"
#include "rack/clients/verbs_bench.h"
#include "rack/endpoint/endpoint.h"
#include "rack/switch/switch_daemon.h"

namespace sluice::cli {
namespace {

using onerma::OpKind;
using onerma::Protection;

constexpr wire::Ipv4Address kClientIp{0x0A4DFE11};  // 10.77.254.17
constexpr wire::Ipv4Address kTargetIp{0x0A4DFE12};

class OnermaTarget final : public Command {
 public:
  explicit OnermaTarget(CLI::App& parent)
      : Command(parent, "target", "Export memory to 1RMA clients, until told to end",
                {"sluice onerma target --port cable:/run/user/1000/onerma --grants grants.json",
                 "sluice onerma target --port udp:127.0.0.1:7480 --listen --grants grants.json --memory 1GiB"}) {
    schema_.text("port", end_.port, "where frames come and go", "a port, e.g. shm:/path, cable:/path, udp:HOST:PORT")
        .toggle("listen", end_.listen, "wait at the port for one client (udp)")
        .ipv4("ip", end_.ip, "this target's address; its MAC follows from it")
        .bytes("memory", end_.memory, 4u << 20, std::uint64_t{1} << 40, "memory to export")
        .integer("clients", end_.clients, 1, 65'536, "grants to write; every run of a client uses one up")
        .toggle("allow-plain", end_.allow_plain, "also obey clients that do not encrypt or authenticate")
        .toggle("allow-rekey", end_.allow_rekey, "let clients change the key, too, which ends the others' grants")
        .text("grants", end_.grants, "file to write the clients' keys to; a secret", "a file's path");
    use("onerma-target", schema_);
  }

 private:
  Result<void> check() override {
    if (end_.port.empty()) return fail("--port is needed: where frames come and go, e.g. cable:/tmp/onerma");
    if (end_.grants.empty()) return fail("--grants is needed: the file that gives clients their keys");
    return {};
  }
  Result<int> run() override {
    const auto ready = [this] {
      say(fmt::format("target {} serves {}; grants in {}", end_.ip.to_string(), end_.port, end_.grants));
    };
    const auto ended = [](const onerma::TargetCounters& counters) {
      counters.for_each([](std::string_view, std::string_view what, std::uint64_t n) {
        if (n != 0) say(fmt::format("{:>12} {}", n, what));
      });
    };
    if (auto done = rack::serve_onerma(end_, ready, ended); !done) return tl::unexpected(done.error());
    return 0;
  }

  rack::OnermaTargetEnd end_ = [] {
    rack::OnermaTargetEnd end;
    end.ip = kTargetIp;
    return end;
  }();
  rack::Schema schema_;
};

struct Settings {
  std::string through = "cable";
  std::string port;
  std::string grants;
  std::vector<std::string> transports;
  std::vector<std::string> ops{"read", "write"};
  std::vector<std::string> sizes{"64", "4096"};
  std::vector<std::string> depths{"1", "64"};
  Duration duration = Duration::milliseconds(500);
  std::uint64_t runs = 1;
  Duration rekey_every;
  std::string out;

  void declare(rack::Schema& s) {
    s.choice("through", through, {"cable", "udp", "switch"},
             "cable: one shared-memory cable between two processes; udp: UDP on loopback; switch: shared memory "
             "through a switch process")
        .text("port", port, "the port to a target that runs already; with --grants", "a port, e.g. shm:/path")
        .text("grants", grants, "the file that the target wrote", "a file's path")
        .list("transports", transports,
              "what to measure (repeat the flag); if not said: sealed with --port or --rekey-every, else all",
              "sealed, plain or rc")
        .list("ops", ops, "operations to measure (repeat the flag)", "read or write")
        .list("sizes", sizes, "bytes of an operation (repeat the flag)", "a size up to 1MiB")
        .list("depths", depths, "operations under way (repeat the flag)", "a number from 1 to 1024")
        .duration("duration", duration, Duration::milliseconds(1), Duration::seconds(3600), "of each point")
        .integer("runs", runs, 1, 101, "runs of each point; the median by rate is shown")
        .duration("rekey-every", rekey_every, {}, Duration::seconds(3600),
                  "1RMA: change the region's key this often meanwhile, and tell the pauses; 0: never")
        .text("out", out, "write the result to this file instead of stdout", "a file's path");
  }
};

struct Row {
  std::string transport;
  std::string op;
  std::uint32_t bytes = 0;
  std::uint32_t depth = 0;
  double rate = 0;
  std::uint64_t retries = 0;
  Histogram latency_ns;
  Histogram pause_ns;  // of each Rekey

  double us(double quantile) const { return static_cast<double>(latency_ns.at_quantile(quantile)) / 1e3; }
  double pause_us(double quantile) const { return static_cast<double>(pause_ns.at_quantile(quantile)) / 1e3; }
  nlohmann::ordered_json facts() const {
    return {{"transport", transport},
            {"op", op},
            {"bytes", bytes},
            {"depth", depth},
            {"ops_per_second", rate},
            {"retries", retries},
            {"p50_us", us(0.5)},
            {"p99_us", us(0.99)},
            {"rekeys", pause_ns.count()},
            {"rekey_pause_p50_us", pause_us(0.5)},
            {"rekey_pause_most_us", pause_us(1)}};
  }
};

class OnermaBench final : public Command {
 public:
  explicit OnermaBench(CLI::App& parent)
      : Command(parent, "bench", "Measure 1RMA operations, sealed and plain, beside RC over the same port",
                {"sluice onerma bench", "sluice onerma bench --through udp --ops read --depths 64 --runs 5",
                 "sluice onerma bench --port shm:/run/user/1000/onerma --grants grants.json --transports sealed"}) {
    settings_.declare(schema_);
    use("onerma-bench", schema_);
    format_.declare(*this);
  }

 private:
  Result<void> check() override;
  Result<int> run() override;
  Result<std::string> start(Children& children, const std::string& name, bool rc);
  Result<void> measure_onerma(const std::string& transport, const std::string& port, const std::string& grants,
                              rack::StopSignals& signals);
  Result<void> measure_rc(const std::string& port, rack::StopSignals& signals);
  template <class Measure>
  Result<void> each_point(const std::string& transport, Measure measure);
  std::string table() const;

  Settings settings_;
  rack::Schema schema_;
  ResultFormat format_;
  std::vector<Row> points_;  // of one transport
  std::vector<Row> rows_;
  int ports_ = 0;
};

Result<void> OnermaBench::check() {
  if (settings_.port.empty() != settings_.grants.empty())
    return fail("--port and --grants belong together: the port to a target, and the file that it wrote");
  if (!settings_.port.empty() && given("through"))
    return fail("--through: not with --port, which says where the target is; leave one of them out");
  if (settings_.transports.empty()) {
    const bool all = settings_.port.empty() && settings_.rekey_every == Duration{};
    settings_.transports = all ? std::vector<std::string>{"sealed", "plain", "rc"} : std::vector<std::string>{"sealed"};
  }
  for (const std::string& transport : settings_.transports) {
    if (transport != "sealed" && transport != "plain" && transport != "rc")
      return fail(fmt::format("--transports = \"{}\": must be sealed, plain or rc", transport));
    if (transport == "rc" && !settings_.port.empty())
      return fail("--transports rc: not with --port, a 1RMA target speaks no RC");
    if (transport == "plain" && settings_.rekey_every != Duration{})
      return fail("--transports plain: not with --rekey-every, a key that is sent in clear is none");
  }
  for (const std::string& op : settings_.ops) {
    if (op != "read" && op != "write") return fail(fmt::format("--ops = \"{}\": must be read or write", op));
    for (const std::string& size : settings_.sizes) {
      std::uint64_t bytes = 0;
      if (!rack::parse_bytes(size, bytes) || bytes > rack::OnermaClient::kMaxBytes)
        return fail(fmt::format("--sizes = \"{}\": must be a size up to 1MiB", size));
      for (const std::string& text : settings_.depths) {
        std::uint64_t depth = 0;
        if (!rack::parse_bytes(text, depth) || depth == 0 || depth > rack::OnermaClient::kMaxDepth)
          return fail(fmt::format("--depths = \"{}\": must be a number from 1 to 1024", text));
        Row& point = points_.emplace_back();
        point.op = op;
        point.bytes = static_cast<std::uint32_t>(bytes);
        point.depth = static_cast<std::uint32_t>(depth);
      }
    }
  }
  return {};
}

// Starts the other end; the port at which it is found.
Result<std::string> OnermaBench::start(Children& children, const std::string& name, bool rc) {
  const std::string& folder = children.folder();
  std::string theirs = fmt::format("cable:{}/{}", folder, name);
  std::string ours = fmt::format("shm:{}/{}", folder, name);
  bool listen = false;
  if (settings_.through == "udp") {
    theirs = ours = fmt::format("udp:127.0.0.1:{}", 20'000 + (getpid() * 4 + ports_++) % 20'000);
    listen = true;
  } else if (settings_.through == "switch") {
    if (children.empty()) {
      auto up = children.start("the switch",
                               [&](const std::function<void()>& ready) { return rack::run_switch(folder, {}, ready); });
      if (!up) return tl::unexpected(up.error());
    }
    theirs = ours = fmt::format("shm:{}/switch.sock", folder);
  }
  auto up = children.start("the other end", [&](const std::function<void()>& ready) {
    if (rc) return rack::serve_verbs({.port = theirs, .listen = listen, .ip = kTargetIp}, ready);
    rack::OnermaTargetEnd end;
    end.port = theirs;
    end.listen = listen;
    end.ip = kTargetIp;
    end.allow_plain = true;
    end.allow_rekey = settings_.rekey_every != Duration{};
    end.grants = fmt::format("{}/{}.json", folder, name);
    return rack::serve_onerma(end, ready);
  });
  if (!up) return tl::unexpected(up.error());
  return ours;
}

template <class Measure>
Result<void> OnermaBench::each_point(const std::string& transport, Measure measure) {
  Progress progress;
  for (std::size_t i = 0; i < points_.size(); ++i) {
    progress.show(fmt::format("{}: point {} of {}", transport, i + 1, points_.size()));
    std::vector<Row> runs;
    for (std::uint64_t run = 0; run < settings_.runs; ++run) {
      Row row = points_[i];
      row.transport = transport;
      if (auto done = measure(row); !done) {
        return fail(fmt::format("{} {} of {} bytes, depth {}: {}", transport, row.op, row.bytes, row.depth,
                                done.error().message));
      }
      runs.push_back(std::move(row));
    }
    std::ranges::sort(runs, {}, &Row::rate);
    rows_.push_back(runs[runs.size() / 2]);
  }
  return {};
}

Result<void> OnermaBench::measure_onerma(const std::string& transport, const std::string& port,
                                         const std::string& grants, rack::StopSignals& signals) {
  auto client = rack::OnermaClient::open(
      {.port = port, .grants = grants, .protection = transport == "plain" ? Protection::kPlain : Protection::kSealed});
  if (!client) return tl::unexpected(client.error());
  signals.stop_on_signal((*client)->loop());
  return each_point(transport, [&](Row& row) -> Result<void> {
    auto measured = (*client)->measure({.op = row.op == "read" ? OpKind::kRead : OpKind::kWrite,
                                        .bytes = row.bytes,
                                        .depth = row.depth,
                                        .duration = settings_.duration,
                                        .rekey_every = settings_.rekey_every});
    if (has_come(signals)) return fail("interrupted");
    if (!measured) return tl::unexpected(measured.error());
    row.rate = measured->rate;
    row.retries = measured->retries;
    row.latency_ns = std::move(measured->latency_ns);
    row.pause_ns = std::move(measured->pause_ns);
    return {};
  });
}

Result<void> OnermaBench::measure_rc(const std::string& port, rack::StopSignals& signals) {
  auto client =
      rack::VerbsClient::open({.port = port, .listen = false, .ip = kClientIp}, kTargetIp, Duration::seconds(10));
  if (!client) return tl::unexpected(client.error());
  signals.stop_on_signal((*client)->loop());
  return each_point("rc", [&](Row& row) -> Result<void> {
    auto measured = (*client)->measure({.op = row.op == "read" ? rc::SendOp::kRead : rc::SendOp::kWrite,
                                        .bytes = row.bytes,
                                        .depth = row.depth,
                                        .duration = settings_.duration});
    if (has_come(signals)) return fail("interrupted");
    if (!measured) return tl::unexpected(measured.error());
    row.rate = measured->rate;
    row.latency_ns = std::move(measured->latency_ns);
    return {};
  });
}

std::string OnermaBench::table() const {
  std::string out = fmt::format("{:<10} {:<6} {:>8} {:>6} {:>12} {:>10} {:>10} {:>8}\n", "transport", "op", "bytes",
                                "depth", "ops/s", "p50 us", "p99 us", "retries");
  const bool rekeys = settings_.rekey_every != Duration{};
  if (rekeys) {
    out.pop_back();
    out += fmt::format(" {:>8} {:>12} {:>12}\n", "rekeys", "pause p50 us", "pause max us");
  }
  for (const Row& row : rows_) {
    out += fmt::format("{:<10} {:<6} {:>8} {:>6} {:>12} {:>10.2f} {:>10.2f} {:>8}", row.transport, row.op, row.bytes,
                       row.depth, rate_text(row.rate), row.us(0.5), row.us(0.99), row.retries);
    if (rekeys)
      out += fmt::format(" {:>8} {:>12.2f} {:>12.2f}", row.pause_ns.count(), row.pause_us(0.5), row.pause_us(1));
    out += "\n";
  }
  return out;
}

Result<int> OnermaBench::run() {
  if (auto possible = check_output(settings_.out); !possible) return tl::unexpected(possible.error());
  rack::StopSignals signals;
  Children children;
  for (const std::string& transport : settings_.transports) {
    const bool rc = transport == "rc";
    std::string port = settings_.port;
    std::string grants = settings_.grants;
    if (port.empty()) {
      // A target of its own for each: all stand at one address, one after the other.
      auto started = start(children, transport, rc);
      if (has_come(signals)) return interrupted("interrupted");
      if (!started) return tl::unexpected(started.error());
      port = *started;
      grants = fmt::format("{}/{}.json", children.folder(), transport);
    }
    auto done = rc ? measure_rc(port, signals) : measure_onerma(transport, port, grants, signals);
    if (has_come(signals)) return interrupted("interrupted");
    if (!done) return tl::unexpected(done.error());
    if (settings_.port.empty()) children.end_last();
  }
  std::vector<nlohmann::ordered_json> facts;
  for (const Row& row : rows_) facts.push_back(row.facts());
  const std::string text =
      format_.text([&] { return nlohmann::json(facts); }, [&] { return csv_text(facts); }, [&] { return table(); });
  if (auto written = write_output(settings_.out, text); !written) return tl::unexpected(written.error());
  return 0;
}

}  // namespace

void add_onerma_commands(CLI::App& root, Commands& commands) {
  CLI::App& group = add_group(root, "onerma", "1RMA: connection-free, encrypted remote memory");
  commands.push_back(std::make_unique<OnermaTarget>(group));
  commands.push_back(std::make_unique<OnermaBench>(group));
}

}  // namespace sluice::cli
