#include "sim/edm_fabric.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::sim {

using edm::PortId;
using edm::Unit;
using edm::UnitKind;

namespace {

edm::SchedulerConfig scheduler_config(const EdmTestbedHardware& hardware, const EdmFabricSettings& settings) {
  return {.ports = settings.ports,
          // Reads of one host and writes of the other are messages of the same pair.
          .active_per_pair = settings.active_per_pair * 2,
          .policy = settings.policy,
          .chunk_bytes = settings.chunk_bytes,
          .block_time = hardware.block(),
          .framing_blocks = 3,
          .gap_blocks = settings.gap_blocks,
          .response_lead = hardware.cycle + hardware.block() * 4,
          .iteration = hardware.iteration(),
          .iterations = edm::Iterations::kOnDemand,
          .patience = settings.patience};
}

bool goes_through(UnitKind kind) {
  return kind == UnitKind::kWrite || kind == UnitKind::kResponse || kind == UnitKind::kNull;
}

}  // namespace

// A host's link, both ways.
class EdmFabric::Link {
 public:
  Link(EdmFabric& fabric, EdmHost& host, PortId port) : fabric_(fabric), host_(host), port_(port) {}

  void send_up(Time now, const Unit& unit) {
    const auto n = static_cast<std::int64_t>(edm::unit_blocks(unit));
    const Time leaves = std::max(now, up_free_);
    up_free_ = leaves + block() * n;
    const Time first = leaves + fabric_.hardware_.link();
    on_way_up_.push_back({first, first + block() * (n - 1), EdmUnit::of(unit)});
    blocks_ += static_cast<std::uint64_t>(n);
    fabric_.loop_.schedule_no_later(up_event_, up_due());
  }

  // Data come block by block, from `comes` on; a request is here as a whole.
  enum class Pace : std::uint8_t { kBlockByBlock, kWhole };
  void send_down(Time now, Time comes, EdmUnit unit, Pace pace) {
    const auto n = static_cast<std::int64_t>(edm::unit_blocks(unit.view()));
    blocks_ += static_cast<std::uint64_t>(n);
    const bool request = pace == Pace::kWhole && unit.unit.kind != UnitKind::kGrant;
    advance(now);
    if (pace == Pace::kWhole && n == 1 && !has_to_wait(comes, request)) {
      const Time leaves = std::max(comes, down_free_);
      down_free_ = leaves + block();
      arrives(leaves, leaves, std::move(unit));
    } else {
      const auto before = [&](const Stream& s) { return s.sent != 0 || s.comes <= comes; };
      const auto place = std::ranges::find_if_not(streams_, before);
      const Duration spacing = pace == Pace::kWhole ? Duration{} : block();
      streams_.insert(place, {comes, n, 0, spacing, pace == Pace::kWhole, {}, std::move(unit)});
    }
    schedule_down();
  }
  std::uint64_t blocks() const { return blocks_; }

 private:
  struct Coming {
    Time first{};
    Time last{};
    EdmUnit unit;
  };
  struct Stream {
    Time comes{};  // its first block
    std::int64_t blocks = 0;
    std::int64_t sent = 0;
    Duration spacing{};
    bool request = false;
    Time first_left{};
    EdmUnit unit;

    Time over() const { return comes + spacing * (blocks - 1); }
    std::int64_t come_by(Time now) const {
      if (now < comes) return 0;
      if (spacing == Duration{} || now >= over()) return blocks;
      return (now - comes).picoseconds() / spacing.picoseconds() + 1;
    }
  };

  Duration block() const { return fabric_.hardware_.block(); }
  // When the switch does something about the first unit that comes up.
  Time up_due() const {
    const Coming& first = on_way_up_.front();
    return goes_through(first.unit.unit.kind) ? first.first : first.last;
  }
  void at_switch(Time now) {
    while (!on_way_up_.empty() && up_due() <= now) {
      Coming coming = std::move(on_way_up_.front());
      on_way_up_.pop_front();
      if (goes_through(coming.unit.unit.kind)) {
        PortId to;
        SLUICE_CHECK(fabric_.stack_.forward(port_, to));  // data come by a grant alone
        fabric_.links_[to.value]->send_down(now, now + fabric_.stack_.data_latency(), std::move(coming.unit),
                                            Pace::kBlockByBlock);
      } else {
        fabric_.stack_.take(now, port_, coming.unit.view());
        fabric_.switch_turn(now);
      }
    }
    if (!on_way_up_.empty()) fabric_.loop_.schedule(up_event_, up_due());
  }

  // Whether a single block may not go at once: behind an earlier request, or, a request itself, behind data that wait.
  bool has_to_wait(Time now, bool request) const {
    for (std::size_t i = 0; i < streams_.size() && streams_[i].comes <= now; ++i) {
      if (streams_[i].request || (request && i > 0)) return true;
    }
    return false;
  }
  // Blocks that have come by then leave, in order.
  void advance(Time now) {
    while (!streams_.empty()) {
      Stream& s = streams_.front();
      const std::int64_t come = s.come_by(now);
      if (come > s.sent) {
        const Time leaves = std::max(down_free_, s.comes + s.spacing * s.sent);
        if (s.sent == 0) {
          s.first_left = leaves;
          if (!s.request) fabric_.most_waited_ = std::max(fabric_.most_waited_, leaves - s.comes);
        }
        down_free_ = leaves + block() * (come - s.sent);
        s.sent = come;
      }
      if (s.sent < s.blocks) return;
      arrives(s.first_left, down_free_ - block(), std::move(s.unit));
      streams_.pop_front();
    }
  }
  void arrives(Time first_left, Time last_left, EdmUnit unit) {
    const Duration link = fabric_.hardware_.link();
    on_way_down_.push_back({first_left + link, last_left + link, std::move(unit)});
  }
  void at_host(Time now) {
    advance(now);
    while (!on_way_down_.empty() && on_way_down_.front().last <= now) {
      const Coming coming = std::move(on_way_down_.front());
      on_way_down_.pop_front();
      fabric_.trace_.note(static_cast<std::uint64_t>(now.since_start().picoseconds()) << 10 ^ port_.value);
      host_.deliver(now, coming.first, coming.unit.view());
    }
    schedule_down();
  }
  void schedule_down() {
    Time next = Time::never();
    if (!streams_.empty()) next = streams_.front().over();
    if (!on_way_down_.empty()) next = std::min(next, on_way_down_.front().last);
    if (next != Time::never()) fabric_.loop_.schedule_no_later(down_event_, next);
  }

  EdmFabric& fabric_;
  EdmHost& host_;
  PortId port_;
  Time up_free_;
  std::deque<Coming> on_way_up_;
  Time down_free_;
  std::deque<Stream> streams_;  // the first one as its blocks come
  std::deque<Coming> on_way_down_;
  std::uint64_t blocks_ = 0;
  MemberEvent<Link, &Link::at_switch> up_event_{*this};
  MemberEvent<Link, &Link::at_host> down_event_{*this};
};

EdmFabric::EdmFabric(EventLoop& loop, Trace& trace, const EdmTestbedHardware& hardware,
                     const EdmFabricSettings& settings)
    : loop_(loop),
      trace_(trace),
      hardware_(hardware),
      settings_(settings),
      stack_(scheduler_config(hardware, settings), hardware.cycle) {}
EdmFabric::~EdmFabric() = default;

PortId EdmFabric::attach(EdmHost& host) {
  SLUICE_CHECK(links_.size() < settings_.ports);
  const PortId port(static_cast<std::uint16_t>(links_.size()));
  links_.push_back(std::make_unique<Link>(*this, host, port));
  return port;
}

void EdmFabric::send(Time now, PortId from, const Unit& unit) { links_.at(from.value)->send_up(now, unit); }
std::uint64_t EdmFabric::blocks(PortId port) const { return links_.at(port.value)->blocks(); }

void EdmFabric::switch_turn(Time now) {
  stack_.on_deadline(now);
  PortId to;
  for (Unit unit; stack_.poll(now, to, unit);)
    links_[to.value]->send_down(now, now, EdmUnit::of(unit), Link::Pace::kWhole);
  if (const Time next = stack_.next_deadline(); next != Time::never()) loop_.schedule_no_later(switch_event_, next);
}

}  // namespace sluice::sim
