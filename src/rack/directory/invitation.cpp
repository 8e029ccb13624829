#include "rack/directory/invitation.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "rack/settings/private_file.h"

namespace sluice::rack {
namespace {

using nlohmann::json;

constexpr const char* kVersionField = "sluice_invitation";

struct Field {
  const char* name;
  std::string Invitation::*value;
};
constexpr std::array<Field, 5> kFields{{{"machine", &Invitation::machine},
                                        {"address", &Invitation::address},
                                        {"authority", &Invitation::authority},
                                        {"certificate", &Invitation::certificate},
                                        {"key", &Invitation::key}}};

// What had been joined before, with its key.
std::string before(const RunDirectory& run) { return run.joined() + ".before"; }

}  // namespace

std::string to_text(const Invitation& invitation) {
  json out{{kVersionField, 1}};
  for (const Field& field : kFields) out[field.name] = invitation.*field.value;
  return out.dump(1) + "\n";
}

Result<Invitation> parse_invitation(std::string_view text) {
  const json in = json::parse(text, nullptr, false);
  if (!in.is_object() || !in.contains(kVersionField))
    return fail("this is no invitation; `sluice rack invite NAME`, on the machine of the switch, makes one");
  if (in[kVersionField] != 1)
    return fail("this invitation is of a later version of sluice; bring this machine up to date");
  Invitation invitation;
  for (const Field& field : kFields) {
    const auto found = in.find(field.name);
    if (found == in.end() || !found->is_string() || found->get_ref<const std::string&>().empty())
      return fail(fmt::format("the invitation is damaged: '{}' is missing or no text", field.name));
    invitation.*field.value = found->get<std::string>();
  }
  for (const std::string* line : {&invitation.machine, &invitation.address}) {
    if (line->find('\n') != std::string::npos) return fail("the invitation is damaged: a name of two lines");
  }
  return invitation;
}

Result<void> join(const RunDirectory& run, const Invitation& invitation) {
  const std::string folder = run.joined();
  std::error_code failed;
  if (std::filesystem::exists(before(run), failed)) go_back(run);  // a join that was killed before it was confirmed
  if (run.is_joined()) std::filesystem::rename(folder, before(run), failed);
  if (failed) return fail(fmt::format("cannot set {} aside: {}", folder, failed.message()));
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    const int why = errno;
    go_back(run);
    return fail(fmt::format("cannot make {}: {}", folder, std::strerror(why)));
  }
  // What makes RunDirectory::is_joined() true comes last.
  const std::array<std::pair<const char*, std::string>, 5> files{{{"/authority.pem", invitation.authority},
                                                                  {"/certificate.pem", invitation.certificate},
                                                                  {"/key.pem", invitation.key},
                                                                  {"/machine", invitation.machine + "\n"},
                                                                  {"/address", invitation.address + "\n"}}};
  for (const auto& [name, text] : files) {
    if (auto written = write_private_file(folder + name, text); !written) {
      go_back(run);
      return written;
    }
  }
  return {};
}

void keep_joined(const RunDirectory& run) {
  std::error_code ignored;
  std::filesystem::remove_all(before(run), ignored);
}

void go_back(const RunDirectory& run) {
  std::error_code ignored;
  std::filesystem::remove_all(run.joined(), ignored);
  std::filesystem::rename(before(run), run.joined(), ignored);
}

Result<bool> leave(const RunDirectory& run) {
  keep_joined(run);
  const bool joined = run.is_joined();
  std::error_code failed;
  // The address first: half a folder counts as none.
  std::filesystem::remove(run.joined() + "/address", failed);
  if (!failed) std::filesystem::remove_all(run.joined(), failed);
  if (failed) return fail(fmt::format("cannot remove {}: {}", run.joined(), failed.message()));
  return joined;
}

}  // namespace sluice::rack
