// sluice switch, sluice memory, sluice metadata: one daemon in the foreground, logging to stderr.
#include <spdlog/spdlog.h>

#include "cli/commands.h"
#include "rack/daemons/host_daemon.h"
#include "rack/daemons/memory_daemon.h"
#include "rack/daemons/metadata_daemon.h"
#include "rack/process/process.h"
#include "rack/switch/switch_daemon.h"

namespace sluice::cli {
namespace {

// A daemon with Settings in [table], run by a function of the run directory and the settings.
template <class Settings>
class Daemon final : public Command {
 public:
  using Run = Result<void> (*)(const std::string& directory, const Settings& settings);

  Daemon(CLI::App& root, const std::string& name, const std::string& what, const std::vector<std::string>& examples,
         Run run_daemon)
      : Command(root, name, what, examples), run_daemon_(run_daemon) {
    settings_.declare(schema_);
    use_rack();
    use(name, schema_);
  }

 private:
  Result<void> check() override {
    if constexpr (requires { settings_.check(); }) return settings_.check();
    return {};
  }
  Result<int> run() override {
    if (auto done = run_daemon_(rack().dir, settings_); !done) return tl::unexpected(done.error());
    return 0;
  }

  Settings settings_;
  rack::Schema schema_;
  Run run_daemon_;
};

}  // namespace

void add_daemon_commands(CLI::App& root, Commands& commands) {
  commands.push_back(std::make_unique<Daemon<rack::SwitchSettings>>(
      root, "switch", "Run the rack's switch and directory in the foreground",
      std::vector<std::string>{"sluice switch", "sluice switch --listen udp:0.0.0.0:7471",
                               "sluice switch --port packet:eth1 --ecn-threshold 64KiB",
                               "sluice switch --box words --port packet:eth1,filter=all",
                               "sluice switch --edm --edm-rate 25000"},
      [](const std::string& directory, const rack::SwitchSettings& settings) {
        return rack::run_switch(directory, settings, rack::say_ready);
      }));
  commands.push_back(std::make_unique<Daemon<rack::MemorySettings>>(
      root, "memory", "Run a memory node in the foreground: exports memory, one-sided",
      std::vector<std::string>{"sluice memory", "sluice memory --name memory3 --size 64GiB",
                               "sluice memory --port udp:10.0.0.1:7471", "sluice memory --name memory1 --cowbird"},
      rack::run_memory));
  commands.push_back(std::make_unique<Daemon<rack::MetadataSettings>>(
      root, "metadata", "Run Clover's metadata server in the foreground",
      std::vector<std::string>{"sluice metadata", "sluice metadata --memory-nodes 2 --replication 2 --value-size 256"},
      rack::run_metadata));
  commands.push_back(std::make_unique<Daemon<rack::HostSettings>>(
      root, "host", "Run a NIC that several programs share, in the foreground; `sluice run --host` starts it by itself",
      std::vector<std::string>{"sluice host --name a", "sluice host --name a --port packet:eth0 --ip 10.0.0.77"},
      rack::run_host));
}

}  // namespace sluice::cli
