#include "ports/pcapng.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace sluice::ports::pcapng {
namespace {

constexpr std::uint32_t kMagic = 0x1A2B3C4D;
constexpr std::uint32_t kShortestBlock = 12;  // type, length, length
constexpr std::uint32_t kPacketStart = 28;    // up to the frame's first byte

// Options, each by the block it stands in.
constexpr std::uint16_t kEnd = 0;
constexpr std::uint16_t kSectionApplication = 4;
constexpr std::uint16_t kInterfaceName = 2;
constexpr std::uint16_t kInterfaceDescription = 3;
constexpr std::uint16_t kInterfaceResolution = 9;
constexpr std::uint16_t kPacketFlags = 2;
constexpr std::uint16_t kPacketDropCount = 4;
constexpr std::uint16_t kStatisticsDropped = 5;

constexpr std::uint16_t kEthernet = 1;
constexpr std::uint16_t kNameOfIpv4 = 1;

constexpr std::uint32_t padded(std::uint32_t length) { return (length + 3) & ~3U; }

// One block, whose two lengths are known at its end.
class Writer {
 public:
  Writer(std::string& out, BlockType type) : out_(out), start_(out.size()) {
    add(static_cast<std::uint32_t>(type));
    add(std::uint32_t{0});
  }
  ~Writer() {
    const auto length = static_cast<std::uint32_t>(out_.size() - start_ + 4);
    add(length);
    store_le(reinterpret_cast<std::uint8_t*>(out_.data()) + start_ + 4, length);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  template <class T>
  void add(T value) {
    std::uint8_t bytes[sizeof(T)];
    store_le(bytes, value);
    out_.append(reinterpret_cast<const char*>(bytes), sizeof(T));
  }
  void add_padded(std::string_view bytes) {
    out_.append(bytes);
    out_.append(padded(static_cast<std::uint32_t>(bytes.size())) - bytes.size(), '\0');
  }
  void add_option(std::uint16_t code, std::string_view value) {
    value = value.substr(0, 0xFFFF);
    add(code);
    add(static_cast<std::uint16_t>(value.size()));
    add_padded(value);
  }
  template <class T>
  void add_number_option(std::uint16_t code, T value) {
    std::uint8_t bytes[sizeof(T)];
    store_le(bytes, value);
    add_option(code, {reinterpret_cast<const char*>(bytes), sizeof(T)});
  }
  void end_options() { add(std::uint32_t{kEnd}); }

 private:
  std::string& out_;
  std::size_t start_;
};

// The value of an option among those that begin at `from`; empty: it is not there.
ByteView find_option(ByteView block, std::size_t from, std::uint16_t code) {
  const std::size_t end = block.size() - 4;
  while (from + 4 <= end) {
    const auto found = load_le<std::uint16_t>(block.data() + from);
    const std::size_t length = load_le<std::uint16_t>(block.data() + from + 2);
    if (found == kEnd || from + 4 + length > end) return {};
    if (found == code) return block.subspan(from + 4, length);
    from += 4 + padded(static_cast<std::uint32_t>(length));
  }
  return {};
}

}  // namespace

std::int64_t wall_clock_ns() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

void append_section(std::string& out, std::string_view application) {
  Writer block(out, BlockType::kSection);
  block.add(kMagic);
  block.add(std::uint16_t{1});  // version 1.0
  block.add(std::uint16_t{0});
  block.add(~std::uint64_t{0});  // nobody knows yet how long it will be
  block.add_option(kSectionApplication, application);
  block.end_options();
}

void append_interface(std::string& out, std::string_view name, std::string_view description, std::uint32_t snap) {
  Writer block(out, BlockType::kInterface);
  block.add(kEthernet);
  block.add(std::uint16_t{0});
  block.add(snap);
  block.add_option(kInterfaceName, name);
  block.add_option(kInterfaceDescription, description);
  block.add_number_option(kInterfaceResolution, std::uint8_t{9});  // 10^-9 s
  block.end_options();
}

void append_names(std::string& out, const std::vector<std::pair<wire::Ipv4Address, std::string>>& names) {
  Writer block(out, BlockType::kNames);
  for (const auto& [address, name] : names) {
    std::string record(4, '\0');
    store_be(reinterpret_cast<std::uint8_t*>(record.data()), address.value);
    record.append(name.substr(0, 255));
    record.push_back('\0');
    block.add_option(kNameOfIpv4, record);  // records are laid out as options are
  }
  block.end_options();
}

void append_packet(std::string& out, const Packet& packet) {
  Writer block(out, BlockType::kPacket);
  const auto at = static_cast<std::uint64_t>(packet.at_ns);
  block.add(packet.interface);
  block.add(static_cast<std::uint32_t>(at >> 32));
  block.add(static_cast<std::uint32_t>(at));
  block.add(static_cast<std::uint32_t>(packet.bytes.size()));
  block.add(packet.original_length);
  block.add_padded({reinterpret_cast<const char*>(packet.bytes.data()), packet.bytes.size()});
  block.add_number_option(kPacketFlags, static_cast<std::uint32_t>(packet.direction));
  if (packet.lost_before != 0) block.add_number_option(kPacketDropCount, packet.lost_before);
  block.end_options();
}

void append_statistics(std::string& out, std::uint32_t interface, std::int64_t at_ns, std::uint64_t lost) {
  Writer block(out, BlockType::kStatistics);
  const auto at = static_cast<std::uint64_t>(at_ns);
  block.add(interface);
  block.add(static_cast<std::uint32_t>(at >> 32));
  block.add(static_cast<std::uint32_t>(at));
  block.add_number_option(kStatisticsDropped, lost);
  block.end_options();
}

void PcapngStream::push(std::string_view bytes) {
  held_.erase(0, taken_);
  taken_ = 0;
  held_.append(bytes);
}

Result<std::optional<Block>> PcapngStream::next() {
  const std::size_t left = held_.size() - taken_;
  if (left < kShortestBlock) return std::optional<Block>();
  const std::uint8_t* const start = reinterpret_cast<const std::uint8_t*>(held_.data()) + taken_;
  const auto length = load_le<std::uint32_t>(start + 4);
  if (length < kShortestBlock || length > kMostBlock || length % 4 != 0) return fail("this is no pcapng");
  if (left < length) return std::optional<Block>();
  if (load_le<std::uint32_t>(start + length - 4) != length) return fail("this is no pcapng");
  taken_ += length;
  return std::optional(Block{static_cast<BlockType>(load_le<std::uint32_t>(start)), {start, length}});
}

std::optional<Packet> packet_of(const Block& block) {
  const ByteView bytes = block.bytes;
  if (bytes.size() < kPacketStart + 4) return std::nullopt;
  const auto word = [&](std::size_t at) { return load_le<std::uint32_t>(bytes.data() + at); };
  const std::uint32_t captured = word(20);
  if (captured > bytes.size() - kPacketStart - 4) return std::nullopt;
  Packet packet{.interface = word(8),
                .at_ns = static_cast<std::int64_t>(std::uint64_t{word(12)} << 32 | word(16)),
                .original_length = word(24),
                .bytes = bytes.subspan(kPacketStart, captured)};
  const std::size_t options = kPacketStart + padded(captured);
  if (const ByteView flags = find_option(bytes, options, kPacketFlags); flags.size() == 4)
    packet.direction = static_cast<Direction>(load_le<std::uint32_t>(flags.data()) & 3);
  if (const ByteView lost = find_option(bytes, options, kPacketDropCount); lost.size() == 8)
    packet.lost_before = load_le<std::uint64_t>(lost.data());
  return packet;
}

std::uint64_t lost_of(const Block& block) {
  if (block.bytes.size() < 24) return 0;
  const ByteView lost = find_option(block.bytes, 20, kStatisticsDropped);
  return lost.size() == 8 ? load_le<std::uint64_t>(lost.data()) : 0;
}

std::string interface_name(const Block& block) {
  if (block.bytes.size() < 20) return {};
  const ByteView name = find_option(block.bytes, 16, kInterfaceName);
  return {reinterpret_cast<const char*>(name.data()), name.size()};
}

}  // namespace sluice::ports::pcapng
