// Clients, a memory node and a box between them, for swordbox_operations.cpp: RC as its specification has it, in as few words as possible.
//
// Life:       each Line is one connection: a client's end, which sends again what is not answered, and the server's, which executes what comes
//             in order, once. A packet waits in one of four queues until the script takes it on, loses it, repeats it or has it overtaken.
// Limits:     a packet that waits for longer than kPacketLife is lost: what the box has forwarded is executed soon or never.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/time.h"
#include "port/port.h"
#include "wire/frame.h"
#include "wire/icrc.h"

namespace sluice::fuzz {

using Bytes = std::vector<std::uint8_t>;
using wire::Opcode;
using wire::Psn;
using wire::Qpn;

inline constexpr std::uint32_t kMtu = 256;
inline constexpr Duration kPacketLife = Duration::microseconds(150);
inline constexpr wire::RKey kNodes{1};
inline constexpr wire::RKey kWords{2};

inline wire::Gid server_gid() { return wire::Gid::from(wire::Ipv4Address{0x0A4D0001u}); }
inline wire::Gid client_gid(std::uint32_t i) { return wire::Gid::from(wire::Ipv4Address{0x0A4D000Au + i}); }

// Tickets are drawn from the first words, the others are given values that come but once. Then data that nobody changes, data that nobody reads, and nodes.
inline constexpr std::size_t kTickets = 2;
inline constexpr std::size_t kValues = 2;
inline constexpr std::uint64_t kWordsAt = 0x1000;
inline constexpr std::uint64_t kWordBytes = 0x1000;
inline constexpr std::uint64_t kWrittenAt = 0x1400;
inline constexpr std::uint64_t kReadAt = 0x1800;
inline constexpr std::uint64_t kNodesAt = 0x2000;
inline constexpr std::uint64_t kNodeBytes = 64;
inline constexpr std::size_t kMostNodes = 96;
inline constexpr std::uint64_t ticket_at(std::size_t i) { return kWordsAt + i * 64; }
inline constexpr std::uint64_t value_at(std::size_t i) { return kWordsAt + 0x200 + i * 8; }
inline constexpr std::uint64_t node_at(std::size_t i) { return kNodesAt + i * kNodeBytes; }
// What a node that nothing follows has in its next word, of two kinds, and what leads to a node.
inline constexpr std::uint64_t free_word(bool kind) { return std::uint64_t{1} << 63 | (kind ? 1u : 0u); }
inline constexpr std::uint64_t pointer_to(std::size_t node, bool kind) {
  return std::uint64_t{kind ? 3u : 1u} << 48 | node_at(node);
}
inline constexpr bool is_free(std::uint64_t word) { return word >> 63 != 0; }
inline constexpr std::size_t node_of(std::uint64_t pointer) {
  return static_cast<std::size_t>(((pointer & 0xFFFF'FFFFu) - kNodesAt) / kNodeBytes);
}

// The server's memory.
class Store {
 public:
  Store() {
    for (std::size_t i = 0; i < 0x600; ++i) at(kReadAt + i, 1)[0] = data(i);
  }
  static std::uint8_t data(std::size_t i) { return static_cast<std::uint8_t>(i * 7 + i / 256); }
  MutableBytes at(std::uint64_t address, std::size_t length) {
    SLUICE_CHECK(address >= kWordsAt && address - kWordsAt + length <= bytes_.size());
    return MutableBytes(bytes_).subspan(address - kWordsAt, length);
  }
  std::uint64_t word(std::uint64_t address) { return load_le<std::uint64_t>(at(address, 8).data()); }
  void set(std::uint64_t address, std::uint64_t value) { store_le(at(address, 8).data(), value); }
  std::uint64_t swap(std::uint64_t address, std::uint64_t compare, std::uint64_t value) {
    const std::uint64_t prior = word(address);
    if (prior == compare) set(address, value);
    return prior;
  }

 private:
  Bytes bytes_ = Bytes(kNodesAt + kMostNodes * kNodeBytes - kWordsAt);
};

template <class... Headers>
Bytes body_of(const Headers&... headers) {
  Bytes body((Headers::kSize + ... + 0));
  std::size_t at = 0;
  ((headers.write(body.data() + at), at += Headers::kSize), ...);
  return body;
}

inline Bytes frame_of(const wire::Gid& from, const wire::Gid& to, Qpn qpn, Opcode opcode, Psn psn, bool ask,
                      const Bytes& body) {
  wire::AddressVector route;
  route.source_mac = {{2, 0, 0, 0, 0, static_cast<std::uint8_t>(from == server_gid() ? 1 : 2)}};
  route.destination_mac = {{2, 0, 0, 0, 0, static_cast<std::uint8_t>(to == server_gid() ? 1 : 2)}};
  route.source = from;
  route.destination = to;
  const wire::HeaderTemplate headers(route);
  Bytes frame(headers.frame_size(wire::Bth::kSize + body.size()));
  const std::size_t at = headers.write(frame.data(), wire::Bth::kSize + body.size());
  wire::Bth{.opcode = opcode, .destination = qpn, .ack_request = ask, .psn = psn}.write(frame.data() + at);
  std::copy(body.begin(), body.end(), frame.begin() + static_cast<std::ptrdiff_t>(at + wire::Bth::kSize));
  headers.seal(frame.data(), at + wire::Bth::kSize + body.size());
  return frame;
}

// The server's end of a connection: each request once, in order; what comes again is answered as before.
class ServerEnd {
 public:
  ServerEnd(std::uint32_t client, Qpn client_qpn, Psn first) : client_(client), qpn_(client_qpn), expected_(first) {}

  // Answers go to send(frame).
  template <class Send>
  void on_request(Store& store, ByteView frame, Send send) {
    wire::ParsedFrame parsed;
    SLUICE_CHECK(wire::parse_and_verify(frame, parsed) == wire::Verdict::kOk);
    SLUICE_CHECK(parsed.traits().is_request);
    const auto answer = [&](Opcode opcode, Psn psn, const Bytes& body) {
      send(frame_of(server_gid(), client_gid(client_), qpn_, opcode, psn, false, body));
    };
    const auto ahead = parsed.psn.since(expected_);
    if (ahead > 0) {
      if (!asked_again_)
        answer(Opcode::kRcAcknowledge, expected_, body_of(wire::Aeth::nak(msn_, wire::NakCode::kPsnSequenceError)));
      asked_again_ = true;
      return;
    }
    asked_again_ = false;
    const std::uint8_t* const header = frame.data() + parsed.extended_offset();
    switch (parsed.traits().kind) {
      case wire::Kind::kWrite: {
        if (ahead == 0) write(store, frame, parsed);
        if (ahead == 0 ? parsed.ack_request : true)
          answer(Opcode::kRcAcknowledge, expected_ - 1, body_of(wire::Aeth::ack(msn_)));
        return;
      }
      case wire::Kind::kReadRequest: {
        const auto reth = wire::Reth::parse(header);
        const std::uint32_t packets = std::max(1u, (reth.length + kMtu - 1) / kMtu);
        if (ahead == 0) {
          expected_ = expected_ + packets;
          ++msn_;
        }
        for (std::uint32_t i = 0; i < packets; ++i) {
          const bool ends = i + 1 == packets;
          const bool middle = i != 0 && !ends;
          Bytes body = middle ? Bytes() : body_of(wire::Aeth::ack(msn_));
          const auto bytes = store.at(reth.virtual_address + i * kMtu, ends ? reth.length - i * kMtu : kMtu);
          body.insert(body.end(), bytes.begin(), bytes.end());
          const Opcode opcode = packets == 1 ? Opcode::kRcReadResponseOnly
                                : i == 0     ? Opcode::kRcReadResponseFirst
                                : ends       ? Opcode::kRcReadResponseLast
                                             : Opcode::kRcReadResponseMiddle;
          answer(opcode, parsed.psn + i, body);
        }
        return;
      }
      default: {
        SLUICE_CHECK(parsed.traits().is_atomic());
        if (ahead == 0) {
          done_.push_front({parsed.psn, execute(store, header, parsed)});
          if (done_.size() > 16) done_.pop_back();
          ++expected_;
          ++msn_;
        }
        const auto known = std::find_if(done_.begin(), done_.end(), [&](const Done& d) { return d.psn == parsed.psn; });
        if (known != done_.end())
          answer(Opcode::kRcAtomicAcknowledge, parsed.psn,
                 body_of(wire::Aeth::ack(msn_), wire::AtomicAckEth{known->prior}));
      }
    }
  }

 private:
  struct Done {
    Psn psn{};
    std::uint64_t prior = 0;
  };

  void write(Store& store, ByteView frame, const wire::ParsedFrame& parsed) {
    const auto bytes = wire::payload(frame.data(), parsed);
    SLUICE_CHECK(parsed.traits().starts_message() == (left_ == 0));
    if (left_ == 0) {
      const auto reth = wire::get<wire::Reth>(frame.data(), parsed);
      address_ = reth.virtual_address;
      left_ = reth.length;
    }
    SLUICE_CHECK(bytes.size() <= left_);
    const auto to = store.at(address_, bytes.size());
    std::copy(bytes.begin(), bytes.end(), to.begin());
    address_ += bytes.size();
    left_ -= bytes.size();
    SLUICE_CHECK(parsed.traits().ends_message() == (left_ == 0));
    if (left_ == 0) ++msn_;
    ++expected_;
  }
  static std::uint64_t execute(Store& store, const std::uint8_t* header, const wire::ParsedFrame& parsed) {
    const auto eth = wire::AtomicEth::parse(header);
    if (parsed.traits().kind == wire::Kind::kCompareSwap)
      return store.swap(eth.virtual_address, eth.compare, eth.swap_or_add);
    const std::uint64_t prior = store.word(eth.virtual_address);
    if (parsed.traits().kind == wire::Kind::kFetchAdd) {
      store.set(eth.virtual_address, prior + eth.swap_or_add);
      return prior;
    }
    const auto masked = wire::MaskedAtomicEth::parse(header);
    if (((prior ^ masked.compare) & masked.compare_mask) == 0)
      store.set(eth.virtual_address, (prior & ~masked.swap_mask) | (masked.swap & masked.swap_mask));
    return prior;
  }

  std::uint32_t client_;
  Qpn qpn_;
  Psn expected_;
  std::uint32_t msn_ = 0;
  bool asked_again_ = false;
  std::uint64_t address_ = 0;  // of a WRITE under way
  std::uint64_t left_ = 0;
  std::deque<Done> done_;  // atomics, the newest first
};

struct Op {
  enum class Kind : std::uint8_t { kAdd, kSwap, kAlways, kSet, kPair, kLong, kSeeWord, kRead, kNode, kLink, kSeeNode };
  Kind kind{};
  std::uint64_t address = 0;
  std::uint64_t operand = 0;  // what is added or written, the pointer of a link
  std::uint64_t compare = 0;
  bool ask = true;
  Psn first{};
  std::uint32_t span = 1;
  std::uint32_t message = 0;  // so many have begun on its connection
  std::uint32_t got = 0;      // packets of its answer
  std::uint64_t seen = 0;     // what the answer brings
  std::uint64_t began = 0;
  // Of a word with values: nobody else was at it, and then it had this one.
  bool alone = false;
  std::uint64_t beginning = 0;
  std::optional<std::uint64_t> expects{};

  bool is_atomic() const {
    return kind == Kind::kAdd || kind == Kind::kSwap || kind == Kind::kAlways || kind == Kind::kLink;
  }
  bool reads() const { return kind == Kind::kSeeWord || kind == Kind::kRead || kind == Kind::kSeeNode; }
};

// A connection: the client's end, the server's, and what is on its way.
struct Line {
  Line(std::uint32_t its_number, std::uint32_t its_client, Psn psn)
      : number(its_number), client(its_client), next(psn), server(its_client, near(its_number), psn) {}
  static Qpn near(std::uint32_t number) { return Qpn(0x100 + number); }
  static Qpn far(std::uint32_t number) { return Qpn(0x200 + number); }

  std::uint32_t number;
  std::uint32_t client;
  Psn next;
  std::deque<Op> open{};
  std::uint32_t messages = 0;
  int retries = 0;
  Time last{};
  bool over = false;  // for the client
  ServerEnd server;
  bool server_is_up = true;

  struct Packet {
    Time since{};
    Bytes frame{};
  };
  enum Leg : std::uint8_t { kToBox, kToServer, kFromServer, kToClient };
  std::array<std::deque<Packet>, 4> legs{};
};

struct Ticket {
  std::uint64_t begun = 0;
  std::uint64_t done = 0;
  std::set<std::uint64_t> drawn{};
};

struct Value {
  std::uint64_t begun = 0;
  std::uint64_t under_way = 0;
  std::optional<std::uint64_t> certain = 0;
  std::set<std::uint64_t> given{0};
  std::set<std::uint64_t> followed{};             // values that a swap is known to have replaced
  std::map<std::uint64_t, std::uint64_t> gone{};  // … and since when everybody knows
};

struct Node {
  std::size_t chain = 0;
  bool kind = false;
  bool linked = false;   // its client was told so
  bool unknown = false;  // its client does not know
};

// What a client does to put a node at the end of a chain.
struct Append {
  bool active = false;
  bool waits = false;  // for its next CAS to be sent
  std::size_t node = 0;
  std::size_t at = 0;
  std::uint64_t compare = 0;
  int tries = 0;
};

}  // namespace sluice::fuzz
