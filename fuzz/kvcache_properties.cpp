#include "fuzz/kvcache_properties.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "fuzz/script.h"
#include "kvcache/server.h"
#include "wire/crc32_algebra.h"

namespace sluice::fuzz {

using namespace kvcache;

namespace {

// layout.h once more, in other words.
constexpr std::size_t kKeyLengthAt = 16, kFlagsAt = 18, kValueLengthAt = 20, kZerosAt = 24, kCrcAt = 28;

ByteView view(const std::string& text) { return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}; }

std::uint32_t crc_of(ByteView entry, std::uint64_t where) {
  std::array<std::uint8_t, 8> begin;
  store_le(begin.data(), where);
  const std::uint32_t head = wire::crc32::update(wire::crc32::update(0, begin), entry.first(kCrcAt));
  return wire::crc32::update(head, entry.subspan(kEntryHeader));
}

template <class What>
void check_written_again(const What& what, std::size_t length, ByteView bytes) {
  std::vector<std::uint8_t> again(length);
  what.write(again.data());
  SLUICE_CHECK(std::equal(again.begin(), again.end(), bytes.begin()));
}

void check_parsers(ByteView bytes) {
  const std::uint64_t where = bytes.empty() ? 0 : bytes[0];
  if (const auto entry = Entry::parse(bytes, where)) {
    SLUICE_CHECK(entry->key.size() <= kMaxKey && entry->bytes() <= bytes.size());
    std::vector<std::uint8_t> again(entry->bytes());
    entry->write(again.data(), where);
    SLUICE_CHECK(std::equal(again.begin(), again.end(), bytes.begin()));
  }
  if (const auto length = Entry::length_of(bytes)) SLUICE_CHECK(*length <= bytes.size());
  if (const auto header = TableHeader::parse(bytes)) {
    const Geometry& g = header->geometry;
    SLUICE_CHECK(std::popcount(g.buckets) == 1 && g.log_bytes % kUnit == 0 && g.log_bytes >= 4 * kUnit);
    SLUICE_CHECK(g.table_bytes() / kUnit <= (std::uint64_t{1} << 40) + (std::uint64_t{1} << 32) + 1);
    check_written_again(*header, kTableHeader, bytes);
  }
  if (const auto answer = Answer::parse(bytes)) {
    SLUICE_CHECK(answer->outcome >= ChangeOutcome::kTaken && answer->outcome <= ChangeOutcome::kTooLong);
    check_written_again(*answer, kAnswerBytes, bytes);
  }
}

// The same bytes with the checksum of an entry of some length that begins with them.
void seal_entry(std::vector<std::uint8_t>& bytes) {
  if (bytes.size() < kEntryHeader) return;
  const std::size_t body = bytes.size() - kEntryHeader;
  const std::size_t key = std::min<std::size_t>(bytes[kKeyLengthAt] + (bytes[1] % 8 == 0 ? 10u : 0u), body);
  store_le(bytes.data() + kKeyLengthAt, static_cast<std::uint16_t>(key));
  bytes[kFlagsAt] &= 3;
  bytes[kFlagsAt + 1] = 0;
  store_le(bytes.data() + kValueLengthAt, static_cast<std::uint32_t>(body - key));
  store_le(bytes.data() + kZerosAt, std::uint32_t{bytes[2] % 4u == 0 ? bytes[3] : 0u});
  store_le(bytes.data() + kCrcAt, crc_of(bytes, bytes[0]));
}

void check_header_of(ByteView bytes) {
  Script script(bytes);
  Geometry geometry{.buckets = std::uint64_t{1} << script.next() % 44,
                    .log_bytes = std::uint64_t{script.next16()} * 16};
  if (script.next() % 4 == 0) geometry.buckets += script.next();
  if (script.next() % 4 == 0) geometry.log_bytes <<= script.next() % 30;
  std::array<std::uint8_t, kTableHeader> written;
  TableHeader{script.next(), geometry}.write(written.data());
  const bool sound = std::popcount(geometry.buckets) == 1 && geometry.buckets <= std::uint64_t{1} << 40 &&
                     geometry.log_bytes % kUnit == 0 && geometry.log_bytes >= 4 * kUnit &&
                     geometry.log_bytes <= kUnit << 32;
  const auto parsed = TableHeader::parse(written);
  SLUICE_CHECK(parsed.has_value() == sound && (!sound || parsed->geometry == geometry));
  written[script.next() % kTableHeader] ^= static_cast<std::uint8_t>(1u << script.next() % 8);
  SLUICE_CHECK(!TableHeader::parse(written));
}

void check_answer_of(ByteView bytes) {
  Script script(bytes);
  const Answer answer{script.next16(), static_cast<ChangeOutcome>(script.next() % 6), Version(script.next16())};
  std::array<std::uint8_t, kAnswerBytes> written;
  answer.write(written.data());
  const bool known = answer.outcome >= ChangeOutcome::kTaken && answer.outcome <= ChangeOutcome::kTooLong;
  SLUICE_CHECK(Answer::parse(written).has_value() == known);
  written[script.next() % kAnswerBytes] ^= static_cast<std::uint8_t>(1u << script.next() % 8);
  SLUICE_CHECK(!Answer::parse(written));
}

}  // namespace

void check_kvcache_bytes(ByteView bytes) {
  check_parsers(bytes);
  std::vector<std::uint8_t> sealed(bytes.begin(), bytes.end());
  seal_entry(sealed);
  check_parsers(sealed);
  if (sealed.size() > kEntryHeader) {
    const ByteView shorter = ByteView(sealed).first(sealed.size() - 1);
    SLUICE_CHECK(!Entry::parse(shorter, sealed[0]) && !Entry::length_of(shorter));
  }
  check_header_of(bytes);
  check_answer_of(bytes);
}

namespace {

constexpr Geometry kGeometry{.buckets = 4, .log_bytes = 4096};
constexpr std::uint64_t kUnits = kGeometry.log_bytes / kUnit;
constexpr std::size_t kMailboxBytes = 1400;
constexpr std::size_t kGuard = 64;
constexpr std::uint8_t kGuardByte = 0xA5;
constexpr std::size_t kCrowd = 12;  // of the keys, that are all of one bucket

std::uint64_t bucket_of(const std::string& key) { return hash_of(view(key)).value & (kGeometry.buckets - 1); }

// More keys of one bucket than it holds, among them two that its words do not tell apart; then others: such a pair, the shortest and the longest.
const std::vector<std::string>& keys() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> pairs[2], crowd, rest;
    std::map<std::pair<std::uint64_t, std::uint16_t>, std::string> seen;
    for (int i = 0; pairs[0].empty() || pairs[1].empty(); ++i) {
      const std::string key = "k" + std::to_string(i);
      const auto [other, fresh] = seen.try_emplace({bucket_of(key), tag_of(hash_of(view(key)))}, key);
      if (!fresh) pairs[bucket_of(key) == 0 ? 0 : 1] = {other->second, key};
      auto& group = bucket_of(key) == 0 ? crowd : rest;
      if (group.size() < kCrowd) group.push_back(key);
    }
    std::copy(pairs[0].begin(), pairs[0].end(), crowd.begin());
    std::copy(pairs[1].begin(), pairs[1].end(), rest.begin());
    rest[2] = "";
    rest[3] = std::string(kMaxKey, 'k');
    crowd.insert(crowd.end(), rest.begin(), rest.end());
    return crowd;
  }();
  return all;
}

struct Change {
  std::string key;
  std::string value;
  Version version{};
  bool erased = false;
};

// The cache as server.h tells it: the log as one that never ends, of which the newest kUnits are there.
class Model {
 public:
  struct Held {
    std::uint64_t at = 0;  // in units
    std::size_t units = 0;
    Version version{};
    std::string value;
    bool erased = false;
  };

  Server::Changed apply(const Change& c) {
    const auto present = held.find(c.key);
    if (present != held.end()) {
      const std::uint64_t ahead = present->second.version.value - c.version.value;
      if (ahead != 0 && ahead < std::uint64_t{1} << 63) {
        ++counters.older;
        return {ChangeOutcome::kOlder, present->second.version};
      }
    }
    const std::size_t units = (kEntryHeader + c.key.size() + c.value.size() + kUnit - 1) / kUnit;
    if (units * 4 > kUnits) {
      ++counters.too_long;
      return {ChangeOutcome::kTooLong, c.version};
    }
    if (end_ % kUnits + units > kUnits) end_ += kUnits - end_ % kUnits;  // an entry is in one piece
    const std::uint64_t at = end_;
    end_ += units;
    counters.overtaken += std::erase_if(held, [&](const auto& e) { return e.second.at + kUnits < end_; });
    if (!held.contains(c.key)) crowd_out(bucket_of(c.key));
    held[c.key] = {at, units, c.version, c.value, c.erased};
    ++counters.taken;
    return {ChangeOutcome::kTaken, c.version};
  }

  std::map<std::string, Held> held;
  ServerCounters counters;

 private:
  void crowd_out(std::uint64_t bucket) {
    auto oldest = held.end();
    std::size_t there = 0;
    for (auto e = held.begin(); e != held.end(); ++e) {
      if (bucket_of(e->first) != bucket) continue;
      ++there;
      if (oldest == held.end() || e->second.at < oldest->second.at) oldest = e;
    }
    if (there < kWays) return;
    held.erase(oldest);
    ++counters.crowded_out;
  }
  std::uint64_t end_ = 0;
};

// What a mailbox asks for. Nothing: it holds no whole request that has not been answered.
std::optional<Change> request_in(ByteView mailbox, std::uint64_t answered) {
  const auto sequence = load_le<std::uint64_t>(mailbox.data() + kRequestOffset);
  const ByteView entry = mailbox.subspan(kMailEntry);
  const std::size_t key = load_le<std::uint16_t>(entry.data() + kKeyLengthAt);
  const std::size_t value = load_le<std::uint32_t>(entry.data() + kValueLengthAt);
  const auto flags = load_le<std::uint16_t>(entry.data() + kFlagsAt);
  if (sequence <= answered || key > kMaxKey || kEntryHeader + key + value > entry.size() || flags > 1) return {};
  const ByteView whole = entry.first(kEntryHeader + key + value);
  const ByteView key_bytes = whole.subspan(kEntryHeader, key);
  const ByteView value_bytes = whole.subspan(kEntryHeader + key);
  if (load_le<std::uint32_t>(whole.data() + kCrcAt) != crc_of(whole, sequence)) return {};
  if (load_le<std::uint32_t>(whole.data() + kZerosAt) != 0) return {};
  if (load_le<std::uint64_t>(whole.data()) != hash_of(key_bytes).value) return {};
  return Change{.key = {key_bytes.begin(), key_bytes.end()},
                .value = {value_bytes.begin(), value_bytes.end()},
                .version = Version(load_le<std::uint64_t>(whole.data() + 8)),
                .erased = flags == 1};
}

class Hostile {
 public:
  Hostile() {
    for (int i = 0; i < 2; ++i) {
      server_.add_mailbox(mailbox(i));
      expected_[i].assign(kMailboxBytes, 0);
    }
  }

  void step(Script& script) {
    const unsigned what = script.next();
    const int which = static_cast<int>(what >> 7);
    switch (what & 7) {
      case 0: write_raw(script, which); break;
      case 1: change(script); break;
      case 2: poll(); break;
      case 3: rest_of_request(which); break;
      default:
        ask(script, which, (what & 0x40) == 0 ? 0 : script.next());
        if ((what & 0x20) == 0) poll();
    }
    check();
  }

 private:
  // Guards, the two mailboxes and the table between them.
  MutableBytes mailbox(int i) {
    return MutableBytes(memory_).subspan(kGuard + static_cast<std::size_t>(i) * (kMailboxBytes + kGuard),
                                         kMailboxBytes);
  }
  MutableBytes table() { return MutableBytes(memory_).subspan(kTable, kGeometry.table_bytes()); }
  static constexpr std::size_t kTable = kGuard + 2 * (kMailboxBytes + kGuard);

  // By a client, without asking.
  void put(int which, std::size_t at, ByteView bytes) {
    std::copy(bytes.begin(), bytes.end(), mailbox(which).begin() + static_cast<std::ptrdiff_t>(at));
    std::copy(bytes.begin(), bytes.end(), expected_[which].begin() + static_cast<std::ptrdiff_t>(at));
  }

  void write_raw(Script& script, int which) {
    std::size_t at = std::size_t{script.next()} * 6;
    for (unsigned n = script.next() % 40u; n != 0 && at < kMailboxBytes; --n) {
      const std::uint8_t byte = script.next();
      put(which, at++, {&byte, 1});
    }
    poll();
  }

  static Change change_of(Script& script) {
    const std::uint8_t key = script.next(), length = script.next(), version = script.next();
    Change c{.key = keys()[key % keys().size()], .value = {}, .version = Version(1u + version % 16u)};
    if (version >= 0xF0) c.version = Version(c.version.value + (std::uint64_t{version % 4u} << 62));
    c.erased = key >= 0xD0;
    const std::size_t bytes = length < 0xA0 ? length % 40u : (length - 0xA0u) * 12u;
    if (!c.erased || length == 0xFF) c.value.resize(bytes);
    for (std::size_t i = 0; i < c.value.size(); ++i) c.value[i] = static_cast<char>(version + i * (key | 1u));
    return c;
  }

  void change(Script& script) {
    Change c = change_of(script);
    if (c.erased) c.value.clear();
    const auto changed =
        c.erased ? server_.erase(view(c.key), c.version) : server_.set(view(c.key), view(c.value), c.version);
    const auto due = model_.apply(c);
    SLUICE_CHECK(changed.outcome == due.outcome && changed.version == due.version);
  }

  // A request by mail: right, or wrong in one way with a checksum that is right all the same.
  void ask(Script& script, int which, std::uint8_t fault) {
    Change c = change_of(script);
    c.value.resize(std::min(c.value.size(), kMailboxBytes - kMailEntry - kEntryHeader - c.key.size()));
    std::uint64_t sequence = ++sequence_;
    std::vector<std::uint8_t> entry(kEntryHeader + c.key.size() + c.value.size());
    Entry{.hash = hash_of(view(c.key)),
          .version = c.version,
          .key = view(c.key),
          .value = view(c.value),
          .erased = c.erased}
        .write(entry.data(), sequence);
    std::uint64_t sealed_for = sequence;
    switch (fault % 12) {
      case 1:
        sequence = sequence_ = sequence - 1;
        sealed_for = sequence;
        break;  // once more
      case 2:
        sequence = sequence_ += script.next16();
        sealed_for = sequence;
        break;
      case 3: sealed_for += script.next() % 3u; break;
      case 4: entry[script.next() % 8] ^= script.next(); break;  // the hash
      case 5: entry[kFlagsAt + script.next() % 2] ^= script.next(); break;
      case 6: entry[kZerosAt + script.next() % 4] = script.next(); break;
      case 7: lengthen_key(entry, script.next() % 8); break;
      case 8: fill_mailbox(entry, script.next() % 3); break;
      default: break;
    }
    // What a reader that goes on behind the mailbox would find there.
    const std::size_t behind =
        kMailEntry + entry.size() > kMailboxBytes ? kMailEntry + entry.size() - kMailboxBytes : 0;
    SLUICE_CHECK(behind <= 2);
    std::fill(entry.end() - static_cast<std::ptrdiff_t>(behind), entry.end(), kGuardByte);
    store_le(entry.data() + kCrcAt, crc_of(entry, sealed_for));
    if (fault % 12 == 9) entry[script.next16() % entry.size()] ^= static_cast<std::uint8_t>(1u << script.next() % 8);
    entry.resize(entry.size() - behind);
    std::array<std::uint8_t, 8> number;
    store_le(number.data(), sequence);
    put(which, kRequestOffset, number);
    rest_[which].clear();
    if (fault % 12 >= 10) {  // the rest comes later
      const std::size_t now = script.next16() % entry.size();
      rest_[which].assign(entry.begin() + static_cast<std::ptrdiff_t>(now), entry.end());
      rest_at_[which] = kMailEntry + now;
      entry.resize(now);
    }
    put(which, kMailEntry, entry);
  }
  static void set_lengths(std::vector<std::uint8_t>& entry, std::size_t key) {
    store_le(entry.data() + kKeyLengthAt, static_cast<std::uint16_t>(key));
    store_le(entry.data() + kValueLengthAt, static_cast<std::uint32_t>(entry.size() - kEntryHeader - key));
    store_le(entry.data(), hash_of(ByteView(entry).subspan(kEntryHeader, key)).value);
  }
  static void lengthen_key(std::vector<std::uint8_t>& entry, std::size_t by) {
    entry.resize(std::max(entry.size(), kEntryHeader + kMaxKey + by), 'l');
    set_lengths(entry, kMaxKey + by);
  }
  // Up to its end, or a byte or two beyond.
  static void fill_mailbox(std::vector<std::uint8_t>& entry, std::size_t beyond) {
    const std::size_t key = load_le<std::uint16_t>(entry.data() + kKeyLengthAt);
    entry.resize(kMailboxBytes - kMailEntry + beyond, 'f');
    set_lengths(entry, key);
  }
  void rest_of_request(int which) {
    if (!rest_[which].empty()) put(which, rest_at_[which], rest_[which]);
    rest_[which].clear();
    poll();
  }

  void poll() {
    std::size_t due = 0;
    for (int i = 0; i < 2; ++i) {
      const auto request = request_in(expected_[i], answered_[i]);
      if (!request) continue;
      ++due;
      answered_[i] = load_le<std::uint64_t>(expected_[i].data() + kRequestOffset);
      const auto changed = model_.apply(*request);
      Answer{answered_[i], changed.outcome, changed.version}.write(expected_[i].data());
    }
    SLUICE_CHECK(server_.poll() == due);
  }

  void check() {
    for (int i = 0; i < 2; ++i) SLUICE_CHECK(std::ranges::equal(mailbox(i), expected_[i]));
    for (const std::size_t at : {std::size_t{0}, kGuard + kMailboxBytes, kTable - kGuard, memory_.size() - kGuard})
      SLUICE_CHECK(std::ranges::count(ByteView(memory_).subspan(at, kGuard), kGuardByte) == kGuard);
    const auto header = TableHeader::parse(table());
    SLUICE_CHECK(header && header->life == 1 && header->geometry == kGeometry);
    std::set<std::string> seen;
    for (std::uint64_t i = 0; i < kGeometry.buckets * kWays; ++i) {
      const Word word = Word::of(load_le<std::uint64_t>(table().data() + kTableHeader + 8 * i));
      if (!word.empty()) SLUICE_CHECK(seen.insert(check_word(word, i / kWays)).second);
    }
    SLUICE_CHECK(seen.size() == model_.held.size());
    check_counters(server_.counters());
  }
  // As a reader finds it. Returns the key.
  std::string check_word(const Word& word, std::uint64_t bucket) {
    const std::size_t at = std::size_t{word.place} * kUnit;
    SLUICE_CHECK(at + std::size_t{word.units} * kUnit <= kGeometry.log_bytes);
    const auto entry = Entry::parse(
        ByteView(table()).subspan(kGeometry.log_offset() + at, std::size_t{word.units} * kUnit), word.place);
    SLUICE_CHECK(entry && entry->hash == hash_of(entry->key) && tag_of(entry->hash) == word.tag);
    std::string key(entry->key.begin(), entry->key.end());
    SLUICE_CHECK(bucket_of(key) == bucket);
    const auto known = model_.held.find(key);
    SLUICE_CHECK(known != model_.held.end());
    SLUICE_CHECK(known->second.version == entry->version && known->second.erased == entry->erased);
    SLUICE_CHECK(std::ranges::equal(view(known->second.value), entry->value));
    SLUICE_CHECK(known->second.at % kUnits == word.place && known->second.units == word.units);
    return key;
  }
  void check_counters(const ServerCounters& c) const {
    const ServerCounters& due = model_.counters;
    SLUICE_CHECK(c.taken == due.taken && c.older == due.older && c.too_long == due.too_long);
    SLUICE_CHECK(c.overtaken == due.overtaken && c.crowded_out == due.crowded_out);
  }

  std::vector<std::uint8_t> memory_ = std::vector<std::uint8_t>(kTable + kGeometry.table_bytes() + kGuard, kGuardByte);
  Server server_{table(), kGeometry, 1};
  std::uint64_t sequence_ = 0;
  std::vector<std::uint8_t> expected_[2];  // the mailboxes
  std::uint64_t answered_[2] = {};
  std::vector<std::uint8_t> rest_[2];  // of a request that has not all come
  std::size_t rest_at_[2] = {};
  Model model_;
};

}  // namespace

void check_kvcache_server(ByteView bytes) {
  Hostile hostile;
  Script script(bytes);
  while (!script.empty()) hostile.step(script);
}

}  // namespace sluice::fuzz
