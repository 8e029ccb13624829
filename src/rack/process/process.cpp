#include "rack/process/process.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string_view>
#include <utility>

#include "rack/settings/schema.h"

namespace sluice::rack {
namespace {

// Fields of /proc/PID/stat from the third on: the second, the name, may hold anything up to the last ')'.
std::vector<std::string> stat_fields(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(in, line);
  const std::size_t end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos) return {};
  std::istringstream rest(line.substr(end_of_name + 1));
  std::vector<std::string> fields;
  for (std::string field; rest >> field;) fields.push_back(field);
  return fields;
}

std::uint64_t number(const std::string& text) { return std::strtoull(text.c_str(), nullptr, 10); }

constexpr std::size_t kState = 0;       // field 3
constexpr std::size_t kUserTicks = 11;  // field 14
constexpr std::size_t kSystemTicks = 12;
constexpr std::size_t kStartTicks = 19;  // field 22
constexpr std::size_t kResidentPages = 21;

Duration ticks(std::uint64_t n) {
  return Duration::microseconds(static_cast<std::int64_t>(n) * 1'000'000 / sysconf(_SC_CLK_TCK));
}

// Milliseconds left until a point in time, for poll().
int left_ms(std::chrono::steady_clock::time_point until) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(left, 0));
}

auto from_now(Duration d) { return std::chrono::steady_clock::now() + std::chrono::nanoseconds(d.nanoseconds()); }

bool wait_for_exit(int pidfd, pid_t pid, Duration timeout) {
  pollfd descriptor{pidfd, POLLIN, 0};
  const auto until = from_now(timeout);
  for (;;) {
    const int n = poll(&descriptor, 1, left_ms(until));
    if (n < 0 && errno == EINTR) continue;
    if (n == 1) waitpid(pid, nullptr, WNOHANG);  // if it is our child, let it go for good
    return n == 1;
  }
}

// Two ends of a pipe, or of none.
class Pipe {
 public:
  Pipe() { made_ = pipe2(ends_, O_CLOEXEC) == 0; }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  bool made() const { return made_; }
  int end(int i) const { return ends_[i]; }
  int release(int i) { return std::exchange(ends_[i], -1); }
  void close_end(int i) {
    if (ends_[i] >= 0) close(std::exchange(ends_[i], -1));
  }

 private:
  int ends_[2] = {-1, -1};
  bool made_ = false;
};

// Whether the one who started us has written down who we are; else we must not begin, for nobody could end us.
bool is_recorded(int go) {
  char byte = 0;
  ssize_t n = 0;
  do {
    n = read(go, &byte, 1);
  } while (n < 0 && errno == EINTR);
  return n == 1;
}

[[noreturn]] void become(const std::vector<char*>& argv, int log, int ready, Pipe& go, Lifetime lifetime) {
  setsid();
  if (lifetime == Lifetime::kOurs)
    prctl(PR_SET_PDEATHSIG, SIGTERM);  // before the word: were we dead by now, there would be none
  go.close_end(1);
  if (!is_recorded(go.end(0))) _exit(127);
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  fcntl(ready, F_SETFD, 0);  // the one descriptor that stays open
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execvp(argv[0], argv.data());
  dprintf(STDERR_FILENO, "cannot start %s: %s\n", argv[0], strerror(errno));
  _exit(127);
}

}  // namespace

std::optional<ProcessRecord> find_process(pid_t pid) {
  const auto fields = stat_fields(pid);
  if (pid <= 0 || fields.size() <= kResidentPages || fields[kState] == "Z" || fields[kState] == "X")
    return std::nullopt;
  return ProcessRecord{pid, number(fields[kStartTicks])};
}

bool alive(const ProcessRecord& process) { return find_process(process.pid) == process; }

std::optional<ProcessUsage> usage_of(const ProcessRecord& process) {
  const auto fields = stat_fields(process.pid);
  if (fields.size() <= kResidentPages || number(fields[kStartTicks]) != process.start_ticks) return std::nullopt;
  double uptime_s = 0;
  std::ifstream("/proc/uptime") >> uptime_s;
  ProcessUsage usage;
  usage.resident_bytes = number(fields[kResidentPages]) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  usage.cpu = ticks(number(fields[kUserTicks]) + number(fields[kSystemTicks]));
  usage.age = Duration::milliseconds(static_cast<std::int64_t>(uptime_s * 1000)) - ticks(process.start_ticks);
  return usage;
}

std::optional<ProcessRecord> read_pid_file(const std::string& path) {
  std::ifstream in(path);
  ProcessRecord process;
  if (!(in >> process.pid >> process.start_ticks)) return std::nullopt;
  return process;
}

Result<void> write_pid_file(const std::string& path, const ProcessRecord& process) {
  const std::string fresh = path + ".new";
  std::ofstream out(fresh);
  out << process.pid << ' ' << process.start_ticks << '\n';
  out.close();
  const auto give_up = [&] {
    auto failed = fail(fmt::format("cannot write {}: {}", path, std::strerror(errno)));
    unlink(fresh.c_str());
    return failed;
  };
  if (!out || std::rename(fresh.c_str(), path.c_str()) != 0) return give_up();
  return {};
}

Result<Spawned> spawn(const std::vector<std::string>& argv, const std::string& log, const std::string& pid_file,
                      Lifetime lifetime) {
  const int log_descriptor = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log_descriptor < 0) return fail(fmt::format("cannot write {}: {}", log, std::strerror(errno)));
  const std::int64_t log_begins = lseek(log_descriptor, 0, SEEK_END);
  Pipe ready;
  Pipe go;
  if (!ready.made() || !go.made()) {
    const int why = errno;
    close(log_descriptor);
    return fail(fmt::format("cannot start {}: {}", argv[0], std::strerror(why)));
  }
  // Everything that allocates happens before fork().
  std::vector<std::string> words{"env", fmt::format("{}={}", kReadyVariable, ready.end(1))};
  words.insert(words.end(), argv.begin(), argv.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) become(pointers, log_descriptor, ready.end(1), go, lifetime);
  const int why = errno;
  close(log_descriptor);
  if (pid < 0) return fail(fmt::format("cannot start {}: {}", argv[0], std::strerror(why)));
  // It waits for our word, so it is there, with a start time.
  const auto fields = stat_fields(pid);
  const ProcessRecord process{pid, fields.size() > kStartTicks ? number(fields[kStartTicks]) : 0};
  if (!pid_file.empty()) {
    if (auto written = write_pid_file(pid_file, process); !written) {
      go.close_end(1);
      waitpid(pid, nullptr, 0);
      return tl::unexpected(written.error());
    }
  }
  static_cast<void>(!write(go.end(1), "", 1));
  return Spawned{process, ready.release(0), log_begins};
}

std::vector<std::string> command_of(const ProcessRecord& process) {
  std::ifstream in(fmt::format("/proc/{}/cmdline", process.pid));
  std::vector<std::string> words;
  for (std::string word; std::getline(in, word, '\0');) words.push_back(std::move(word));
  return words;
}

namespace {
constexpr std::uint64_t kLittleSpace = 64 << 10;  // with less a daemon may be unable to say why it ends
}  // namespace

Result<void> wait_ready(Spawned& spawned, const std::string& name, const std::string& log, Duration timeout,
                        int interrupt) {
  const auto until = from_now(timeout);
  pollfd descriptors[2] = {{spawned.ready_descriptor, POLLIN, 0}, {interrupt, POLLIN, 0}};
  int ready = 0;
  do {
    ready = poll(descriptors, 2, left_ms(until));
  } while (ready < 0 && errno == EINTR);
  char byte = 0;
  const bool spoke = ready > 0 && descriptors[0].revents != 0;
  const bool said = spoke && read(spawned.ready_descriptor, &byte, 1) == 1;
  close(spawned.ready_descriptor);
  spawned.ready_descriptor = -1;
  if (said) return {};
  if (!spoke && ready > 0) return fail("interrupted");
  const std::string what =
      spoke ? "ended while starting" : fmt::format("was not ready after {}", duration_text(timeout));
  struct statvfs disk {};
  const bool full = statvfs(log.c_str(), &disk) == 0 && disk.f_bavail * disk.f_frsize < kLittleSpace;
  return fail(fmt::format("{} {}; {}the end of its log ({}):\n{}", name, what,
                          full ? "the disk is full where its log is, so free some space; " : "", log,
                          last_lines(log, 10, spawned.log_begins)));
}

namespace {

// sd_notify(3): one datagram to the socket that the environment names, a path or, behind '@', an abstract name.
void tell_service_manager() {
  const char* const name = std::getenv("NOTIFY_SOCKET");
  if (name == nullptr) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::strlen(name);
  if (length < 2 || length >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, name, length);
  if (name[0] == '@') address.sun_path[0] = '\0';
  const int descriptor = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  constexpr std::string_view kReady = "READY=1";
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  static_cast<void>(sendto(descriptor, kReady.data(), kReady.size(), MSG_NOSIGNAL,
                           reinterpret_cast<const sockaddr*>(&address), size));
  close(descriptor);
  unsetenv("NOTIFY_SOCKET");
}

}  // namespace

void say_ready() {
  tell_service_manager();
  const char* text = std::getenv(kReadyVariable);
  if (text == nullptr) return;
  const int descriptor = std::atoi(text);
  unsetenv(kReadyVariable);
  static_cast<void>(!write(descriptor, "ready\n", 6));
  close(descriptor);
}

namespace {

// Sends the signals one after the other, waiting after each, until the process is gone.
bool signal_until_gone(const ProcessRecord& process, std::initializer_list<std::pair<int, Duration>> signals) {
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0));
  if (pidfd < 0) return !alive(process);
  // From here on pidfd is one process for sure; whether it is ours is told by its start time.
  bool gone = !alive(process);
  for (const auto& [number, patience] : signals) {
    if (gone) break;
    syscall(SYS_pidfd_send_signal, pidfd, number, nullptr, 0);
    gone = wait_for_exit(pidfd, process.pid, patience);
  }
  close(pidfd);
  return gone;
}

}  // namespace

bool end_process(const ProcessRecord& process, Duration patience) {
  return signal_until_gone(process, {{SIGTERM, patience}, {SIGKILL, Duration::seconds(5)}});
}

bool kill_process(const ProcessRecord& process) {
  return signal_until_gone(process, {{SIGKILL, Duration::seconds(5)}});
}

std::string last_lines(const std::string& path, std::size_t lines, std::int64_t from) {
  std::ifstream in(path);
  in.seekg(std::max<std::int64_t>(from, 0));
  std::deque<std::string> kept;
  for (std::string line; std::getline(in, line);) {
    kept.push_back("  " + line);
    if (kept.size() > lines) kept.pop_front();
  }
  if (kept.empty()) return "  (nothing)";
  std::string out;
  for (const std::string& line : kept) out += (out.empty() ? "" : "\n") + line;
  return out;
}

}  // namespace sluice::rack
