#include "kvcache/server.h"

#include <algorithm>

#include "base/check.h"
#include "memory/access.h"

namespace sluice::kvcache {
namespace {

constexpr std::uint64_t kQuarter = 4;

void set_word(std::uint8_t* at, std::uint64_t raw) {
  std::uint8_t bytes[8];
  store_le(bytes, raw);
  memory::copy_in(at, bytes, sizeof bytes);
}

}  // namespace

Server::Server(MutableBytes table, const Geometry& geometry, std::uint64_t life)
    : table_(table), geometry_(geometry), units_(geometry.log_bytes / kUnit) {
  SLUICE_CHECK(geometry.sound() && table.size() >= geometry.table_bytes());
  std::fill_n(table.begin(), geometry.log_offset(), std::uint8_t{0});
  TableHeader{life, geometry}.write(table.data());
}

void Server::add_mailbox(MutableBytes bytes) {
  SLUICE_CHECK(bytes.size() > kMailEntry);
  std::fill(bytes.begin(), bytes.end(), std::uint8_t{0});
  mailboxes_.push_back({bytes, 0});
}

std::size_t Server::poll() {
  std::size_t taken = 0;
  for (Mailbox& mailbox : mailboxes_) taken += take(mailbox) ? 1u : 0u;
  return taken;
}

// A request whose frames have not all come has a checksum that does not fit.
bool Server::take(Mailbox& mailbox) {
  const auto sequence = load_le<std::uint64_t>(mailbox.bytes.data() + kRequestOffset);
  if (sequence <= mailbox.answered) return false;
  const auto entry = Entry::parse(ByteView(mailbox.bytes).subspan(kMailEntry), sequence);
  if (!entry || entry->hash != hash_of(entry->key)) return false;
  mailbox.answered = sequence;
  const Changed changed = change(entry->key, entry->value, entry->version, entry->erased);
  Answer{sequence, changed.outcome, changed.version}.write(mailbox.bytes.data());
  return true;
}

Server::Changed Server::change(ByteView key, ByteView value, Version version, bool erased) {
  const Entry entry{.hash = hash_of(key), .version = version, .key = key, .value = value, .erased = erased};
  if (const auto present = find(key); present && newer(present->version, version)) {
    ++counters_.older;
    return {ChangeOutcome::kOlder, present->version};
  }
  if (entry.units() > units_ / kQuarter || entry.units() > 0xFFFF) {
    ++counters_.too_long;
    return {ChangeOutcome::kTooLong, version};
  }
  const std::uint32_t place = make_room(entry.units());
  entry.write(table_.data() + geometry_.log_offset() + std::uint64_t{place} * kUnit, place);
  set_word(way_for(key, entry.hash), Word{tag_of(entry.hash), static_cast<std::uint16_t>(entry.units()), place}.raw());
  ++counters_.taken;
  return {ChangeOutcome::kTaken, version};
}

std::optional<Entry> Server::find(ByteView key) const {
  const std::uint8_t* const way = way_of(key, hash_of(key));
  if (way == nullptr) return std::nullopt;
  const std::uint32_t place = Word::of(load_le<std::uint64_t>(way)).place;
  return Entry::parse(log_from(place), place);
}

// The way of its bucket that leads to this key, or nullptr.
std::uint8_t* Server::way_of(ByteView key, Hash hash) const {
  for (std::size_t i = 0; i < kWays; ++i) {
    std::uint8_t* const at = bucket(hash) + 8 * i;
    const Word word = Word::of(load_le<std::uint64_t>(at));
    if (word.empty() || word.tag != tag_of(hash)) continue;
    const auto entry = Entry::parse(log_from(word.place), word.place);
    if (entry && std::ranges::equal(entry->key, key)) return at;
  }
  return nullptr;
}

// That one; else an empty way; else the one whose entry is oldest.
std::uint8_t* Server::way_for(ByteView key, Hash hash) {
  if (std::uint8_t* const way = way_of(key, hash); way != nullptr) return way;
  std::uint8_t* oldest = nullptr;
  std::uint64_t oldest_age = 0;
  for (std::size_t i = 0; i < kWays; ++i) {
    std::uint8_t* const at = bucket(hash) + 8 * i;
    const Word word = Word::of(load_le<std::uint64_t>(at));
    if (word.empty()) return at;
    if (oldest == nullptr || age(word.place) > oldest_age) {
      oldest = at;
      oldest_age = age(word.place);
    }
  }
  ++counters_.crowded_out;
  return oldest;
}

// How far the head has gone since. REQUIRES: an entry is there.
std::uint64_t Server::age(std::uint64_t place) const { return place < head_ ? head_ - place : head_ + units_ - place; }

// ----------------------------------------------------------------------------------------------------------------- log

std::uint32_t Server::make_room(std::size_t units) {
  for (;;) {
    if (round_) {
      if (head_ + units <= tail_) break;
      forget_oldest();
    } else {
      if (head_ + units <= units_) break;
      end_ = head_;
      head_ = 0;
      round_ = true;
    }
  }
  const std::uint64_t place = head_;
  head_ += units;
  return static_cast<std::uint32_t>(place);
}

void Server::forget_oldest() {
  if (tail_ != end_) {
    const auto length = Entry::length_of(log_from(tail_));
    SLUICE_CHECK(length.has_value());
    const Hash hash(load_le<std::uint64_t>(log_from(tail_).data()));
    for (std::size_t i = 0; i < kWays; ++i) {
      std::uint8_t* const at = bucket(hash) + 8 * i;
      const Word word = Word::of(load_le<std::uint64_t>(at));
      if (word.empty() || word.place != tail_) continue;
      set_word(at, 0);
      ++counters_.overtaken;
    }
    tail_ += (*length + kUnit - 1) / kUnit;
  }
  if (tail_ != end_) return;
  tail_ = 0;
  round_ = false;
}

}  // namespace sluice::kvcache
