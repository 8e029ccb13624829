#include "workload/ycsb.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"

namespace sluice::workload {
namespace {

constexpr std::array<std::string_view, 5> kDistributionNames{"uniform", "zipfian", "scrambled", "latest", "sequential"};
constexpr std::array<std::string_view, kActions> kActionNames{"read", "update", "insert", "scan", "read-modify-write",
                                                              "erase"};
constexpr std::uint64_t kGrowth = 4;
constexpr std::uint64_t kScrambledUniverse = 10'000'000'000;

// FNV-1a over the eight bytes. YCSB's Utils.fnvhash64 goes on to the absolute value of this as a signed number.
std::uint64_t fnv(std::uint64_t x) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (int i = 0; i < 8; ++i, x >>= 8) hash = (hash ^ (x & 0xFF)) * 1099511628211u;
  return hash;
}

}  // namespace

Result<KeyDistribution> parse_distribution(std::string_view name) {
  for (std::size_t i = 0; i < kDistributionNames.size(); ++i) {
    if (kDistributionNames[i] == name) return static_cast<KeyDistribution>(i);
  }
  return fail(fmt::format("no key distribution '{}': one of uniform, zipfian, scrambled, latest, sequential", name));
}

std::string_view to_string(KeyDistribution distribution) {
  return kDistributionNames.at(static_cast<std::size_t>(distribution));
}
std::string_view to_string(Action action) { return kActionNames.at(static_cast<std::size_t>(action)); }

Result<Mix> Mix::parse(std::string_view name) {
  using enum KeyDistribution;
  if (name == "A" || name == "a") return Mix{{500, 500, 0, 0, 0, 0}, kZipfian};
  if (name == "B" || name == "b") return Mix{{950, 50, 0, 0, 0, 0}, kZipfian};
  if (name == "C" || name == "c") return Mix{{1000, 0, 0, 0, 0, 0}, kZipfian};
  if (name == "D" || name == "d") return Mix{{950, 0, 50, 0, 0, 0}, kLatest};
  if (name == "E" || name == "e") return Mix{{0, 0, 50, 950, 0, 0}, kZipfian};
  if (name == "F" || name == "f") return Mix{{500, 0, 0, 0, 500, 0}, kZipfian};
  if (name.size() >= 2 && name.size() <= 4 && name[0] == 'w') {
    std::uint32_t percent = 0;
    for (const char c : name.substr(1))
      percent = c >= '0' && c <= '9' ? percent * 10 + static_cast<std::uint32_t>(c - '0') : 1000;
    if (percent <= 100) {
      Mix mix{{static_cast<std::uint16_t>(1000 - percent * 10), static_cast<std::uint16_t>(percent * 10), 0, 0, 0, 0},
              kZipfian};
      return mix;
    }
  }
  return fail(fmt::format("no workload '{}': one of A, B, C, D, E, F, or w0 to w100 for a percentage of writes", name));
}

Action Mix::draw(Rng& rng) const {
  std::uint64_t dart = rng.below(1000);
  for (std::size_t i = 0; i < kActions; ++i) {
    if (dart < share[i]) return static_cast<Action>(i);
    dart -= share[i];
  }
  SLUICE_CHECK(!"the shares of a mix add up to 1,000");
  return Action::kRead;
}

std::string_view Mix::impossible_for(const StoreAbilities& abilities) const {
  const auto wants = [this](Action a) { return share[static_cast<std::size_t>(a)] != 0; };
  if (wants(Action::kScan) && !abilities.scan) return "scans: this store has no ordered keys";
  if (wants(Action::kInsert) && !abilities.insert) return "inserts of new keys";
  if (wants(Action::kErase) && !abilities.erase) return "erasing keys";
  return {};
}

KeySpace::KeySpace(std::uint64_t initial, Place place) : initial_(initial), place_(place) {
  SLUICE_CHECK(place.thread < place.threads);
}

Key KeySpace::reserve() { return initial_ + reserved_++ * place_.threads + place_.thread; }

void KeySpace::acknowledge(Key key) {
  early_.insert((key - initial_) / place_.threads);
  while (!early_.empty() && *early_.begin() == acknowledged_) {
    early_.erase(early_.begin());
    ++acknowledged_;
  }
}

Key KeySpace::at(std::uint64_t position) const {
  return position < initial_ ? position : initial_ + (position - initial_) * place_.threads + place_.thread;
}

KeyChooser::KeyChooser(KeyDistribution distribution, std::uint64_t items, std::uint32_t theta_thousandths)
    : distribution_(distribution), items_(items), theta_thousandths_(theta_thousandths) {
  SLUICE_CHECK(items > 0);
  using enum KeyDistribution;
  if (distribution == kUniform || distribution == kSequential) return;
  const std::uint64_t universe = distribution == kScrambledZipfian ? kScrambledUniverse
                                 : distribution == kLatest         ? items * kGrowth
                                                                   : items;
  zipf_ = std::make_shared<const Zipf>(universe, theta_thousandths);
  larger_ = std::make_shared<Zipfs>();
}

// Those inserted later are drawn among, too: a rank that does not exist yet is drawn again, which leaves the others their shares.
const Zipf& KeyChooser::zipf_of(std::uint64_t count) const {
  if (count <= zipf_->items()) return *zipf_;
  Zipfs& zipfs = *larger_;
  while (zipfs.empty() || zipfs.back()->items() < count) {
    const std::uint64_t universe = (zipfs.empty() ? zipf_ : zipfs.back())->items() * kGrowth;
    zipfs.push_back(std::make_shared<const Zipf>(universe, theta_thousandths_));
  }
  return **std::ranges::find_if(zipfs, [&](const auto& zipf) { return zipf->items() >= count; });
}

Key KeyChooser::choose(const KeySpace& keys, Rng& rng) const {
  const std::uint64_t count = keys.count();
  SLUICE_CHECK(count > 0 && distribution_ != KeyDistribution::kSequential);
  switch (distribution_) {
    case KeyDistribution::kUniform: return keys.at(rng.below(count));
    case KeyDistribution::kScrambledZipfian: {
      // As linear hashing has it (Litwin 1980): an inserted key takes its share from one that is there, and leaves the others theirs. So hot
      // ones stay the same and as hot as they were.
      std::uint64_t among = items_;
      while (among < count) among *= 2;
      const std::uint64_t hash = fnv(zipf_->draw(rng));
      const std::uint64_t position = hash % among;
      return keys.at(position < count ? position : hash % (among / 2));
    }
    case KeyDistribution::kZipfian:
    case KeyDistribution::kLatest:
    case KeyDistribution::kSequential: break;
  }
  const Zipf& zipf = zipf_of(count);
  std::uint64_t rank = zipf.draw(rng);
  while (rank >= count) rank = zipf.draw(rng);
  return keys.at(distribution_ == KeyDistribution::kLatest ? count - 1 - rank : rank);
}

}  // namespace sluice::workload
