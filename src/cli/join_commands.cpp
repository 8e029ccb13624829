// sluice rack init | invite | revoke | join | leave: a rack of more machines than one.
#include <fmt/core.h>

#include <iostream>
#include <iterator>

#include "cli/commands.h"
#include "ports/spec.h"
#include "rack/directory/authority.h"
#include "rack/directory/directory_http.h"
#include "rack/directory/invitation.h"
#include "rack/settings/names.h"
#include "rack/settings/private_file.h"

namespace sluice::cli {
namespace {

// What has to do with the rack's authority.
class AuthorityCommand : public Command {
 protected:
  AuthorityCommand(CLI::App& group, const std::string& name, const std::string& what,
                   const std::vector<std::string>& examples)
      : Command(group, name, what, examples) {
    use_rack();
    option("--tls", tls_, "folder of the rack's authority; empty: tls in the run directory").type_name("FOLDER");
  }
  std::string folder() const { return tls_.empty() ? run_directory().tls() : tls_; }

 private:
  std::string tls_;
};

class RackInit final : public AuthorityCommand {
 public:
  explicit RackInit(CLI::App& group)
      : AuthorityCommand(group, "init",
                         "Make the rack's authority, which lets other machines in: once, where the switch is",
                         {"sluice rack init 192.0.2.1", "sluice rack init switch.example 192.0.2.1"}) {
    option("address", hosts_, "names and addresses that other machines reach this one by")
        .type_name("ADDRESS")
        .required();
  }

 private:
  Result<int> run() override {
    if (auto prepared = run_directory().prepare(); !prepared) return tl::unexpected(prepared.error());
    if (auto made = rack::Authority::create(folder(), hosts_); !made) return tl::unexpected(made.error());
    say(fmt::format("the rack's authority is in {}; who can read authority.key there can let in whom they like",
                    folder()));
    say(
        fmt::format("next: `sluice rack up --serve {}:{}`, and for each machine `sluice rack invite NAME --to {}:{} "
                    "--out NAME.json`",
                    hosts_.front(), rack::kServePort, hosts_.front(), rack::kServePort));
    return 0;
  }

  std::vector<std::string> hosts_;
};

class RackInvite final : public AuthorityCommand {
 public:
  explicit RackInvite(CLI::App& group)
      : AuthorityCommand(group, "invite", "Write the file with which a machine joins the rack",
                         {"sluice rack invite compute7 --out compute7.json",
                          "sluice rack invite compute7 --to 192.0.2.1:7472 --days 30 --out compute7.json"}) {
    option("machine", machine_, "the machine's name on the rack").type_name("NAME").required();
    option("--to", to_, "HOST:PORT that it joins at; empty: where the rack that is up serves").type_name("VALUE");
    option("--days", days_, "days for which it counts")
        .between(1, rack::Authority::kMostDays)
        .default_text(std::to_string(days_));
    option("--out", out_, "write it to this file, with mode 0600, instead of stdout").type_name("FILE");
  }

 private:
  Result<void> check() override {
    if (auto sound = rack::check_name("machine name", machine_); !sound) return sound;
    if (to_.empty()) return {};
    const auto where = ports::parse_host_port(to_);
    if (!where) return fail("--to: " + where.error().message);
    return reachable(to_, *where);
  }
  static Result<void> reachable(const std::string& to, const ports::HostPort& where) {
    if (where.host == "0.0.0.0" || where.host == "::")
      return fail(fmt::format("{} is no address that another machine can reach; say one with --to HOST:PORT", to));
    return {};
  }

  Result<int> run() override {
    if (auto possible = check_output(out_); !possible) return tl::unexpected(possible.error());
    std::string to = to_;
    if (to.empty()) {
      const auto nodes = rack::DirectoryClient({run_directory().directory_socket()}, Duration{}).nodes();
      const rack::NodeRecord* const node = nodes ? nodes->find("switch") : nullptr;
      if (node == nullptr || !node->description.attributes.contains("serve"))
        return fail("no rack that serves other machines is up here; say where it will, with --to HOST:PORT");
      to = node->description.attributes.at("serve");
    }
    const auto where = ports::parse_host_port(to);
    if (!where) return fail(fmt::format("the switch serves at \"{}\": {}", to, where.error().message));
    if (auto good = reachable(to, *where); !good) return tl::unexpected(good.error());
    const auto authority = rack::Authority::open(folder());
    if (!authority) return tl::unexpected(authority.error());
    if (auto named = rack::Authority::check_host(folder(), where->host); !named) return tl::unexpected(named.error());
    const auto issued = authority->invite(machine_, days_);
    if (!issued) return tl::unexpected(issued.error());
    const std::string text = rack::to_text({machine_, to, authority->certificate(), issued->certificate, issued->key});
    if (out_.empty()) {
      fmt::print("{}", text);
      return 0;
    }
    if (auto written = rack::write_private_file(out_, text); !written) return tl::unexpected(written.error());
    say(fmt::format(
        "{} is {}'s invitation, for {} days: bring it there over a way that you trust, and `sluice rack join {}`", out_,
        machine_, days_, out_));
    return 0;
  }

  std::string machine_;
  std::string to_;
  std::string out_;
  int days_ = 365;
};

class RackRevoke final : public AuthorityCommand {
 public:
  explicit RackRevoke(CLI::App& group)
      : AuthorityCommand(group, "revoke", "Shut a machine out that was invited, at once",
                         {"sluice rack revoke compute7"}) {
    option("machine", machine_, "the machine's name on the rack").type_name("NAME").required();
  }

 private:
  Result<int> run() override {
    const auto authority = rack::Authority::open(folder());
    if (!authority) return tl::unexpected(authority.error());
    const auto revoked = authority->revoke(machine_);
    if (!revoked) return tl::unexpected(revoked.error());
    say(*revoked == 0 ? fmt::format("{} was shut out already", machine_)
                      : fmt::format("{} is shut out ({} invitation{})", machine_, *revoked, *revoked == 1 ? "" : "s"));
    return 0;
  }

  std::string machine_;
};

class RackJoin final : public Command {
 public:
  explicit RackJoin(CLI::App& group)
      : Command(
            group, "join", "Join a rack whose switch is on another machine",
            {"sluice rack join compute7.json", "sluice memory --name memory7", "sluice bench clover --workload A"}) {
    use_rack();
    option("invitation", file_, "the file that `sluice rack invite` wrote; -: from stdin").type_name("FILE").required();
  }

 private:
  Result<int> run() override {
    const auto text = file_ == "-" ? Result<std::string>(std::string(std::istreambuf_iterator<char>(std::cin), {}))
                                   : rack::read_whole_file(file_);
    if (!text) return tl::unexpected(text.error());
    const auto invitation = rack::parse_invitation(*text);
    if (!invitation) return tl::unexpected(invitation.error());
    const rack::RunDirectory run = run_directory();
    if (auto prepared = run.prepare(); !prepared) return tl::unexpected(prepared.error());
    if (rack::DirectoryClient({run.directory_socket()}, Duration{}).nodes())
      return fail(
          fmt::format("a rack of this machine's own is up in {}; join in another run directory, with --dir, or "
                      "`sluice rack down` first",
                      run.path()));
    if (auto joined = rack::join(run, *invitation); !joined) return tl::unexpected(joined.error());
    const auto nodes = rack::DirectoryClient(run.directory_address(), Duration{}).nodes();
    if (!nodes) {
      rack::go_back(run);
      return tl::unexpected(nodes.error());
    }
    rack::keep_joined(run);
    const std::size_t ready = nodes->ready(rack::NodeKind::kMemory).size();
    say(fmt::format(
        "joined the rack at {} as {}: {} memory node{} ready there; `sluice rack status` shows what there is",
        invitation->address, invitation->machine, ready, ready == 1 ? " is" : "s are"));
    return 0;
  }

  std::string file_;
};

class RackLeave final : public Command {
 public:
  explicit RackLeave(CLI::App& group)
      : Command(group, "leave", "Forget the rack that this machine has joined", {"sluice rack leave"}) {
    use_rack();
  }

 private:
  Result<int> run() override {
    const auto left = rack::leave(run_directory());
    if (!left) return tl::unexpected(left.error());
    say(*left ? "left the rack" : fmt::format("no rack has been joined in {}", rack().dir));
    return 0;
  }
};

}  // namespace

void add_join_commands(CLI::App& group, Commands& commands) {
  commands.push_back(std::make_unique<RackInit>(group));
  commands.push_back(std::make_unique<RackInvite>(group));
  commands.push_back(std::make_unique<RackRevoke>(group));
  commands.push_back(std::make_unique<RackJoin>(group));
  commands.push_back(std::make_unique<RackLeave>(group));
}

}  // namespace sluice::cli
