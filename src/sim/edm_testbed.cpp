#include "sim/edm_testbed.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"

namespace sluice::sim {

using edm::Block;
using edm::PortId;
using edm::Unit;
using edm::UnitVerdict;

struct EdmTestbed::Node {
  Node(const edm::HostConfig& config, std::size_t bytes) : memory(bytes), stack(config, memory) {}

  std::vector<std::uint8_t> memory;
  edm::HostStack stack;
  edm::UnitReader reader;
  Time first_block{};  // of the message that is coming
  bool dead = false;
  Time up_free{};
  Time down_free{};

  // The switch's end.
  edm::UnitReader switch_reader;
  bool going_through = false;
  PortId to{};
};

EdmTestbed::EdmTestbed(const EdmTestbedHardware& hardware, std::uint32_t hosts, std::size_t memory_bytes, Duration dram)
    : hardware_(hardware),
      switch_({.ports = hosts,
               .block_time = hardware.block(),
               .framing_blocks = 3,
               .iteration = hardware.cycle * 3,
               .iterations = edm::Iterations::kOnDemand},
              hardware.cycle) {
  for (std::uint32_t i = 0; i < hosts; ++i) {
    nodes_.push_back(std::make_unique<Node>(
        edm::HostConfig{.port = PortId(static_cast<std::uint16_t>(i)), .cycle = hardware.cycle, .dram = dram},
        memory_bytes));
  }
}
EdmTestbed::~EdmTestbed() = default;

edm::HostStack& EdmTestbed::host(std::uint32_t which) { return nodes_.at(which)->stack; }
MutableBytes EdmTestbed::memory(std::uint32_t which) { return nodes_.at(which)->memory; }
void EdmTestbed::kill(std::uint32_t which) { nodes_.at(which)->dead = true; }
void EdmTestbed::at(Time when, std::function<void()> what) { steps_.push({when, order_++, std::move(what)}); }

void EdmTestbed::run(Time end) {
  while (!steps_.empty() && steps_.top().at <= end) {
    const Step step = steps_.top();
    steps_.pop();
    now_ = step.at;
    step.what();
  }
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

void EdmTestbed::wake_switch() {
  switch_.on_deadline(now_);
  PortId to;
  for (Unit unit; switch_.poll(now_, to, unit);) {
    std::array<Block, edm::kMaxUnitBlocks> blocks;
    const std::size_t n = edm::write_unit(unit, blocks);
    passages_.push_back({now_, "switch sends"});
    for (std::size_t i = 0; i < n; ++i) send_down(to.value, blocks[i]);
  }
  const Time next = switch_.next_deadline();
  if (next != Time::never())
    at(next, [this, next] {
      if (switch_.next_deadline() <= next) wake_switch();
    });
}

void EdmTestbed::send_up(std::uint32_t from, const Unit& unit) {
  Node& node = *nodes_[from];
  std::array<Block, edm::kMaxUnitBlocks> blocks;
  const std::size_t n = edm::write_unit(unit, blocks);
  passages_.push_back({now_, fmt::format("host {} sends", from)});
  for (std::size_t i = 0; i < n; ++i) {
    const Time leaves = std::max(now_, node.up_free);
    node.up_free = leaves + hardware_.block();
    at(leaves + hardware_.link(), [this, from, block = blocks[i]] { at_switch(from, block); });
  }
}

void EdmTestbed::send_down(std::uint32_t to, const Block& block) {
  Node& node = *nodes_[to];
  const Time leaves = std::max(now_, node.down_free);
  node.down_free = leaves + hardware_.block();
  at(leaves + hardware_.link(), [this, to, block] { at_host(to, block); });
}

void EdmTestbed::at_switch(std::uint32_t from, const Block& block) {
  ++blocks_;
  Node& node = *nodes_[from];
  const bool begins = edm::goes_through(block);
  if (begins) {
    passages_.push_back({now_, "switch takes"});
    SLUICE_CHECK(switch_.forward(PortId(static_cast<std::uint16_t>(from)), node.to));  // data come by a grant alone
    node.going_through = true;
  }
  // A data block, /MS/ or /MT/ of what goes through; other control blocks may stand between.
  const bool part = node.going_through &&
                    (begins || block.is_data() || block.type() == static_cast<std::uint8_t>(edm::MemoryBlock::kEnd));
  if (part) {
    const bool single = block.type() == static_cast<std::uint8_t>(edm::MemoryBlock::kSingle);
    if (!block.is_data() && (!begins || single)) node.going_through = false;
    at(now_ + switch_.data_latency(), [this, to = node.to.value, block, begins] {
      if (begins) passages_.push_back({now_, "switch sends"});
      send_down(to, block);
    });
    return;
  }
  if (!block.is_data() && block.type() != static_cast<std::uint8_t>(edm::MemoryBlock::kEnd))
    passages_.push_back({now_, "switch takes"});
  const UnitVerdict verdict = node.switch_reader.take(block);
  SLUICE_CHECK(verdict == UnitVerdict::kMore || verdict == UnitVerdict::kWhole);  // these links flip nothing
  if (verdict != UnitVerdict::kWhole) return;
  switch_.take(now_, PortId(static_cast<std::uint16_t>(from)), node.switch_reader.unit());
  wake_switch();
}

void EdmTestbed::at_host(std::uint32_t to, const Block& block) {
  ++blocks_;
  Node& node = *nodes_[to];
  const bool starts = !block.is_data() && block.type() == static_cast<std::uint8_t>(edm::MemoryBlock::kStart);
  const bool ends = !block.is_data() && block.type() == static_cast<std::uint8_t>(edm::MemoryBlock::kEnd);
  if (starts) node.first_block = now_;
  if (!block.is_data() && !ends) passages_.push_back({now_, fmt::format("host {} takes", to)});
  const UnitVerdict verdict = node.reader.take(block);
  SLUICE_CHECK(verdict == UnitVerdict::kMore || verdict == UnitVerdict::kWhole);
  if (verdict != UnitVerdict::kWhole || node.dead) return;
  node.stack.take(ends ? node.first_block : now_, now_, node.reader.unit());
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
    fields.rate("bits_per_second", hardware.bits_per_second);
    fields.duration("cycle", hardware.cycle);
    fields.duration("pcs_latency", hardware.pcs_latency);
    fields.duration("pma_latency", hardware.pma_latency);
    fields.duration("propagation", hardware.propagation);
    fields.finish();
    if (error.empty() && hardware.bits_per_second == 0) top.fail(*node, "bits_per_second", "must not be 0");
  }
  if (!top.finish()) return fail(error);
  hardware.text = std::move(*text);
  return hardware;
}

void EdmTestbedWorkload::read(Fields& f) {
  f.choice("operation", operation, {"read", "write"});
  f.byte_count("bytes", bytes, Fields::Need::kOptional);
  f.duration("dram", dram, Fields::Need::kOptional);
  bytes = std::clamp<std::uint64_t>(bytes, 1, 1 << 20);
}

std::vector<std::pair<std::string, double>> run_edm_testbed(const EdmTestbedHardware& hardware,
                                                            const EdmTestbedWorkload& workload) {
  EdmTestbed bed(hardware, 2, std::size_t{2} << 20, workload.dram);
  const auto bytes = static_cast<std::uint32_t>(workload.bytes);
  const bool reads = workload.operation == "read";
  SLUICE_CHECK(reads ? bed.host(0).read(Time{}, PortId(1), 0, bytes, 1)
                     : bed.host(0).write(Time{}, PortId(1), 0, std::vector<std::uint8_t>(bytes)));
  bed.wake(0);
  bed.run(Time::at(Duration::milliseconds(1)));
  Time first;
  Time last;
  if (reads) {
    edm::Done done;
    SLUICE_CHECK(bed.host(0).poll_done(done) && !done.null);
    first = done.first_block;
    last = done.last_block;
  } else {
    SLUICE_CHECK(!bed.host(1).written().empty());
    first = bed.host(1).written().front().first_block;
    last = bed.host(1).written().back().last_block;
  }
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
  const auto ns = [](Duration d) { return static_cast<double>(d.picoseconds()) / 1e3; };
  return {{"first_ns", ns(first - Time{})},
          {"last_ns", ns(last - Time{})},
          {"compute_ns", ns(compute)},
          {"switch_ns", ns(in_switch)},
          {"memory_ns", ns(memory)},
          {"pcs_ns", ns(hardware.pcs_latency * 2 * links)},
          {"pma_ns", ns(hardware.pma_latency * 2 * links)},
          {"propagation_ns", ns(hardware.propagation * links)}};
}

}  // namespace sluice::sim
