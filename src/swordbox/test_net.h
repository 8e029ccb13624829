// A box with a multiplexer between nodes whose packets are made by hand, one at a time, for tests.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "swordbox/box.h"
#include "wire/cm.h"
#include "wire/frame.h"

namespace sluice::swordbox {

class Net : public port::FrameSink {
 public:
  // One end of each connection is `near`, the other `far`; either may hold memory.
  struct Line {
    wire::Gid near{};
    wire::Gid far{};
    wire::Qpn near_qpn{};
    wire::Qpn far_qpn{};

    // As the other end sees it.
    Line turned() const { return {far, near, far_qpn, near_qpn}; }
  };

  explicit Net(const MultiplexerConfig& config) {
    box.set_multiplexer(std::make_unique<Multiplexer>(config, box.connections(), box.counters()));
  }

  static wire::Gid node(std::uint32_t i) { return wire::Gid::from(wire::Ipv4Address{0x0A000000 + i}); }
  Line connect(std::uint32_t near, std::uint32_t far, std::uint32_t first_psn = 100) {
    const std::uint32_t number = ++lines_;
    const Line line{node(near), node(far), wire::Qpn(0x100 + number), wire::Qpn(0x200 + number)};
    EXPECT_TRUE(box.connections().announce(now, {.address = {line.near, line.far},
                                                 .qpn = {line.near_qpn, line.far_qpn},
                                                 .starting_psn = {wire::Psn(first_psn), wire::Psn(first_psn)},
                                                 .mtu = 1024}));
    return line;
  }

  // From the near end to the far one.
  Verdict add(const Line& line, std::uint32_t psn, wire::RKey key, std::uint64_t address, std::uint64_t addend = 1) {
    return judge(line, wire::Opcode::kRcFetchAdd, psn, wire::AtomicEth{address, key, addend, 0});
  }
  // The first packet of a WRITE of `length` bytes, with a few of them; the only one when they are all.
  Verdict write(const Line& line, std::uint32_t psn, wire::RKey key, std::uint64_t address, std::uint32_t length) {
    constexpr std::uint32_t kPart = 64;
    const bool only = length <= kPart;
    std::vector<std::uint8_t> body(wire::Reth::kSize + std::min(length, kPart));
    wire::Reth{address, key, length}.write(body.data());
    return judge_bytes(line, only ? wire::Opcode::kRcWriteOnly : wire::Opcode::kRcWriteFirst, psn, body);
  }
  // Another packet of it.
  Verdict write_on(const Line& line, std::uint32_t psn) {
    const std::array<std::uint8_t, 64> body{};
    return judge_bytes(line, wire::Opcode::kRcWriteLast, psn, body);
  }
  // On an unreliable connection.
  Verdict unreliable_write(const Line& line, wire::RKey key, std::uint64_t address, std::uint32_t length) {
    std::vector<std::uint8_t> body(wire::Reth::kSize + length);
    wire::Reth{address, key, length}.write(body.data());
    return judge_bytes(line, wire::Opcode::kUcWriteOnly, 7, body);
  }
  Verdict read(const Line& line, std::uint32_t psn, wire::RKey key, std::uint64_t address, std::uint32_t length) {
    return judge(line, wire::Opcode::kRcReadRequest, psn, wire::Reth{address, key, length});
  }
  // Something of what a READ asks for: a few bytes, whatever its length.
  Verdict data(const Line& line, std::uint32_t psn, wire::Opcode opcode) {
    const bool has_aeth = opcode != wire::Opcode::kRcReadResponseMiddle;
    std::vector<std::uint8_t> body((has_aeth ? wire::Aeth::kSize : 0) + 64);
    if (has_aeth) wire::Aeth::ack(1).write(body.data());
    return judge_bytes(line, opcode, psn, body);
  }
  // A packet of which only its opcode counts.
  Verdict odd(const Line& line, std::uint8_t opcode, std::uint32_t psn, wire::RKey key, std::uint64_t address) {
    std::array<std::uint8_t, wire::Reth::kSize + 8> body{};
    wire::Reth{address, key, 8}.write(body.data());
    return judge_bytes(line, static_cast<wire::Opcode>(opcode), psn, body);
  }
  Verdict ack(const Line& line, std::uint32_t psn) {
    return judge(line, wire::Opcode::kRcAcknowledge, psn, wire::Aeth::ack(1));
  }
  Verdict nak(const Line& line, std::uint32_t psn, wire::NakCode code) {
    return judge(line, wire::Opcode::kRcAcknowledge, psn, wire::Aeth::nak(1, code));
  }
  Verdict prior(const Line& line, std::uint32_t psn, std::uint64_t value) {
    std::array<std::uint8_t, 12> body{};
    wire::Aeth::ack(1).write(body.data());
    wire::AtomicAckEth{value}.write(body.data() + 4);
    return judge_bytes(line, wire::Opcode::kRcAtomicAcknowledge, psn, body);
  }
  template <class Message>
  void manage(const wire::Gid& from, const wire::Gid& to, const Message& message) {
    const std::size_t length =
        wire::write_cm_frame(frame_.data(), headers(from, to), wire::Psn(0), {.message = message});
    EXPECT_EQ(judge_frame(length), Verdict::kManagement);
  }
  void wait(Duration d) {
    now = now + d;
    while (box.next_deadline() <= now) {
      const Time next = box.next_deadline();
      box.on_deadline(std::max(next, last_deadline_), *this);
      last_deadline_ = std::max(next, last_deadline_) + Duration::microseconds(1);
      if (last_deadline_ > now) break;
    }
    box.on_deadline(now, *this);
  }

  std::uint8_t* reserve(std::size_t) override { return room_.data(); }
  void commit(std::size_t length) override {
    wire::ParsedFrame parsed;
    ASSERT_EQ(wire::parse({room_.data(), length}, parsed), wire::Verdict::kOk);
    last = {parsed.opcode, parsed.psn, parsed.destination,
            parsed.opcode == wire::Opcode::kRcAtomicAcknowledge
                ? wire::get<wire::AtomicAckEth>(room_.data(), parsed).original
                : 0};
    ++made;
  }
  struct Made {
    wire::Opcode opcode{};
    wire::Psn psn{};
    wire::Qpn to{};
    std::uint64_t prior = 0;
  };
  std::uint64_t made = 0;  // packets of the box's own
  Made last;
  Time now;
  Box box{BoxConfig{}};

 private:
  static wire::HeaderTemplate headers(const wire::Gid& from, const wire::Gid& to) {
    wire::AddressVector v;
    v.source = from;
    v.destination = to;
    return wire::HeaderTemplate(v);
  }
  template <class Body>
  Verdict judge(const Line& line, wire::Opcode opcode, std::uint32_t psn, const Body& body) {
    std::array<std::uint8_t, Body::kSize> bytes{};
    body.write(bytes.data());
    return judge_bytes(line, opcode, psn, bytes);
  }
  Verdict judge_bytes(const Line& line, wire::Opcode opcode, std::uint32_t psn, ByteView body) {
    const wire::HeaderTemplate to = headers(line.near, line.far);
    const std::size_t at = to.write(frame_.data(), wire::Bth::kSize + body.size());
    wire::Bth{.opcode = opcode, .destination = line.far_qpn, .psn = wire::Psn(psn)}.write(frame_.data() + at);
    std::copy(body.begin(), body.end(), frame_.begin() + static_cast<std::ptrdiff_t>(at + wire::Bth::kSize));
    return judge_frame(to.seal(frame_.data(), at + wire::Bth::kSize + body.size()));
  }
  Verdict judge_frame(std::size_t length) {
    Packet packet;
    packet.frame = {frame_.data(), static_cast<std::uint32_t>(length)};
    box.process(now, {&packet, 1}, *this);
    return packet.verdict;
  }

  std::uint32_t lines_ = 0;
  Time last_deadline_;
  std::array<std::uint8_t, 512> frame_{};
  std::array<std::uint8_t, 256> room_{};
};

}  // namespace sluice::swordbox
