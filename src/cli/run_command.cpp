// sluice run: a program with libsluice-verbs.so preloaded, as a host of the rack with an address of its own.
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <link.h>
#include <net/if.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cli/commands.h"
#include "cli/counter_tables.h"
#include "port/impairment.h"
#include "ports/host_directory.h"
#include "ports/interface_address.h"
#include "ports/spec.h"
#include "ports/unix_socket.h"
#include "rack/daemons/host_daemon.h"
#include "rack/directory/directory_http.h"
#include "rack/directory/membership.h"
#include "rack/process/process.h"
#include "rack/settings/names.h"
#include "wire/address.h"

namespace sluice::cli {
namespace {

struct RunSettings {
  std::string host;
  std::string attach;
  std::string wire;
  wire::Ipv4Address ip{};
  std::string mac;
  std::string device = "sluice0";
  std::string mtu;
  std::string trace;
  std::string counters;
  bool dcqcn = false;
  std::uint64_t line_rate = rack::kLineRate;  // Mb/s
  std::string impair;
  std::string kill_link_after;
  std::string rnr;
  std::string drop_in;
  bool verbose = false;

  void declare(rack::Schema& schema) {
    schema
        .text("host", host,
              "a host of this name, whose address all programs run with --host share; without, one of its own")
        .text("switch", attach, "where frames go instead of the rack's switch; needs --ip",
              "udp:HOST:PORT or shm:/path")
        .text("wire", wire,
              "a real interface instead of a switch (needs CAP_NET_RAW); without --ip, the address that the kernel has "
              "there",
              "an interface")
        .ipv4("ip", ip, "address of the program's NIC; without, the rack gives one")
        .text("mac", mac, "MAC of the program's NIC", "a MAC such as 02:00:0a:4d:00:09")
        .text("device", device, "what programs see the device called", "a name such as mlx5_0")
        .text("mtu", mtu,
              "largest path MTU; without, 4096, or what the interface of --wire holds: 1024 of an MTU of 1500",
              "256, 512, 1024, 2048 or 4096")
        .text("trace", trace, "record all frames of the NIC into this pcap file", "a file")
        .text("counters", counters,
              "write what the NIC has counted into this JSON file, every second and at the end; -: as a table on "
              "stderr, at the end",
              "a file, %p in its name for the process's id, or -")
        .toggle("dcqcn", dcqcn, "obey and send congestion notifications")
        .integer("line-rate", line_rate, 1, 1'000'000, "rate of the NIC's link, in Mb/s, from which DCQCN goes down")
        .text("impair", impair, "lose, double, reorder, damage, delay frames",
              "drop=1%,duplicate=1%,reorder=1%,corrupt=1%,delay=10us,seed=7")
        .text("kill-link-after", kill_link_after, "let nothing pass any more after this time, or so many frames",
              "a time such as 5s, or a number of frames")
        .text("rnr", rnr, "answer so many messages as if their receiver were not ready", "a probability such as 1%")
        .text("drop-in", drop_in,
              "put libibverbs.so.1 and librdmacm.so.1 there, for programs that open them by name; without a program, "
              "print what a "
              "container needs",
              "a directory")
        .toggle("verbose", verbose, "say on stderr why a verb was refused");
  }
};

// The librdmacm that programs get by themselves, for its rsockets. Empty: it is not installed, or stood in for already.
std::filesystem::path real_rdmacm() {
  void* const library = dlopen("librdmacm.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return {};
  link_map* loaded = nullptr;
  const bool ours = dlopen("libsluice-verbs.so", RTLD_LAZY | RTLD_NOLOAD) != nullptr;  // what a drop-in needs
  const bool known = dlinfo(library, RTLD_DI_LINKMAP, static_cast<void*>(&loaded)) == 0;
  std::filesystem::path path = known && !ours ? loaded->l_name : "";
  dlclose(library);
  return path;
}

// By way of another name: a program that has mapped the file of before keeps it.
Result<void> put(const std::filesystem::path& from, const std::filesystem::path& to) {
  namespace fs = std::filesystem;
  const fs::path aside = fmt::format("{}.{}", to.string(), getpid());
  std::error_code error;
  fs::copy_file(fs::canonical(from, error), aside, error);
  if (!error) fs::rename(aside, to, error);
  if (!error) return {};
  std::error_code ignored;
  fs::remove(aside, ignored);
  return fail(fmt::format("--drop-in {}: {}: {}", to.parent_path().string(), from.string(), error.message()));
}

// Puts there what a program loads in place of libibverbs.so.1 and librdmacm.so.1.
Result<void> fill_drop_in(const std::filesystem::path& library, const std::string& to) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(to, error);
  if (error) return fail(fmt::format("--drop-in {}: {}", to, error.message()));
  const fs::path ours = library.parent_path() / "drop-in";
  std::vector<std::pair<fs::path, const char*>> files{{library, "libsluice-verbs.so"},
                                                      {ours / "libibverbs.so.1", "libibverbs.so.1"},
                                                      {ours / "librdmacm.so.1", "librdmacm.so.1"}};
  if (const fs::path rdmacm = real_rdmacm(); !rdmacm.empty()) files.emplace_back(rdmacm, "librdmacm-rsockets.so");
  for (const auto& [from, name] : files) {
    if (auto done = put(from, fs::path(to) / name); !done) return done;
  }
  return {};
}

void set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

// Ctrl-C reaches the program by itself; a TERM for us is for the program, also one that comes before it is there.
class Forwarding {
 public:
  Forwarding() {
    struct sigaction forward {};
    forward.sa_handler = [](int number) {
      child_ > 0 ? static_cast<void>(kill(child_, number)) : early_.store(number);
    };
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;  // NOLINT: a cast of the C library's
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      sigaction(kSignals[i].number, kSignals[i].forwarded ? &forward : &ignore, &before_[i]);
    }
  }
  void to(pid_t child) {
    child_ = child;
    if (const int number = early_; number != 0) kill(child, number);
  }
  // In the child, whose signals are its own.
  void undo() const {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i].number, &before_[i], nullptr);
  }

 private:
  struct Signal {
    int number;
    bool forwarded;
  };
  static constexpr std::array<Signal, 4> kSignals{{{SIGTERM, true}, {SIGHUP, true}, {SIGINT, false}, {SIGQUIT, false}}};
  std::array<struct sigaction, kSignals.size()> before_{};
  static inline std::atomic<pid_t> child_ = 0;
  static inline std::atomic<int> early_ = 0;
};

class Run final : public Command {
 public:
  explicit Run(CLI::App& root)
      : Command(root, "run", "Run an RDMA program, unmodified, on a software NIC attached to the rack",
                {"sluice run -- ib_write_bw            # the server; prints nothing special, just works",
                 "sluice run -- ib_write_bw 127.0.0.1  # the client",
                 "sluice run --impair drop=1%,seed=7 -- ib_write_bw 127.0.0.1",
                 "sluice run --counters - -- ib_write_bw 127.0.0.1  # what its NIC has counted, at the end",
                 "sluice run --drop-in /tmp/rdma -- ./program-that-dlopens-libibverbs",
                 "sluice run --kill-link-after 5s -- rping -c -a 10.77.0.9",
                 "sluice run --host a -- ib_write_bw   # both ends, or more programs, on one NIC with one address",
                 "sluice run --switch udp:10.0.0.1:7471 --ip 10.77.0.9 -- ibv_rc_pingpong -g 1"}) {
    settings_.declare(schema_);
    use_rack();
    use("run", schema_);
    option("program", program_, "the program and its arguments, after --");
  }

 private:
  Result<void> check() override {
    if (!settings_.kill_link_after.empty() && !port::parse_impairment("cut=" + settings_.kill_link_after))
      return fail(fmt::format("--kill-link-after {}: must be a time such as 5s, at most an hour, or a number of frames",
                              settings_.kill_link_after));
    if (!settings_.kill_link_after.empty())
      settings_.impair += (settings_.impair.empty() ? "cut=" : ",cut=") + settings_.kill_link_after;
    if (!settings_.rnr.empty() && !port::parse_probability(settings_.rnr))
      return fail(fmt::format("--rnr {}: must be a probability such as 1% or 250ppm", settings_.rnr));
    if (!settings_.impair.empty()) {
      if (auto parsed = port::parse_impairment(settings_.impair); !parsed) return tl::unexpected(parsed.error());
    }
    if (auto nic = check_nic(); !nic) return nic;
    if (auto wire = check_wire(); !wire) return wire;
    if (auto trace = check_trace(); !trace) return trace;
    if (auto counters = check_counters(); !counters) return counters;
    if (!settings_.dcqcn && settings_.line_rate != rack::kLineRate)
      return fail("--line-rate: needs --dcqcn; nothing else goes by it");
    if (auto attached = check_switch(); !attached) return attached;
    if (!settings_.host.empty()) {
      if (auto sound = rack::check_name("--host:", settings_.host); !sound) return sound;
    }
    const bool has_address = settings_.ip != wire::Ipv4Address{};
    if (program_.empty() && settings_.drop_in.empty())
      return fail("no program: sluice run [flags] -- PROGRAM ARGUMENTS");
    if (program_.empty() && !settings_.host.empty())
      return fail("--host: needs a program; a container's NIC is its own");
    if (program_.empty() && !has_address)
      return fail("--drop-in without a program needs --ip: an address that nobody else on that network has");
    if (!program_.empty() && !settings_.attach.empty() && settings_.wire.empty() && settings_.host.empty() &&
        !has_address)
      return fail("--switch needs --ip: an address that nobody else on that network has");
    return {};
  }

  // What the NIC would refuse only when the program looks for it.
  Result<void> check_nic() const {
    constexpr std::string_view kAllowed[] = {"", "256", "512", "1024", "2048", "4096"};
    if (std::find(std::begin(kAllowed), std::end(kAllowed), settings_.mtu) == std::end(kAllowed))
      return fail(fmt::format("--mtu = \"{}\": must be 256, 512, 1024, 2048 or 4096", settings_.mtu));
    if (settings_.device.empty() || settings_.device.size() > 63)
      return fail(
          fmt::format("--device = \"{}\": must be a name of 63 characters at most, such as mlx5_0", settings_.device));
    const auto mac = wire::MacAddress::parse(settings_.mac);
    if (!settings_.mac.empty() && (!mac || mac->is_multicast() || *mac == wire::MacAddress{}))
      return fail(fmt::format("--mac = \"{}\": must be the MAC of one NIC, such as 02:00:0a:4d:00:09", settings_.mac));
    const std::uint32_t first = settings_.ip.value >> 24;
    if (first == 127 || first >= 224)
      return fail(
          fmt::format("--ip = \"{}\": must be the address of one NIC, such as 10.77.0.9", settings_.ip.to_string()));
    return {};
  }

  // The interface of a container is seen there.
  Result<void> check_wire() {
    if (program_.empty() || settings_.wire.empty()) return {};
    if (if_nametoindex(settings_.wire.c_str()) == 0)
      return fail(fmt::format("--wire {}: there is no interface of that name; `ip link` shows them", settings_.wire));
    const auto held = ports::path_mtu_of_interface(settings_.wire);
    if (!held) return fail(fmt::format("--wire: {}", held.error().message));
    if (settings_.mtu.empty()) settings_.mtu = std::to_string(*held);
    if (std::stoul(settings_.mtu) > *held)
      return fail(fmt::format(
          "--mtu {}: the MTU of {} holds {} at most; `ip link set {} mtu 4200` on both ends, and on what is "
          "between, is enough for all",
          settings_.mtu, settings_.wire, *held, settings_.wire));
    return {};
  }

  // A program may have another working directory by the time its NIC begins; the file of a container is the container's.
  Result<void> check_trace() {
    if (settings_.trace.find(',') != std::string::npos)
      return fail(fmt::format("--trace = \"{}\": must have no comma", settings_.trace));
    if (settings_.trace.empty() || program_.empty()) return {};
    settings_.trace = std::filesystem::absolute(settings_.trace).string();
    if (settings_.trace.find(',') != std::string::npos)
      return fail(fmt::format("--trace = \"{}\": no folder on its way may have a comma in its name", settings_.trace));
    return check_output(settings_.trace, "trace");
  }

  // The same holds for this one.
  Result<void> check_counters() {
    if (settings_.counters == "-")
      return program_.empty() ? fail("--counters - needs a program: a container's can only go into a file")
                              : Result<void>();
    if (settings_.counters.empty() || program_.empty()) return {};
    std::error_code error;
    const std::filesystem::path place = std::filesystem::weakly_canonical(settings_.counters, error);
    settings_.counters = (error ? std::filesystem::absolute(settings_.counters) : place).string();
    if (const auto status = std::filesystem::status(settings_.counters, error);
        std::filesystem::is_other(status) || std::filesystem::is_fifo(status))
      return fail(fmt::format("--counters = \"{}\": must be a file, not a device or a pipe", settings_.counters));
    if (std::filesystem::is_regular_file(settings_.counters, error) && !are_counters(settings_.counters))
      return fail(fmt::format("--counters = \"{}\": is there already, and no NIC has written it; name another",
                              settings_.counters));
    return check_output(settings_.counters, "counters");
  }

  Result<void> check_switch() const {
    if (settings_.attach.empty()) return {};
    if (!settings_.wire.empty()) return fail("--switch: not with --wire, which leads past every switch of ours");
    const auto wrong = [this](const std::string& why) {
      return fail(fmt::format("--switch = \"{}\": {}; it is udp:HOST:PORT or shm:/path", settings_.attach, why));
    };
    const auto port = ports::parse_port_spec(settings_.attach);
    if (!port) return wrong(port.error().message);
    if (port->kind == "shm") return {};
    if (port->kind != "udp") return wrong("no switch is reached by " + port->kind);
    const auto where = ports::parse_host_port(port->address);
    if (!where) return wrong(where.error().message);
    return where->port == 0 ? wrong("port 0 is nobody's") : Result<void>();
  }

  Result<int> run() override {
    const auto library = find_verbs_library();
    if (!library) return tl::unexpected(library.error());
    if (!settings_.drop_in.empty()) {
      if (auto filled = fill_drop_in(*library, settings_.drop_in); !filled) return tl::unexpected(filled.error());
    }
    if (program_.empty()) return print_for_containers();
    rack::DirectoryClient directory(run_directory().directory_address());
    std::unique_ptr<rack::Membership> membership;
    ports::Descriptor host_use;
    if (!settings_.host.empty()) {
      auto used = use_host();
      if (!used) return tl::unexpected(used.error());
      host_use = std::move(*used);
    } else if (auto attached = attach(directory, membership); !attached) {
      return tl::unexpected(attached.error());
    }
    if (settings_.counters == "-") return run_and_tell(*library);
    if (!settings_.counters.empty()) remove_counters(settings_.counters);
    set_environment(*library);
    return run_program();
  }

  // A NIC writes to no file that is there already: one that no living NIC has goes.
  static void remove_counters(const std::string& path) {
    const ports::Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat there {};
    const bool left = file && flock(file.get(), LOCK_EX | LOCK_NB) == 0 && fstat(file.get(), &there) == 0 &&
                      there.st_nlink != 0;  // 0: its NIC has just put another in its place
    if (left) unlink(path.c_str());
  }

  // Also of a program that was killed.
  Result<int> run_and_tell(const std::string& library) {
    std::string folder = (std::filesystem::temp_directory_path() / "sluice-counters-XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) return fail(fmt::format("{}: {}", folder, std::strerror(errno)));
    settings_.counters = folder + "/%p";
    set_environment(library);
    auto ended = run_program();
    if (ended) fmt::print(stderr, "{}", counter_tables(folder));
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    return ended;
  }

  // A container has neither this process to keep a lease for it nor our environment.
  Result<int> print_for_containers() {
    const std::string directory = std::filesystem::absolute(settings_.drop_in).lexically_normal().string();
    port_ = outside().empty() ? run_directory().switch_port() : outside();
    fmt::print("# mount {}{} and set in the container:\n", directory,
               outside().empty() ? " and " + run_directory().path() : std::string());
    fmt::print("LD_LIBRARY_PATH={}\n", directory);
    for (const auto& [name, value] : nic_environment()) fmt::print("{}={}\n", name, value);
    return 0;
  }

  std::string outside() const { return settings_.wire.empty() ? settings_.attach : "packet:" + settings_.wire; }

  // The NIC of the host that was named, started if it is not there. It stays as long as the result is kept.
  Result<ports::Descriptor> use_host() {
    const std::string path = run_directory().host(settings_.host);
    const ports::HostDirectory host(path);
    if (auto prepared = run_directory().prepare(); !prepared) return tl::unexpected(prepared.error());
    ports::Descriptor alone;
    do {  // until it is not that of a host which has just gone
      if (auto prepared = host.prepare(); !prepared) return tl::unexpected(prepared.error());
      alone = host.lock();
    } while (!alone && errno == ENOENT);
    if (!alone) return fail(fmt::format("{}: {}", path, std::strerror(errno)));
    ports::Descriptor use = host.use();
    if (!use) return fail(fmt::format("{}: {}", path, std::strerror(errno)));
    const bool runs = ports::connect_unix(host.socket()).has_value();
    if (!runs) {
      if (auto started = start_host(); !started) return tl::unexpected(started.error());
    }
    const auto address = rack::read_host_address(path);
    if (!address) return tl::unexpected(address.error());
    if (runs) {
      if (auto same = check_same(*address); !same) return tl::unexpected(same.error());
    }
    settings_.ip = address->ip;
    settings_.mac = address->mac.to_string();
    port_ = "shm:" + host.socket();
    set("SLUICE_HOST", path);
    return use;
  }

  // A host that runs stays as it was started; another address would be that of nobody.
  Result<void> check_same(const rack::HostAddress& runs) const {
    const auto differs = [this](const char* flag, const std::string& asked, const std::string& is) {
      return fail(
          fmt::format("{} = \"{}\": host {} runs already, with {}; leave it out, or give a host of another name", flag,
                      asked, settings_.host, is));
    };
    if (settings_.ip != wire::Ipv4Address{} && settings_.ip != runs.ip)
      return differs("--ip", settings_.ip.to_string(), runs.ip.to_string());
    if (!settings_.mac.empty() && wire::MacAddress::parse(settings_.mac) != runs.mac)
      return differs("--mac", settings_.mac, runs.mac.to_string());
    if (!settings_.wire.empty() && outside() != runs.port) return differs("--wire", settings_.wire, runs.port);
    if (!settings_.attach.empty() && outside() != runs.port) return differs("--switch", settings_.attach, runs.port);
    return {};
  }

  Result<void> start_host() {
    std::vector<std::string> argv{own_program(), "host", "--name", settings_.host, "--dir", run_directory().path()};
    const auto add = [&argv](const char* flag, const std::string& value) {
      if (!value.empty()) argv.insert(argv.end(), {flag, value});
    };
    add("--port", outside());
    if (settings_.ip != wire::Ipv4Address{}) add("--ip", settings_.ip.to_string());
    add("--mac", settings_.mac);
    const std::string name = "host-" + settings_.host;
    const std::string log = run_directory().log(name);
    auto spawned = rack::spawn(argv, log, run_directory().pid_file(name));
    if (!spawned) return tl::unexpected(spawned.error());
    auto ready = rack::wait_ready(*spawned, name, log, Duration::seconds(10));
    if (!ready) {  // it is no daemon of the rack then
      rack::end_process(spawned->process, Duration::seconds(2));
      std::error_code ignored;
      std::filesystem::remove(run_directory().pid_file(name), ignored);
    }
    return ready;
  }

  Result<void> attach(rack::DirectoryClient& directory, std::unique_ptr<rack::Membership>& membership) {
    const bool alone = !settings_.attach.empty() || !settings_.wire.empty();
    if (!settings_.wire.empty()) {
      if (auto shared = share_with_kernel(); !shared) return shared;
    }
    port_ = alone ? outside() : run_directory().switch_port();
    if (alone) return {};
    rack::NodeDescription description;
    description.name = run_directory().client_name(fmt::format("run-{}", getpid()));
    description.attributes = {{"pid", std::to_string(getpid())}, {"program", program_.front()}};
    rack::MembershipConfig lease;
    lease.on_superseded = [told = false]() mutable {
      if (!std::exchange(told, true))
        say("sluice run: the rack has begun anew, and the program's address may be another's there: end it, and start "
            "it again");
    };
    auto joined = rack::Membership::join(directory, description, std::move(lease));
    if (!joined) return tl::unexpected(joined.error());
    membership = std::move(*joined);
    if (auto published = membership->publish(description); !published) return published;
    if (settings_.ip == wire::Ipv4Address{}) settings_.ip = membership->node().ip;
    if (settings_.mac.empty()) settings_.mac = membership->node().mac.to_string();
    return {};
  }

  // On a wire without an address of its own, or with that of the kernel, the NIC has the interface's MAC too.
  Result<void> share_with_kernel() {
    const bool any = settings_.ip == wire::Ipv4Address{};
    const auto kernel = ports::address_of_interface(settings_.wire);
    if (!kernel) return any ? fail(kernel.error().message + "; give an address with --ip") : Result<void>{};
    if (any) settings_.ip = kernel->ip;
    if (settings_.ip == kernel->ip && settings_.mac.empty()) settings_.mac = kernel->mac.to_string();
    return {};
  }

  void set_environment(const std::string& library) {
    if (!settings_.drop_in.empty()) {
      const char* const paths = std::getenv("LD_LIBRARY_PATH");
      const std::string ours = std::filesystem::absolute(settings_.drop_in).string();
      set("LD_LIBRARY_PATH", paths == nullptr || *paths == '\0' ? ours : ours + ":" + paths);
    }
    const char* const before = std::getenv("LD_PRELOAD");
    set("LD_PRELOAD", before == nullptr || *before == '\0' ? library : library + ":" + before);
    for (const auto& [name, value] : nic_environment()) set(name, value);
  }

  // What the NIC in the program is told: src/verbs/settings.h.
  std::vector<std::pair<const char*, std::string>> nic_environment() const {
    std::vector<std::pair<const char*, std::string>> all{
        {"SLUICE_PORT", port_}, {"SLUICE_IP", settings_.ip.to_string()}, {"SLUICE_DEVICE", settings_.device}};
    const auto add = [&all](const char* name, const std::string& value) {
      if (!value.empty()) all.emplace_back(name, value);
    };
    add("SLUICE_MTU", settings_.mtu);
    add("SLUICE_MAC", settings_.mac);
    add("SLUICE_TRACE", settings_.trace);
    add("SLUICE_COUNTERS", settings_.counters);
    if (settings_.dcqcn) {
      add("SLUICE_DCQCN", "1");
      add("SLUICE_LINE_RATE", std::to_string(settings_.line_rate));
    }
    add("SLUICE_IMPAIR", settings_.impair);
    add("SLUICE_RNR", settings_.rnr);
    add("SLUICE_VERBOSE", settings_.verbose ? "1" : "");
    return all;
  }

  // The program's exit code, or 128 and the number of the signal that ended it, as shells have it.
  Result<int> run_program() {
    std::vector<char*> arguments;
    for (std::string& argument : program_) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    int exec_failed[2];  // says why, or closes
    if (pipe2(exec_failed, O_CLOEXEC) != 0) return fail(fmt::format("{}: {}", program_.front(), std::strerror(errno)));
    const pid_t us = getpid();
    Forwarding forwarding;
    const pid_t child = fork();
    if (child == 0) {
      forwarding.undo();
      become_program(arguments, us, exec_failed[1]);
    }
    if (child > 0) forwarding.to(child);
    int error = child < 0 ? errno : 0;
    close(exec_failed[1]);
    ssize_t told = 0;
    do {  // a TERM that is passed on meanwhile is no answer
      told = child > 0 ? read(exec_failed[0], &error, sizeof error) : 0;
    } while (told < 0 && errno == EINTR);
    if (child > 0 && told != static_cast<ssize_t>(sizeof error)) error = 0;
    close(exec_failed[0]);
    if (error != 0) return fail(fmt::format("{}: {}", program_.front(), std::strerror(error)));
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  // In the child. Killed with us: the address of its NIC is free for another then.
  [[noreturn]] static void become_program(const std::vector<char*>& arguments, pid_t parent, int exec_failed) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(128 + SIGKILL);
    execvp(arguments[0], arguments.data());
    const int error = errno;
    static_cast<void>(!write(exec_failed, &error, sizeof error));
    _exit(127);
  }

  RunSettings settings_;
  rack::Schema schema_;
  std::vector<std::string> program_;
  std::string port_;
};

}  // namespace

Result<std::string> find_verbs_library() {
  if (const char* const path = std::getenv("SLUICE_VERBS_LIBRARY")) return path;
  const std::filesystem::path here = std::filesystem::path(own_program()).parent_path();
  for (const char* const place :
       {"libsluice-verbs.so", "../lib/libsluice-verbs.so", "../lib/sluice/libsluice-verbs.so"}) {
    std::error_code error;
    const auto path = std::filesystem::canonical(here / place, error);
    if (!error) return path.string();
  }
  return fail(
      fmt::format("libsluice-verbs.so is not in {}: build it there (`ninja sluice-verbs`, or `./test --build-only`), "
                  "or set SLUICE_VERBS_LIBRARY to its path",
                  here.string()));
}

void add_run_command(CLI::App& root, Commands& commands) { commands.push_back(std::make_unique<Run>(root)); }

}  // namespace sluice::cli
