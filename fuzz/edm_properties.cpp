#include "fuzz/edm_properties.h"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>
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

namespace {

std::uint32_t crc32c(std::uint32_t crc, std::uint64_t payload) {
  for (unsigned bit = 0; bit < 64; ++bit, payload >>= 1)
    crc = crc >> 1 ^ (((crc ^ payload) & 1) != 0 ? 0x82F6'3B78u : 0u);
  return crc;
}

// Makes a block memory's, and its checks right: what it says may still be nonsense.
class Checked {
 public:
  void make(Block& block) {
    using enum MemoryBlock;
    constexpr std::array kTypes{kStart, kStart, kEnd, kEnd, kEnd, kSingle, kNotify, kGrant};
    if (block.is_data()) {
      crc_ = crc32c(crc_, block.payload);
      return;
    }
    const MemoryBlock type = kTypes.at(block.type() % kTypes.size());
    block.payload = (block.payload & ~std::uint64_t{0xFF}) | static_cast<std::uint8_t>(type);
    const auto kind = static_cast<UnitKind>(block.payload >> 8 & 7);
    if (type == kStart) {
      // Few bytes, or no message would ever end where it says; and mostly no operation where there is none.
      block.payload &= ~(kind == UnitKind::kResponse ? std::uint64_t{0x3FF} << 33 : std::uint64_t{0x7'FFFF} << 33);
      const std::uint64_t operation = kind == UnitKind::kModify ? 4 : 7;
      if ((block.payload >> 56 & 7) != 0) block.payload &= ~(operation << 52);
    }
    const bool has_crc32 = type == kEnd && !is_short_;
    if (has_crc32) {
      block.payload &= ~(std::uint64_t{0xFFFF'FFFF} << 8);
      block.payload |= std::uint64_t{static_cast<std::uint32_t>(~crc_)} << 8;
    }
    for (unsigned check = 0; check < 256 && !checks(block); ++check)
      block.payload = (block.payload & ~(std::uint64_t{0xFF} << 56)) | std::uint64_t{check} << 56;
    if (type != kStart) return;
    crc_ = crc32c(~0u, block.payload);
    is_short_ = kind == UnitKind::kReadShort;
  }

 private:
  std::uint32_t crc_ = 0;
  bool is_short_ = false;
};

}  // namespace

void check_edm_line(ByteView input) {
  Script script(input);
  ReceiveSeparator separator(40);
  UnitReader units;
  LaneReader lanes;
  Descrambler descrambler;
  std::vector<Block> message;
  std::vector<std::vector<std::uint8_t>> frames;
  const std::uint8_t how = script.next();
  const bool scrambled = (how & 1) != 0;
  const bool checked = (how & 2) != 0;
  Checked checks;
  std::uint64_t given = 0;
  std::uint64_t taken = 0;
  while (!script.empty()) {
    Block block{kSyncs.at(script.next() & (checked ? 1 : 3)), 0};
    for (unsigned i = 0; i < 8; ++i) block.payload |= std::uint64_t{script.next()} << 8 * i;
    if (scrambled) block.payload = descrambler.descramble(block.payload);
    if (checked) checks.make(block);
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
      const bool inside = units.inside();
      const UnitVerdict verdict = units.take(block);
      const bool starts = !block.is_data() && block.type() == static_cast<std::uint8_t>(MemoryBlock::kStart);
      SLUICE_CHECK(!block.is_data() || inside || verdict == UnitVerdict::kOutOfPlace);
      SLUICE_CHECK(!starts || !inside || verdict != UnitVerdict::kMore);
      if (starts) message.clear();
      if (block.is_data() || starts) message.push_back(block);
      if (verdict == UnitVerdict::kWhole) check_unit(units.unit(), message, block);
    } else {
      units.reset();
    }
    SLUICE_CHECK(separator.waiting() <= 42);
    const Block out = separator.next();
    SLUICE_CHECK(!is_memory_control(out));  // the decoder never sees one
    lanes.take(decode(out), frames);
    SLUICE_CHECK(frames.size() * 2 <= given);  // a frame has two blocks at least
  }
  SLUICE_CHECK(taken <= given);
}

namespace {

using Bytes = std::vector<std::uint8_t>;

// With the bytes that its view shows.
struct Owned {
  Unit unit{};
  Bytes data{};
};

bool same(const Owned& sent, const Unit& came) {
  const Unit& u = sent.unit;
  return u.kind == came.kind && u.port == came.port && u.to == came.to && u.id == came.id && u.bytes == came.bytes &&
         u.op == came.op && u.last == came.last && u.more == came.more && u.of_response == came.of_response &&
         u.address == came.address && std::ranges::equal(sent.data, came.data);
}

// What may go before what waits (preemption.h).
bool goes_first(UnitKind kind) {
  return kind == UnitKind::kReadLine || kind == UnitKind::kNotify || kind == UnitKind::kGrant;
}

PortId port_of(Script& script) { return PortId(static_cast<std::uint16_t>(script.next16() % kMaxPorts)); }

// Of every kind, mostly short.
Owned unit_of(Script& script) {
  constexpr std::array kKinds{UnitKind::kReadLine, UnitKind::kReadShort, UnitKind::kRead,
                              UnitKind::kWrite,    UnitKind::kModify,    UnitKind::kResponse,
                              UnitKind::kNull,     UnitKind::kNotify,    UnitKind::kGrant};
  Owned out;
  Unit& u = out.unit;
  const std::uint8_t what = script.next();
  const std::uint8_t bits = script.next();
  u.kind = kKinds.at(what % kKinds.size());
  u.port = port_of(script);
  u.id = MessageId(bits);
  const bool carries = u.kind == UnitKind::kWrite || u.kind == UnitKind::kResponse;
  if (u.kind == UnitKind::kResponse || u.kind == UnitKind::kNull) u.to = port_of(script);
  const std::uint64_t address = std::uint64_t{script.next16()} << 30 | std::uint64_t{bits} << 8 | what;
  u.bytes = what < 0xF0 ? 1u + bits % 64u : carries ? kMaxChunkBytes - bits % 9u : kMaxMessageBytes - bits;
  if (u.kind == UnitKind::kNull || u.kind == UnitKind::kModify) u.bytes = 0;
  if (u.kind == UnitKind::kReadLine) {
    u.bytes = kLineBytes;
    u.address = address % (kMaxLine + 1) * kLineBytes;
  }
  if (u.kind == UnitKind::kReadShort) u.address = address;
  if (u.kind == UnitKind::kRead || u.kind == UnitKind::kWrite || u.kind == UnitKind::kModify)
    u.address = address * 0x1'0001;
  if (u.kind == UnitKind::kModify) u.op = static_cast<ModifyOp>(1 + bits % 3);
  if (u.kind == UnitKind::kWrite) u.more = bits % 4 == 0;
  if (carries || u.kind == UnitKind::kGrant) u.last = (bits & 8) != 0;
  if (u.kind == UnitKind::kGrant) u.of_response = (bits & 16) != 0;
  if (carries) out.data.resize(u.bytes);
  if (u.kind == UnitKind::kModify) out.data.resize(u.op == ModifyOp::kCompareAndSwap ? 16 : 8);
  for (std::size_t i = 0; i < out.data.size(); ++i) out.data[i] = static_cast<std::uint8_t>(what + i * bits + i / 256);
  return out;
}

// What happens to one block on the way.
struct Harm {
  std::uint64_t payload = 0;  // bits that flip
  std::uint8_t sync = 0;
};

class Link {
 public:
  explicit Link(Script& script)
      : script_(script),
        scrambled_((script.next() & 1) != 0),
        memory_first_((script.next() & 1) != 0),
        most_frame_blocks_((script.next() & 1) != 0 ? 40 : 1'200),
        transmit_(memory_first_ ? TransmitMultiplexer::Policy::kMemoryFirst : TransmitMultiplexer::Policy::kFair,
                  TransmitMultiplexer::Neighbour::kEdm) {}

  void run() {
    while (!script_.empty()) {
      const std::uint8_t what = script_.next();
      switch (what % 8) {
        case 0:
        case 1:
        case 2: offer(); break;
        case 3: frame(); break;
        case 4: harm(what); break;
        default: pass(script_.next() % 32u);
      }
    }
    drain();
    SLUICE_CHECK(frames_.empty() && singles_.empty() && circuits_.empty());
    SLUICE_CHECK(was_harmed_ || separator_.counters().frames_too_long == frames_too_long_);
  }

 private:
  void offer() {
    Owned owned = unit_of(script_);
    Unit unit = owned.unit;
    unit.data = owned.data;
    if (transmit_.offer(unit)) (goes_first(unit.kind) ? singles_ : circuits_).push_back(std::move(owned));
  }
  void frame() {
    if (mac_.size() > 400) return;
    const std::uint8_t size = script_.next();
    const std::uint8_t seed = script_.next();
    Bytes bytes(60 + (size < 0xF0 ? size % 80u : size * 5u));
    const bool is_too_long = bytes.size() / 8 > most_frame_blocks_ + 4;
    if (is_too_long != (bytes.size() / 8 + 4 > most_frame_blocks_)) return;  // too near
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(seed * i + i / 7);
    std::vector<Lanes> lanes;
    writer_.frame(bytes, lanes);
    mac_.insert(mac_.end(), lanes.begin(), lanes.end());
    is_too_long ? static_cast<void>(++frames_too_long_) : frames_.push_back(std::move(bytes));
  }

  void pass(unsigned blocks) {
    for (; blocks != 0; --blocks) pass_one({});
  }
  void pass_one(const Harm& harm) {
    fill_from_mac();
    const std::size_t waiting = transmit_.memory_waiting();
    Block block = transmit_.next();
    SLUICE_CHECK(transmit_.memory_waiting() + 1 >= waiting);
    if (scrambled_) block.payload = scrambler_.scramble(block.payload);
    block.payload ^= harm.payload;
    block.sync = Sync{static_cast<std::uint8_t>(static_cast<std::uint8_t>(block.sync) ^ harm.sync)};
    if (scrambled_) block.payload = descrambler_.descramble(block.payload);
    if (!separator_.receive(block)) {
      units_.reset();
      messages_broken_ += std::exchange(in_message_, false) ? 1u : 0u;
    } else {
      if (units_.take(block) == UnitVerdict::kWhole) on_unit(units_.unit());
      const bool ends = !block.is_data() && block.type() == static_cast<std::uint8_t>(MemoryBlock::kEnd);
      const bool starts = !block.is_data() && block.type() == static_cast<std::uint8_t>(MemoryBlock::kStart);
      in_message_ = starts || (in_message_ && !ends);
    }
    SLUICE_CHECK(separator_.counters().broken_messages == messages_broken_);
    const Block out = separator_.next();
    SLUICE_CHECK(!is_memory_control(out));
    const bool legal = rule_.accept(out);
    SLUICE_CHECK(legal || harmed_);
    std::vector<Bytes> came;
    lanes_.take(decode(out), came);
    for (const Bytes& bytes : came) on_frame(bytes);
  }
  void fill_from_mac() {
    while (transmit_.frame_has_room()) {
      if (mac_.empty()) {
        std::vector<Lanes> lanes;
        writer_.idle(lanes);
        mac_.insert(mac_.end(), lanes.begin(), lanes.end());
      }
      transmit_.offer_frame(encode(mac_.front()));
      mac_.pop_front();
    }
  }
  void on_unit(const Unit& unit) {
    auto& due = goes_first(unit.kind) ? singles_ : circuits_;
    const auto sent = std::ranges::find_if(due, [&](const Owned& owned) { return same(owned, unit); });
    SLUICE_CHECK(sent != due.end() && (harmed_ || sent == due.begin()));
    units_lost_ += static_cast<std::size_t>(sent - due.begin());
    due.erase(due.begin(), sent + 1);
  }
  // A damaged one may come as another: it has a check of its own, which is not the link's.
  void on_frame(const Bytes& bytes) {
    const auto sent = std::ranges::find(frames_, bytes);
    SLUICE_CHECK(harmed_ || (sent == frames_.begin() && sent != frames_.end()));
    if (sent == frames_.end()) return;
    frames_lost_ += static_cast<std::size_t>(sent - frames_.begin());
    frames_.erase(frames_.begin(), sent + 1);
  }

  // One bit of the line: of a sync header, or of a payload, of which the descrambler makes three in two blocks. Where nothing is scrambled, of one of
  // memory's blocks up to three.
  void harm(std::uint8_t what) {
    pass(script_.next() % 24u);
    harmed_ = was_harmed_ = true;
    units_lost_ = frames_lost_ = 0;
    const auto bit = [this] { return std::uint64_t{1} << script_.next() % 64; };
    Harm harm{.payload = bit()};
    if ((what & 0x40) != 0) harm = {.sync = static_cast<std::uint8_t>(1 + script_.next() % 2)};
    const bool more = !scrambled_ && memory_first_ && transmit_.memory_waiting() != 0 && (what & 0x80) != 0;
    for (int i = 0; more && i < 2; ++i) harm.payload |= bit();
    pass_one(harm);
    drain();
    const std::size_t blocks = scrambled_ && harm.payload != 0 ? 2 : 1;
    // One that stands inside a message may break it off; one may end a frame and begin another.
    SLUICE_CHECK(units_lost_ + singles_.size() + circuits_.size() <= blocks + 1);
    SLUICE_CHECK(frames_lost_ + frames_.size() <= blocks + 1);
    harmed_ = false;
    frames_.clear();
    singles_.clear();
    circuits_.clear();
  }
  // What is on the way comes out as others go in behind it.
  void drain() {
    while (transmit_.memory_waiting() != 0 || !mac_.empty()) pass(1);
    pass(TransmitMultiplexer::kFrameBlocks);
    pass(static_cast<unsigned>(separator_.waiting()) + 1);
  }

  Script& script_;
  bool scrambled_;
  bool memory_first_;
  std::size_t most_frame_blocks_;
  TransmitMultiplexer transmit_;
  LaneWriter writer_;
  std::deque<Lanes> mac_;
  Scrambler scrambler_;
  Descrambler descrambler_;
  ReceiveSeparator separator_{most_frame_blocks_};
  UnitReader units_;
  StreamRule rule_;
  LaneReader lanes_;
  std::deque<Bytes> frames_;  // that have not come yet
  std::deque<Owned> singles_;
  std::deque<Owned> circuits_;
  bool in_message_ = false;
  std::size_t messages_broken_ = 0;
  std::size_t frames_too_long_ = 0;
  bool was_harmed_ = false;
  bool harmed_ = false;
  std::size_t units_lost_ = 0;  // since
  std::size_t frames_lost_ = 0;
};

}  // namespace

void check_edm_link(ByteView input) {
  Script script(input);
  Link(script).run();
}

}  // namespace sluice::fuzz
