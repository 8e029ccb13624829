#include "sim/edm/edm_fabric.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::sim {

using edm::PortId;
using edm::Unit;
using edm::UnitKind;

namespace {

edm::SchedulerConfig scheduler_config(const EdmTestbedHardware& hardware, const EdmFabricSettings& settings) {
  return {.ports = settings.ports,
          .active_per_pair = settings.active_per_pair,
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

PortId destination_of(const Unit& data) { return data.kind == UnitKind::kWrite ? data.port : data.to; }
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

  // A request or a grant, here as a whole.
  void control_down(Time now, const edm::SwitchStack::Down& down) {
    advance(now - kInstant);
    const auto n = static_cast<std::int64_t>(edm::unit_blocks(down.unit));
    blocks_ += static_cast<std::uint64_t>(n);
    control_.push_back({now, n, down.behind, EdmUnit::of(down.unit)});
    schedule_down();
  }
  // Data of another host, block by block from `comes` on.
  void data_down(Time comes, PortId from, EdmUnit unit) {
    const auto n = static_cast<std::int64_t>(edm::unit_blocks(unit.view()));
    blocks_ += static_cast<std::uint64_t>(n);
    const bool writes = unit.unit.kind == UnitKind::kWrite;
    const auto before = [&](const Stream& s) { return s.sent != 0 || s.comes <= comes; };
    streams_.insert(std::ranges::find_if_not(streams_, before), {comes, n, 0, from, {}, std::move(unit)});
    if (writes) order_.write_came(from);
    schedule_down();
  }
  std::uint64_t writes_came(PortId from) const { return order_.came(from); }
  std::uint64_t blocks() const { return blocks_; }

 private:
  struct Coming {
    Time first{};
    Time last{};
    EdmUnit unit;
  };
  struct Control {
    Time comes{};
    std::int64_t blocks = 0;
    std::uint64_t behind = 0;  // of a request: so many chunks of its sender's writes
    EdmUnit unit;
  };
  struct Stream {
    Time comes{};  // its first block
    std::int64_t blocks = 0;
    std::int64_t sent = 0;
    PortId from{};
    Time first_left{};
    EdmUnit unit;
  };
  static constexpr Duration kInstant = Duration::picoseconds(1);

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
        const PortId to = destination_of(coming.unit.unit);
        if (!more_follow_) SLUICE_CHECK(fabric_.stack_.forward(port_, to));  // data come by a grant alone
        more_follow_ = coming.unit.unit.more;
        fabric_.links_[to.value]->data_down(now + fabric_.stack_.data_latency(), port_, std::move(coming.unit));
      } else {
        const auto& down = fabric_.links_.at(coming.unit.unit.port.value);
        fabric_.stack_.take(now, port_, coming.unit.view(), down->writes_came(port_));
        fabric_.switch_turn(now);
      }
    }
    if (!on_way_up_.empty()) fabric_.loop_.schedule(up_event_, up_due());
  }

  // Whether the first request or grant may go before what there is of data.
  bool control_goes() const {
    const Control& first = control_.front();
    if (first.blocks > 1 && !streams_.empty() && streams_.front().sent != 0) return false;
    return order_.may_go(first.unit.unit.port, first.behind);
  }
  // When the next block of data can go.
  Time data_goes() const {
    if (streams_.empty()) return Time::never();
    const Stream& first = streams_.front();
    return std::max(down_free_, first.comes + block() * first.sent);
  }
  // Blocks that can go by then do.
  void advance(Time now) {
    for (;;) {
      const Time data = data_goes();
      if (!control_.empty()) {
        const Time goes = std::max(down_free_, control_.front().comes);
        if (goes <= now && goes <= data && control_goes()) {
          Control first = std::move(control_.front());
          control_.pop_front();
          down_free_ = goes + block() * first.blocks;
          arrives(goes, down_free_ - block(), std::move(first.unit));
          continue;
        }
      }
      if (data > now) return;
      send_data(data, now);
    }
  }
  void send_data(Time goes, Time now) {
    Stream& s = streams_.front();
    if (s.sent == 0) {
      s.first_left = goes;
      fabric_.most_waited_ = std::max(fabric_.most_waited_, goes - s.comes);
    }
    // What waits here because of this message may go when it is over, and not before.
    const std::int64_t can = (now - goes).picoseconds() / block().picoseconds() + 1;
    const std::int64_t n = std::min(s.blocks - s.sent, can);
    s.sent += n;
    down_free_ = goes + block() * n;
    if (s.sent < s.blocks) return;
    const bool writes = s.unit.unit.kind == UnitKind::kWrite;
    arrives(s.first_left, down_free_ - block(), std::move(s.unit));
    if (writes) order_.write_gone(s.from);
    streams_.pop_front();
  }
  void arrives(Time first_left, Time last_left, EdmUnit unit) {
    const Duration link = fabric_.hardware_.link();
    on_way_down_.push_back({first_left + link, last_left + link, std::move(unit)});
  }
  void at_host(Time now) {
    advance(now - kInstant);  // what else goes at this instant may not be known yet
    while (!on_way_down_.empty() && on_way_down_.front().last <= now) {
      const Coming coming = std::move(on_way_down_.front());
      on_way_down_.pop_front();
      fabric_.trace_.note(static_cast<std::uint64_t>(now.since_start().picoseconds()) << 10 ^ port_.value);
      host_.deliver(now, coming.first, coming.unit.view());
    }
    schedule_down();
  }
  // When the next unit is there, if nothing more comes. What waits for another unit's end is looked at then.
  void schedule_down() {
    const Duration link = fabric_.hardware_.link();
    Time next = on_way_down_.empty() ? Time::never() : on_way_down_.front().last;
    if (!streams_.empty())
      next = std::min(next, data_goes() + block() * (streams_.front().blocks - streams_.front().sent - 1) + link);
    if (!control_.empty()) {
      const Time goes = std::max(down_free_, control_.front().comes);
      if (control_goes()) next = std::min(next, goes + block() * (control_.front().blocks - 1) + link);
    }
    if (next != Time::never()) fabric_.loop_.schedule_no_later(down_event_, next);
  }

  EdmFabric& fabric_;
  EdmHost& host_;
  PortId port_;
  Time up_free_;
  std::deque<Coming> on_way_up_;
  bool more_follow_ = false;
  Time down_free_;
  std::deque<Control> control_;
  edm::RequestOrder order_;
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
  for (edm::SwitchStack::Down down; stack_.poll(now, down);) links_[down.to.value]->control_down(now, down);
  if (const Time next = stack_.next_deadline(); next != Time::never()) loop_.schedule_no_later(switch_event_, next);
}

}  // namespace sluice::sim
