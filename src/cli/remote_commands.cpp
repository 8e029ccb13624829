// sluice remote read | write | add | cas: one-sided access to a memory node's memory by hand, as a client of the rack.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "cli/commands.h"
#include "cli/point_processes.h"
#include "cli/progress.h"
#include "rack/clients/memory_session.h"

namespace sluice::cli {
namespace {

constexpr std::size_t kMostAtOnce = 16 << 20;  // bytes of one command: it holds them in memory
constexpr std::size_t kRow = 16;

// A 64-bit word: decimal, 0x…, or negative.
std::optional<std::uint64_t> parse_word(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  const bool hex = text.starts_with("0x");
  if (hex) text.remove_prefix(2);
  std::uint64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value, hex ? 16 : 10);
  if (parsed.ec != std::errc{} || parsed.ptr != text.data() + text.size()) return std::nullopt;
  return negative ? ~value + 1 : value;
}

// A number of bytes: 4096, 0x1000, 4KiB.
std::optional<std::uint64_t> parse_size(const std::string& text) {
  if (text.starts_with("0x")) return parse_word(text);
  std::uint64_t bytes = 0;
  return rack::parse_bytes(text, bytes) ? std::optional(bytes) : std::nullopt;
}

std::optional<std::vector<std::uint8_t>> parse_hex(std::string_view text) {
  std::vector<std::uint8_t> bytes;
  if (text.size() % 2 != 0) return std::nullopt;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    std::uint8_t byte = 0;
    const auto parsed = std::from_chars(text.data() + i, text.data() + i + 2, byte, 16);
    if (parsed.ec != std::errc{} || parsed.ptr != text.data() + i + 2) return std::nullopt;
    bytes.push_back(byte);
  }
  return bytes;
}

// As hexdump -C prints it; a run of equal rows is a line with a star.
std::string dump(std::uint64_t offset, ByteView bytes) {
  std::string text;
  bool starred = false;
  for (std::size_t row = 0; row < bytes.size(); row += kRow) {
    const ByteView now = bytes.subspan(row, std::min(kRow, bytes.size() - row));
    const bool repeats = row >= kRow && now.size() == kRow && std::ranges::equal(now, bytes.subspan(row - kRow, kRow));
    if (repeats && row + kRow < bytes.size()) {
      if (!starred) text += "*\n";
      starred = true;
      continue;
    }
    starred = false;
    std::string hex, letters;
    for (std::size_t i = 0; i < now.size(); ++i) {
      hex += fmt::format("{}{:02x}", i == kRow / 2 ? "  " : " ", now[i]);
      letters += now[i] >= 0x20 && now[i] < 0x7F ? static_cast<char>(now[i]) : '.';
    }
    text += fmt::format("{:08x} {:<49}  |{}|\n", offset + row, hex, letters);
  }
  return text;
}

class RemoteCommand : public Command {
 public:
  RemoteCommand(CLI::App& group, const std::string& name, const std::string& what,
                const std::vector<std::string>& examples)
      : Command(group, name, what, examples) {
    use_rack();
    option("NODE", node_, "memory node, as `sluice rack status` names it").required();
    option("OFFSET", offset_text_, "in its memory: 4096, 0x1000, 4KiB").required();
    option("--patience", patience_, "give up when nothing has been answered after this [5s]")
        .between(Duration::milliseconds(1), Duration::seconds(3600));
  }

 protected:
  // What is asked of the node, once it is connected; what stands in `outcome_` afterwards counts.
  virtual remote::Task<void> act(rack::MemorySession& session) = 0;
  // Of what else the command was given, once the offset is known.
  virtual Result<void> check_more() { return {}; }
  // What it needs from elsewhere, before anything is connected to.
  virtual Result<void> prepare() { return {}; }
  virtual std::uint64_t length() const { return 8; }
  virtual Result<int> tell() = 0;

  std::uint64_t offset() const { return offset_; }
  remote::Status outcome_ = remote::Status::kOk;

 private:
  Result<void> check() final {
    const auto offset = parse_size(offset_text_);
    if (!offset)
      return fail(fmt::format("OFFSET = \"{}\": must be a number of bytes such as 4096, 0x1000 or 4KiB", offset_text_));
    offset_ = *offset;
    return check_more();
  }

  Result<int> run() final {
    if (auto prepared = prepare(); !prepared) return tl::unexpected(prepared.error());
    rack::StoreSessionConfig config;
    config.directory = rack().dir;
    config.name = fmt::format("remote-{}", getpid());
    config.patience = patience_;
    auto session = rack::MemorySession::open(config, node_);
    if (!session) return tl::unexpected(session.error());
    const std::uint64_t most = (*session)->length();
    if (length() > most || offset_ > most - length())
      return fail(fmt::format("{} has {} of memory: {} bytes at {} do not lie in it", node_, rack::bytes_text(most),
                              length(), offset_));
    if (!(*session)->run(act(**session), patience_ + Duration::seconds(3600)))
      return fail(fmt::format("{} has not answered", node_));
    if (outcome_ == remote::Status::kAccessDenied)
      return fail(
          fmt::format("{}: access denied; a tenant's region is for who shows that tenant's token, with "
                      "--token-file",
                      node_));
    if (outcome_ != remote::Status::kOk) return fail(fmt::format("{}: {}", node_, to_string(outcome_)));
    return tell();
  }

  std::string node_;
  std::string offset_text_;
  Duration patience_ = Duration::seconds(5);
  std::uint64_t offset_ = 0;
};

class RemoteRead final : public RemoteCommand {
 public:
  explicit RemoteRead(CLI::App& group)
      : RemoteCommand(group, "read", "Read a memory node's memory by one-sided READs, and show it",
                      {"sluice remote read memory1 0 64", "sluice remote read memory1 4096 8 --word",
                       "sluice remote read memory2 0x10000 1MiB --raw > part.bin"}) {
    option("LENGTH", length_text_, "bytes, at most 16MiB [64]");
    const Argument word = flag("--word", word_, "as 64-bit numbers, a line each");
    flag("--raw", raw_, "the bytes as they are").excludes(word);
  }

 private:
  Result<void> check_more() override {
    const auto length = parse_size(length_text_);
    if (!length || *length == 0 || *length > kMostAtOnce)
      return fail(fmt::format("LENGTH = \"{}\": must be 1 to 16MiB, such as 64, 0x40 or 4KiB", length_text_));
    length_ = *length;
    if (word_ && length_ % 8 != 0) return fail("LENGTH: must be a multiple of 8 with --word");
    bytes_.resize(length_);
    return {};
  }
  std::uint64_t length() const override { return length_; }
  remote::Task<void> act(rack::MemorySession& session) override {
    const std::size_t part = session.memory().capabilities().max_length;
    for (std::size_t done = 0; done < bytes_.size() && outcome_ == remote::Status::kOk; done += part) {
      const std::size_t n = std::min(part, bytes_.size() - done);
      outcome_ = co_await session.memory().read(session.at(offset() + done), MutableBytes(bytes_).subspan(done, n));
    }
  }
  Result<int> tell() override {
    if (raw_) {
      if (std::fwrite(bytes_.data(), 1, bytes_.size(), stdout) != bytes_.size() || std::fflush(stdout) != 0)
        return fail("stdout takes no more");
    } else if (word_) {
      for (std::size_t i = 0; i < bytes_.size(); i += 8) fmt::print("{}\n", load_le<std::uint64_t>(&bytes_[i]));
    } else {
      fmt::print("{}", dump(offset(), bytes_));
    }
    return 0;
  }

  std::string length_text_ = "64";
  std::uint64_t length_ = 0;
  bool word_ = false;
  bool raw_ = false;
  std::vector<std::uint8_t> bytes_;
};

class RemoteWrite final : public RemoteCommand {
 public:
  explicit RemoteWrite(CLI::App& group)
      : RemoteCommand(group, "write", "Write to a memory node's memory by one-sided WRITEs; stores in it are not asked",
                      {"sluice remote write memory1 0 --text hello", "sluice remote write memory1 4096 --word 42",
                       "sluice remote write memory1 8KiB --file part.bin"}) {
    Arguments what = exactly_one("WHAT", "one of");
    what.option("--text", text_, "these letters");
    what.option("--hex", hex_, "bytes, two digits each");
    what.option("--word", word_, "a 64-bit number, little-endian");
    what.option("--file", file_, "all of a file, at most 16MiB");
  }

 private:
  Result<void> check_more() override {
    if (!hex_.empty()) {
      auto parsed = parse_hex(hex_);
      if (!parsed) return fail(fmt::format("--hex = \"{}\": must be pairs of hexadecimal digits", hex_));
      bytes_ = std::move(*parsed);
    } else if (!word_.empty()) {
      const auto parsed = parse_word(word_);
      if (!parsed) return fail(fmt::format("--word = \"{}\": must be a 64-bit number", word_));
      bytes_.resize(8);
      store_le(bytes_.data(), *parsed);
    } else {
      bytes_.assign(text_.begin(), text_.end());
    }
    if (bytes_.empty() && file_.empty()) return fail("nothing to write");
    return {};
  }
  tl::unexpected<Error> cannot_be_read(const std::string& why) const {
    return fail(fmt::format("--file = \"{}\": cannot be read: {}", file_, why));
  }
  Result<void> prepare() override {
    if (file_.empty()) return {};
    std::error_code unknown;
    const bool regular = std::filesystem::is_regular_file(file_, unknown);
    if (unknown) return cannot_be_read(unknown.message());
    if (!regular) return cannot_be_read("it is no regular file");
    const std::uintmax_t size = std::filesystem::file_size(file_, unknown);
    if (unknown) return cannot_be_read(unknown.message());
    std::ifstream in(file_, std::ios::binary);
    if (!in) return cannot_be_read(std::strerror(errno));
    if (size > kMostAtOnce) return fail(fmt::format("--file = \"{}\": must be at most 16MiB", file_));
    bytes_.resize(size);
    in.read(reinterpret_cast<char*>(bytes_.data()), static_cast<std::streamsize>(size));
    if (!in) return cannot_be_read("it has become shorter meanwhile");
    if (bytes_.empty()) return fail(fmt::format("--file = \"{}\": is empty, nothing to write", file_));
    return {};
  }
  std::uint64_t length() const override { return bytes_.size(); }
  remote::Task<void> act(rack::MemorySession& session) override {
    const std::size_t part = session.memory().capabilities().max_length;
    for (std::size_t done = 0; done < bytes_.size() && outcome_ == remote::Status::kOk; done += part) {
      const std::size_t n = std::min(part, bytes_.size() - done);
      outcome_ = co_await session.memory().write(session.at(offset() + done), ByteView(bytes_).subspan(done, n));
    }
  }
  Result<int> tell() override {
    say(fmt::format("{} bytes written", bytes_.size()));
    return 0;
  }

  std::string text_, hex_, word_, file_;
  std::vector<std::uint8_t> bytes_;
};

class RemoteAdd final : public RemoteCommand {
 public:
  explicit RemoteAdd(CLI::App& group)
      : RemoteCommand(group, "add", "Add to a 64-bit word of a memory node, atomically, and print what it was before",
                      {"sluice remote add memory1 0", "sluice remote add memory1 0 -3",
                       "sluice remote add memory1 4096 1 --times 10000"}) {
    option("ADDEND", addend_text_, "a 64-bit number [1]");
    option("--times", times_,
           "add it so often, one after the other; prints the last prior value, and to stderr how long one took [1]")
        .between(1, std::numeric_limits<std::uint64_t>::max());
  }

 private:
  Result<void> check_more() override {
    const auto parsed = parse_word(addend_text_);
    if (!parsed) return fail(fmt::format("ADDEND = \"{}\": must be a 64-bit number", addend_text_));
    if (offset() % 8 != 0) return fail(fmt::format("OFFSET = {}: must be a multiple of 8 for an atomic", offset()));
    addend_ = *parsed;
    return {};
  }
  remote::Task<void> act(rack::MemorySession& session) override {
    using std::chrono::steady_clock;
    const Interrupts interrupts;
    Progress progress;
    const auto begin = steady_clock::now();
    while (done_ < times_ && outcome_ == remote::Status::kOk && !Interrupts::come()) {
      const auto [status, prior] = co_await session.memory().fetch_and_add(session.at(offset()), addend_);
      outcome_ = status;
      prior_ = prior;
      if (status == remote::Status::kOk) ++done_;
      if (done_ % kLook == 0) progress.show(fmt::format("{} of {} additions ({:.0f}%)", done_, times_, share()));
    }
    took_us_ = std::chrono::duration<double, std::micro>(steady_clock::now() - begin).count();
  }
  Result<int> tell() override {
    if (done_ < times_) return interrupted(fmt::format("interrupted after {} of {} additions", done_, times_));
    fmt::print("{}\n", prior_);
    if (times_ > 1) {
      say(fmt::format("{} additions in {:.3g} s, {:.1f} us each", times_, took_us_ / 1e6,
                      took_us_ / static_cast<double>(times_)));
    }
    return 0;
  }

  static constexpr std::uint64_t kLook = 64;  // additions between two looks at the clock
  double share() const { return 100 * static_cast<double>(done_) / static_cast<double>(times_); }

  std::string addend_text_ = "1";
  std::uint64_t addend_ = 1;
  std::uint64_t times_ = 1;
  std::uint64_t done_ = 0;
  std::uint64_t prior_ = 0;
  double took_us_ = 0;
};

class RemoteCas final : public RemoteCommand {
 public:
  explicit RemoteCas(CLI::App& group)
      : RemoteCommand(
            group, "cas",
            "Compare a 64-bit word of a memory node and swap it if equal, atomically; exits with 1 if it was not",
            {"sluice remote cas memory1 0 0 7"}) {
    option("COMPARE", compare_text_, "what it must be").required();
    option("SWAP", swap_text_, "what it becomes").required();
  }

 private:
  Result<void> check_more() override {
    const auto compare = parse_word(compare_text_);
    const auto swap = parse_word(swap_text_);
    if (!compare) return fail(fmt::format("COMPARE = \"{}\": must be a 64-bit number", compare_text_));
    if (!swap) return fail(fmt::format("SWAP = \"{}\": must be a 64-bit number", swap_text_));
    if (offset() % 8 != 0) return fail(fmt::format("OFFSET = {}: must be a multiple of 8 for an atomic", offset()));
    compare_ = *compare;
    swap_ = *swap;
    return {};
  }
  remote::Task<void> act(rack::MemorySession& session) override {
    const auto [status, prior] = co_await session.memory().compare_and_swap(session.at(offset()), compare_, swap_);
    outcome_ = status;
    prior_ = prior;
  }
  Result<int> tell() override {
    const bool swapped = prior_ == compare_;
    fmt::print("{}, was {}\n", swapped ? "swapped" : "not swapped", prior_);
    return swapped ? 0 : kExitFailed;
  }

  std::string compare_text_, swap_text_;
  std::uint64_t compare_ = 0, swap_ = 0, prior_ = 0;
};

}  // namespace

void add_remote_commands(CLI::App& root, Commands& commands) {
  CLI::App& group = add_group(root, "remote", "Read and change a memory node's memory by hand");
  commands.push_back(std::make_unique<RemoteRead>(group));
  commands.push_back(std::make_unique<RemoteWrite>(group));
  commands.push_back(std::make_unique<RemoteAdd>(group));
  commands.push_back(std::make_unique<RemoteCas>(group));
}

}  // namespace sluice::cli
