// The YCSB workloads: which operations in which proportion, and on which keys.
//
// Life:       KeySpace counts the keys there are; a KeyChooser picks among them; a Mix says what to do with the picked one.
// Invariant:  what is drawn depends on the seed alone: integers only, the same on every machine and compiler.
// Units:      shares in thousandths; theta in thousandths.
// Threads:    each has one owner, copies of a KeyChooser the same one.
// Source:     Cooper et al., "Benchmarking cloud serving systems with YCSB" (SoCC 2010), table 2 and core workload files A to F: their proportions.
//             Their zipfian keys are scrambled (ScrambledZipfianGenerator); ours are so only by name (kScrambledZipfian), and the hottest ones
//             otherwise the oldest. Scrambling as there but for the sign: FNV-1a of a rank among 10^10, modulo the number of keys, where YCSB takes the absolute value of the
//             hash as a signed number first. So which keys are the hot ones differs, how hot they are does not, nor does it change while keys are inserted.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/rng.h"
#include "workload/store.h"
#include "workload/zipf.h"

namespace sluice::workload {

// kSequential: no chance at all, KeySpace::in_turn().
enum class KeyDistribution : std::uint8_t { kUniform, kZipfian, kScrambledZipfian, kLatest, kSequential };
// "uniform", "zipfian", "scrambled", "latest", "sequential"
Result<KeyDistribution> parse_distribution(std::string_view name);
std::string_view to_string(KeyDistribution distribution);

enum class Action : std::uint8_t { kRead, kUpdate, kInsert, kScan, kReadModifyWrite, kErase };
inline constexpr std::size_t kActions = 6;
std::string_view to_string(Action action);

struct Mix {
  // Of each Action, in thousandths; together 1,000.
  std::uint16_t share[kActions] = {1000, 0, 0, 0, 0, 0};
  KeyDistribution distribution = KeyDistribution::kZipfian;

  // Workload 'A' to 'F', or a percentage of writes as in the papers' figures: "A", "w50".
  static Result<Mix> parse(std::string_view name);
  Action draw(Rng& rng) const;
  // What of it a store with these abilities cannot do; empty when it can do all.
  std::string_view impossible_for(const StoreAbilities& abilities) const;
};

// The keys that are in the store: 0 .. initial-1 loaded, then those inserted by this thread, every `threads`-th number.
class KeySpace {
 public:
  struct Place {
    std::uint32_t thread = 0;
    std::uint32_t threads = 1;
  };
  explicit KeySpace(std::uint64_t initial) : KeySpace(initial, Place{}) {}
  KeySpace(std::uint64_t initial, Place place);

  // A key that no one else inserts.
  Key reserve();
  // The insertion of a reserved key has ended, well or not; it is chosen from now on.
  void acknowledge(Key key);

  std::uint64_t count() const { return initial_ + acknowledged_; }
  // Every `threads`-th key from this thread's own on, then from the first again: all threads together have each key once before any has one twice.
  Key in_turn() { return at((place_.thread + turns_++ * place_.threads) % count()); }
  // The keys by age: 0 is the oldest. REQUIRES: position < count().
  Key at(std::uint64_t position) const;

 private:
  std::uint64_t initial_;
  Place place_;
  std::uint64_t reserved_ = 0;
  std::uint64_t turns_ = 0;
  std::uint64_t acknowledged_ = 0;  // all insertions before this one have ended
  std::set<std::uint64_t> early_;   // ended before one that was reserved earlier
};

class KeyChooser {
 public:
  // For `items` keys; it stays right while more are inserted, and draws those, too. REQUIRES: items > 0.
  KeyChooser(KeyDistribution distribution, std::uint64_t items, std::uint32_t theta_thousandths = Zipf::kYcsbTheta);
  // REQUIRES: not kSequential; at least `items` keys.
  Key choose(const KeySpace& keys, Rng& rng) const;

 private:
  using Zipfs = std::vector<std::shared_ptr<const Zipf>>;
  const Zipf& zipf_of(std::uint64_t count) const;

  KeyDistribution distribution_;
  std::uint64_t items_;
  std::uint32_t theta_thousandths_;
  std::shared_ptr<const Zipf> zipf_;
  // For more keys than there were at first, made when needed, each of four times the one before.
  std::shared_ptr<Zipfs> larger_;
};

}  // namespace sluice::workload
