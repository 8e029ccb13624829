#include "cli/ask_stage.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "rack/directory/directory_http.h"

namespace sluice::cli {

Result<nlohmann::json> ask_stage(const rack::RunDirectory& run, const Stage& stage,
                                 const std::optional<nlohmann::json>& change) {
  rack::DirectoryClient directory(run.directory_address(), Duration{});
  auto status = change ? directory.ask(stage.path, *change) : directory.ask(stage.path);
  // Where there is such a stage, it is this that was refused or came too late.
  if (status || directory.get(stage.path) || !directory.nodes()) return status;
  return fail(
      fmt::format("the switch in {} has no {}; `sluice rack down`, then `sluice rack up {}` starts one that has",
                  run.path(), stage.what, stage.rack_up));
}

}  // namespace sluice::cli
