// sluice cowbird engine: Cowbird's spot engine in the foreground, logging to stderr.
#include "cli/commands.h"
#include "rack/cowbird_daemon.h"

namespace sluice::cli {
namespace {

class CowbirdEngine final : public Command {
 public:
  explicit CowbirdEngine(CLI::App& parent)
      : Command(parent, "engine", "Move data for applications that use libcowbird on this machine",
                {"sluice cowbird engine", "sluice cowbird engine --name engine2 --socket /run/app/cowbird.sock",
                 "sluice cowbird engine --probe 500ns --batch-size 64"}) {
    settings_.declare(schema_);
    use_rack();
    use("cowbird", schema_);
  }

 private:
  Result<int> run() override {
    if (auto done = rack::run_cowbird_engine(rack().dir, settings_); !done) return tl::unexpected(done.error());
    return 0;
  }

  rack::CowbirdSettings settings_;
  rack::Schema schema_;
};

}  // namespace

void add_cowbird_commands(CLI::App& root, Commands& commands) {
  CLI::App* group = root.add_subcommand("cowbird", "Remote memory without spending the application's CPU");
  group->require_subcommand(1);
  commands.push_back(std::make_unique<CowbirdEngine>(*group));
}

}  // namespace sluice::cli
