#include "fuzz/edm_properties.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "edm/preemption.h"
#include "fuzz/script.h"

namespace sluice::fuzz {
namespace {

using namespace edm;

// Of two bits: the two that there are, and the two that a line makes of them.
constexpr std::array kSyncs{Sync::kControl, Sync::kData, Sync{0b00}, Sync{0b11}};

// What a reader takes for a unit is written as the same blocks.
void check_unit(const Unit& unit, const std::vector<Block>& message, const Block& last) {
  static thread_local std::array<Block, kMaxUnitBlocks> written;
  const std::size_t n = write_unit(unit, written);
  UnitReader reader;
  for (std::size_t i = 0; i + 1 < n; ++i) SLUICE_CHECK(reader.take(written[i]) == UnitVerdict::kMore);
  SLUICE_CHECK(reader.take(written[n - 1]) == UnitVerdict::kWhole);
  SLUICE_CHECK(reader.unit().kind == unit.kind && reader.unit().address == unit.address);
  SLUICE_CHECK(reader.unit().port == unit.port && reader.unit().to == unit.to && reader.unit().id == unit.id);
  SLUICE_CHECK(reader.unit().more == unit.more && reader.unit().op == unit.op && reader.unit().last == unit.last);
  SLUICE_CHECK(reader.unit().bytes == unit.bytes && std::ranges::equal(reader.unit().data, unit.data));
  SLUICE_CHECK(n == (n == 1 ? 1 : message.size() + 1));
  SLUICE_CHECK(written[n - 1].type() == last.type());
}

}  // namespace

void check_edm_line(ByteView input) {
  Script script(input);
  ReceiveSeparator separator(40);
  UnitReader units;
  LaneReader lanes;
  Descrambler descrambler;
  std::vector<Block> message;
  std::vector<std::vector<std::uint8_t>> frames;
  const bool scrambled = (script.next() & 1) != 0;
  std::uint64_t given = 0;
  std::uint64_t taken = 0;
  while (!script.empty()) {
    Block block{kSyncs.at(script.next() & 3), 0};
    for (unsigned i = 0; i < 8; ++i) block.payload |= std::uint64_t{script.next()} << 8 * i;
    if (scrambled) block.payload = descrambler.descramble(block.payload);
    ++given;
    // Encoding what a block decodes to gives a block that decodes the same.
    const Lanes decoded = decode(block);
    SLUICE_CHECK(decode(encode(decoded)) == decoded);
    const bool legal = block.is_data() || block.is_control();
    SLUICE_CHECK(legal || class_of(block) == BlockClass::kInvalid);
    if (separator.receive(block)) {
      SLUICE_CHECK(block.is_data() || is_memory_control(block));
      SLUICE_CHECK(legal);
      ++taken;
      const UnitVerdict verdict = units.take(block);
      const bool starts = !block.is_data() && block.type() == static_cast<std::uint8_t>(MemoryBlock::kStart);
      if (starts) message.clear();
      if (block.is_data() || starts) message.push_back(block);
      if (verdict == UnitVerdict::kWhole) check_unit(units.unit(), message, block);
    }
    SLUICE_CHECK(separator.waiting() <= 42);
    const Block out = separator.next();
    SLUICE_CHECK(!is_memory_control(out));  // the decoder never sees one
    lanes.take(decode(out), frames);
    SLUICE_CHECK(frames.size() * 2 <= given);  // a frame has two blocks at least
  }
  SLUICE_CHECK(taken <= given);
}

}  // namespace sluice::fuzz
