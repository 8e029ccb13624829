#include "rack/process/plan.h"

#include <fmt/core.h>

namespace sluice::rack {

std::vector<DaemonSpec> plan(const std::string& program, const std::string& config, const RackSettings& settings) {
  const auto daemon = [&](const std::string& name, const std::string& command, int stage) {
    DaemonSpec spec{name, {program, command, "--dir", settings.dir}, stage, config};
    if (!config.empty()) spec.argv.insert(spec.argv.end(), {"--config", config});
    return spec;
  };
  const auto add = [](DaemonSpec& spec, const std::string& flag, const std::string& value) {
    spec.argv.insert(spec.argv.end(), {flag, value});
  };
  std::vector<DaemonSpec> daemons{daemon("switch", "switch", 0)};
  if (!settings.box.empty()) add(daemons.front(), "--box", settings.box);
  if (settings.cowbird) daemons.front().argv.emplace_back("--cowbird");
  if (settings.edm) daemons.front().argv.emplace_back("--edm");
  if (!settings.http.empty()) add(daemons.front(), "--http", settings.http);
  if (!settings.serve.empty()) add(daemons.front(), "--serve", settings.serve);
  for (std::uint64_t i = 1; i <= settings.memory_nodes; ++i) {
    DaemonSpec memory = daemon(fmt::format("memory{}", i), "memory", 1);
    add(memory, "--name", memory.name);
    if (settings.memory_size != 0) add(memory, "--size", bytes_text(settings.memory_size));
    if (settings.memory_cowbird) memory.argv.emplace_back("--cowbird");
    memory.dies_with_it =
        "what a store without replicas had there is lost; `sluice rack down`, then `sluice rack up` begins with an "
        "empty "
        "one";
    daemons.push_back(memory);
  }
  if (settings.metadata) {
    DaemonSpec metadata = daemon("metadata", "metadata", 2);
    add(metadata, "--memory-nodes", std::to_string(settings.memory_nodes));
    if (settings.value_size != 0) add(metadata, "--value-size", std::to_string(settings.value_size));
    if (settings.replication != 0) add(metadata, "--replication", std::to_string(settings.replication));
    daemons.push_back(metadata);
  }
  return daemons;
}

}  // namespace sluice::rack
