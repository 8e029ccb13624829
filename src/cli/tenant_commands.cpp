// sluice tenant …, sluice region …, sluice rack drain: who may use the rack, and which memory is theirs.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "cli/child.h"
#include "cli/commands.h"
#include "cli/json_text.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "rack/clients/memory_session.h"
#include "rack/directory/directory_http.h"
#include "rack/directory/directory_json.h"
#include "rack/directory/tenants.h"
#include "rack/endpoint/store_mark.h"
#include "rack/endpoint/store_memory.h"
#include "rack/settings/names.h"
#include "rack/settings/private_file.h"

namespace sluice::cli {
namespace {

using nlohmann::json;

constexpr std::uint64_t kUsualRegions = 16;
constexpr std::uint64_t kLeastQuota = 4096;  // less is a unit that was forgotten
constexpr auto kRegionPatience = std::chrono::seconds(10);

// A command that asks the directory.
class DirectoryCommand : public Command {
 protected:
  DirectoryCommand(CLI::App& group, const std::string& name, const std::string& what,
                   const std::vector<std::string>& examples)
      : Command(group, name, what, examples) {
    use_rack();
  }
  rack::DirectoryClient directory() { return rack::DirectoryClient(run_directory().directory_address(), Duration{}); }
  Result<json> ask(const std::string& path, const json& question) { return directory().ask(path, question); }
};

Result<std::uint64_t> parse_size(const std::string& what, const std::string& text) {
  std::uint64_t bytes = 0;
  if (!rack::parse_bytes(text, bytes))
    return fail(fmt::format("{} = \"{}\": must be a size, such as 64MiB", what, text));
  return bytes;
}

// --- tenants ---

class TenantCommand : public DirectoryCommand {
 protected:
  TenantCommand(CLI::App& group, const std::string& name, const std::string& what,
                const std::vector<std::string>& examples)
      : DirectoryCommand(group, name, what, examples) {
    option("tenant", name_, "the tenant's name").type_name("NAME").required();
  }
  // The second, --regions.
  Argument use_quota() {
    option("--quota", bytes_text_, "memory of all its regions together, such as 64GiB").type_name("SIZE");
    return option("--regions", regions_, "how many regions it may have").type_name("NUMBER").not_negative();
  }
  void use_out() {
    option("--out", out_, "write the token to this file, with mode 0600, instead of stdout").type_name("FILE");
  }
  Result<json> do_it(const std::string& what, json question = json::object()) {
    question["do"] = what;
    question["name"] = name_;
    return ask("/v1/tenants", question);
  }
  Result<void> check() override {
    if (auto sound = rack::check_name("tenant", name_); !sound) return sound;
    if (bytes_text_.empty()) return {};
    const auto bytes = parse_size("--quota", bytes_text_);
    if (!bytes) return tl::unexpected(bytes.error());
    if (*bytes < kLeastQuota)
      return fail(fmt::format("--quota = \"{}\": must be at least {}, such as 64MiB", bytes_text_,
                              rack::bytes_text(kLeastQuota)));
    bytes_ = *bytes;
    return {};
  }
  // What makes a token. It is told once, and what was there before opens nothing any more: nothing is done where it could not be written.
  Result<int> tell_token(const std::string& what, const json& question = json::object()) {
    if (auto possible = check_output(out_); !possible) return tl::unexpected(possible.error());
    const auto answer = do_it(what, question);
    if (!answer) return tl::unexpected(answer.error());
    const std::string token = answer->value("token", "");
    if (out_.empty()) {
      fmt::print("{}\n", token);
      say(fmt::format(
          "this is {}'s token; it is told only now. Its clients name a file with it (mode 0600) by --token-file "
          "or SLUICE_TOKEN_FILE",
          name_));
      return 0;
    }
    if (auto written = rack::write_private_file(out_, token + "\n"); !written)
      return fail(fmt::format("{}; `sluice tenant rotate {}` makes another token", written.error().message, name_));
    say(fmt::format("{} holds {}'s token; its clients name it by --token-file or SLUICE_TOKEN_FILE", out_, name_));
    return 0;
  }

  std::string name_;
  std::string bytes_text_;
  std::optional<std::uint64_t> bytes_;
  std::string out_;
  std::optional<std::uint64_t> regions_;
};

class TenantAdd final : public TenantCommand {
 public:
  explicit TenantAdd(CLI::App& group)
      : TenantCommand(group, "add", "Add a tenant and tell its token, once",
                      {"sluice tenant add red --quota 64GiB --out red.token",
                       "sluice tenant add ops --operator --out ops.token"}) {
    use_quota().default_text(std::to_string(kUsualRegions));
    flag("--operator", operator_,
         "its token may do all that the rack itself may: for memory nodes and operators on other machines");
    use_out();
  }

 private:
  Result<void> check() override {
    if (operator_ && (!bytes_text_.empty() || regions_))
      return fail("--operator: an operator has no regions of its own; leave out --quota and --regions");
    if (bytes_text_.empty() && !operator_) return fail("say how much memory it may have, with --quota SIZE");
    return TenantCommand::check();
  }
  Result<int> run() override {
    json question{{"bytes", 0}, {"regions", 0}, {"operator", operator_}};
    if (!operator_) question.update({{"bytes", *bytes_}, {"regions", regions_.value_or(kUsualRegions)}});
    auto code = tell_token("add", question);
    if (code) warn_of_other_machines();
    return code;
  }
  // What has joined without a token can do less from now on.
  void warn_of_other_machines() {
    const auto nodes = directory().nodes();
    if (!nodes) return;
    std::string names;
    for (const rack::NodeRecord* node : nodes->ready(rack::NodeKind::kMemory)) {
      if (node->description.attributes.contains("machine")) names += " " + node->description.name;
    }
    if (!names.empty())
      say("memory nodes on other machines need an operator's token (`sluice tenant add NAME --operator`), to be "
          "given with --token-file:" +
          names);
  }

  bool operator_ = false;
};

class TenantRotate final : public TenantCommand {
 public:
  explicit TenantRotate(CLI::App& group)
      : TenantCommand(group, "rotate", "Give a tenant another token; the one before opens nothing new from now on",
                      {"sluice tenant rotate red --out red.token"}) {
    use_out();
  }

 private:
  Result<int> run() override { return tell_token("rotate"); }
};

class TenantRevoke final : public TenantCommand {
 public:
  explicit TenantRevoke(CLI::App& group)
      : TenantCommand(group, "revoke", "Shut a tenant out at once; its regions stay, `rotate` lets it in again",
                      {"sluice tenant revoke red"}) {}

 private:
  Result<int> run() override {
    const auto done = do_it("revoke");
    if (!done) return tl::unexpected(done.error());
    say(fmt::format("{} is shut out; `sluice tenant rotate {}` lets it in again, by another token", name_, name_));
    if (is_operator())
      say("what was started with its token stays, as it is the rack's; `sluice rack revoke MACHINE` ends what runs on "
          "a "
          "machine that has joined");
    return 0;
  }
  bool is_operator() {
    const json all = directory().ask("/v1/tenants").value_or(json::object());
    for (const json& tenant : all.value("tenants", json::array())) {
      if (tenant.value("name", "") == name_) return tenant.value("operator", false);
    }
    return false;
  }
};

class TenantRemove final : public TenantCommand {
 public:
  explicit TenantRemove(CLI::App& group)
      : TenantCommand(group, "remove", "Remove a tenant",
                      {"sluice tenant remove red", "sluice tenant remove red --with-regions"}) {
    flag("--with-regions", with_regions_, "with its regions and all that is in them");
  }

 private:
  Result<int> run() override {
    const auto done = do_it("remove", {{"with_regions", with_regions_}});
    if (!done) return tl::unexpected(done.error());
    say(fmt::format("{} is no tenant any more", name_));
    return 0;
  }

  bool with_regions_ = false;
};

class TenantQuota final : public TenantCommand {
 public:
  explicit TenantQuota(CLI::App& group)
      : TenantCommand(group, "quota",
                      "Change how much memory a tenant may have, in how many regions; what it has already it keeps",
                      {"sluice tenant quota red --quota 128GiB", "sluice tenant quota red --regions 32"}) {
    use_quota();
  }

 private:
  Result<void> check() override {
    if (bytes_text_.empty() && !regions_)
      return fail("nothing to change; give --quota SIZE, --regions NUMBER, or both");
    return TenantCommand::check();
  }
  Result<int> run() override {
    json question = json::object();
    if (bytes_) question["bytes"] = *bytes_;
    if (regions_) question["regions"] = *regions_;
    const auto done = do_it("quota", question);
    if (!done) return tl::unexpected(done.error());
    say(fmt::format("{} may have {} in {} regions", name_, rack::bytes_text(done->value("bytes", std::uint64_t{0})),
                    done->value("regions", std::uint64_t{0})));
    return 0;
  }
};

class TenantList final : public DirectoryCommand {
 public:
  explicit TenantList(CLI::App& group)
      : DirectoryCommand(group, "list", "Show the tenants, what they have and what they may have",
                         {"sluice tenant list", "sluice tenant list --json"}) {
    flag("--json", json_, "as JSON");
  }

 private:
  Result<int> run() override {
    const auto all = directory().ask("/v1/tenants");
    if (!all) return tl::unexpected(all.error());
    if (json_) {
      fmt::print("{}\n", json_text(*all));
      return 0;
    }
    Table table({"TENANT", ">USED", ">QUOTA", ">REGIONS", ">ALLOWED", "STATE"});
    for (const json& t : all->value("tenants", json::array())) {
      const char* const state = t.value("revoked", false) ? "revoked" : t.value("operator", false) ? "operator" : "";
      table.add({t.value("name", ""), rack::bytes_text(t.value("used_bytes", std::uint64_t{0})),
                 rack::bytes_text(t.value("quota_bytes", std::uint64_t{0})),
                 std::to_string(t.value("used_regions", std::uint64_t{0})),
                 std::to_string(t.value("quota_regions", std::uint64_t{0})), state});
    }
    fmt::print("{}", table.text());
    return 0;
  }

  bool json_ = false;
};

// --- regions ---

// What is there of it: its node has made it, has not yet, or is not there itself.
std::string state_of(const rack::Snapshot& snapshot, const rack::TenantRegion& region) {
  if (!region.moving_to.empty()) return "moving to " + region.moving_to;
  const rack::NodeRecord* const node = snapshot.find(region.node);
  if (node == nullptr) return "node gone";
  const bool made = std::ranges::any_of(node->description.regions, [&](const rack::RegionRecord& record) {
    return record.owner == region.tenant && record.name == region.name;
  });
  return node->state == rack::NodeState::kReady && made ? "ready"
         : node->state == rack::NodeState::kGone        ? "node gone"
                                                        : "coming";
}

class RegionCommand : public DirectoryCommand {
 protected:
  RegionCommand(CLI::App& group, const std::string& name, const std::string& what,
                const std::vector<std::string>& examples)
      : DirectoryCommand(group, name, what, examples) {
    option("region", name_, "the region's name").type_name("NAME").required();
    option("--tenant", tenant_, "whose, where the rack's operator asks and no token says").type_name("NAME");
  }

  Result<void> check() override {
    if (auto sound = rack::check_name("region", name_); !sound || tenant_.empty()) return sound;
    return rack::check_name("tenant", tenant_);
  }

  // The memory node learns of it from the directory.
  Result<void> wait_until_ready(const rack::TenantRegion& region) {
    const auto give_up = std::chrono::steady_clock::now() + kRegionPatience;
    for (;;) {
      const auto nodes = directory().nodes();
      if (nodes && state_of(*nodes, region) == "ready") return {};
      if (std::chrono::steady_clock::now() >= give_up)
        return fail(
            fmt::format("{} has not made the region yet; `sluice region list` shows when it is ready", region.node));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  std::string name_;
  std::string tenant_;
};

class RegionAdd final : public RegionCommand {
 public:
  explicit RegionAdd(CLI::App& group)
      : RegionCommand(group, "add", "Ask for memory of one's own, on one memory node",
                      {"sluice region add heap 16GiB --token-file red.token",
                       "sluice region add heap 16GiB --tenant red --node memory2"}) {
    option("size", size_, "how much, such as 16GiB").type_name("SIZE").required();
    option("--node", node_, "the memory node; empty: the one with the most room").type_name("NAME");
  }

 private:
  Result<void> check() override {
    const auto bytes = parse_size("SIZE", size_);
    if (!bytes) return tl::unexpected(bytes.error());
    bytes_ = *bytes;
    if (auto sound = RegionCommand::check(); !sound || node_.empty()) return sound;
    return rack::check_name("memory node", node_, rack::kMostNodeName);
  }
  Result<int> run() override {
    const auto made =
        ask("/v1/regions", {{"do", "add"}, {"name", name_}, {"length", bytes_}, {"node", node_}, {"tenant", tenant_}});
    if (!made) return tl::unexpected(made.error());
    const rack::TenantRegion region{made->value("tenant", ""), name_, made->value("node", ""), bytes_};
    if (auto ready = wait_until_ready(region); !ready) return tl::unexpected(ready.error());
    say(fmt::format("{} is ready, {} on {}; with {}'s token `sluice remote read {} 0 64` reads it", name_,
                    rack::bytes_text(bytes_), region.node, region.tenant, name_));
    return 0;
  }

  std::string size_;
  std::uint64_t bytes_ = 0;
  std::string node_;
};

class RegionRemove final : public RegionCommand {
 public:
  explicit RegionRemove(CLI::App& group)
      : RegionCommand(group, "remove", "Give a region back; what is in it is lost",
                      {"sluice region remove heap --token-file red.token"}) {}

 private:
  Result<int> run() override {
    const auto done = ask("/v1/regions", {{"do", "remove"}, {"name", name_}, {"tenant", tenant_}});
    if (!done) return tl::unexpected(done.error());
    say(fmt::format("{} is given back", name_));
    return 0;
  }
};

// Copies a region from the memory node that it leaves to the one where it arrives: a READ here, a WRITE there, as long as it takes.
// Pieces that were never written are not written there either.
class RegionCopy {
 public:
  // A signal ends what it waits for.
  static Result<RegionCopy> open(const std::string& directory, const std::string& region, rack::StopSignals& signals) {
    auto from = connect(directory, "from", rack::kLeaving + region);
    if (!from) return tl::unexpected(from.error());
    auto to = connect(directory, "to", rack::kArriving + region);
    if (!to) return tl::unexpected(to.error());
    signals.stop_on_signal((*from)->loop());
    signals.stop_on_signal((*to)->loop());
    return RegionCopy(std::move(*from), std::move(*to));
  }

  std::uint64_t length() const { return from_->length(); }
  Result<void> copy(std::uint64_t offset) {
    const std::size_t n = std::min<std::uint64_t>(kCopied, length() - offset);
    const MutableBytes bytes = MutableBytes(buffer_).first(n);
    remote::Status status = remote::Status::kUnknown;
    if (!from_->run(read(*from_, offset, bytes, status), kCopyPatience) || status != remote::Status::kOk)
      return fail(fmt::format("reading where it leaves: {}", to_string(status)));
    if (is_blank(bytes)) {
      // Memory that was never written costs the node nothing, and is to stay so; what a move before this one has left there is not blank.
      const MutableBytes there = MutableBytes(there_).first(n);
      status = remote::Status::kUnknown;
      if (!to_->run(read(*to_, offset, there, status), kCopyPatience) || status != remote::Status::kOk)
        return fail(fmt::format("reading where it arrives: {}", to_string(status)));
      if (is_blank(there)) return {};
    }
    status = remote::Status::kUnknown;
    if (!to_->run(write(*to_, offset, bytes, status), kCopyPatience) || status != remote::Status::kOk)
      return fail(fmt::format("writing where it arrives: {}", to_string(status)));
    return {};
  }
  static constexpr std::size_t kCopied = std::size_t{1} << 20;  // at once

 private:
  using Session = std::unique_ptr<rack::MemorySession>;
  static constexpr Duration kCopyPatience = Duration::seconds(20);

  RegionCopy(Session from, Session to)
      : from_(std::move(from)), to_(std::move(to)), buffer_(kCopied), there_(kCopied) {}
  static bool is_blank(ByteView bytes) {
    return bytes.empty() || (bytes[0] == 0 && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
  }
  static Result<Session> connect(const std::string& directory, const char* end, const std::string& region) {
    rack::StoreSessionConfig config;
    config.directory = directory;
    config.name = fmt::format("region-move-{}-{}", getpid(), end);
    return rack::MemorySession::open(config, region);
  }
  static remote::Task<void> read(rack::MemorySession& session, std::uint64_t offset, MutableBytes bytes,
                                 remote::Status& status) {
    const remote::Status done = co_await session.memory().read(session.at(offset), bytes);
    status = done;
  }
  static remote::Task<void> write(rack::MemorySession& session, std::uint64_t offset, ByteView bytes,
                                  remote::Status& status) {
    const remote::Status done = co_await session.memory().write(session.at(offset), bytes);
    status = done;
  }

  Session from_;
  Session to_;
  std::vector<std::uint8_t> buffer_;
  std::vector<std::uint8_t> there_;
};

class RegionMove final : public RegionCommand {
 public:
  explicit RegionMove(CLI::App& group)
      : RegionCommand(
            group, "move",
            "Move a region to another memory node; its tenant reaches it again when that is done, and not before",
            {"sluice region move heap --tenant red", "sluice region move heap --tenant red --to memory2",
             "sluice region move heap --tenant red --undo"}) {
    const Argument to = option("--to", to_, "the memory node; empty: the one with the most room").type_name("NAME");
    flag("--undo", undo_, "leave it where it was, as it was, after a move that did not end").excludes(to);
  }

 private:
  Result<void> check() override {
    if (auto sound = RegionCommand::check(); !sound || to_.empty()) return sound;
    return rack::check_name("memory node", to_, rack::kMostNodeName);
  }
  Result<json> tell(const std::string& what, json question = json::object()) {
    question["do"] = what;
    question["name"] = name_;
    question["tenant"] = tenant_;
    return ask("/v1/regions", question);
  }
  Result<int> run() override {
    if (undo_) {
      const auto stays = tell("stay");
      if (!stays) return tl::unexpected(stays.error());
      say(fmt::format("{} stays on {}", name_, stays->value("node", "")));
      return 0;
    }
    rack::StopSignals signals;  // before there are threads
    const auto begun = tell("move", {{"node", to_}});
    if (!begun) return tl::unexpected(begun.error());
    const auto region = rack::tenant_region_from_json(*begun);
    if (!region) return tl::unexpected(region.error());
    const auto incarnation = wait_for_both(*region, signals);
    auto done = incarnation ? copy_all(*region, signals) : Result<void>(tl::unexpected(incarnation.error()));
    // What was copied counts when the memory that it was copied to is still that.
    if (done) {
      const auto moved = tell("moved", {{"next_birth", region->next_birth}, {"incarnation", *incarnation}});
      if (!moved) done = tl::unexpected(moved.error());
    }
    if (!done) {
      const std::string what = fmt::format(
          "{}; {} is out of reach for its tenant meanwhile: move it again, which goes on, or leave it where it was "
          "with --undo",
          done.error().message, name_);
      if (has_come(signals)) return interrupted(what);
      return fail(what);
    }
    if (auto ready = wait_until_ready({region->tenant, name_, region->moving_to, region->length}); !ready)
      return tl::unexpected(ready.error());
    say(fmt::format("{} is on {} now; programs that use it look for it anew", name_, region->moving_to));
    return 0;
  }
  Result<void> copy_all(const rack::TenantRegion& region, rack::StopSignals& signals) {
    auto copy = RegionCopy::open(rack().dir, region.tenant + "/" + region.name, signals);
    if (!copy) return tl::unexpected(copy.error());
    Progress progress;
    for (std::uint64_t offset = 0; offset < copy->length(); offset += RegionCopy::kCopied) {
      auto copied = copy->copy(offset);
      if (has_come(signals)) return fail("interrupted");
      if (!copied) return copied;
      progress.show(fmt::format("{}: {} of {} MiB", name_, offset >> 20, copy->length() >> 20));
    }
    return {};
  }
  // How often the node that it moves to has joined the rack.
  Result<std::uint64_t> wait_for_both(const rack::TenantRegion& region, const rack::StopSignals& signals) {
    const std::string name = region.tenant + "/" + region.name;
    const auto give_up = std::chrono::steady_clock::now() + kRegionPatience;
    for (;;) {
      const auto nodes = directory().nodes();
      if (nodes && nodes->find_memory(rack::kLeaving + name).node != nullptr) {
        if (const auto* const to = nodes->find_memory(rack::kArriving + name).node) return to->incarnation;
      }
      if (has_come(signals)) return fail("interrupted");
      if (std::chrono::steady_clock::now() >= give_up) return fail("the memory nodes are not ready to move it");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  std::string to_;
  bool undo_ = false;
};

class RegionList final : public DirectoryCommand {
 public:
  explicit RegionList(CLI::App& group)
      : DirectoryCommand(group, "list", "Show one's regions; the rack's operator sees all",
                         {"sluice region list --token-file red.token", "sluice region list --json"}) {
    flag("--json", json_, "as JSON");
  }

 private:
  Result<int> run() override {
    const auto nodes = directory().nodes();
    if (!nodes) return tl::unexpected(nodes.error());
    json all = json::array();
    Table table({"TENANT", "REGION", ">SIZE", "NODE", "STATE"});
    for (const rack::TenantRegion& region : nodes->regions) {
      const std::string state = state_of(*nodes, region);
      all.push_back({{"tenant", region.tenant},
                     {"name", region.name},
                     {"bytes", region.length},
                     {"node", region.node},
                     {"state", state}});
      table.add({region.tenant, region.name, rack::bytes_text(region.length), region.node, state});
    }
    fmt::print("{}", json_ ? json_text(all) + "\n" : table.text());
    return 0;
  }

  bool json_ = false;
};

// --- draining ---

class RackDrain final : public DirectoryCommand {
 public:
  explicit RackDrain(CLI::App& group)
      : DirectoryCommand(group, "drain",
                         "Give a memory node no more regions, and show what is left there and who uses it",
                         {"sluice rack drain memory2", "sluice rack drain memory2 --undo"}) {
    option("node", node_, "the memory node").type_name("NAME").required();
    flag("--undo", undo_, "give it regions again");
  }

 private:
  Result<void> check() override { return rack::check_name("memory node", node_, rack::kMostNodeName); }
  // Exit code 0 when nothing is left there, else 1.
  Result<int> run() override {
    const auto done = ask("/v1/drain", {{"node", node_}, {"on", !undo_}});
    if (!done) return tl::unexpected(done.error());
    if (undo_) {
      say(fmt::format("{} is given regions again", node_));
      return 0;
    }
    const auto nodes = directory().nodes();
    if (!nodes) return tl::unexpected(nodes.error());
    const bool any = print_regions(*nodes);
    const bool clover = print_store(*nodes);
    const bool other = print_other_store(*nodes);
    if (any || clover || other) return kExitFailed;
    say(fmt::format("{} is drained, it may be ended: no region of a tenant and nothing of a store is there", node_));
    return 0;
  }

  bool print_regions(const rack::Snapshot& nodes) const {
    Table table({"REGION", ">SIZE", "STATE", "CLIENTS OF ITS TENANT"});
    for (const rack::TenantRegion& region : nodes.regions) {
      if (region.node != node_ && region.moving_to != node_) continue;
      std::string users;
      for (const rack::NodeRecord& node : nodes.nodes) {
        if (rack::tenant_of(node.description) == region.tenant && node.state != rack::NodeState::kGone)
          users += " " + node.description.name;
      }
      table.add({region.tenant + "/" + region.name, rack::bytes_text(region.length), state_of(nodes, region),
                 users.empty() ? "none" : users.substr(1)});
    }
    const bool any = !table.empty();
    if (any) fmt::print("{}", table.text());
    if (any)
      say("regions do not move by themselves: `sluice region move REGION --tenant TENANT` takes one to another node");
    return any;
  }
  // The directory names the first replica of each volume alone.
  bool print_store(const rack::Snapshot& nodes) const {
    const rack::NodeRecord* const node = nodes.find(node_);
    const auto servers = nodes.ready(rack::NodeKind::kMetadata);
    const auto store = rack::find_store(nodes);
    const auto absent = std::ranges::find_if(
        nodes.nodes, [](const auto& n) { return n.description.kind == rack::NodeKind::kMetadata; });
    if (absent != nodes.nodes.end() && (servers.empty() || !store)) {
      say(fmt::format(
          "whether {}'s store keeps data there is not known as long as it does not serve; start it, and ask again",
          absent->description.name));
      return true;
    }
    if (node == nullptr || servers.empty() || !store) return false;
    const bool is_there = store->mirrored || std::ranges::any_of(store->volumes, [&](const auto& volume) {
                            return volume.node == wire::Gid::from(node->ip);
                          });
    if (!is_there) return false;
    say(
        fmt::format("the store of {} keeps data there: with replicas, it outlives the end of the node, and copies what "
                    "others have onto it when it is started again (docs/operate.md)",
                    servers.front()->description.name));
    return true;
  }

  // The directory knows nothing of a FUSEE store or a Sherman tree: the memory says it.
  bool print_other_store(const rack::Snapshot& nodes) {
    const rack::NodeRecord* const node = nodes.find(node_);
    if (node == nullptr || node->description.regions.empty()) return false;
    if (node->state == rack::NodeState::kGone && node->has_left) return false;  // and its memory with it
    const auto mark =
        node->state == rack::NodeState::kReady
            ? read_mark()
            : Result<rack::StoreMark>(fail("its lease has ended, or it has just begun; ask again once it is ready"));
    if (!mark) {
      say(fmt::format("whether {} holds a part of a FUSEE store or a Sherman tree is not known: {}", node_,
                      mark.error().message));
    } else if (*mark != rack::StoreMark::kNone) {
      say(fmt::format("{} holds {}{}", node_, to_string(*mark),
                      *mark == rack::StoreMark::kFusee
                          ? ", which outlives the end of the node where it lies on three or more (docs/operate.md)"
                          : ", which is lost with the node"));
    }
    return !mark || *mark != rack::StoreMark::kNone;
  }
  Result<rack::StoreMark> read_mark() {
    std::optional<rack::StoreMark> mark;
    rack::StoreSessionConfig config;
    config.directory = rack().dir;
    config.name = fmt::format("drain-{}", getpid());
    const auto session = rack::MemorySession::open(config, node_);
    if (!session) return tl::unexpected(session.error());
    const auto read = [&]() -> remote::Task<void> {
      mark = co_await rack::read_mark((*session)->memory(), (*session)->at(0), (*session)->length());
    };
    if (!(*session)->run(read(), config.patience) || !mark) return fail("its memory does not answer");
    return *mark;
  }

  std::string node_;
  bool undo_ = false;
};

}  // namespace

void add_drain_command(CLI::App& group, Commands& commands) { commands.push_back(std::make_unique<RackDrain>(group)); }

void add_tenant_commands(CLI::App& root, Commands& commands) {
  CLI::App& tenants = add_group(root, "tenant", "Who may use the rack besides its owner: tokens and quotas");
  commands.push_back(std::make_unique<TenantAdd>(tenants));
  commands.push_back(std::make_unique<TenantList>(tenants));
  commands.push_back(std::make_unique<TenantQuota>(tenants));
  commands.push_back(std::make_unique<TenantRotate>(tenants));
  commands.push_back(std::make_unique<TenantRevoke>(tenants));
  commands.push_back(std::make_unique<TenantRemove>(tenants));
  CLI::App& regions = add_group(root, "region", "Memory of a tenant's own");
  commands.push_back(std::make_unique<RegionAdd>(regions));
  commands.push_back(std::make_unique<RegionList>(regions));
  commands.push_back(std::make_unique<RegionRemove>(regions));
  commands.push_back(std::make_unique<RegionMove>(regions));
}

}  // namespace sluice::cli
