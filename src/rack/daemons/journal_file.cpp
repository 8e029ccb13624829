#include "rack/daemons/journal_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "rack/settings/private_file.h"

namespace sluice::rack {
namespace {

constexpr std::uint32_t kLong = ~std::uint32_t{0};  // the length follows

template <class T>
void put(std::vector<std::uint8_t>& out, T number) {
  out.resize(out.size() + sizeof number);
  store_le(out.data() + out.size() - sizeof number, number);
}

void put_record(std::vector<std::uint8_t>& out, ByteView record) {
  JournalFile::put_length(out, record.size());
  out.insert(out.end(), record.begin(), record.end());
}

bool write_whole(int descriptor, ByteView bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(descriptor, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return true;
}

ByteView bytes_of(const std::string& text) { return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}; }

}  // namespace

void JournalFile::put_length(std::vector<std::uint8_t>& out, std::uint64_t length) {
  if (length < kLong) return put(out, static_cast<std::uint32_t>(length));
  put(out, kLong);
  put(out, length);
}

std::optional<std::uint64_t> JournalFile::take_length(ByteView& in) {
  if (in.size() < 4) return std::nullopt;
  const auto brief = load_le<std::uint32_t>(in.data());
  const std::size_t bytes = brief == kLong ? 12 : 4;
  if (in.size() < bytes) return std::nullopt;
  const std::uint64_t length = brief == kLong ? load_le<std::uint64_t>(in.data() + 4) : brief;
  in = in.subspan(bytes);
  return length;
}

Result<std::optional<JournalFile::Story>> JournalFile::read(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0) return std::nullopt;
  const auto text = read_whole_file(path, std::numeric_limits<std::size_t>::max());
  if (!text) return tl::unexpected(text.error());
  ByteView left = bytes_of(*text);
  std::vector<std::vector<std::uint8_t>> records;
  while (const auto length = take_length(left)) {
    if (left.size() < *length) break;
    const auto record = left.first(*length);
    records.emplace_back(record.begin(), record.end());
    left = left.subspan(*length);
  }
  if (records.size() < 2) return std::nullopt;  // it was never begun
  Story story;
  story.store.assign(records.front().begin(), records.front().end());
  story.records.assign(std::make_move_iterator(records.begin() + 1), std::make_move_iterator(records.end()));
  return story;
}

JournalFile::~JournalFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

// What is there was not begun here. What was there before the first begin() is ours to replace.
bool JournalFile::is_anothers() const {
  struct stat there {};
  if (!has_begun_ || stat(path_.c_str(), &there) != 0) return false;
  struct stat ours {};
  return descriptor_ < 0 || fstat(descriptor_, &ours) != 0 || ours.st_ino != there.st_ino ||
         ours.st_dev != there.st_dev;
}

Result<void> JournalFile::begin(const std::string& store, ByteView state) {
  if (is_anothers()) return fail(fmt::format("{}: another metadata server of this name has begun it anew", path_));
  const std::string fresh = path_ + ".new";
  const int descriptor = open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (descriptor < 0) return fail(fmt::format("{}: {}", fresh, std::strerror(errno)));
  std::vector<std::uint8_t> head;
  put_record(head, bytes_of(store));
  put_length(head, state.size());
  if (!write_whole(descriptor, head) || !write_whole(descriptor, state) || rename(fresh.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    close(descriptor);
    unlink(fresh.c_str());
    return fail(fmt::format("{}: {}", path_, std::strerror(error)));
  }
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = descriptor;
  has_begun_ = true;
  bytes_ = begun_with_ = head.size() + state.size();
  return {};
}

void JournalFile::append(ByteView record) {
  if (descriptor_ < 0) return;
  record_.clear();
  put_record(record_, record);
  if (write_whole(descriptor_, record_)) {
    bytes_ += record_.size();
    return;
  }
  if (!is_anothers()) unlink(path_.c_str());
  close(std::exchange(descriptor_, -1));
}

}  // namespace sluice::rack
