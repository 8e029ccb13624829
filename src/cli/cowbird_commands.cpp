// sluice cowbird engine: Cowbird's engine, or what the one in the switch needs of this machine, in the foreground, logging to stderr.
// sluice cowbird show: what the engine in the switch does.
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "cli/ask_stage.h"
#include "cli/commands.h"
#include "cli/json_text.h"
#include "rack/cowbird/cowbird_daemon.h"

namespace sluice::cli {
namespace {

class CowbirdEngine final : public Command {
 public:
  explicit CowbirdEngine(CLI::App& parent)
      : Command(parent, "engine", "Move data for applications that use libcowbird on this machine",
                {"sluice cowbird engine", "sluice cowbird engine --engine switch",
                 "sluice cowbird engine --engine at:memory1",
                 "sluice cowbird engine --name engine2 --socket /run/app/cowbird.sock",
                 "sluice cowbird engine --probe 500ns --batch-size 64"}) {
    settings_.declare(schema_);
    use_rack();
    use("cowbird", schema_);
  }

 private:
  Result<void> check() override { return settings_.check(); }
  Result<int> run() override {
    if (auto done = rack::run_cowbird_engine(rack().dir, settings_); !done) return tl::unexpected(done.error());
    return 0;
  }

  rack::CowbirdSettings settings_;
  rack::Schema schema_;
};

class CowbirdShow final : public Command {
 public:
  explicit CowbirdShow(CLI::App& parent)
      : Command(parent, "show", "Show what Cowbird's engine in the switch serves and has done",
                {"sluice cowbird show", "sluice cowbird show --json"}) {
    use_rack();
    flag("--json", json_, "the same as JSON");
  }

 private:
  Result<int> run() override {
    using nlohmann::json;
    const auto answer = ask_stage(run_directory(), {"/v1/cowbird", "Cowbird engine", "--cowbird"}, std::nullopt);
    if (!answer) return tl::unexpected(answer.error());
    const json& status = *answer;
    if (json_) {
      fmt::print("{}\n", json_text(status));
      return 0;
    }
    fmt::print("{:<16} {:<15} {:>8} {:>10} {:>12} {:>12}  {}\n", "application's", "address", "channel", "under way",
               "reads", "writes", "state");
    for (const json& c : status["channels"]) {
      const char* const state = c["broken"].get<bool>() ? "broken" : c["attached"].get<bool>() ? "served" : "attaching";
      fmt::print("{:<16} {:<15} {:>8} {:>10} {:>12} {:>12}  {}, {} memory node{}\n", c["owner"].get<std::string>(),
                 c["ip"].get<std::string>(), c["channel"].get<std::uint32_t>(), c["under_way"].get<std::uint64_t>(),
                 c["reads"].get<std::uint64_t>(), c["writes"].get<std::uint64_t>(), state, c["nodes"].size(),
                 c["nodes"].size() == 1 ? "" : "s");
    }
    for (const auto& [name, value] : status["counters"].items())
      fmt::print("{:<16} {}\n", name, value.get<std::uint64_t>());
    return 0;
  }

  bool json_ = false;
};

}  // namespace

void add_cowbird_commands(CLI::App& root, Commands& commands) {
  CLI::App& group = add_group(root, "cowbird", "Remote memory without spending the application's CPU");
  commands.push_back(std::make_unique<CowbirdEngine>(group));
  commands.push_back(std::make_unique<CowbirdShow>(group));
}

}  // namespace sluice::cli
