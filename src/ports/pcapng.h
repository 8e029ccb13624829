// pcapng: the blocks of which a capture with several interfaces is made, and those blocks found again in a stream.
//
// Write:      section() -> names(), interface()… -> packet()… in the order in which they shall be read. Each appends one whole block.
// Read:       PcapngStream::push() what has come -> next() block by block; packet_of() what one of ours says.
// Units:      nanoseconds since 1970.
// Limits:     read: this machine's byte order, blocks of at most kMostBlock bytes. What is no such block is an error, for good.
// Source:     draft-ietf-opsawg-pcapng (sections 4.1 to 4.5); what is written is held against libpcap and tshark.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "wire/address.h"

namespace sluice::ports::pcapng {

inline constexpr std::uint32_t kMostBlock = 1U << 20;

enum class BlockType : std::uint32_t {
  kSection = 0x0A0D0D0A,
  kInterface = 1,
  kOldPacket = 2,  // others write these two; packet_of() does not read them
  kSimplePacket = 3,
  kNames = 4,
  kStatistics = 5,
  kPacket = 6,
};

enum class Direction : std::uint8_t { kUnknown = 0, kIn = 1, kOut = 2 };

struct Packet {
  std::uint32_t interface = 0;  // the how manieth of its section, from 0
  std::int64_t at_ns = 0;
  Direction direction = Direction::kUnknown;
  std::uint64_t lost_before = 0;  // frames that found no room since the one before
  std::uint32_t original_length = 0;
  ByteView bytes{};  // of it, from its start
};

// What packets are stamped with.
std::int64_t wall_clock_ns();

void append_section(std::string& out, std::string_view application);
// Of Ethernet frames.
void append_interface(std::string& out, std::string_view name, std::string_view description, std::uint32_t snap);
// Which names addresses have. Without any it says nothing, and is a sign of life.
void append_names(std::string& out, const std::vector<std::pair<wire::Ipv4Address, std::string>>& names);
void append_packet(std::string& out, const Packet& packet);

// So many frames an interface's capture has lost until now.
void append_statistics(std::string& out, std::uint32_t interface, std::int64_t at_ns, std::uint64_t lost);

// One whole block.
struct Block {
  BlockType type{};
  ByteView bytes{};  // with its two lengths
};

class PcapngStream {
 public:
  void push(std::string_view bytes);
  // The next whole block, valid until the next push(); nothing: it has not come yet.
  Result<std::optional<Block>> next();

 private:
  std::string held_;
  std::size_t taken_ = 0;
};

// REQUIRES: block.type == kPacket. Nothing: it contradicts itself. The packet's bytes are the block's.
std::optional<Packet> packet_of(const Block& block);
// REQUIRES: block.type == kStatistics. 0: it does not say.
std::uint64_t lost_of(const Block& block);
// REQUIRES: block.type == kInterface. Its name; "": it has none.
std::string interface_name(const Block& block);

}  // namespace sluice::ports::pcapng
