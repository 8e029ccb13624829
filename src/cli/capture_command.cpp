// sluice capture: what passes the rack's switch, printed or written as pcapng: tcpdump for a rack.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "cli/capture.h"
#include "cli/commands.h"
#include "ports/pcapng.h"
#include "ports/private_output.h"
#include "ports/shm_region.h"
#include "rack/directory/directory_http.h"
#include "rack/switch/capture.h"
#include "rack/switch/capture_http.h"
#include "wire/text.h"

namespace sluice::cli {
namespace {

namespace pcapng = ports::pcapng;
using pcapng::BlockType;

constexpr Duration kSilence = Duration::seconds(10);  // the switch gives a sign of life several times a second

struct CaptureSettings {
  std::string out;
  std::vector<std::string> nodes;
  std::string direction = "in";
  std::uint64_t snap = 0;
  std::uint64_t buffer = rack::CaptureWish{}.buffer;
  std::uint64_t count = 0;
  Duration period{};

  void declare(rack::Schema& s) {
    s.text("out", out, "write pcapng into this file, -: to stdout; empty: print a line for each frame", "a file's path")
        .list("node", nodes, "only frames from or to this node", "a node's name")
        .choice("direction", direction, {"in", "out", "both"},
                "frames as they come in, as they leave, after the box and the other stages, or both")
        .bytes_or_0("snap", snap, 64, port::kMaxFrame, "bytes of each frame to write; 0: all")
        .bytes("buffer", buffer, ports::kMinRing, ports::kMaxRing,
               "what may wait in the switch to be read; a power of two")
        .integer("count", count, 0, 1'000'000'000'000, "end after so many frames; 0: go on")
        .duration("for", period, Duration{}, Duration::seconds(86'400), "end after this time; 0: go on until Ctrl-C");
  }
};

volatile sig_atomic_t stopped = 0;

// Ctrl-C is how a capture ends, also while it waits for a pipe's reader: that ends the call in which it waits.
void stop_on_signal() {
  struct sigaction action {};
  action.sa_handler = [](int) { stopped = 1; };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
}

// Whoever read has had enough: that is an end like Ctrl-C.
void look_for_reader() {
  if (errno == EPIPE) stopped = 1;
}

// Where the frames go. Blocks come in their order, each once.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual Result<void> take(const pcapng::Block& block) = 0;
  // What has been taken is to be seen now.
  virtual Result<void> flush() = 0;
};

// A file is made, or begun anew, once there is something to write: what the switch refuses costs nobody an earlier capture.
class FileSink final : public Sink {
 public:
  explicit FileSink(std::string path) : path_(std::move(path)) {
    if (path_ != "-") return;
    path_ = "stdout";
    file_ = stdout;
  }
  ~FileSink() override {
    if (file_ != nullptr && file_ != stdout) std::fclose(file_);
  }
  FileSink(const FileSink&) = delete;
  FileSink& operator=(const FileSink&) = delete;

  Result<void> take(const pcapng::Block& block) override {
    if (file_ == nullptr) file_ = ports::open_private_output(path_);
    pieces_.add(block.bytes.size());
    const bool written =
        file_ != nullptr && std::fwrite(block.bytes.data(), 1, block.bytes.size(), file_) == block.bytes.size();
    return written ? Result<void>{} : failed();
  }
  Result<void> flush() override {
    if (file_ == nullptr) return {};
    if (std::fflush(file_) != 0) return failed();
    pieces_.written();
    return {};
  }

 private:
  Result<void> failed() const {
    look_for_reader();
    if (file_ != nullptr) pieces_.cut(file_);
    return fail(fmt::format("{}: {}; what it took before is whole", path_, std::strerror(errno)));
  }

  std::string path_;
  std::FILE* file_ = nullptr;
  ports::WholePieces pieces_;
};

class LineSink final : public Sink {
 public:
  Result<void> take(const pcapng::Block& block) override {
    if (block.type == BlockType::kInterface) interfaces_.push_back(pcapng::interface_name(block));
    if (block.type != BlockType::kPacket) return {};
    const auto packet = pcapng::packet_of(block);
    if (!packet || packet->interface >= interfaces_.size()) return {};
    if (!first_ns_) first_ns_ = packet->at_ns;
    std::string text;
    if (packet->lost_before != 0) text = fmt::format("       … {} frames lost here\n", packet->lost_before);
    text += frame_line(++number_, static_cast<double>(packet->at_ns - *first_ns_) / 1e9,
                       {interfaces_[packet->interface], packet->direction}, wire::describe(packet->bytes)) +
            '\n';
    return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() ? Result<void>{} : failed();
  }
  Result<void> flush() override { return std::fflush(stdout) == 0 ? Result<void>{} : failed(); }

 private:
  static Result<void> failed() {
    look_for_reader();
    return fail(fmt::format("stdout: {}", std::strerror(errno)));
  }

  std::vector<std::string> interfaces_;
  std::optional<std::int64_t> first_ns_;
  std::uint64_t number_ = 0;
};

class CaptureCommand final : public Command {
 public:
  explicit CaptureCommand(CLI::App& root)
      : Command(root, "capture", "Show, or write into a file, the frames that pass the rack's switch",
                {"sluice capture --node memory1 --count 20", "sluice capture --out rack.pcapng --for 10s udp port 4791",
                 "sluice capture --direction both --out - | wireshark -k -i -",
                 "sluice capture 'udp[8] = 0x13'        # BTH opcode 0x13: RC COMPARE_SWAP"}) {
    use_rack();
    settings_.declare(schema_);
    use("capture", schema_);
    option("filter", filter_, "only frames that this tells of, as tcpdump takes it: pcap-filter(7)");
  }

 private:
  Result<void> check() override {
    if (settings_.snap != 0 && settings_.out.empty())
      return fail("--snap: goes with --out; what is printed is told from whole frames");
    if (!std::has_single_bit(settings_.buffer)) return fail("--buffer: must be a power of two, such as 16MiB or 64MiB");
    // As the switch would say, which is of this version nearly always.
    const auto sound = rack::Capture::make({.filter = filter(), .buffer = ports::kMinRing});
    return sound ? Result<void>{} : tl::unexpected(sound.error());
  }

  Result<int> run() override {
    stop_on_signal();
    std::unique_ptr<Sink> sink = std::make_unique<LineSink>();
    if (!settings_.out.empty()) {
      if (settings_.out != "-") {
        if (auto possible = check_output(settings_.out); !possible) return tl::unexpected(possible.error());
      }
      sink = std::make_unique<FileSink>(settings_.out);
    }
    Result<void> outcome;
    bool begun = false;
    const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(settings_.period.nanoseconds());
    rack::DirectoryClient directory(run_directory().directory_address(), Duration{});
    const auto poured = directory.pour(rack::kCapturePath, question(), kSilence, [&](std::string_view bytes) {
      if (!std::exchange(begun, true)) say("capturing; Ctrl-C ends it");
      outcome = take(bytes, *sink);
      const bool is_over = settings_.period != Duration{} && std::chrono::steady_clock::now() >= end;
      return outcome && !is_full() && !is_over && stopped == 0;
    });
    if (captured_ != 0 || poured)
      say(fmt::format(
          "captured {} frames, {} lost for want of room{}", captured_, lost_,
          lost_ == 0 ? "" : "; --snap 128, --node or a filter ask for less, --buffer 64MiB gives more room"));
    if (!outcome && stopped != 0) _exit(0);  // whoever does not read would hold up the streams' ends, too
    if (!outcome) return tl::unexpected(outcome.error());
    if (!poured) return tl::unexpected(poured.error());
    return 0;
  }

  std::string filter() const { return fmt::format("{}", fmt::join(filter_, " ")); }

  nlohmann::json question() const {
    return {{"filter", filter()},
            {"nodes", settings_.nodes},
            {"in", settings_.direction != "out"},
            {"out", settings_.direction != "in"},
            {"snap", settings_.snap},
            {"buffer", settings_.buffer}};
  }

  bool is_full() const { return settings_.count != 0 && captured_ == settings_.count; }

  Result<void> take(std::string_view bytes, Sink& sink) {
    stream_.push(bytes);
    while (!is_full()) {
      const auto block = stream_.next();
      if (!block) return fail("what the switch sends cannot be understood: is it of another version?");
      if (!*block) break;
      if (auto taken = sink.take(**block); !taken) return taken;
      if ((*block)->type == BlockType::kStatistics) lost_ = std::max(lost_, pcapng::lost_of(**block));
      if ((*block)->type != BlockType::kPacket) continue;
      ++captured_;
      const auto packet = pcapng::packet_of(**block);
      lost_before_packets_ += packet ? packet->lost_before : 0;
      lost_ = std::max(lost_, lost_before_packets_);
    }
    return sink.flush();
  }

  CaptureSettings settings_;
  rack::Schema schema_;
  std::vector<std::string> filter_;
  pcapng::PcapngStream stream_;
  std::uint64_t captured_ = 0;
  std::uint64_t lost_before_packets_ = 0;
  std::uint64_t lost_ = 0;
};

}  // namespace

void add_capture_command(CLI::App& root, Commands& commands) {
  commands.push_back(std::make_unique<CaptureCommand>(root));
}

}  // namespace sluice::cli
