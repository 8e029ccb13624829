// sluice pcap check | show FILE…: every frame of captures decoded, its ICRC verified.
#include <fmt/core.h>

#include <array>
#include <ctime>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/capture.h"
#include "cli/commands.h"
#include "cli/json_text.h"
#include "wire/frame.h"
#include "wire/text.h"

namespace sluice::cli {
namespace {

using wire::Verdict;

struct Captured {
  std::uint64_t number = 0;  // from 1, as Wireshark counts
  timeval time{};
  ByteView bytes;
  std::size_t length = 0;  // on the wire
  bool cut() const { return bytes.size() < length; }
};

struct Counts {
  std::uint64_t frames = 0;
  std::uint64_t sound = 0;  // RoCE, ICRC right
  std::uint64_t other = 0;  // no RoCE: ARP, ordinary UDP …
  std::uint64_t cut = 0;
  std::array<std::uint64_t, wire::kVerdictCount> wrong{};
  std::array<std::uint64_t, 256> opcodes{};

  std::uint64_t all_wrong() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t n : wrong) sum += n;
    return sum;
  }
};

enum class Kind { kSound, kOther, kCut, kWrong };

bool ipv4_checksum_is_right(ByteView header) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < header.size(); i += 2) sum += load_be<std::uint16_t>(header.data() + i);
  while (sum > 0xFFFF) sum = (sum & 0xFFFF) + (sum >> 16);
  return sum == 0xFFFF;
}

// IPv4 options and fragments are refused before anybody looks at the protocol: others may have them, UDP to other ports, too. A later
// fragment tells no port.
bool is_other_traffic(ByteView frame, Verdict verdict) {
  using wire::Ipv4Header;
  if (verdict != Verdict::kBadIpHeaderLength && verdict != Verdict::kFragment) return false;
  const bool tagged = load_be<std::uint16_t>(frame.data() + 12) == wire::kEtherTypeVlan;
  const ByteView ip = frame.subspan(wire::EthernetHeader::kSize + (tagged ? wire::VlanTag::kSize : 0));
  const std::size_t udp = (ip[0] & 0xFu) * 4;
  if (udp < Ipv4Header::kSize || udp > ip.size() || !ipv4_checksum_is_right(ip.first(udp))) return false;
  if (ip[9] != wire::kIpProtocolUdp) return true;
  if ((load_be<std::uint16_t>(ip.data() + 6) & Ipv4Header::kFragmentOffsetMask) != 0) return true;
  return ip.size() >= udp + 4 && load_be<std::uint16_t>(ip.data() + udp + 2) != wire::kRoceUdpPort;
}

Kind judge(const Captured& frame, Counts& counts) {
  ++counts.frames;
  if (frame.cut()) {
    ++counts.cut;
    return Kind::kCut;
  }
  wire::ParsedFrame parsed;
  const Verdict verdict = wire::parse_and_verify(frame.bytes, parsed);
  switch (verdict) {
    case Verdict::kOk:
      ++counts.sound;
      ++counts.opcodes[static_cast<std::uint8_t>(parsed.opcode)];
      return Kind::kSound;
    case Verdict::kNotIp:
    case Verdict::kNotUdp:
    case Verdict::kNotRoce: ++counts.other; return Kind::kOther;
    default: break;
  }
  if (is_other_traffic(frame.bytes, verdict)) {
    ++counts.other;
    return Kind::kOther;
  }
  ++counts.wrong[static_cast<std::size_t>(verdict)];
  return Kind::kWrong;
}

// Calls visit for each frame of the file. An error when it is no readable Ethernet capture to its end.
Result<void> for_each_frame(const std::string& file, const std::function<void(const Captured&)>& visit) {
  const auto pcap = open_capture(file, PCAP_TSTAMP_PRECISION_MICRO);
  if (!pcap) return tl::unexpected(pcap.error());
  pcap_pkthdr* header = nullptr;
  const u_char* bytes = nullptr;
  int result = 0;
  for (std::uint64_t number = 1; (result = pcap_next_ex(pcap->get(), &header, &bytes)) == 1; ++number) {
    visit({number, header->ts, {bytes, header->caplen}, header->len});
  }
  if (result != PCAP_ERROR_BREAK) return fail(fmt::format("{}: {}", file, pcap_geterr(pcap->get())));
  return {};
}

class PcapCheck final : public Command {
 public:
  explicit PcapCheck(CLI::App& group)
      : Command(group, "check", "Decode every frame and verify its ICRC; exit code 1 when one is wrong, or cut",
                {"sluice pcap check capture.pcap", "sluice pcap check --json tests/golden/rxe/*.pcap"}) {
    option("FILE", files_, "captures: pcap or pcapng").required();
    flag("--json", json_, "result as JSON");
  }

 private:
  Result<int> run() override {
    using nlohmann::json;
    json all = json::array();
    bool sound = true;
    for (const std::string& file : files_) {
      Counts counts;
      if (auto read = for_each_frame(file, [&](const Captured& frame) { judge(frame, counts); }); !read)
        return tl::unexpected(read.error());
      sound = sound && counts.all_wrong() == 0 && counts.cut == 0;
      if (json_) {
        all.push_back(to_json(file, counts));
      } else {
        const std::string cut = counts.cut == 0 ? "" : fmt::format(", {} cut and so not verified", counts.cut);
        fmt::print("{}: {} frames, {} RoCE with a right ICRC, {} other{}, {} wrong{}\n", file, counts.frames,
                   counts.sound, counts.other, cut, counts.all_wrong(), wrong_text(counts));
      }
    }
    if (json_) fmt::print("{}\n", json_text(all));
    return sound ? 0 : kExitFailed;
  }

  static std::string wrong_text(const Counts& counts) {
    std::string text;
    for (std::size_t i = 0; i < counts.wrong.size(); ++i) {
      if (counts.wrong[i] != 0) text += fmt::format(", {} {}", counts.wrong[i], to_string(static_cast<Verdict>(i)));
    }
    return text.empty() ? text : " (" + text.substr(2) + ")";
  }

  static nlohmann::json to_json(const std::string& file, const Counts& counts) {
    using nlohmann::json;
    json wrong = json::object();
    for (std::size_t i = 0; i < counts.wrong.size(); ++i) {
      if (counts.wrong[i] != 0) wrong[std::string(to_string(static_cast<Verdict>(i)))] = counts.wrong[i];
    }
    json opcodes = json::object();
    for (std::size_t i = 0; i < counts.opcodes.size(); ++i) {
      if (counts.opcodes[i] != 0)
        opcodes[std::string(wire::opcode_traits(static_cast<std::uint8_t>(i)).name)] = counts.opcodes[i];
    }
    return {{"file", file},      {"frames", counts.frames},   {"sound", counts.sound},        {"other", counts.other},
            {"cut", counts.cut}, {"wrong", std::move(wrong)}, {"opcodes", std::move(opcodes)}};
  }

  std::vector<std::string> files_;
  bool json_ = false;
};

class PcapShow final : public Command {
 public:
  explicit PcapShow(CLI::App& group)
      : Command(group, "show", "Print every frame in a line; exit code 1 when one is wrong",
                {"sluice pcap show capture.pcap", "sluice pcap show --wrong *.pcap",
                 "sluice pcap show --limit 20 capture.pcap"}) {
    option("FILE", files_, "captures: pcap or pcapng").required();
    flag("--wrong", only_wrong_, "only the frames that are wrong");
    option("--limit", limit_, "lines a file [all]").not_negative();
  }

 private:
  Result<int> run() override {
    bool sound = true;
    for (const std::string& file : files_) {
      if (files_.size() > 1) fmt::print("{}:\n", file);
      Counts counts;
      std::uint64_t shown = 0;
      timeval first{};
      CaptureMarks marks(file);
      auto read = for_each_frame(file, [&](const Captured& frame) {
        if (frame.number == 1) first = frame.time;
        const Kind kind = judge(frame, counts);
        const SeenAt seen = marks.next();
        if ((only_wrong_ && kind != Kind::kWrong) || shown == limit_) return;
        ++shown;
        const double since = static_cast<double>(frame.time.tv_sec - first.tv_sec) +
                             static_cast<double>(frame.time.tv_usec - first.tv_usec) / 1e6;
        fmt::print("{}\n", frame_line(frame.number, since, seen,
                                      frame.cut() ? wire::describe_cut(frame.bytes, frame.length)
                                                  : wire::describe(frame.bytes)));
      });
      if (!read) return tl::unexpected(read.error());
      sound = sound && counts.all_wrong() == 0;
    }
    return sound ? 0 : kExitFailed;
  }

  std::vector<std::string> files_;
  bool only_wrong_ = false;
  std::uint64_t limit_ = ~std::uint64_t{0};
};

}  // namespace

void add_pcap_commands(CLI::App& root, Commands& commands) {
  CLI::App& group = add_group(root, "pcap", "Look into captures: decode frames, verify ICRCs");
  commands.push_back(std::make_unique<PcapCheck>(group));
  commands.push_back(std::make_unique<PcapShow>(group));
}

}  // namespace sluice::cli
