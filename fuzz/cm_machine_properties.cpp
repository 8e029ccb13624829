#include "fuzz/cm_machine_properties.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "base/check.h"
#include "fuzz/script.h"
#include "rc/adapter.h"
#include "rc/connection_manager.h"

namespace sluice::fuzz {
namespace {

using namespace rc;
using Kind = ConnectionEvent::Kind;
using Mad = std::array<std::uint8_t, wire::kMadSize>;

constexpr std::uint16_t kPort = 7;
constexpr std::size_t kMostConnections = 64;  // that a script opens at once

// One program and its adapter.
class Side {
 public:
  explicit Side(std::uint8_t number) {
    AdapterConfig config;
    config.mac = {{2, 0, 0, 0, 0, number}};
    config.gids = {wire::Gid::from(wire::Ipv4Address{0x0A000000u + number})};
    config.seed = number;
    adapter = std::make_unique<Adapter>(config);
    pd = adapter->create_domain();
    completions = adapter->create_completion_queue(64);
    SLUICE_CHECK(manager().listen(kPort).has_value());
  }

  ConnectionManager& manager() { return adapter->connections(); }
  const wire::Gid& gid() const { return adapter->config().gids[0]; }
  UdDestination address() const {
    return {.gid = gid(), .mac = adapter->config().mac, .qpn = wire::kCmQpn, .qkey = wire::kCmQkey};
  }

  void connect(Time now, const wire::Gid& to, bool managed) {
    if (programs.size() >= kMostConnections) return;
    QueuePair* pair = managed ? &make_pair() : nullptr;
    const auto id = manager().connect(now, to, kPort, {.pair = pair, .qpn = Qpn(0x7000), .max_retries = 2});
    SLUICE_CHECK(id.has_value());
    programs[*id] = {.pair = pair};
  }
  void accept(Time now, ConnectionId id, bool managed) {
    QueuePair* pair = managed ? &make_pair() : nullptr;
    if (manager().accept(now, id, {.pair = pair, .qpn = Qpn(0x7001), .max_retries = 2})) {
      programs[id].pair = pair;
      programs[id].decided = true;
    } else if (pair != nullptr) {
      adapter->destroy(pair);
    }
  }
  void release(Time now, ConnectionId id) {
    manager().release(now, id);
    programs.erase(id);
  }
  void destroy_pair(ConnectionId id) {
    QueuePair*& pair = programs[id].pair;
    if (pair != nullptr) adapter->destroy(pair);
    pair = nullptr;
  }
  // The id of the n-th connection that the program knows of.
  std::optional<ConnectionId> pick(std::uint8_t n) const {
    if (programs.empty()) return std::nullopt;
    auto at = programs.begin();
    std::advance(at, n % programs.size());
    return at->first;
  }

  void take_events() {
    while (const auto event = manager().poll_event()) on_event(*event);
  }
  void collect() {
    Mad mad;
    UdDestination to;
    while (manager().poll_mad(Time(), to, mad)) outgoing.push_back(mad);
  }

  struct Program {
    QueuePair* pair = nullptr;
    bool decided = false;
    bool established = false;
  };
  std::map<ConnectionId, Program> programs;
  std::deque<Mad> outgoing;
  std::unique_ptr<Adapter> adapter;
  bool listening = true;

 private:
  QueuePair& make_pair() {
    return **adapter->create_queue_pair({.pd = pd,
                                         .send_completions = completions,
                                         .receive_completions = completions,
                                         .send_depth = 1,
                                         .receive_depth = 1});
  }
  void on_event(const ConnectionEvent& event) {
    if (event.kind == Kind::kRequest) {
      SLUICE_CHECK(listening);
      SLUICE_CHECK(!programs.contains(event.id));
      programs[event.id] = {};
      return;
    }
    const auto found = programs.find(event.id);
    SLUICE_CHECK(found != programs.end());
    Program& program = found->second;
    const auto state = program.pair != nullptr ? std::optional(program.pair->state()) : std::nullopt;
    if (event.kind == Kind::kResponse) {
      SLUICE_CHECK(program.pair == nullptr);
      return;
    }
    if (event.kind == Kind::kEstablished) {
      SLUICE_CHECK(!program.established);
      SLUICE_CHECK(!state || state == QpState::kReadyToSend);
      program.established = true;
      return;
    }
    SLUICE_CHECK(!state || state == QpState::kError);
    destroy_pair(event.id);
    programs.erase(event.id);
  }

  memory::PdId pd{};
  CompletionQueue* completions = nullptr;
};

class World {
 public:
  void run(Script script) {
    while (!script.empty()) {
      step(script);
      settle_step();
    }
    for (Side* side : {&a_, &b_}) {
      while (!side->programs.empty()) side->release(now_, side->programs.begin()->first);
      side->collect();
    }
    come_to_rest();
  }

 private:
  void step(Script& script) {
    const std::uint8_t byte = script.next();
    Side& side = (byte & 0x10) != 0 ? b_ : a_;
    Side& other = (byte & 0x10) != 0 ? a_ : b_;
    const std::uint8_t argument = script.next();
    const auto id = side.pick(argument);
    ConnectionManager& manager = side.manager();
    switch (byte & 0x0F) {
      case 0: return side.connect(now_, other.gid(), true);
      case 1: return side.connect(now_, other.gid(), false);
      case 2:
        if (id) side.accept(now_, *id, true);
        return;
      case 3:
        if (id) side.accept(now_, *id, false);
        return;
      case 4:
        if (id) reject(side, *id);
        return;
      case 5:
        if (id) manager.disconnect(now_, *id);
        return;
      case 6:
        if (id) side.release(now_, *id);
        return;
      case 7:
        if (id) static_cast<void>(manager.establish(now_, *id));
        return;
      case 8:
        if (id) side.destroy_pair(*id);
        return;
      case 9: return deliver(side, other, argument, Fate::kOnce);
      case 10: return deliver(side, other, argument, Fate::kTwice);
      case 11: return deliver(side, other, argument, Fate::kLost);
      case 12: return deliver_changed(side, other, argument, script);
      case 13: return inject(side, script);
      case 14: return wait(Duration::microseconds(std::int64_t{1} << argument % 28));
      default: return listen(side, argument);
    }
  }

  void reject(Side& side, ConnectionId id) {
    if (side.programs[id].decided || side.programs[id].pair != nullptr) return;
    side.manager().reject(now_, id, {});
  }

  void listen(Side& side, std::uint8_t argument) {
    if ((argument & 1) == side.listening) return;
    if (side.listening) {
      side.manager().stop_listening(kPort);
    } else {
      SLUICE_CHECK(side.manager().listen(kPort).has_value());
    }
    side.listening = !side.listening;
  }

  enum class Fate { kOnce, kTwice, kLost };
  void deliver(Side& from, Side& to, std::uint8_t which, Fate fate) {
    if (from.outgoing.empty()) return;
    const auto at = from.outgoing.begin() + which % static_cast<std::ptrdiff_t>(from.outgoing.size());
    const Mad mad = *at;
    if (fate != Fate::kTwice) from.outgoing.erase(at);  // else it comes again later
    if (fate != Fate::kLost) to.manager().on_mad(now_, from.address(), mad);
  }

  void deliver_changed(Side& from, Side& to, std::uint8_t where, Script& script) {
    if (from.outgoing.empty()) return;
    Mad mad = from.outgoing.front();
    mad[where] = script.next();
    to.manager().on_mad(now_, from.address(), mad);
  }

  // A message out of nothing, which may name connections that there are.
  void inject(Side& to, Script& script) {
    Mad mad{};
    const wire::MadHeader header{.attribute_id = static_cast<std::uint16_t>(0x10 + script.next() % 8)};
    header.write(mad.data());
    for (std::size_t field = 0; field < 2; ++field) {
      const std::uint8_t choice = script.next();
      const auto known = to.pick(choice);
      const std::uint32_t name = known && (choice & 0x80) == 0 ? known->value : choice;
      store_be(mad.data() + wire::MadHeader::kSize + 4 * field, name);
    }
    for (std::size_t i = wire::MadHeader::kSize + 8, n = script.next() % 64u; n > 0 && i < mad.size(); --n, ++i)
      mad[i] = script.next();
    const Side& as = &to == &a_ ? b_ : a_;
    to.manager().on_mad(now_, as.address(), mad);
  }

  void wait(Duration d) {
    now_ = now_ + d;
    a_.manager().on_deadline(now_);
    b_.manager().on_deadline(now_);
  }

  void settle_step() {
    for (Side* side : {&a_, &b_}) {
      side->take_events();
      side->collect();
      SLUICE_CHECK(side->manager().next_deadline() > now_);
    }
  }

  // A whole cable, and all the time there is. Nobody wants anything any more: what comes in is refused.
  void come_to_rest() {
    for (int i = 0; i < 100'000; ++i) {
      if (a_.manager().size() + b_.manager().size() == 0 && a_.outgoing.empty() && b_.outgoing.empty()) return;
      deliver(a_, b_, 0, Fate::kOnce);
      deliver(b_, a_, 0, Fate::kOnce);
      for (Side* side : {&a_, &b_}) {
        side->take_events();
        while (!side->programs.empty()) side->release(now_, side->programs.begin()->first);
        side->collect();
      }
      if (!a_.outgoing.empty() || !b_.outgoing.empty()) continue;
      const Time next = std::min(a_.manager().next_deadline(), b_.manager().next_deadline());
      if (next != Time::never()) wait(std::max(next - now_, Duration()));
      a_.collect();
      b_.collect();
    }
    constexpr bool kManagersComeToRest = false;
    SLUICE_CHECK(kManagersComeToRest);
  }

  Side a_{1};
  Side b_{2};
  Time now_;
};

}  // namespace

void check_connection_managers(ByteView input) { World().run(Script(input)); }

}  // namespace sluice::fuzz
