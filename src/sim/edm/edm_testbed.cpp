#include "sim/edm/edm_testbed.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <numeric>

#include "base/check.h"
#include "base/rng.h"
#include "edm/mirrored_units.h"
#include "edm/preemption.h"
#include "sim/edm/edm_stacks.h"

namespace sluice::sim {

using edm::Block;
using edm::PortId;
using edm::Unit;
using edm::UnitVerdict;

namespace {
constexpr std::int64_t kLongestRequestBlocks = 5;  // compare-and-swap: /MS/, address, two operands, /MT/
constexpr std::uint32_t kMostActive = 127;         // SchedulerConfig
constexpr std::uint64_t kMostBytes = 1u << 20;     // of an operation
}  // namespace

struct EdmTestbed::Node {
  Node(const edm::HostConfig& config, std::size_t bytes) : memory(bytes), stack(config, memory) {}

  std::vector<std::uint8_t> memory;
  edm::HostStack stack;
  bool dead = false;
  // Its link to one network.
  struct Side {
    edm::UnitReader reader;
    Time first_block{};  // of the message that is coming
    Time up_free{};
    Time down_free{};
    Duration longer{};  // than links are
    std::uint64_t blocks_up = 0;
    std::uint64_t blocks_down = 0;
    Time last_up{};  // block
    Time last_down{};
    // The switch's end.
    edm::UnitReader switch_reader;
    bool going_through = false;
    bool more_follow = false;  // along the same circuit
    PortId to{};
    // Requests and grants on their way down, and messages, the first one as its blocks come.
    struct Control {
      std::deque<Block> blocks;
      PortId of{};               // of a request: who asked,
      std::uint64_t behind = 0;  // and behind how many chunks of its writes it goes
      bool begun = false;
      bool held = false;
    };
    struct Stream {
      std::uint32_t from = 0;
      Time came{};  // its first block
      std::deque<Block> blocks;
      bool writes = false;
      bool begun = false;
      bool over = false;
    };
    std::deque<Control> control;
    std::deque<Stream> down;
    edm::RequestOrder order;
    Time sends_at = Time::never();

    // Whether the first request or grant may go on now.
    bool control_goes() const {
      const Control& first = control.front();
      if (first.begun) return true;
      if (first.blocks.size() > 1 && !down.empty() && down.front().begun) return false;
      return order.may_go(first.of, first.behind);
    }
    // The next block that goes down. False: there is none yet.
    bool next_down(Time now, Block& out, Counts& counts) {
      if (!control.empty() && control_goes()) {
        Control& first = control.front();
        out = first.blocks.front();
        first.blocks.pop_front();
        first.begun = true;
        if (first.blocks.empty()) control.pop_front();
        return true;
      }
      if (!control.empty() && !control.front().held) {
        control.front().held = true;
        ++counts.held_requests;
      }
      if (down.empty() || down.front().blocks.empty()) return false;
      Stream& first = down.front();
      out = first.blocks.front();
      first.blocks.pop_front();
      if (!first.begun) counts.most_waited = std::max(counts.most_waited, now - first.came);
      first.begun = true;
      if (first.over && first.blocks.empty()) {
        if (first.writes) order.write_gone(PortId(static_cast<std::uint16_t>(first.from)));
        down.pop_front();
      }
      return true;
    }
  };
  std::array<Side, 2> sides;
  edm::MirroredUnits copies;
};

// One way of a link with frames on it: a block at every tick.
class EdmTestbed::Line {
 public:
  Line(const Background& background, std::uint32_t which_node, bool is_up, Rng& rng)
      : node(which_node),
        up(is_up),
        background_(background),
        frame_(background.frame_bytes),
        rng_(rng.fork("gaps").fork(which_node * 2 + (is_up ? 1 : 0))) {
    for (std::uint8_t& byte : frame_) byte = static_cast<std::uint8_t>(rng.below(256));
    std::vector<edm::Lanes> lanes;
    writer_.frame(frame_, lanes);
    writer_.idle(lanes);
    const std::size_t busy = lanes.size();
    const std::size_t all = background.percent == 0 ? busy : busy * 100 / background.percent;
    for (const edm::Lanes& one : lanes) cycle_.push_back(background.percent == 0 ? edm::kIdleBlock : edm::encode(one));
    gap_ = std::max(all, busy) - busy;
    lead_ = rng.below(busy + gap_);
  }

  edm::Block next() {
    while (multiplexer_.frame_has_room()) multiplexer_.offer_frame(frame_block());
    const bool may = background_.preemption || !on_wire_.in_frame() || in_message_;
    while (may && !held.empty() && multiplexer_.offer(held.front())) held.pop_front();
    SLUICE_CHECK(!multiplexer_.starved());  // one operation at a time: nothing stands inside another's message
    const edm::Block block = multiplexer_.next();
    const bool memory = edm::is_memory_control(block) || (in_message_ && block.is_data());
    if (edm::is_memory_control(block))
      in_message_ = block.type() == static_cast<std::uint8_t>(edm::MemoryBlock::kStart);
    if (!memory) on_wire_.accept(block);
    return block;
  }
  // A block has come. True: it is memory's.
  bool came(const edm::Block& block, std::uint64_t& frames, std::uint64_t& broken) {
    const bool memory = separator_.receive(block);
    lane_reader_.take(edm::decode(separator_.next()), came_);
    for (const auto& frame : came_) ++(frame == frame_ ? frames : broken);
    came_.clear();
    return memory;
  }

  std::uint32_t node;
  bool up;
  std::deque<edm::Block> held;  // memory's, until they may go

 private:
  edm::Block frame_block() {
    if (lead_ != 0) {
      --lead_;
      return edm::kIdleBlock;
    }
    const edm::Block block = cycle_[at_];
    if (++at_ == cycle_.size()) {
      at_ = 0;
      // So that frames take their share of the time, and no link keeps in step with another.
      lead_ = rng_.below(gap_ * 2 + 1);
    }
    return block;
  }

  Background background_;
  std::vector<std::uint8_t> frame_;
  edm::LaneWriter writer_;
  std::vector<edm::Block> cycle_;  // a frame, over and over
  std::size_t at_ = 0;
  std::uint64_t gap_ = 0;   // idle blocks behind one, in the mean
  std::uint64_t lead_ = 0;  // idle blocks before the next one
  Rng rng_;
  edm::TransmitMultiplexer multiplexer_{edm::TransmitMultiplexer::Policy::kFair,
                                        edm::TransmitMultiplexer::Neighbour::kEdm};
  edm::StreamRule on_wire_;
  bool in_message_ = false;
  edm::ReceiveSeparator separator_;
  edm::LaneReader lane_reader_;
  std::vector<std::vector<std::uint8_t>> came_;
};

EdmTestbed::EdmTestbed(const EdmTestbedHardware& hardware, const Settings& settings) : hardware_(hardware) {
  const Background& background = settings.background;
  SLUICE_CHECK(settings.networks == Networks::kOne || background.frame_bytes == 0);
  const edm::SchedulerConfig scheduler{
      .ports = settings.hosts,
      // Mirrored, one of the switches may have granted what the other has still to grant.
      .active_per_pair =
          std::min(settings.active_per_pair * static_cast<std::uint32_t>(settings.networks), kMostActive),
      .policy = settings.policy,
      .matching = settings.matching,
      .block_time = hardware.block(),
      .framing_blocks = edm::kWriteFramingBlocks,
      .gap_blocks = settings.gap_blocks,
      // An answer needs a cycle more than a write to begin, and a request has up to five blocks, a /G/ one.
      .response_lead = hardware.cycle + hardware.block() * (kLongestRequestBlocks - 1) + settings.dram * 2,
      .iteration = hardware.iteration(),
      .iterations = edm::Iterations::kOnDemand,
      .patience = settings.patience};
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(settings.networks); ++i)
    networks_.push_back({edm::SwitchStack(scheduler, hardware.cycle)});
  for (std::uint32_t i = 0; i < settings.hosts; ++i) {
    nodes_.push_back(std::make_unique<Node>(edm::HostConfig{.port = PortId(static_cast<std::uint16_t>(i)),
                                                            .cycle = hardware.cycle,
                                                            .dram = settings.dram,
                                                            .read_timer = settings.read_timer,
                                                            .block = hardware.block(),
                                                            .active_per_pair = settings.active_per_pair,
                                                            .mega_bytes = settings.mega_bytes},
                                            settings.memory_bytes));
  }
  if (background.frame_bytes == 0) return;
  Rng rng = Rng(background.seed).fork("frames");
  for (std::uint32_t i = 0; i < settings.hosts; ++i) {
    up_.push_back(std::make_unique<Line>(background, i, true, rng));
    down_.push_back(std::make_unique<Line>(background, i, false, rng));
  }
  for (auto* lines : {&up_, &down_}) {
    for (auto& line : *lines) at(Time{}, [this, which = line.get()] { tick(*which); });
  }
}
EdmTestbed::~EdmTestbed() = default;

edm::HostStack& EdmTestbed::host(std::uint32_t which) { return nodes_.at(which)->stack; }
MutableBytes EdmTestbed::memory(std::uint32_t which) { return nodes_.at(which)->memory; }
void EdmTestbed::kill(std::uint32_t which) { nodes_.at(which)->dead = true; }
void EdmTestbed::kill_switch(std::uint32_t network, Time when) {
  at(when, [this, network] { networks_.at(network).alive = false; });
}
void EdmTestbed::at(Time when, std::function<void()> what) { steps_.push({when, false, order_++, std::move(what)}); }

void EdmTestbed::run(Time end) {
  while (next_by(end)) run_one();
}
bool EdmTestbed::run_one() {
  if (steps_.empty()) return false;
  const Step step = steps_.top();
  steps_.pop();
  now_ = step.at;
  step.what();
  return true;
}
void EdmTestbed::wake_at(std::uint32_t which, Time when) {
  at(when, [this, which] { wake(which); });
}

void EdmTestbed::wake(std::uint32_t which) {
  Node& node = *nodes_[which];
  if (node.dead) return;
  node.stack.on_deadline(now_);
  for (Unit unit; node.stack.poll(now_, unit);) send_up(which, unit);
  const Time next = node.stack.next_deadline();
  if (next != Time::never())
    at(next, [this, which, next] {
      if (nodes_[which]->stack.next_deadline() <= next) wake(which);
    });
}

void EdmTestbed::note(std::uint32_t network, std::string where) {
  if (network == 0) passages_.push_back({now_, std::move(where)});
}

void EdmTestbed::wake_switch(std::uint32_t network) {
  if (!runs(network)) return;
  edm::SwitchStack& stack = networks_[network].stack;
  stack.on_deadline(now_);
  if (mirrored() && stack.refused_writes() != 0) return lags(network);
  for (edm::SwitchStack::Down down; stack.poll(now_, down);) {
    note(network, "switch sends");
    control_down(network, down);
  }
  const Time next = stack.next_deadline();
  if (next != Time::never())
    at(next, [this, network, next] {
      if (networks_[network].stack.next_deadline() <= next) wake_switch(network);
    });
}

// One that has stopped does not lag, but what of it is still on its way would come too late all the same.
void EdmTestbed::lags(std::uint32_t network) {
  counts_.lagged += runs(network) ? 1u : 0u;
  out_of_service(network);
}

void EdmTestbed::lengthen(std::uint32_t network, std::uint32_t host, Duration by) {
  SLUICE_CHECK(up_.empty());
  nodes_.at(host)->sides.at(network).longer = by;
  links_differ_ = true;
}

Block EdmTestbed::over_link(std::uint32_t network, std::uint32_t host, Way way, Block block) {
  Node::Side& side = nodes_[host]->sides[network];
  const std::uint64_t index = way == Way::kUp ? side.blocks_up++ : side.blocks_down++;
  Time& last = way == Way::kUp ? side.last_up : side.last_down;
  // Otherwise what stands behind the other one on the line is no block of memory's.
  const bool follows = index != 0 && now_ - std::exchange(last, now_) <= hardware_.block();
  for (const Corruption& c : corruptions_) {
    if (c.network != network || c.host != host || c.way != way) continue;
    for (const Flip& flip : c.flips) {
      if (flip.next ? !follows || c.block + 1 != index : c.block != index) continue;
      if (flip.next) ++counts_.spoilt_next;
      if (flip.bit < 2) {
        block.sync = static_cast<edm::Sync>(static_cast<unsigned>(block.sync) ^ 1u << flip.bit);
      } else {
        block.payload ^= std::uint64_t{1} << (flip.bit - 2);
      }
    }
  }
  return block;
}

std::uint64_t EdmTestbed::blocks_over(std::uint32_t network, std::uint32_t host, Way way) const {
  const Node::Side& side = nodes_.at(host)->sides.at(network);
  return way == Way::kUp ? side.blocks_up : side.blocks_down;
}

void EdmTestbed::send_up(std::uint32_t from, const Unit& unit) {
  Node& node = *nodes_[from];
  std::array<Block, edm::kMaxUnitBlocks> blocks;
  const std::size_t n = edm::write_unit(unit, blocks);
  passages_.push_back({now_, fmt::format("host {} sends", from)});
  if (n > 1 && !edm::goes_through(blocks[0])) ++counts_.long_requests;
  if (!up_.empty())
    return void(
        up_[from]->held.insert(up_[from]->held.end(), blocks.begin(), blocks.begin() + static_cast<std::ptrdiff_t>(n)));
  for (std::uint32_t network = 0; network < networks_.size(); ++network) {
    if (!runs(network)) continue;
    Time& free = node.sides[network].up_free;
    const Duration link = hardware_.link() + node.sides[network].longer;
    for (std::size_t i = 0; i < n; ++i) {
      const Time leaves = std::max(now_, free);
      free = leaves + hardware_.block();
      at(leaves + link, [this, network, from, block = blocks[i]] { at_switch(network, from, block); });
    }
  }
}

void EdmTestbed::control_down(std::uint32_t network, const edm::SwitchStack::Down& down) {
  std::array<Block, edm::kMaxUnitBlocks> blocks;
  const auto n = static_cast<std::ptrdiff_t>(edm::write_unit(down.unit, blocks));
  auto& added = nodes_[down.to.value]->sides[network].control.emplace_back();
  added.blocks.assign(blocks.begin(), blocks.begin() + n);
  added.of = down.unit.port;
  added.behind = down.behind;
  send_later(network, down.to.value, now_);
}

void EdmTestbed::data_down(std::uint32_t network, std::uint32_t to, std::uint32_t from, const Block& block) {
  auto& streams = nodes_[to]->sides[network].down;
  const auto type = [&](edm::MemoryBlock which) {
    return !block.is_data() && block.type() == static_cast<std::uint8_t>(which);
  };
  auto stream =
      std::find_if(streams.rbegin(), streams.rend(), [&](const auto& s) { return s.from == from && !s.over; });
  if (stream == streams.rend() || type(edm::MemoryBlock::kStart)) {
    const bool met = std::ranges::any_of(streams, [](const auto& s) { return !s.over; });
    // Zero queueing: data find other data before them only if something has made some of them late.
    SLUICE_CHECK(!met || counts_.long_requests != 0 || counts_.held_requests != 0 || links_differ_);
    if (met) ++counts_.met;
    streams.push_back({.from = from, .came = now_, .blocks = {}, .writes = edm::begins_write(block)});
    stream = streams.rbegin();
  }
  stream->blocks.push_back(block);
  stream->over = type(edm::MemoryBlock::kEnd) || (!block.is_data() && !type(edm::MemoryBlock::kStart));
  send_later(network, to, now_);
}

void EdmTestbed::send_later(std::uint32_t network, std::uint32_t to, Time when) {
  Node::Side& side = nodes_[to]->sides[network];
  // With frames on it, the link itself says when a block may go.
  if (!down_.empty()) {
    for (Block block; side.next_down(now_, block, counts_);) down_[to]->held.push_back(block);
    return;
  }
  when = std::max(when, side.down_free);
  if (side.sends_at <= when) return;
  side.sends_at = when;
  steps_.push({when, true, order_++, [this, network, to] { send_down(network, to); }});
}

void EdmTestbed::send_down(std::uint32_t network, std::uint32_t to) {
  Node::Side& side = nodes_[to]->sides[network];
  if (side.sends_at != now_) return;
  side.sends_at = Time::never();
  Block block;
  if (!side.next_down(now_, block, counts_)) return;
  side.down_free = now_ + hardware_.block();
  at(now_ + hardware_.link() + side.longer, [this, network, to, block] { at_host(network, to, block); });
  send_later(network, to, side.down_free);
}

void EdmTestbed::tick(Line& line) {
  const Block block = line.next();
  at(now_ + hardware_.link(), [this, &line, block] { receive(line, block); });
  at(now_ + hardware_.block(), [this, &line] { tick(line); });
}

void EdmTestbed::receive(Line& line, const Block& block) {
  if (!line.came(block, frames_, broken_frames_)) {
    Node::Side& side = nodes_[line.node]->sides[0];
    return (line.up ? side.switch_reader : side.reader).reset();
  }
  line.up ? at_switch(0, line.node, block) : at_host(0, line.node, block);
}

void EdmTestbed::at_switch(std::uint32_t network, std::uint32_t from, const Block& sent) {
  if (!runs(network)) return;
  ++blocks_;
  const Block block = over_link(network, from, Way::kUp, sent);
  Node::Side& side = nodes_[from]->sides[network];
  edm::SwitchStack& stack = networks_[network].stack;
  const bool legal = block.is_data() || (block.is_control() && edm::checks(block));
  const bool begins = legal && edm::goes_through(block);
  if (!legal || (begins && !begin_data(network, from, block))) return out_of_service(network);
  if (begins) {
    note(network, "switch takes");
    side.going_through = true;
    if (edm::begins_write(block))
      nodes_[side.to.value]->sides[network].order.write_came(PortId(static_cast<std::uint16_t>(from)));
  }
  // A data block, /MS/ or /MT/ of what goes through; other control blocks may stand between.
  const bool part = side.going_through &&
                    (begins || block.is_data() || block.type() == static_cast<std::uint8_t>(edm::MemoryBlock::kEnd));
  if (part) {
    const bool single = block.type() == static_cast<std::uint8_t>(edm::MemoryBlock::kSingle);
    if (!block.is_data() && (!begins || single)) side.going_through = false;
    at(now_ + stack.data_latency(), [this, network, from, to = side.to.value, block, begins] {
      if (!runs(network)) return;
      if (begins) note(network, "switch sends");
      data_down(network, to, from, block);
    });
    return;
  }
  if (!block.is_data() && block.type() != static_cast<std::uint8_t>(edm::MemoryBlock::kEnd))
    note(network, "switch takes");
  const UnitVerdict verdict = side.switch_reader.take(block);
  if (verdict == UnitVerdict::kMore) return;
  if (verdict != UnitVerdict::kWhole) return out_of_service(network);
  const Unit& unit = side.switch_reader.unit();
  const PortId sender(static_cast<std::uint16_t>(from));
  const bool known = unit.port.value < nodes_.size();
  stack.take(now_, sender, unit, known ? nodes_[unit.port.value]->sides[network].order.came(sender) : 0);
  wake_switch(network);
}

bool EdmTestbed::begin_data(std::uint32_t network, std::uint32_t from, const Block& first) {
  Node::Side& side = nodes_[from]->sides[network];
  const PortId to = edm::destination_of(first);
  if (to.value >= nodes_.size()) return false;
  const bool follows = side.more_follow && to == side.to;
  side.to = to;
  side.more_follow = edm::more_follow(first);
  // Data come by a grant alone: of either switch.
  return follows || networks_[network].stack.forward(PortId(static_cast<std::uint16_t>(from)), to) || mirrored();
}

bool EdmTestbed::first_copy(std::uint32_t network, Node& node, const Unit& unit) {
  const bool first = node.copies.first(network, unit);
  const std::uint32_t other = 1 - network;
  if (node.copies.behind(other) > edm::MirroredUnits::kMostBehind && networks_[other].in_service) lags(other);
  return first;
}

void EdmTestbed::at_host(std::uint32_t network, std::uint32_t to, const Block& sent) {
  if (!networks_[network].in_service) return;
  ++blocks_;
  const Block block = over_link(network, to, Way::kDown, sent);
  Node& node = *nodes_[to];
  Node::Side& side = node.sides[network];
  const bool starts = !block.is_data() && block.type() == static_cast<std::uint8_t>(edm::MemoryBlock::kStart);
  const bool ends = !block.is_data() && block.type() == static_cast<std::uint8_t>(edm::MemoryBlock::kEnd);
  if (starts) side.first_block = now_;
  if (!block.is_data() && !ends) note(network, fmt::format("host {} takes", to));
  const UnitVerdict verdict = side.reader.take(block);
  if (verdict == UnitVerdict::kMore) return;
  if (verdict != UnitVerdict::kWhole) return out_of_service(network);
  if (node.dead || (mirrored() && !first_copy(network, node, side.reader.unit()))) return;
  node.stack.take(ends ? side.first_block : now_, now_, side.reader.unit());
  wake(to);
}

Result<EdmTestbedHardware> load_edm_testbed_hardware(const std::string& path) {
  auto text = read_text(path);
  if (!text) return tl::unexpected(text.error());
  const auto parsed = parse_toml(*text, path);
  if (!parsed) return tl::unexpected(parsed.error());
  EdmTestbedHardware hardware;
  std::string error;
  Fields top(*parsed, path, "", error);
  top.text("name", hardware.name);
  const toml::node* const node = top.node("edm_testbed");
  if (node != nullptr && !node->is_table()) top.fail(*node, "edm_testbed", "must be a table");
  if (error.empty()) {
    Fields fields(*node->as_table(), path, "edm_testbed", error, Fields::Sources::kRequired);
    const auto stage = [&](std::string_view key, Duration& out) {
      fields.duration(key, out, Duration{}, kLongestStage);
    };
    fields.rate("bits_per_second", hardware.bits_per_second, kSlowestLinkMbps);
    fields.duration("cycle", hardware.cycle, kShortestCycle, kLongestStage);
    stage("pcs_latency", hardware.pcs_latency);
    stage("pma_latency", hardware.pma_latency);
    stage("propagation", hardware.propagation);
    stage("ethernet_pcs_latency", hardware.ethernet_pcs_latency);
    stage("mac_latency", hardware.mac_latency);
    stage("parsing", hardware.parsing);
    stage("match_action", hardware.match_action);
    stage("packet_manager", hardware.packet_manager);
    stage("crossbar", hardware.crossbar);
    stage("rocev2_stack", hardware.rocev2_stack);
    stage("tcp_stack", hardware.tcp_stack);
    stage("cxl_switch", hardware.cxl_switch);
    stage("dram", hardware.dram);
    fields.duration("clock", hardware.clock, kShortestCycle, kLongestStage, Fields::Need::kOptional);
    fields.finish();
  }
  if (!top.finish()) return fail(error);
  hardware.text = std::move(*text);
  return hardware;
}

void EdmTestbedWorkload::read(Fields& f) {
  f.choice("stack", stack, {"edm", "ethernet", "rocev2", "tcp"}, Fields::Need::kOptional);
  f.choice("operation", operation, {"read", "write"});
  f.byte_count("bytes", bytes, 1, kMostBytes, Fields::Need::kOptional);
  f.duration("dram", dram, Duration{}, kLongestStage, Fields::Need::kOptional);
  std::uint64_t frame = 0;
  std::uint64_t percent = 0;
  std::string preemption = "on";
  f.byte_count("frame_bytes", frame, 64, 9'000, Fields::Need::kOptional);
  f.integer("frames_percent", percent, 0, 100, Fields::Need::kOptional);
  f.choice("preemption", preemption, {"on", "off"}, Fields::Need::kOptional);
  f.integer("operations", operations, 1, 100'000, Fields::Need::kOptional);
  background.frame_bytes = static_cast<std::uint32_t>(frame);
  background.percent = static_cast<std::uint32_t>(percent);
  background.preemption = preemption == "on";
}

namespace {

using Metrics = std::vector<std::pair<std::string, double>>;

double ns(Duration d) { return static_cast<double>(d.picoseconds()) / 1e3; }

Metrics run_other_stack(const EdmTestbedHardware& hardware, const EdmTestbedWorkload& workload) {
  const Stack stack = workload.stack == "tcp"      ? Stack::kTcp
                      : workload.stack == "rocev2" ? Stack::kRocev2
                                                   : Stack::kEthernet;
  const std::vector<Stage> stages = stages_of(hardware, stack, workload.operation == "read");
  const auto sum = [&](auto&& counts) {
    Duration total{};
    for (const Stage& stage : stages) {
      if (counts(stage)) total = total + stage.latency;
    }
    return ns(total);
  };
  const auto at = [&](Stage::Where where) { return sum([&](const Stage& s) { return s.where == where; }); };
  const auto in = [&](Stage::What what) { return sum([&](const Stage& s) { return s.what == what; }); };
  return {{"first_ns", sum([](const Stage&) { return true; })},
          {"compute_ns", at(Stage::Where::kCompute)},
          {"switch_ns", at(Stage::Where::kSwitch)},
          {"memory_ns", at(Stage::Where::kMemory)},
          {"pcs_ns", in(Stage::What::kPcs)},
          {"pma_ns", in(Stage::What::kPma)},
          {"propagation_ns", in(Stage::What::kPropagation)},
          {"protocol_ns", in(Stage::What::kProtocol)},
          {"mac_ns", in(Stage::What::kMac)},
          {"forwarding_ns", in(Stage::What::kForwarding)}};
}

// One operation after another, each at a random instant; how long each took to its first block.
std::vector<double> first_blocks(EdmTestbed& bed, const EdmTestbedWorkload& workload) {
  Rng rng = Rng(workload.background.seed).fork("operations");
  const auto bytes = static_cast<std::uint32_t>(workload.bytes);
  std::vector<double> took;
  for (std::uint64_t i = 0; i < workload.operations; ++i) {
    const Time start = bed.now() + Duration::picoseconds(static_cast<std::int64_t>(rng.below(5'000'000)));
    bed.run(start);
    const auto& written = bed.host(1).written();
    const std::size_t before = written.size();
    const auto came = [&] {
      return std::accumulate(written.begin() + static_cast<std::ptrdiff_t>(before), written.end(), std::uint64_t{0},
                             [](std::uint64_t sum, const auto& chunk) { return sum + chunk.bytes; });
    };
    SLUICE_CHECK(workload.operation == "read"
                     ? bed.host(0).read(start, PortId(1), 0, bytes, i)
                     : bed.host(0).write(start, PortId(1), 0, std::vector<std::uint8_t>(bytes)));
    bed.wake_at(0, start);
    edm::Done done;
    bool over = false;
    while (!over) {
      const Time until = bed.now() + Duration::nanoseconds(100);
      if (!bed.next_by(until)) bed.run_one();  // blocks may be farther apart
      bed.run(until);
      over = workload.operation == "read" ? bed.host(0).poll_done(done) : came() == bytes;
    }
    const Time first = workload.operation == "read" ? done.first_block : written.at(before).first_block;
    SLUICE_CHECK(!done.null);
    took.push_back(ns(first - start));
  }
  return took;
}

Metrics run_with_frames(const EdmTestbedHardware& hardware, const EdmTestbedWorkload& workload) {
  EdmTestbed bed(hardware, {.memory_bytes = kMostBytes,
                            .dram = workload.dram,
                            .background = workload.background,
                            .read_timer = EdmTestbed::kNoTimer});
  std::vector<double> took = first_blocks(bed, workload);
  SLUICE_CHECK(bed.broken_frames() == 0);
  std::sort(took.begin(), took.end());
  const double mean = std::accumulate(took.begin(), took.end(), 0.0) / static_cast<double>(took.size());
  return {{"first_ns", mean},
          {"p99_ns", took[(took.size() - 1) * 99 / 100]},
          {"most_ns", took.back()},
          {"frames", static_cast<double>(bed.frames())}};
}

// When the first and the last block of the data had been processed.
struct Blocks {
  Time first{};
  Time last{};
};
Blocks one_operation(EdmTestbed& bed, const EdmTestbedWorkload& workload, std::uint64_t length) {
  const auto bytes = static_cast<std::uint32_t>(length);
  const bool reads = workload.operation == "read";
  SLUICE_CHECK(reads ? bed.host(0).read(Time{}, PortId(1), 0, bytes, 1)
                     : bed.host(0).write(Time{}, PortId(1), 0, std::vector<std::uint8_t>(bytes)));
  bed.wake(0);
  while (bed.run_one()) continue;
  if (reads) {
    edm::Done done;
    SLUICE_CHECK(bed.host(0).poll_done(done) && !done.null);
    return {done.first_block, done.last_block};
  }
  SLUICE_CHECK(!bed.host(1).written().empty());
  return {bed.host(1).written().front().first_block, bed.host(1).written().back().last_block};
}

}  // namespace

std::vector<std::pair<std::string, double>> run_edm_testbed(const EdmTestbedHardware& hardware,
                                                            const EdmTestbedWorkload& workload) {
  if (workload.stack != "edm") return run_other_stack(hardware, workload);
  if (workload.background.frame_bytes != 0) return run_with_frames(hardware, workload);
  const EdmTestbed::Settings settings{
      .memory_bytes = kMostBytes, .dram = workload.dram, .read_timer = EdmTestbed::kNoTimer};
  EdmTestbed whole(hardware, settings);
  const Blocks blocks = one_operation(whole, workload, workload.bytes);
  // Where the time to the first block went: of the first chunk alone, among whose passages those of others would be.
  EdmTestbed bed(hardware, settings);
  const Time first =
      one_operation(bed, workload, std::min<std::uint64_t>(workload.bytes, edm::HostConfig{}.chunk_bytes)).first;
  SLUICE_CHECK(first == blocks.first);
  // Up to the first block of the data: what lies between coming and going is a stack's, what between going and coming a link's.
  Duration compute{};
  Duration memory{};
  Duration in_switch{};
  std::int64_t links = 0;
  Time since;
  std::string where = "host 0 takes";
  for (const EdmTestbed::Passage& p : bed.passages()) {
    if (p.at > first) break;
    const Duration took = p.at - since;
    if (where == "host 0 takes") compute = compute + took;
    if (where == "host 1 takes") memory = memory + took;
    if (where == "switch takes") in_switch = in_switch + took;
    if (where.ends_with("sends")) ++links;
    since = p.at;
    where = p.where;
  }
  (where == "host 0 takes" ? compute : memory) = (where == "host 0 takes" ? compute : memory) + (first - since);
  return {{"first_ns", ns(first - Time{})},
          {"last_ns", ns(blocks.last - Time{})},
          {"compute_ns", ns(compute)},
          {"switch_ns", ns(in_switch)},
          {"memory_ns", ns(memory)},
          {"pcs_ns", ns(hardware.pcs_latency * 2 * links)},
          {"pma_ns", ns(hardware.pma_latency * 2 * links)},
          {"propagation_ns", ns(hardware.propagation * links)},
          {"compute_cycles", ns(compute) / ns(hardware.cycle)},
          {"switch_cycles", ns(in_switch) / ns(hardware.cycle)},
          {"memory_cycles", ns(memory) / ns(hardware.cycle)}};
}

}  // namespace sluice::sim
