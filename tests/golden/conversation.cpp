#include "golden/conversation.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <tuple>

#include "wire/bth.h"

namespace sluice::golden {
namespace {

using wire::Aeth;
using wire::Kind;

bool is_answer(const Packet& p) { return !p.traits().is_request; }

std::optional<wire::NakCode> refusal(const Packet& p) {
  if (p.traits().kind != Kind::kAcknowledge) return std::nullopt;
  const Aeth aeth = p.get<Aeth>();
  if (!aeth.is_nak() || aeth.nak_code() == wire::NakCode::kPsnSequenceError) return std::nullopt;
  return aeth.nak_code();
}

// Who requests and who responds.
using Sides = std::tuple<wire::Gid, wire::Gid>;

Sides sides_of(const Packet& p) {
  const wire::Gid from = wire::source_gid(p.bytes.data(), p.parsed);
  const wire::Gid to = wire::destination_gid(p.bytes.data(), p.parsed);
  return is_answer(p) ? Sides{to, from} : Sides{from, to};
}

}  // namespace

const Packet* Conversation::first_answer() const {
  const auto found = std::ranges::find_if(packets, is_answer);
  return found == packets.end() ? nullptr : &*found;
}

std::uint32_t Conversation::mtu() const {
  std::uint32_t mtu = 1024;
  for (const Packet& p : packets) {
    while (mtu < p.payload().size()) mtu *= 2;
  }
  return mtu;
}

std::optional<wire::NakCode> Conversation::fatal() const {
  for (const Packet& p : packets) {
    if (const auto code = refusal(p)) return code;
  }
  return std::nullopt;
}

std::optional<std::uint8_t> Conversation::rnr_timer() const {
  for (const Packet& p : packets) {
    if (p.traits().kind == Kind::kAcknowledge && p.get<Aeth>().is_rnr_nak()) return p.get<Aeth>().value();
  }
  return std::nullopt;
}

std::vector<Conversation> conversations_of(const std::filesystem::path& file) {
  std::map<Sides, Conversation> open;
  std::vector<Conversation> done;
  std::size_t number = 0;
  std::size_t opened = 0;
  for (FrameBytes& bytes : read_capture(file)) {
    Packet packet{.number = ++number, .bytes = std::move(bytes)};
    if (wire::parse_and_verify(packet.bytes, packet.parsed) != wire::Verdict::kOk) continue;
    if (packet.traits().transport != wire::Transport::kRc) continue;
    const Sides sides = sides_of(packet);
    const auto [at, fresh] = open.try_emplace(sides);
    if (fresh) at->second.order = opened++;
    at->second.packets.push_back(std::move(packet));
    if (refusal(at->second.packets.back())) {
      done.push_back(std::move(at->second));
      open.erase(at);
    }
  }
  for (auto& [sides, conversation] : open) done.push_back(std::move(conversation));
  std::ranges::sort(done, {}, &Conversation::order);
  return done;
}

std::uint32_t psns_of(const Packet& request, std::uint32_t mtu) {
  if (request.traits().kind != Kind::kReadRequest) return 1;
  return std::max<std::uint32_t>(1, (request.get<wire::Reth>().length + mtu - 1) / mtu);
}

Delivery::Delivery(const Conversation& conversation) : reached_(conversation.packets.size()) {
  const auto& packets = conversation.packets;
  const std::uint32_t mtu = conversation.mtu();
  wire::Psn expected = conversation.first().psn();
  for (std::size_t i = 0; i < packets.size(); ++i) {
    const Packet& request = packets[i];
    if (is_answer(request)) continue;
    const std::int32_t ahead = request.psn().since(expected);
    bool sent_again = false;
    bool answered = false;
    bool not_ready = false;  // it came, and must come again
    for (std::size_t k = i + 1; k < packets.size() && !sent_again && !answered; ++k) {
      const Packet& next = packets[k];
      if (!is_answer(next)) {
        sent_again = next.psn() == request.psn();
        continue;
      }
      const std::optional<Aeth> aeth =
          next.traits().kind == Kind::kAcknowledge ? std::optional(next.get<Aeth>()) : std::nullopt;
      const bool gap = aeth && aeth->is_nak() && !refusal(next);
      const std::int32_t beyond = next.psn().since(request.psn());
      // A NAK of a gap names what did not come; every other answer what did.
      answered = ahead < 0 ? beyond == 0 : (gap ? beyond > 0 : beyond >= 0);
      not_ready = answered && beyond == 0 && aeth && aeth->is_rnr_nak();
    }
    reached_[i] = ahead > 0 || answered || (ahead == 0 && !sent_again);
    if (ahead == 0 && reached_[i] && !not_ready) expected = request.psn() + psns_of(request, mtu);
  }
}

}  // namespace sluice::golden
