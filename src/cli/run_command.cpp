// sluice run: a program with libsluice-verbs.so preloaded, as a host of the rack with an address of its own.
#include <fmt/core.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "cli/commands.h"
#include "port/impairment.h"
#include "rack/directory_http.h"
#include "rack/membership.h"
#include "wire/address.h"

extern char** environ;  // NOLINT: what the child inherits

namespace sluice::cli {
namespace {

struct RunSettings {
  std::string host;
  std::string attach;
  std::string wire;
  wire::Ipv4Address ip{};
  std::string mac;
  std::string device = "sluice0";
  std::uint64_t mtu = 4096;
  std::string trace;
  std::string impair;
  bool verbose = false;

  void declare(rack::Schema& schema) {
    schema.text("host", host, "name on the rack; without, one of its own")
        .text("switch", attach, "where frames go instead of the rack's switch; needs --ip",
              "udp:HOST:PORT or shm:/path")
        .text("wire", wire, "a real interface instead of a switch (needs CAP_NET_RAW); needs --ip", "an interface")
        .ipv4("ip", ip, "address of the program's NIC; without, the rack gives one")
        .text("mac", mac, "MAC of the program's NIC", "a MAC such as 02:00:0a:4d:00:09")
        .text("device", device, "what programs see the device called", "a name such as mlx5_0")
        .integer("mtu", mtu, 256, 4096, "largest path MTU: 256, 512, 1024, 2048 or 4096")
        .text("trace", trace, "record all frames of the NIC into this pcap file", "a file")
        .text("impair", impair, "lose, double, reorder, damage, delay frames",
              "drop=1%,duplicate=1%,reorder=1%,corrupt=1%,delay=10us,seed=7")
        .toggle("verbose", verbose, "say on stderr why a verb was refused");
  }
};

// Beside this program as built, or where it is installed.
Result<std::string> find_library() {
  if (const char* const path = std::getenv("SLUICE_VERBS_LIBRARY")) return path;
  const std::filesystem::path here = std::filesystem::path(own_program()).parent_path();
  for (const char* const place :
       {"libsluice-verbs.so", "../lib/libsluice-verbs.so", "../lib/sluice/libsluice-verbs.so"}) {
    std::error_code error;
    const auto path = std::filesystem::canonical(here / place, error);
    if (!error) return path.string();
  }
  return fail(fmt::format("libsluice-verbs.so is not beside {}; set SLUICE_VERBS_LIBRARY to its path", here.string()));
}

void set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

// Ctrl-C reaches the program by itself; a TERM for us is for the program.
class Forwarding {
 public:
  explicit Forwarding(pid_t child) {
    child_ = child;
    struct sigaction forward {};
    forward.sa_handler = [](int number) { kill(child_, number); };
    sigaction(SIGTERM, &forward, nullptr);
    sigaction(SIGHUP, &forward, nullptr);
    signal(SIGINT, SIG_IGN);
    signal(SIGQUIT, SIG_IGN);
  }

 private:
  static inline volatile pid_t child_ = 0;
};

class Run final : public Command {
 public:
  explicit Run(CLI::App& root)
      : Command(root, "run", "Run an RDMA program, unmodified, on a software NIC attached to the rack",
                {"sluice run -- ib_write_bw            # the server; prints nothing special, just works",
                 "sluice run -- ib_write_bw 127.0.0.1  # the client",
                 "sluice run --impair drop=1%,seed=7 -- ib_write_bw 127.0.0.1",
                 "sluice run --switch udp:10.0.0.1:7471 --ip 10.77.0.9 -- ibv_rc_pingpong -g 1"}) {
    settings_.declare(schema_);
    use_rack();
    use("run", schema_);
    app().add_option("program", program_, "the program and its arguments, after --")->required();
  }

 private:
  Result<int> run() override {
    const auto library = find_library();
    if (!library) return tl::unexpected(library.error());
    if (!settings_.impair.empty()) {
      if (auto parsed = port::parse_impairment(settings_.impair); !parsed) return tl::unexpected(parsed.error());
    }
    rack::DirectoryClient directory({run_directory().directory_socket()});
    std::unique_ptr<rack::Membership> membership;
    if (auto attached = attach(directory, membership); !attached) return tl::unexpected(attached.error());
    set_environment(*library);
    return run_program();
  }

  Result<void> attach(rack::DirectoryClient& directory, std::unique_ptr<rack::Membership>& membership) {
    const bool alone = !settings_.attach.empty() || !settings_.wire.empty();
    if (alone && settings_.ip == wire::Ipv4Address{}) {
      return fail("--switch and --wire need --ip: an address that nobody else on that network has");
    }
    port_ = !settings_.wire.empty()     ? "packet:" + settings_.wire
            : !settings_.attach.empty() ? settings_.attach
                                        : "shm:" + run_directory().switch_socket();
    if (alone) return {};
    rack::NodeDescription description;
    description.name = settings_.host.empty() ? fmt::format("run-{}", getpid()) : settings_.host;
    description.attributes = {{"pid", std::to_string(getpid())}, {"program", program_.front()}};
    auto joined = rack::Membership::join(directory, description);
    if (!joined) return fail(fmt::format("{} (is a rack up? `sluice rack up` starts one)", joined.error().message));
    membership = std::move(*joined);
    if (auto published = membership->publish(description); !published) return published;
    if (settings_.ip == wire::Ipv4Address{}) settings_.ip = membership->node().ip;
    if (settings_.mac.empty()) settings_.mac = membership->node().mac.to_string();
    return {};
  }

  void set_environment(const std::string& library) {
    const char* const before = std::getenv("LD_PRELOAD");
    set("LD_PRELOAD", before == nullptr || *before == '\0' ? library : library + ":" + before);
    set("SLUICE_PORT", port_);
    set("SLUICE_IP", settings_.ip.to_string());
    set("SLUICE_DEVICE", settings_.device);
    set("SLUICE_MTU", std::to_string(settings_.mtu));
    if (!settings_.mac.empty()) set("SLUICE_MAC", settings_.mac);
    if (!settings_.trace.empty()) set("SLUICE_TRACE", settings_.trace);
    if (!settings_.impair.empty()) set("SLUICE_IMPAIR", settings_.impair);
    if (settings_.verbose) set("SLUICE_VERBOSE", "1");
  }

  // The program's exit code, or 128 and the number of the signal that ended it, as shells have it.
  Result<int> run_program() {
    std::vector<char*> arguments;
    for (std::string& argument : program_) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    pid_t child = 0;
    const int error = posix_spawnp(&child, arguments[0], nullptr, nullptr, arguments.data(), environ);
    if (error != 0) return fail(fmt::format("{}: {}", program_.front(), std::strerror(error)));
    const Forwarding forwarding(child);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  RunSettings settings_;
  rack::Schema schema_;
  std::vector<std::string> program_;
  std::string port_;
};

}  // namespace

void add_run_command(CLI::App& root, Commands& commands) { commands.push_back(std::make_unique<Run>(root)); }

}  // namespace sluice::cli
