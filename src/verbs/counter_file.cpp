#include "verbs/counter_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

namespace sluice::verbs {
namespace {

// Text of bounded length, made without allocating.
class Text {
 public:
  void add(std::string_view text) { size_ += text.copy(bytes_.data() + size_, bytes_.size() - size_); }
  void add(std::uint64_t number) {
    const auto written = std::to_chars(bytes_.data() + size_, bytes_.data() + bytes_.size(), number);
    if (written.ec == std::errc()) size_ = static_cast<std::size_t>(written.ptr - bytes_.data());
  }
  std::string_view all() const { return {bytes_.data(), size_}; }

 private:
  std::array<char, 8192> bytes_{};  // twice what all counters need
  std::size_t size_ = 0;
};

template <class Counters>
void add_object(Text& text, std::string_view name, const Counters& counters) {
  text.add(",\n  \"");
  text.add(name);
  std::string_view before = "\": {\n    \"";
  counters.for_each([&](std::string_view counter, std::string_view, std::uint64_t value) {
    text.add(before);
    text.add(counter);
    text.add("\": ");
    text.add(value);
    before = ",\n    \"";
  });
  text.add("\n  }");
}

bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

// ext4 writes a file out when it takes another's name (auto_da_alloc), which lasts milliseconds, but not when the two exchange theirs.
bool replace(const char* from, const char* to) {
  if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0) {
    unlink(from);
    return true;
  }
  return rename(from, to) == 0;  // it has no such call, or somebody has removed the file
}

// Some file systems have the one, some the other.
bool name_if_free(const char* from, const char* to) {
  if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return true;
  return errno != EEXIST && link(from, to) == 0;
}

void say(std::string_view path, std::string_view what) {
  Text text;
  for (const std::string_view part : {std::string_view("sluice: "), path, std::string_view(": "), what}) text.add(part);
  text.add("\n");
  static_cast<void>(write_all(STDERR_FILENO, text.all()));
}

void say_unwritten(std::string_view path, int error) {
  std::array<char, 128> reason{};
  Text text;
  text.add("the NIC's counters cannot be written there: ");
  text.add(std::string_view(strerror_r(error, reason.data(), reason.size())));
  say(path, text.all());
}

// As a JSON string may have it, whatever the program is called.
std::string plain(std::string_view name) {
  std::string text(name);
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~' || c == '"' || c == '\\'; }, '?');
  return text;
}

std::string path_of(std::string name) {
  for (std::size_t at = name.find("%p"); at != std::string::npos; at = name.find("%p", at))
    name.replace(at, 2, std::to_string(getpid()));
  std::error_code error;
  const auto absolute = std::filesystem::absolute(name, error);  // the program may go elsewhere
  return error ? name : absolute.string();
}

}  // namespace

std::unique_ptr<CounterFile> CounterFile::take(const std::string& name, const std::string& address) {
  std::unique_ptr<CounterFile> file(new CounterFile(path_of(name), address));
  const std::string wanted = file->path_;
  const int error = file->claim();
  if (error != 0) {
    say_unwritten(file->path_, error);
    return nullptr;
  }
  if (file->path_ != wanted)
    say(wanted, fmt::format("is there already; the counters of process {} are in {}", getpid(), file->path_));
  return file;
}

CounterFile::CounterFile(std::string path, const std::string& address)
    : path_(std::move(path)),
      aside_(fmt::format("{}.{}.new", path_, getpid())),
      head_(fmt::format("{{\n  \"process\": {},\n  \"program\": \"{}\",\n  \"address\": \"{}\",\n  \"complete\": ",
                        getpid(), plain(program_invocation_short_name), address)) {}

int CounterFile::claim() {
  const int error = put({}, false, How::kIfFree);
  if (error != EEXIST) return error;
  struct stat there {};
  if (stat(path_.c_str(), &there) == 0 && S_ISDIR(there.st_mode)) return EISDIR;
  path_ += fmt::format(".{}", getpid());
  return put({}, false, How::kIfFree);
}

int CounterFile::put(const NicCounters& counters, bool complete, How how) {
  Text text;
  text.add(head_);
  text.add(complete ? "true" : "false");
  add_object(text, "port", counters.port);
  add_object(text, "nic", counters.nic);
  text.add("\n}\n");

  unlink(aside_.c_str());  // of a process of this number that was killed in here
  ports::Descriptor file(open(aside_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file) return errno;
  flock(file.get(), LOCK_EX | LOCK_NB);  // before it has a name that others know
  const auto give_name = [&] {
    return how == How::kInPlace ? replace(aside_.c_str(), path_.c_str()) : name_if_free(aside_.c_str(), path_.c_str());
  };
  const int error = write_all(file.get(), text.all()) && give_name() ? 0 : errno;
  if (error != 0 || how == How::kIfFree) unlink(aside_.c_str());
  if (error == 0) file_ = std::move(file);
  return error;
}

void CounterFile::write(const NicCounters& counters, bool complete) {
  if (lock_.is_mine()) return;
  lock_.lock();
  if (!ended_ && (complete || !(counters == written_))) {
    const int error = put(counters, complete, How::kInPlace);
    if (error == 0) {
      written_ = counters;
    } else if (!std::exchange(complained_, true)) {
      say_unwritten(path_, error);
    }
  }
  ended_ |= complete;
  lock_.unlock();
}

}  // namespace sluice::verbs
