#include "wire/crc32_algebra.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/rng.h"

namespace sluice::wire::crc32 {
namespace {

constexpr std::uint64_t kSeed = 20'240'117;

TEST(Crc32Algebra, KnowsTheCheckValueOfCrc32) {
  const std::array<std::uint8_t, 9> digits = {'1', '2', '3', '4', '5', '6', '7', '8', '9'};
  EXPECT_EQ(update(0, digits), 0xCBF43926u);
}

TEST(Crc32Algebra, PredictsTheEffectOfAChangedWordAtEveryDistance) {
  Rng rng(kSeed);
  std::vector<std::uint8_t> message(kMaxDistance + 4);
  for (auto& byte : message) byte = static_cast<std::uint8_t>(rng.next());
  const std::uint32_t before = update(0, message);
  for (std::size_t at = 0; at + 4 <= message.size(); ++at) {
    const auto word = static_cast<std::uint32_t>(rng.next());
    const auto original = load_le<std::uint32_t>(message.data() + at);
    store_le(message.data() + at, original ^ word);
    const Change change{word, static_cast<std::uint32_t>(message.size() - at - 4)};
    ASSERT_EQ(before ^ effect_of({&change, 1}), update(0, message)) << at;
    ASSERT_EQ(effect_of({&change, 1}), effect_of_portable({&change, 1})) << at;
    store_le(message.data() + at, original);
  }
}

TEST(Crc32Algebra, PredictsTheEffectOfTwoWordsAtOnceAtEveryDistance) {
  Rng rng(kSeed);
  std::vector<std::uint8_t> message(300);
  for (auto& byte : message) byte = static_cast<std::uint8_t>(rng.next());
  const std::uint32_t before = update(0, message);
  for (std::size_t at = 0; at + 16 <= message.size(); ++at) {
    const std::array<WideChange, 2> changes = {
        {{rng.next(), static_cast<std::uint32_t>(message.size() - at - 8)}, {rng.next(), 0}}};
    std::vector<std::uint8_t> changed = message;
    for (const WideChange& c : changes) {
      std::uint8_t* const place = changed.data() + changed.size() - c.distance - 8;
      store_le(place, load_le<std::uint64_t>(place) ^ c.bytes);
    }
    ASSERT_EQ(before ^ effect_of_wide(changes), update(0, changed)) << at;
    ASSERT_EQ(effect_of_wide(changes), effect_of_wide_portable(changes)) << at;
  }
}

TEST(Crc32Algebra, ShiftsForthAndBackToWhereItWas) {
  Rng rng(kSeed);
  constexpr auto kMax = static_cast<std::ptrdiff_t>(kMaxDistance);
  for (std::ptrdiff_t bytes = -kMax; bytes <= kMax; ++bytes) {
    const auto value = static_cast<std::uint32_t>(rng.next());
    ASSERT_EQ(shift(shift(value, bytes), -bytes), value) << bytes;
    ASSERT_EQ(shift(value, bytes), shift_portable(value, bytes)) << bytes;
  }
}

TEST(Crc32Algebra, BeginsAtAKnownStateAsInTheMiddleOfAMessage) {
  if (!has_short()) GTEST_SKIP() << "no carry-less multiplication here";
  Rng rng(kSeed);
  for (std::size_t length = kShortest; length <= kShort; length += 4) {
    std::vector<std::uint8_t> message(Start::kBefore + length);
    for (auto& byte : message) byte = static_cast<std::uint8_t>(rng.next());
    Ones ones{};
    for (std::size_t i = 0; i < 36; ++i) ones[i] = static_cast<std::uint8_t>(rng.next() & rng.next());
    const auto crc = static_cast<std::uint32_t>(rng.next());
    const std::uint32_t started = crc_short(message.data() + Start::kBefore, length, make_start(crc, ones));
    for (std::size_t i = 0; i < std::min<std::size_t>(36, length); ++i) message[Start::kBefore + i] |= ones[i];
    ASSERT_EQ(started, update(crc, ByteView(message).subspan(Start::kBefore))) << length;
  }
}

TEST(Crc32Algebra, ShiftsAsZerosBehindAMessageDo) {
  const std::array<std::uint8_t, 4> message = {1, 2, 3, 4};
  for (const std::size_t zeros : {0U, 1U, 4U, 28U, 1024U}) {
    std::vector<std::uint8_t> longer(message.begin(), message.end());
    longer.resize(message.size() + zeros);
    EXPECT_EQ(shift(remainder(message), static_cast<std::ptrdiff_t>(zeros)), remainder(longer)) << zeros;
  }
}

TEST(Crc32Algebra, SetsMaskedBitsAsIfTheyHadBeenSetInTheMessage) {
  Rng rng(kSeed);
  for (int i = 0; i < 1000; ++i) {
    std::vector<std::uint8_t> message(64 + rng.below(1000));
    for (auto& byte : message) byte = static_cast<std::uint8_t>(rng.next());
    std::array<Mask, 4> masks;
    for (std::uint32_t k = 0; k < 4; ++k) {
      masks[k] = {16 * k + static_cast<std::uint32_t>(rng.below(13)), static_cast<std::uint32_t>(rng.next())};
    }
    const std::uint32_t before = update(0, message);
    const std::uint32_t effect = effect_of_masks(message.data(), message.size(), masks);
    EXPECT_EQ(effect, effect_of_masks_portable(message.data(), message.size(), masks));
    for (const Mask& m : masks) {
      store_le(message.data() + m.offset, load_le<std::uint32_t>(message.data() + m.offset) | m.mask);
    }
    ASSERT_EQ(before ^ effect, update(0, message));
  }
}

TEST(Crc32Algebra, TakesShortMessagesAsTheLibraryDoes) {
  if (!has_short()) GTEST_SKIP() << "no carry-less multiplication here";
  Rng rng(kSeed);
  for (std::size_t length = kShortest; length <= kShort; length += 4) {
    for (int i = 0; i < 50; ++i) {
      std::vector<std::uint8_t> message(length + 80);
      Ones ones{};
      for (auto& byte : message) byte = static_cast<std::uint8_t>(rng.next());
      for (std::size_t k = 0; k < 64 && k < length; ++k) ones[k] = static_cast<std::uint8_t>(rng.next());
      if (i == 0) ones = {};
      std::vector<std::uint8_t> masked = message;
      for (std::size_t k = 0; k < 64; ++k) masked[k] |= ones[k];
      const auto begun = static_cast<std::uint32_t>(rng.next());
      ASSERT_EQ(update_short(begun, message.data(), length, ones), update(begun, ByteView(masked).first(length)))
          << length;
    }
  }
}

TEST(Crc32Algebra, AddsManyChangesAtOnce) {
  Rng rng(kSeed);
  std::array<Change, 20> changes;
  std::uint32_t one_by_one = 0;
  for (Change& c : changes) {
    c = {static_cast<std::uint32_t>(rng.next()), static_cast<std::uint32_t>(rng.below(kMaxDistance + 1))};
    one_by_one ^= effect_of({&c, 1});
  }
  EXPECT_EQ(effect_of(changes), one_by_one);
  EXPECT_EQ(effect_of_portable(changes), one_by_one);
  EXPECT_EQ(effect_of({}), 0u);
}

}  // namespace
}  // namespace sluice::wire::crc32
