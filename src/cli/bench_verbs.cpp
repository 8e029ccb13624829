// sluice bench verbs: latency and rate of bare RDMA operations, between processes that it starts itself.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/bench_commands.h"
#include "cli/child.h"
#include "cli/progress.h"
#include "cli/result_format.h"
#include "rack/clients/verbs_bench.h"
#include "rack/endpoint/endpoint.h"
#include "rack/switch/switch_daemon.h"

namespace sluice::cli {
namespace {

using rc::SendOp;

constexpr wire::Ipv4Address kClientIp{0x0A4DFE01};  // 10.77.254.1
constexpr wire::Ipv4Address kPeerIp{0x0A4DFE02};

struct Settings {
  std::string through = "cable";
  std::vector<std::string> ops{"write", "read", "cas", "faa", "send"};
  std::vector<std::string> sizes{"8"};
  std::vector<std::string> depths{"1", "64"};
  Duration duration = Duration::milliseconds(500);
  std::uint64_t runs = 1;
  std::string impair;
  std::string out;

  void declare(rack::Schema& s) {
    s.choice("through", through, {"cable", "udp", "switch"},
             "cable: one shared-memory cable between two processes; udp: UDP on loopback; switch: shared memory "
             "through a switch process")
        .list("ops", ops, "operations to measure (repeat the flag)", "write, read, cas, faa or send")
        .list("sizes", sizes, "bytes of an operation (repeat the flag); atomics have 8", "a size up to 1MiB")
        .list("depths", depths, "operations in flight (repeat the flag)", "a number from 1 to 1024")
        .duration("duration", duration, Duration::milliseconds(1), Duration::seconds(3600), "of each point")
        .integer("runs", runs, 1, 101, "runs of each point; the median by rate is shown")
        .text("impair", impair, "what happens to frames, e.g. drop=1%,seed=7", "an impairment")
        .text("out", out, "write the result to this file instead of stdout", "a file's path");
  }
};

struct Row {
  std::string op;
  rack::VerbsPoint point;
  rack::VerbsMeasured measured;

  double us(double quantile) const { return static_cast<double>(measured.latency_ns.at_quantile(quantile)) / 1e3; }
  nlohmann::ordered_json facts() const {
    return {{"op", op},
            {"bytes", point.bytes},
            {"depth", point.depth},
            {"operations", measured.operations},
            {"ops_per_second", measured.rate},
            {"p50_us", us(0.5)},
            {"p99_us", us(0.99)},
            {"p999_us", us(0.999)}};
  }
};

std::optional<SendOp> parse_op(const std::string& name) {
  if (name == "write") return SendOp::kWrite;
  if (name == "read") return SendOp::kRead;
  if (name == "cas") return SendOp::kCompareAndSwap;
  if (name == "faa") return SendOp::kFetchAndAdd;
  if (name == "send") return SendOp::kSend;
  return std::nullopt;
}

class BenchVerbs final : public Command {
 public:
  explicit BenchVerbs(CLI::App& group)
      : Command(group, "verbs", "Measure bare RDMA operations between two processes that this command starts itself",
                {"sluice bench verbs", "sluice bench verbs --through switch --ops read --depths 1 --runs 5",
                 "sluice bench verbs --through udp --ops write --sizes 8 --sizes 4KiB --csv"}) {
    settings_.declare(schema_);
    use_rack();
    use("bench-verbs", schema_);
    format_.declare(*this);
  }

 private:
  Result<void> check() override;
  Result<int> run() override;
  Result<void> start(Children& children, rack::VerbsEnd& client);
  Result<void> measure(rack::VerbsClient& client, Row& row);
  nlohmann::json json_of(const std::vector<Row>& rows) const;
  std::string csv_of(const std::vector<Row>& rows) const;
  std::string table_of(const std::vector<Row>& rows, const std::string& port) const;

  Settings settings_;
  rack::Schema schema_;
  std::vector<Row> rows_;
  ResultFormat format_;
};

Result<void> BenchVerbs::check() {
  for (const std::string& op_name : settings_.ops) {
    const auto op = parse_op(op_name);
    if (!op) return fail(fmt::format("--ops = \"{}\": must be write, read, cas, faa or send", op_name));
    const bool atomic = *op == SendOp::kCompareAndSwap || *op == SendOp::kFetchAndAdd;
    for (const std::string& size : atomic ? std::vector<std::string>{"8"} : settings_.sizes) {
      std::uint64_t bytes = 0;
      const std::uint64_t most = *op == SendOp::kSend ? 4096 : rack::VerbsClient::kMaxBytes;
      if (!rack::parse_bytes(size, bytes) || bytes > most)
        return fail(fmt::format("--sizes = \"{}\": must be a size up to {}", size, rack::bytes_text(most)));
      for (const std::string& depth_text : settings_.depths) {
        std::uint64_t depth = 0;
        if (!rack::parse_bytes(depth_text, depth) || depth == 0 || depth > rack::VerbsClient::kMaxDepth) {
          return fail(fmt::format("--depths = \"{}\": must be a number from 1 to {}", depth_text,
                                  rack::VerbsClient::kMaxDepth));
        }
        rows_.push_back({op_name,
                         {.op = *op,
                          .bytes = static_cast<std::uint32_t>(bytes),
                          .depth = static_cast<std::uint32_t>(depth),
                          .duration = settings_.duration},
                         {}});
      }
    }
  }
  return {};
}

// Starts the peer, and the switch if there is one; tells where the measuring end is to connect.
Result<void> BenchVerbs::start(Children& children, rack::VerbsEnd& client) {
  const std::string& folder = children.folder();
  const std::string tail = settings_.impair.empty() ? "" : fmt::format(",impair({})", settings_.impair);
  rack::VerbsEnd peer{.port = {}, .listen = false, .ip = kPeerIp};
  client.ip = kClientIp;
  if (settings_.through == "udp") {
    const int port = 20'000 + static_cast<int>(getpid() % 20'000);
    peer.port = fmt::format("udp:127.0.0.1:{}", port);
    peer.listen = true;
    client.port = peer.port + tail;
  } else if (settings_.through == "cable") {
    peer.port = fmt::format("cable:{}/cable", folder);
    client.port = fmt::format("shm:{}/cable{}", folder, tail);
  } else {
    auto up = children.start("the switch",
                             [&](const std::function<void()>& ready) { return rack::run_switch(folder, {}, ready); });
    if (!up) return up;
    peer.port = fmt::format("shm:{}/switch.sock", folder);
    client.port = peer.port + tail;
  }
  return children.start("the peer", [&](const std::function<void()>& ready) { return rack::serve_verbs(peer, ready); });
}

// The run with the median rate of all.
Result<void> BenchVerbs::measure(rack::VerbsClient& client, Row& row) {
  std::vector<rack::VerbsMeasured> runs;
  for (std::uint64_t i = 0; i < settings_.runs; ++i) {
    auto measured = client.measure(row.point);
    if (client.loop().stopping()) return fail("interrupted");
    if (!measured)
      return fail(fmt::format("{} of {} bytes, depth {}: {}", row.op, row.point.bytes, row.point.depth,
                              measured.error().message));
    runs.push_back(std::move(*measured));
  }
  std::sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) { return a.rate < b.rate; });
  row.measured = runs[runs.size() / 2];
  return {};
}

nlohmann::json BenchVerbs::json_of(const std::vector<Row>& rows) const {
  nlohmann::json out{{"through", settings_.through}, {"runs", settings_.runs}, {"points", nlohmann::json::array()}};
  for (const Row& row : rows) out["points"].push_back(nlohmann::json(row.facts()));
  return out;
}

std::string BenchVerbs::csv_of(const std::vector<Row>& rows) const {
  std::vector<nlohmann::ordered_json> lines;
  for (const Row& row : rows) {
    auto& line = lines.emplace_back(nlohmann::ordered_json::object());
    line["through"] = settings_.through;
    line.update(row.facts());
  }
  return csv_text(lines);
}

std::string BenchVerbs::table_of(const std::vector<Row>& rows, const std::string& port) const {
  std::string out =
      fmt::format("RDMA through {} ({})\n{:<8} {:>8} {:>6} {:>12} {:>10} {:>10} {:>10}\n", settings_.through, port,
                  "op", "bytes", "depth", "ops/s", "p50 us", "p99 us", "p99.9 us");
  for (const Row& row : rows) {
    out += fmt::format("{:<8} {:>8} {:>6} {:>12} {:>10.2f} {:>10.2f} {:>10.2f}\n", row.op, row.point.bytes,
                       row.point.depth, rate_text(row.measured.rate), row.us(0.5), row.us(0.99), row.us(0.999));
  }
  return out;
}

Result<int> BenchVerbs::run() {
  if (auto possible = check_output(settings_.out); !possible) return tl::unexpected(possible.error());
  rack::VerbsEnd end;
  rack::StopSignals signals;
  Children children;
  const auto started = start(children, end);
  if (has_come(signals)) return interrupted("interrupted");
  if (!started) return tl::unexpected(started.error());
  auto client = rack::VerbsClient::open(end, kPeerIp, Duration::seconds(10));
  if (has_come(signals)) return interrupted("interrupted");
  if (!client) return tl::unexpected(client.error());
  signals.stop_on_signal((*client)->loop());
  {
    Progress progress;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      progress.show(fmt::format("point {} of {}", i + 1, rows_.size()));
      const auto measured = measure(**client, rows_[i]);
      if (has_come(signals)) return interrupted("interrupted");
      if (!measured) return tl::unexpected(measured.error());
    }
  }
  const std::string text = format_.text([&] { return json_of(rows_); }, [&] { return csv_of(rows_); },
                                        [&] { return table_of(rows_, (*client)->port_name()); });
  if (auto written = write_output(settings_.out, text); !written) return tl::unexpected(written.error());
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_bench_verbs(CLI::App& group) { return std::make_unique<BenchVerbs>(group); }

}  // namespace sluice::cli
