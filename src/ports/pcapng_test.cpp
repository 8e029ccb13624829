#include "ports/pcapng.h"

#include <gtest/gtest.h>
#include <pcap/pcap.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "base/rng.h"

namespace sluice::ports::pcapng {
namespace {

constexpr std::int64_t kNow = 1'795'000'000'123'456'789;

std::vector<std::uint8_t> frame_of(std::size_t length) {
  std::vector<std::uint8_t> frame(length);
  for (std::size_t i = 0; i < length; ++i) frame[i] = static_cast<std::uint8_t>(i * 7 + length);
  return frame;
}

std::string head() {
  std::string out;
  append_section(out, "sluice");
  append_names(out, {{wire::Ipv4Address{0x0A4D0001}, "memory-0"}});
  append_interface(out, "0:memory-0", "port 0", 128);
  append_interface(out, "1", "port 1", 128);
  return out;
}

// What libpcap, which was not written here, makes of it.
TEST(Pcapng, LibpcapReadsWhatWeWrite) {
  std::string out = head();
  for (std::size_t length = 60; length <= 67; ++length) {  // every padding
    const auto frame = frame_of(length);
    append_packet(out, {.interface = static_cast<std::uint32_t>(length % 2),
                        .at_ns = kNow + static_cast<std::int64_t>(length),
                        .direction = Direction::kIn,
                        .original_length = 4'000,
                        .bytes = frame});
    append_names(out, {});
    append_statistics(out, 0, kNow, length);
  }
  std::FILE* const stream = fmemopen(out.data(), out.size(), "rb");
  ASSERT_NE(stream, nullptr);
  char error[PCAP_ERRBUF_SIZE] = {};
  const std::unique_ptr<pcap_t, void (*)(pcap_t*)> reader(
      pcap_fopen_offline_with_tstamp_precision(stream, PCAP_TSTAMP_PRECISION_NANO, error), pcap_close);
  ASSERT_NE(reader, nullptr) << error;
  EXPECT_EQ(pcap_datalink(reader.get()), DLT_EN10MB);
  for (std::size_t length = 60; length <= 67; ++length) {
    pcap_pkthdr* header = nullptr;
    const u_char* bytes = nullptr;
    ASSERT_EQ(pcap_next_ex(reader.get(), &header, &bytes), 1) << pcap_geterr(reader.get());
    EXPECT_EQ(header->ts.tv_sec * 1'000'000'000 + header->ts.tv_usec, kNow + static_cast<std::int64_t>(length));
    EXPECT_EQ(header->len, 4'000);
    EXPECT_EQ(std::vector<std::uint8_t>(bytes, bytes + header->caplen), frame_of(length));
  }
  pcap_pkthdr* header = nullptr;
  const u_char* bytes = nullptr;
  EXPECT_EQ(pcap_next_ex(reader.get(), &header, &bytes), PCAP_ERROR_BREAK);
}

TEST(Pcapng, AStreamIsReadAsItComes) {
  std::string out = head();
  const auto frame = frame_of(66);
  append_packet(out, {.interface = 1,
                      .at_ns = kNow,
                      .direction = Direction::kOut,
                      .lost_before = 17,
                      .original_length = 66,
                      .bytes = frame});
  append_packet(out, {.at_ns = kNow, .original_length = 66, .bytes = frame});
  for (const std::size_t piece : {std::size_t{1}, std::size_t{5}, out.size()}) {
    PcapngStream stream;
    std::vector<std::string> interfaces;
    std::vector<Packet> packets;
    for (std::size_t at = 0; at < out.size(); at += piece) {
      stream.push(std::string_view(out).substr(at, piece));
      for (;;) {
        const auto block = stream.next();
        ASSERT_TRUE(block);
        if (!*block) break;
        if ((*block)->type == BlockType::kInterface) interfaces.push_back(interface_name(**block));
        if ((*block)->type != BlockType::kPacket) continue;
        const auto packet = packet_of(**block);
        ASSERT_TRUE(packet);
        EXPECT_TRUE(std::ranges::equal(packet->bytes, frame));
        packets.push_back(*packet);
      }
    }
    EXPECT_EQ(interfaces, (std::vector<std::string>{"0:memory-0", "1"}));
    ASSERT_EQ(packets.size(), 2);
    EXPECT_EQ(packets[0].interface, 1);
    EXPECT_EQ(packets[0].at_ns, kNow);
    EXPECT_EQ(packets[0].direction, Direction::kOut);
    EXPECT_EQ(packets[0].lost_before, 17);
    EXPECT_EQ(packets[0].original_length, 66);
    EXPECT_EQ(packets[1].lost_before, 0);
    EXPECT_EQ(packets[1].direction, Direction::kUnknown);
  }
}

// Nothing that comes makes it read beyond what has come.
TEST(Pcapng, WhatIsNoneIsRefused) {
  PcapngStream stream;
  stream.push("HTTP/1.1 200 OK\r\n\r\n");
  EXPECT_FALSE(stream.next());

  std::string sound = head();
  const auto frame = frame_of(66);
  append_packet(sound, {.at_ns = kNow, .lost_before = 1, .original_length = 66, .bytes = frame});
  append_statistics(sound, 1, kNow, 7);
  for (std::uint64_t seed = 1; seed <= 2'000; ++seed) {
    Rng rng(seed);
    std::string spoilt = sound;
    for (int i = 0; i < 3; ++i) spoilt[rng.below(spoilt.size())] = static_cast<char>(rng.below(256));
    PcapngStream reader;
    reader.push(spoilt);
    for (auto block = reader.next(); block && *block; block = reader.next()) {
      if ((*block)->type == BlockType::kInterface) interface_name(**block);
      if ((*block)->type == BlockType::kStatistics) lost_of(**block);
      if ((*block)->type != BlockType::kPacket) continue;
      const auto packet = packet_of(**block);
      EXPECT_LE(packet ? packet->bytes.size() : 0, (*block)->bytes.size());
    }
  }
}

}  // namespace
}  // namespace sluice::ports::pcapng
