#include "golden/swordbox/fixture.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "base/bytes.h"
#include "wire/bth.h"
#include "wire/cm.h"

namespace sluice::golden {
namespace {

using wire::Opcode;

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// "Verdict" or "Verdict | what leaves".
FixtureLine::InKernel cut_outcome(const std::string& text) {
  const auto bar = text.find('|');
  const auto verdict = words_of(text.substr(0, bar));
  if (verdict.size() != 1) throw std::runtime_error("one verdict, please: " + text);
  return {verdict[0], bar == std::string::npos ? std::vector<std::string>{} : words_of(text.substr(bar + 1))};
}

FixtureLine cut(int number, const std::string& text) {
  FixtureLine line{.number = number, .words = {}, .verdict = {}, .replaced = {}, .in_kernel = {}};
  const auto arrow = text.find("=>");
  line.words = words_of(text.substr(0, arrow));
  if (arrow == std::string::npos) return line;
  const std::string rest = text.substr(arrow + 2);
  const auto kernel = rest.find("||");
  auto outcome = cut_outcome(rest.substr(0, kernel));
  line.verdict = std::move(outcome.verdict);
  line.replaced = std::move(outcome.replaced);
  if (kernel != std::string::npos) line.in_kernel = cut_outcome(rest.substr(kernel + 2));
  return line;
}

// "xdp none why not" -> "why not".
std::string reason_in(const std::vector<std::string>& words) {
  std::string reason;
  for (std::size_t i = 2; i < words.size(); ++i) reason += (i == 2 ? "" : " ") + words[i];
  if (reason.empty()) throw std::runtime_error("xdp needs a reason");
  return reason;
}

wire::MacAddress mac(std::uint8_t host) { return {{2, 0, 0, 0, 0, host}}; }

// What follows the BTH.
struct Body {
  Opcode opcode{};
  std::vector<std::uint8_t> bytes;

  template <class H>
  void put(const H& header) {
    bytes.resize(bytes.size() + H::kSize);
    header.write(bytes.data() + bytes.size() - H::kSize);
  }
  void put64(std::uint64_t value) {
    bytes.resize(bytes.size() + 8);
    store_le(bytes.data() + bytes.size() - 8, value);
  }
};

std::uint64_t number(const std::string& text) { return std::stoull(text, nullptr, 0); }

int region_of_node(const std::string& node) {
  const auto at = node.find('@');
  return at == std::string::npos ? 1 : std::stoi(node.substr(at + 1));
}

// "free=7", "tomb=7", "ptr=B" or "word=0x1234" among the words.
std::uint64_t word_in(const std::vector<std::string>& words) {
  if (const auto key = setting(words, "free"); !key.empty()) return free_word(number(key));
  if (const auto key = setting(words, "tomb"); !key.empty()) return tomb_word(number(key));
  if (const auto node = setting(words, "ptr"); !node.empty()) return pointer_to(node_address(node));
  if (const auto word = setting(words, "word"); !word.empty()) return number(word);
  throw std::runtime_error("a word is missing");
}

Body write_body(const std::vector<std::string>& words) {
  Body body;
  const auto& node = words.at(3);
  const auto length = static_cast<std::uint32_t>(number(setting(words, "len", "64")));
  const auto payload = static_cast<std::uint32_t>(number(setting(words, "payload", std::to_string(length))));
  const std::uint64_t key = number(setting(words, "key", "0"));
  body.opcode = payload < length ? Opcode::kRcWriteFirst : Opcode::kRcWriteOnly;
  body.put(wire::Reth{
      .virtual_address = node_address(node), .rkey = FixtureNetwork::rkey(region_of_node(node)), .length = length});
  const std::size_t start = body.bytes.size();
  const bool tomb = std::ranges::find(words, "tomb") != words.end();
  const bool plain = std::ranges::find(words, "plain") != words.end();
  body.put64(plain ? 5 : tomb ? tomb_word(key) : free_word(key));
  body.put64(key);
  body.bytes.resize(start + std::max<std::size_t>(payload, 16), 0xA5);
  body.bytes.resize(start + payload);
  return body;
}

Body cas_body(const std::vector<std::string>& words) {
  Body body;
  const auto& at = words.at(3);
  const bool masked = words.at(2) == "mcas";
  const std::uint64_t compare = [&] {
    const auto key = setting(words, "key");
    return key.empty() ? word_in(words) : free_word(number(key));
  }();
  const std::uint64_t swap =
      words.at(4) == "seal" ? (std::uint64_t{3} << 62 | 1) : pointer_to(node_address(words.at(4)));
  const auto rkey = FixtureNetwork::rkey(region_of_node(at));
  body.opcode = masked ? Opcode::kRcMaskedCompareSwap : Opcode::kRcCompareSwap;
  if (masked) {
    body.put(wire::MaskedAtomicEth{node_address(at), rkey, swap, compare, ~std::uint64_t{0}, ~std::uint64_t{0}});
  } else {
    body.put(wire::AtomicEth{node_address(at), rkey, swap, compare});
  }
  return body;
}

// Operations on words: "cs A cmp=0 new=1", "mcs A cmp=0 cmask=1 new=1 nmask=1", "add A 5", "put A 7".
Body word_body(const std::vector<std::string>& words) {
  Body body;
  const std::string& what = words.at(2);
  const std::uint64_t address = node_address(words.at(3)) + number(setting(words, "offset", "0"));
  const auto rkey = FixtureNetwork::rkey(region_of_node(words.at(3)));
  const auto value = [&](const char* name, const char* otherwise = "0") {
    return number(setting(words, name, otherwise));
  };
  if (what == "cs") {
    body.opcode = Opcode::kRcCompareSwap;
    body.put(wire::AtomicEth{address, rkey, value("new"), value("cmp")});
  } else if (what == "mcs") {
    body.opcode = Opcode::kRcMaskedCompareSwap;
    body.put(wire::MaskedAtomicEth{address, rkey, value("new"), value("cmp"), value("nmask"), value("cmask")});
  } else if (what == "add") {
    body.opcode = Opcode::kRcFetchAdd;
    body.put(wire::AtomicEth{address, rkey, number(words.at(4)), 0});
  } else {
    body.opcode = Opcode::kRcWriteOnly;
    body.put(wire::Reth{.virtual_address = address, .rkey = rkey, .length = 8});
    body.put64(number(words.at(4)));
  }
  return body;
}

// What is no request of a reliable connection: "mad", "datagram"; what spoil() then takes for something else begins as a SEND.
Body other_body(const std::string& what) {
  Body body;
  const bool datagram = what == "mad" || what == "datagram";
  body.opcode = datagram ? Opcode::kUdSendOnly : Opcode::kRcSendOnly;
  if (datagram) body.put(wire::Deth{.qkey = wire::QKey(0x8001'0000), .source = wire::Qpn(1)});
  body.bytes.resize(body.bytes.size() + 256, 0x11);
  return body;
}

// "req psn=900": the client asks for its connection, and shall be sent requests from that PSN on; "rep psn=100": the server gives it; "dreq": the
// client ends it. "id=1": another connection of the same queue pairs.
Body management_body(const std::vector<std::string>& words) {
  const int client = std::stoi(words.at(0).substr(1));
  const wire::Psn psn(static_cast<std::uint32_t>(number(setting(words, "psn", "100"))));
  const auto life = static_cast<std::uint32_t>(number(setting(words, "id", "0"))) << 16;
  const wire::CommId asking(life + static_cast<std::uint32_t>(client));
  const wire::CommId giving(life + 0x100);
  wire::CmMad mad;
  if (words.at(2) == "req") {
    mad.message = wire::CmReq{
        .local_comm_id = asking, .local_qpn = FixtureNetwork::client_qpn(client), .starting_psn = psn, .path_mtu = 3};
  } else if (words.at(2) == "dreq") {
    mad.message = wire::CmDreq{
        .local_comm_id = asking, .remote_comm_id = giving, .remote_qpn = FixtureNetwork::server_qpn(client)};
  } else {
    mad.message = wire::CmRep{.local_comm_id = giving,
                              .remote_comm_id = asking,
                              .local_qpn = FixtureNetwork::server_qpn(client),
                              .starting_psn = psn};
  }
  Body body;
  body.opcode = Opcode::kUdSendOnly;
  body.put(wire::Deth{.qkey = wire::kCmQkey, .source = wire::kCmQpn});
  body.bytes.resize(body.bytes.size() + wire::kMadSize);
  wire::write_cm(body.bytes.data() + wire::Deth::kSize, mad);
  return body;
}

// Makes a whole frame one that is none.
void spoil(std::vector<std::uint8_t>& frame, const std::string& what) {
  constexpr std::size_t kIp = wire::EthernetHeader::kSize;
  constexpr std::size_t kUdp = kIp + wire::Ipv4Header::kSize;
  constexpr std::size_t kBth = kUdp + wire::UdpHeader::kSize;
  std::uint8_t* const p = frame.data();
  if (what == "arp") store_be<std::uint16_t>(p + 12, 0x0806);
  if (what == "tcp") {
    p[kIp + 9] = 6;
    store_be<std::uint16_t>(p + kIp + 10, 0);
    store_be<std::uint16_t>(p + kIp + 10, wire::ipv4_checksum(p + kIp));
  }
  if (what == "dns") store_be<std::uint16_t>(p + kUdp + 2, 53);
  if (what == "opcode") p[kBth] = 0x1F;
  if (what == "version") p[kBth + 1] |= 0x0F;
  if (what == "checksum") p[kIp + 10] ^= 0x10;
  if (what == "fragment") {
    store_be<std::uint16_t>(p + kIp + 6, 0x2000);
    store_be<std::uint16_t>(p + kIp + 10, 0);
    store_be<std::uint16_t>(p + kIp + 10, wire::ipv4_checksum(p + kIp));
  }
  if (what == "cut") frame.resize(frame.size() - 8);
  if (what == "mapped") {
    const auto v4 = wire::Ipv4Header::parse(p + kIp);
    std::array<std::uint8_t, wire::Ipv6Header::kSize> v6{};
    wire::Ipv6Header{.payload_length = load_be<std::uint16_t>(p + kUdp + 4),
                     .source = wire::Gid::from(v4.source),
                     .destination = wire::Gid::from(v4.destination)}
        .write(v6.data());
    store_be<std::uint16_t>(p + 12, wire::kEtherTypeIpv6);
    frame.erase(frame.begin() + kIp, frame.begin() + kUdp);
    frame.insert(frame.begin() + kIp, v6.begin(), v6.end());
  }
}

Body request_body(const std::vector<std::string>& words) {
  const std::string& what = words.at(2);
  if (what == "cs" || what == "mcs" || what == "add" || what == "put") return word_body(words);
  if (what == "write") return write_body(words);
  if (what == "req" || what == "dreq") return management_body(words);
  if (what == "cas" || what == "mcas") return cas_body(words);
  Body body;
  if (what == "middle" || what == "last") {
    body.opcode = what == "last" ? Opcode::kRcWriteLast : Opcode::kRcWriteMiddle;
    body.bytes.resize(number(setting(words, "payload", "256")), 0xA5);
  } else if (what == "read") {
    const auto offset = number(setting(words, "offset", "0"));
    body.opcode = Opcode::kRcReadRequest;
    body.put(wire::Reth{.virtual_address = node_address(words.at(3)) + offset,
                        .rkey = FixtureNetwork::rkey(region_of_node(words.at(3))),
                        .length = static_cast<std::uint32_t>(number(setting(words, "len", "64")))});
  } else if (what == "faa") {
    body.opcode = Opcode::kRcFetchAdd;
    body.put(wire::AtomicEth{node_address(words.at(3)), FixtureNetwork::rkey(region_of_node(words.at(3))), 1, 0});
  } else if (what == "send") {
    body.opcode = Opcode::kRcSendOnly;
    body.bytes.resize(64, 0x11);
  } else if (what == "other") {
    body = other_body(words.at(3));
  } else {
    throw std::runtime_error("no such request: " + what);
  }
  return body;
}

Body response_body(const std::vector<std::string>& words) {
  const std::string& what = words.at(2);
  if (what == "rep") return management_body(words);
  Body body;
  body.opcode = Opcode::kRcAcknowledge;
  const auto msn = static_cast<std::uint32_t>(number(setting(words, "msn", "1")));
  if (what == "cnp") {
    body.opcode = Opcode::kCnp;
    body.bytes.resize(16);
  } else if (what == "ack") {
    body.put(wire::Aeth::ack(msn));
  } else if (what == "nak") {
    body.put(wire::Aeth::nak(msn, static_cast<wire::NakCode>(number(words.at(3)))));
  } else if (what == "rnr") {
    body.put(wire::Aeth::rnr_nak(msn, 12));
  } else if (what == "prior") {
    body.opcode = Opcode::kRcAtomicAcknowledge;
    body.put(wire::Aeth::ack(msn));
    body.put(wire::AtomicAckEth{word_in(words)});
  } else if (what == "data" || what == "first" || what == "rest" || what == "end") {
    body.opcode = what == "data"    ? Opcode::kRcReadResponseOnly
                  : what == "first" ? Opcode::kRcReadResponseFirst
                  : what == "rest"  ? Opcode::kRcReadResponseMiddle
                                    : Opcode::kRcReadResponseLast;
    if (what != "rest") body.put(wire::Aeth::ack(msn));
    body.bytes.resize(body.bytes.size() + number(setting(words, "len", "64")), 0x77);
  } else {
    throw std::runtime_error("no such answer: " + what);
  }
  return body;
}

}  // namespace

std::vector<Fixture> read_fixtures(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".fixture") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  std::vector<Fixture> fixtures;
  for (const auto& file : files) {
    std::ifstream in(file);
    int at = 0;
    std::string beyond;  // all fixtures of the file
    for (std::string text; std::getline(in, text);) {
      ++at;
      if (const auto hash = text.find('#'); hash != std::string::npos) text.resize(hash);
      const auto words = words_of(text);
      if (words.empty()) continue;
      if (words[0] == "fixture") {
        fixtures.push_back({file.stem().string(), text.substr(text.find("fixture") + 8), {}, beyond});
      } else if (words[0] == "xdp" && words.at(1) == "none") {
        const bool of_file = fixtures.empty() || fixtures.back().file != file.stem().string();
        (of_file ? beyond : fixtures.back().beyond_kernel) = reason_in(words);
      } else if (fixtures.empty()) {
        throw std::runtime_error(file.string() + ": begins without a fixture");
      } else {
        fixtures.back().lines.push_back(cut(at, text));
      }
    }
  }
  return fixtures;
}

wire::Gid FixtureNetwork::client_gid(int client) {
  return wire::Gid::from(wire::Ipv4Address{0x0A4D000Au + static_cast<unsigned>(client)});
}
wire::Gid FixtureNetwork::server_gid() { return wire::Gid::from(wire::Ipv4Address{0x0A4D0001u}); }

std::uint64_t node_address(const std::string& node) {
  if (node.empty() || node[0] < 'A' || node[0] > 'Z') throw std::runtime_error("no node: " + node);
  return 0x10000u + std::uint64_t{0x100} * static_cast<std::uint64_t>(node[0] - 'A');
}
std::uint64_t free_word(std::uint64_t key) { return std::uint64_t{1} << 63 | key; }
std::uint64_t tomb_word(std::uint64_t key) { return std::uint64_t{1} << 63 | std::uint64_t{1} << 61 | key; }
std::uint64_t pointer_to(std::uint64_t address) { return std::uint64_t{1} << 48 | address; }

std::string setting(const std::vector<std::string>& words, const std::string& name, const std::string& otherwise) {
  for (const auto& word : words) {
    if (word.starts_with(name + "=")) return word.substr(name.size() + 1);
  }
  return otherwise;
}

std::vector<std::uint8_t> build_frame(const std::vector<std::string>& words) {
  const bool request = words.at(0)[0] == 'c';
  const int client = std::stoi(words[0].substr(1));
  const Body body = request ? request_body(words) : response_body(words);
  const std::string other = words.at(2) == "other" ? words.at(3) : "";
  const bool managed = other == "mad" || words[2] == "req" || words[2] == "rep" || words[2] == "dreq";
  const auto host = static_cast<std::uint8_t>(client + 10);
  wire::AddressVector route;
  // A packet on another's connection comes from where it comes all the same.
  const auto sender = static_cast<std::uint8_t>(number(setting(words, "mac", std::to_string(client))) + 10);
  route.source_mac = mac(request ? sender : 1);
  route.destination_mac = mac(request ? 1 : host);
  // ECN-capable, or with a mark.
  if (std::ranges::find(words, "ect") != words.end()) route.traffic_class = 2;
  if (std::ranges::find(words, "ce") != words.end()) route.traffic_class = 3;
  route.source = request ? FixtureNetwork::client_gid(client) : FixtureNetwork::server_gid();
  route.destination = request ? FixtureNetwork::server_gid() : FixtureNetwork::client_gid(client);
  const wire::HeaderTemplate headers(route);
  const std::size_t transport = wire::Bth::kSize + body.bytes.size();
  std::vector<std::uint8_t> frame(headers.frame_size(transport));
  std::size_t at = headers.write(frame.data(), transport);
  const wire::Bth bth{.opcode = body.opcode,
                      .destination = managed   ? wire::kCmQpn
                                     : request ? FixtureNetwork::server_qpn(client)
                                               : FixtureNetwork::client_qpn(client),
                      .ack_request = request && std::ranges::find(words, "silent") == words.end(),
                      .psn = wire::Psn(static_cast<std::uint32_t>(number(words.at(1))))};
  bth.write(frame.data() + at);
  at += wire::Bth::kSize;
  std::ranges::copy(body.bytes, frame.begin() + static_cast<std::ptrdiff_t>(at));
  headers.seal(frame.data(), at + body.bytes.size());
  spoil(frame, other);
  return frame;
}

}  // namespace sluice::golden
