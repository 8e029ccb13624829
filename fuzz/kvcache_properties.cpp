#include "fuzz/kvcache_properties.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/check.h"
#include "fuzz/script.h"
#include "kvcache/server.h"

namespace sluice::fuzz {

using namespace kvcache;

void check_kvcache_bytes(ByteView bytes) {
  const std::uint64_t where = bytes.empty() ? 0 : bytes[0];
  if (const auto entry = Entry::parse(bytes, where)) {
    std::vector<std::uint8_t> again(entry->bytes());
    entry->write(again.data(), where);
    SLUICE_CHECK(std::equal(again.begin(), again.end(), bytes.begin()));
  }
  if (const auto length = Entry::length_of(bytes)) SLUICE_CHECK(*length <= bytes.size());
  if (const auto header = TableHeader::parse(bytes)) SLUICE_CHECK(header->geometry.sound());
  if (const auto answer = Answer::parse(bytes)) {
    std::vector<std::uint8_t> again(kAnswerBytes);
    answer->write(again.data());
    SLUICE_CHECK(std::equal(again.begin(), again.end(), bytes.begin()));
  }
}

namespace {

constexpr Geometry kGeometry{.buckets = 4, .log_bytes = 4096};
constexpr std::size_t kMailboxBytes = 1400;

class Hostile {
 public:
  Hostile() {
    server_.add_mailbox(mailboxes_[0]);
    server_.add_mailbox(mailboxes_[1]);
  }

  void step(Script& script) {
    const unsigned what = script.next();
    std::vector<std::uint8_t>& mailbox = mailboxes_[what >> 7];
    if ((what & 3) == 0) {
      std::size_t at = std::size_t{script.next()} * 6;
      for (unsigned n = script.next() % 40u; n != 0 && at < mailbox.size(); --n) mailbox[at++] = script.next();
      server_.poll();
    } else {
      change(script, what, mailbox);
    }
    check();
  }

 private:
  void change(Script& script, unsigned what, std::vector<std::uint8_t>& mailbox) {
    const std::string key(1, static_cast<char>('a' + script.next() % 20));
    const std::string value(std::size_t{script.next()} * 5, key[0]);
    const Version version(1u + script.next() % 16u);
    const bool erased = (what & 4) != 0;
    const ByteView key_bytes{reinterpret_cast<const std::uint8_t*>(key.data()), key.size()};
    const ByteView value_bytes{reinterpret_cast<const std::uint8_t*>(value.data()), erased ? 0 : value.size()};
    ChangeOutcome outcome{};
    if ((what & 3) == 1) {
      outcome = (erased ? server_.erase(key_bytes, version) : server_.set(key_bytes, value_bytes, version)).outcome;
    } else {
      const Entry entry{
          .hash = hash_of(key_bytes), .version = version, .key = key_bytes, .value = value_bytes, .erased = erased};
      if (kMailEntry + entry.bytes() > mailbox.size()) return;
      store_le(mailbox.data() + kRequestOffset, ++sequence_);
      entry.write(mailbox.data() + kMailEntry, sequence_);
      server_.poll();
      const auto answer = Answer::parse(mailbox);
      SLUICE_CHECK(answer && answer->sequence == sequence_);
      outcome = answer->outcome;
    }
    const std::size_t units = (kEntryHeader + key_bytes.size() + value_bytes.size() + kUnit - 1) / kUnit;
    SLUICE_CHECK((outcome == ChangeOutcome::kTooLong) == (units > 16 && outcome != ChangeOutcome::kOlder));
    if (outcome == ChangeOutcome::kTaken) model_[key] = {version, erased ? 0 : value.size(), erased};
  }

  void check() const {
    for (std::uint64_t i = 0; i < kGeometry.buckets * kWays; ++i) {
      const Word word = Word::of(load_le<std::uint64_t>(table_.data() + kTableHeader + 8 * i));
      if (word.empty()) continue;
      const std::size_t at = std::size_t{word.place} * kUnit;
      SLUICE_CHECK(at + std::size_t{word.units} * kUnit <= kGeometry.log_bytes);
      const auto entry = Entry::parse(
          ByteView(table_).subspan(kGeometry.log_offset() + at, std::size_t{word.units} * kUnit), word.place);
      SLUICE_CHECK(entry && entry->hash == hash_of(entry->key) && tag_of(entry->hash) == word.tag);
      SLUICE_CHECK((entry->hash.value & (kGeometry.buckets - 1)) == i / kWays);
      const auto known = model_.find(std::string(entry->key.begin(), entry->key.end()));
      if (known == model_.end()) continue;  // raw bytes, by chance
      SLUICE_CHECK(known->second.version == entry->version && known->second.length == entry->value.size());
      SLUICE_CHECK(known->second.erased == entry->erased);
    }
  }

  struct Known {
    Version version{};
    std::size_t length = 0;
    bool erased = false;
  };
  std::vector<std::uint8_t> table_ = std::vector<std::uint8_t>(kGeometry.table_bytes());
  std::vector<std::uint8_t> mailboxes_[2] = {std::vector<std::uint8_t>(kMailboxBytes),
                                             std::vector<std::uint8_t>(kMailboxBytes)};
  Server server_{table_, kGeometry, 1};
  std::uint64_t sequence_ = 0;
  std::map<std::string, Known> model_;
};

}  // namespace

void check_kvcache_server(ByteView bytes) {
  Hostile hostile;
  Script script(bytes);
  while (!script.empty()) hostile.step(script);
}

}  // namespace sluice::fuzz
