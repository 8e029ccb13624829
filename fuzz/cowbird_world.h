// Two applications for cowbird_switch_properties.cpp and cowbird_spot_properties.cpp: one keeps to the rules and knows what it must be told, the other writes into
// its rings whatever the script says. Each has bytes of the pool of its own.
//
// Truth:      per byte of the pool, what certainly stands there and what may: a write whose end is unknown may have happened, and may still happen
//             while a packet lives. All that an application is told is held against it in the order of issue.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/time.h"
#include "cowbird/channel.h"
#include "fuzz/cowbird_properties.h"
#include "fuzz/script.h"

namespace sluice::fuzz {

using Bytes = std::vector<std::uint8_t>;

// The pool: two memory nodes. Of each the first half is the application's that keeps to the rules, the other half the other one's.
inline constexpr std::uint32_t kNodes = 2;
inline constexpr std::uint64_t kHalf = 4096;
inline constexpr std::uint64_t kPoolBase = 0x7000'0000;
inline constexpr std::uint64_t kBlockBase = 0x10'0000;
inline constexpr std::uint32_t kFirstNode = 7;
inline constexpr std::uint32_t kNobody = 99;  // a node that there is not
enum class Who : std::uint8_t { kGood, kBad };

struct MemoryNode {
  Bytes bytes = Bytes(2 * kHalf);
  std::uint32_t epoch = 0;  // keys are others once the node was started anew
  std::uint32_t key(Who who) const { return 0x100 * (epoch + 1) + (who == Who::kGood ? 1 : 2); }
  // Empty: no such right.
  MutableBytes at(std::uint32_t its_key, std::uint64_t address, std::uint64_t length) {
    const Who who = its_key == key(Who::kGood) ? Who::kGood : Who::kBad;
    if (its_key != key(who)) return {};
    const std::uint64_t start = kPoolBase + (who == Who::kGood ? 0 : kHalf);
    if (address < start || address - start > kHalf || length > kHalf - (address - start)) return {};
    return MutableBytes(bytes).subspan(address - kPoolBase, length);
  }
};
using Pool = std::array<MemoryNode, kNodes>;

// An instance of one channel, of which the other side sees the bytes.
class Rings {
 public:
  explicit Rings(const cowbird::Shape& shape) : layout{.shape = shape, .channels = 1}, words_(layout.bytes() / 8) {
    layout.write(block().data());
  }
  MutableBytes block() { return {reinterpret_cast<std::uint8_t*>(words_.data()), words_.size() * 8}; }
  std::uint64_t word(std::size_t at) { return load_le<std::uint64_t>(channel().data() + at); }
  MutableBytes channel() { return block().subspan(layout.channel_at(0)); }
  cowbird::Region region(std::size_t i) {
    return cowbird::Region::parse(block().data() + cowbird::InstanceLayout::kRegions + i * cowbird::kRegionBytes);
  }
  std::vector<cowbird::Region> regions() {
    std::vector<cowbird::Region> all;
    for (std::size_t i = 0; i < cowbird::kMaxRegions; ++i) all.push_back(region(i));
    return all;
  }
  std::uint64_t generation() { return word(cowbird::IssuerLine::kRegionsGeneration); }

  const cowbird::InstanceLayout layout;

 private:
  std::vector<std::uint64_t> words_;
};

class GoodApplication {
 public:
  // `flight`: what has ended without an answer may take effect for so long.
  GoodApplication(const cowbird::Shape& shape, Pool& pool, Duration flight)
      : rings(shape), pool_(pool), flight_(flight), channel_(rings.channel(), rings.layout.channel(), regions_) {
    for (std::uint32_t i = 0; i < kNodes; ++i) places_[i].resize(kHalf);
    const auto add = [&](std::uint32_t node, std::uint64_t offset, std::uint64_t length, bool writable) {
      regions_.push_back(
          {.node = kFirstNode + node, .base = kPoolBase + offset, .length = length, .writable = writable});
    };
    add(0, 0, kHalf, true);
    add(1, 0, kHalf, true);
    add(0, 24, 3000, true);  // the same bytes by another name
    add(0, 8, 512, false);
    regions_.push_back({.node = kNobody, .key = 1, .base = kPoolBase, .length = 64});
    regions_.push_back({.node = kFirstNode, .key = 5, .base = kPoolBase, .length = 64});  // a key that there is not
    renew();
  }

  void issue(Script& script, Time now) {
    const std::uint8_t what = script.next();
    const std::uint8_t where = script.next();
    const auto region =
        static_cast<std::uint16_t>((what >> 1) % 8 < 6 ? (what >> 1) % 2 : (what >> 1) % regions_.size());
    const std::uint32_t length = what < 160   ? 1 + where % 48
                                 : what < 224 ? 256 * (1 + where % 5) + where % 3 - 1
                                              : where % 64 * 128;
    const std::uint64_t from = what < 128 ? where / 8u : where * 11u;
    Issued& next = issued_.emplace_back();
    next = {
        .write = (what & 1) != 0, .region = region, .from = from, .length = length, .version = ++versions_, .at = now};
    std::int64_t id = 0;
    if (next.write) {
      Bytes bytes(length);
      for (std::uint32_t i = 0; i < length; ++i) bytes[i] = value(next.version, place_of(next) + i);
      id = channel_.async_write(region, bytes.data(), from, length);
    } else {
      next.into.assign(length, kUntouched);
      id = channel_.async_read(region, from, next.into.data(), length);
    }
    if (id <= 0) {
      issued_.pop_back();
      return;
    }
    next.id = cowbird::RequestId(id);
    SLUICE_CHECK(next.id.is_write() == next.write && next.id.region() == region);
    open_[next.write].push_back(&next);
  }

  // What is complete. It may be few at a time.
  void take(Time now, std::size_t most) {
    std::array<cowbird::Completion, 16> done;
    const auto n = channel_.collect(std::span(done).first(std::min(most, done.size())));
    for (std::size_t i = 0; i < n; ++i) {
      auto& open = open_[done[i].id.is_write()];
      SLUICE_CHECK(!open.empty() && open.front()->id == done[i].id);  // each once, in order
      open.front()->status = done[i].status;
      open.front()->told = now;
      open.pop_front();
    }
    judge_all();
  }
  bool all_done() const { return issued_.empty(); }
  // So many of its requests ended like this.
  void add_answers(Reached& reached) const {
    for (const auto& [name, status] : {std::pair{"ok", cowbird::Status::kOk},
                                       {"denied", cowbird::Status::kDenied},
                                       {"unreachable", cowbird::Status::kUnreachable},
                                       {"unknown", cowbird::Status::kUnknown}}) {
      const auto found = answers_.find(status);
      if (found != answers_.end()) reached[name] += found->second;
    }
  }

  // The regions as the rack knows them now, where no request under way names them.
  void renew() {
    for (std::size_t i = 0; i < regions_.size(); ++i) {
      cowbird::Region now = regions_[i];
      if (now.node == kNobody || now.key == 5) continue;
      now.key = pool_[now.node - kFirstNode].key(Who::kGood);
      if (now != regions_[i] && channel_.is_in_use(static_cast<std::uint16_t>(i))) continue;
      regions_[i] = now;
    }
    for (std::size_t i = 0; i < regions_.size(); ++i)
      regions_[i].write(rings.block().data() + cowbird::InstanceLayout::kRegions + i * cowbird::kRegionBytes);
    channel_.set_regions_generation(++generation_);
  }
  // Nothing is under way: what stands in the pool is what the application was told.
  void check_pool() {
    SLUICE_CHECK(all_done());
    for (std::uint32_t n = 0; n < kNodes; ++n) {
      for (std::uint64_t i = 0; i < kHalf; ++i) SLUICE_CHECK(may_be(n, i, pool_[n].bytes[i]));
    }
  }

  Rings rings;

 private:
  static constexpr std::uint8_t kUntouched = 0xA5;
  struct Issued {
    bool write = false;
    std::uint16_t region = 0;
    std::uint64_t from = 0;
    std::uint32_t length = 0;
    std::uint32_t version = 0;  // of what it writes
    Time at{};
    cowbird::RequestId id{};
    std::optional<cowbird::Status> status{};
    Time told{};
    Bytes into{};
  };
  struct Doubt {
    std::uint32_t version;
    Time told;
  };
  struct Place {
    std::uint32_t version = 0;
    std::vector<Doubt> doubts{};
  };

  static std::uint8_t value(std::uint32_t version, std::uint64_t place) {
    if (version == 0) return 0;
    return static_cast<std::uint8_t>((version * 0x9E37'79B1u ^ static_cast<std::uint32_t>(place) * 0x85EB'CA6Bu) >> 23);
  }
  std::uint64_t place_of(const Issued& one) const { return regions_[one.region].base - kPoolBase + one.from; }
  bool may_be(std::uint32_t node, std::uint64_t place, std::uint8_t byte) const {
    const Place& p = places_[node][place];
    return byte == value(p.version, place) ||
           std::ranges::any_of(p.doubts, [&](const Doubt& d) { return byte == value(d.version, place); });
  }
  void judge_all() {
    for (; !issued_.empty() && issued_.front().status; issued_.pop_front()) judge(issued_.front());
  }
  void judge(const Issued& one) {
    const cowbird::Status status = *one.status;
    ++answers_[status];
    const std::uint32_t node = regions_[one.region].node - kFirstNode;
    if (status == cowbird::Status::kOk) SLUICE_CHECK(node < kNodes && regions_[one.region].key != 5);
    if (status != cowbird::Status::kOk) {
      SLUICE_CHECK(status == cowbird::Status::kDenied || status == cowbird::Status::kUnreachable ||
                   (status == cowbird::Status::kUnknown && one.write));
      for (const std::uint8_t byte : one.into) SLUICE_CHECK(byte == kUntouched);
      if (status != cowbird::Status::kUnknown || node >= kNodes) return;
    }
    for (std::uint32_t i = 0; i < one.length; ++i) {
      const std::uint64_t at = place_of(one) + i;
      Place& place = places_[node][at];
      if (!one.write) {
        SLUICE_CHECK(may_be(node, at, one.into[i]));
      } else if (status == cowbird::Status::kUnknown) {
        place.doubts.push_back({one.version, one.told});
      } else {
        place.version = one.version;
        std::erase_if(place.doubts, [&](const Doubt& d) { return d.told + flight_ <= one.at; });
      }
    }
  }

  Pool& pool_;
  Duration flight_;
  std::vector<cowbird::Region> regions_;
  cowbird::Channel channel_;
  std::uint64_t generation_ = 0;
  std::deque<Issued> issued_;
  std::deque<Issued*> open_[2];
  std::uint32_t versions_ = 0;
  std::array<std::vector<Place>, kNodes> places_;
  std::map<cowbird::Status, std::uint64_t> answers_;
};

// Writes requests that are nearly right, and words that are not, wherever an engine looks.
class BadApplication {
 public:
  BadApplication(const cowbird::Shape& shape, const Pool& pool) : rings(shape), pool_(pool) {
    for (std::size_t i = 0; i < 4; ++i) set_region(i, region(static_cast<std::uint8_t>(i)));
    store(cowbird::IssuerLine::kRegionsGeneration, 1);
  }

  void act(Script& script) {
    const std::uint8_t what = script.next();
    const std::uint8_t how = script.next();
    switch (what % 8) {
      case 0:
      case 1:
      case 2:
      case 3: return put(what / 8, how, script);
      case 4:
        if (what < 224) return put(8 + what / 8, how, script);
        return store(cowbird::IssuerLine::kTail, number(how, tail_));
      case 5:
        set_region(what / 8 % 4, region(how));
        return store(cowbird::IssuerLine::kRegionsGeneration, how % 8 == 0 ? number(how, 0) : rings.generation() + 1);
      case 6:
        return store(cowbird::IssuerLine::kErrorsTaken,
                     how % 2 == 0 ? rings.word(cowbird::ChannelLayout::kErrorLog) : number(how, 3));
      default: {
        // What an engine has written itself, for the next one to find.
        const std::size_t words = (cowbird::ChannelLayout::kMetadata - cowbird::ChannelLayout::kProgress) / 8;
        const std::size_t at = cowbird::ChannelLayout::kProgress + what / 8 * 5u % words * 8;
        return store(at, number(how, rings.word(at)));
      }
    }
  }

  Rings rings;

 private:
  void store(std::size_t at, std::uint64_t value) { store_le(rings.channel().data() + at, value); }
  void set_region(std::size_t i, const cowbird::Region& region) {
    region.write(rings.block().data() + cowbird::InstanceLayout::kRegions + i * cowbird::kRegionBytes);
  }
  // Never with the other one's key.
  cowbird::Region region(std::uint8_t how) const {
    const std::uint32_t node = how % 2;
    cowbird::Region made{
        .node = kFirstNode + node, .key = pool_[node].key(Who::kBad), .base = kPoolBase + kHalf, .length = kHalf};
    switch (how / 2 % 8) {
      case 1: made.writable = false; break;
      case 2: made.length = 0; break;
      case 3: made.base = kPoolBase; break;
      case 4: made.base = ~std::uint64_t{0} - 100; break;
      case 5: made.length = ~std::uint64_t{0}; break;
      case 6: made.node = kNobody + how / 16u; break;
      case 7:
        if (how < 128) made.key = 77;
        if (how >= 128) made.length = 8 + how % 64u;
        break;
      default: break;
    }
    return made;
  }
  static std::uint64_t number(std::uint8_t how, std::uint64_t usual) {
    constexpr std::uint64_t kWords[] = {0,
                                        1,
                                        7,
                                        8,
                                        9,
                                        0xFFFF'FFFF,
                                        std::uint64_t{1} << 32,
                                        std::uint64_t{1} << 48,
                                        std::uint64_t{1} << 63,
                                        ~std::uint64_t{0},
                                        ~std::uint64_t{0} - 7};
    if (how < 64) return usual + how / 8 - 2;
    if (how < 96) return usual + (std::uint64_t{1} << how % 64);
    return kWords[how % std::size(kWords)] + how / 64 - 1;
  }
  void put(unsigned wrong, std::uint8_t how, Script& script) {
    const cowbird::ChannelLayout layout = rings.layout.channel();
    const bool write = how % 2 != 0;
    const std::uint8_t where = script.next();
    cowbird::Entry entry{.type = write ? cowbird::RwType::kWrite : cowbird::RwType::kRead,
                         .region = static_cast<std::uint16_t>(how / 2 % 4),
                         .length = how < 192 ? 1u + where % 64 : 256u + where * 3u,
                         .req_addr = write ? layout.requests + where / 2 * 8u : where * 8u,
                         .resp_addr = write ? where * 8u : layout.responses + where / 2 * 8u,
                         .sequence = ++sequence_[write]};
    const std::uint8_t with = wrong < 8 ? script.next() : std::uint8_t{0};
    switch (wrong) {
      case 0: entry.req_addr = number(with, entry.req_addr); break;
      case 1: entry.resp_addr = number(with, entry.resp_addr); break;
      case 2: entry.length = static_cast<std::uint32_t>(number(with, entry.length)); break;
      case 3: entry.region = static_cast<std::uint16_t>(number(with, entry.region)); break;
      case 4: entry.sequence = with < 224 ? entry.sequence : number(with, entry.sequence); break;
      case 5: entry.type = with < 224 ? entry.type : static_cast<cowbird::RwType>(with); break;
      case 6: entry.length = write ? layout.shape.request_bytes : layout.shape.response_bytes; break;
      default: break;
    }
    const std::size_t at = layout.entry(tail_);
    store(at, entry.req_addr);
    store(at + 8, entry.resp_addr);
    store(at + 16, entry.type_word());
    store(at + 24, entry.sequence);
    ++tail_;
    if (wrong != 7) store(cowbird::IssuerLine::kTail, tail_);
  }

  const Pool& pool_;
  std::uint64_t tail_ = 0;
  std::uint64_t sequence_[2] = {};
};

}  // namespace sluice::fuzz
