#include "onerma/regions.h"

#include "base/check.h"

namespace sluice::onerma {

struct Regions::Protected {
  explicit Protected(const Secret& key) : current(key) {}

  RegionKey current;
  std::optional<RegionKey> previous;
  Generation generation{1};
};

struct Regions::Line {
  RegionId region{};
  Generation generation{};
  InitiatorId initiator{};
  Rights rights{};
  bool used = false;
  Sealer sealer;
};

Regions::Regions(std::shared_ptr<memory::RegionTable> table, memory::PdId domain, std::uint32_t cached_keys)
    : table_(std::move(table)), domain_(domain), lines_(cached_keys) {
  SLUICE_CHECK(cached_keys != 0 && (cached_keys & (cached_keys - 1)) == 0);
}

Regions::~Regions() = default;

Result<RegionId> Regions::add(MutableBytes bytes, std::uint64_t address, memory::Access access, const Secret& key) {
  const auto made = table_->add({.pd = domain_, .bytes = bytes, .address = address, .access = access});
  if (!made) return tl::unexpected(made.error());
  regions_.emplace(made->value, std::make_unique<Protected>(key));
  return RegionId(made->value);
}

bool Regions::remove(RegionId region) {
  if (regions_.erase(region.value) == 0) return false;
  wipe_lines(region);
  table_->remove(memory::Key(region.value));
  return true;
}

bool Regions::rekey(RegionId region, const Secret& key) {
  const auto found = regions_.find(region.value);
  if (found == regions_.end()) return false;
  Protected& entry = *found->second;
  if (key == entry.current.secret() || (entry.previous && key == entry.previous->secret())) return false;
  entry.previous.emplace(std::move(entry.current));
  entry.current = RegionKey(key);
  ++entry.generation.value;
  wipe_lines(region);
  return true;
}

std::optional<Grant> Regions::grant(RegionId region, InitiatorId initiator, Rights rights) const {
  const auto found = regions_.find(region.value);
  if (found == regions_.end()) return std::nullopt;
  return make_grant(found->second->current, region, found->second->generation, initiator, rights);
}

Regions::Age Regions::age_of(RegionId region, Generation generation) const {
  const auto found = regions_.find(region.value);
  if (found == regions_.end()) return Age::kUnknown;
  const Protected& entry = *found->second;
  if (generation == entry.generation) return Age::kCurrent;
  return entry.previous && generation.value + 1 == entry.generation.value ? Age::kFormer : Age::kUnknown;
}

Regions::Found Regions::find(RegionId region, Generation generation, InitiatorId initiator, Rights rights) {
  const Age age = age_of(region, generation);
  if (age == Age::kUnknown) return {};
  const std::uint64_t mixed =
      (initiator.value ^ std::uint64_t{region.value} << 20 ^ generation.value ^ std::uint64_t{rights.bits} << 60) *
      0x9E37'79B9'7F4A'7C15u;
  Line& line = lines_[mixed >> 32 & (lines_.size() - 1)];
  if (!line.used || line.region != region || line.generation != generation || line.initiator != initiator ||
      line.rights != rights) {
    const Protected& entry = *regions_.find(region.value)->second;
    const RegionKey& key = age == Age::kCurrent ? entry.current : *entry.previous;
    line.sealer.set_key(key.derive(region, initiator, rights));
    line.region = region;
    line.generation = generation;
    line.initiator = initiator;
    line.rights = rights;
    line.used = true;
    ++derivations_;
  }
  return {&line.sealer, age == Age::kCurrent};
}

void Regions::wipe_lines(RegionId region) {
  for (Line& line : lines_) {
    if (!line.used || line.region != region) continue;
    line.sealer.set_key(Secret());
    line.used = false;
  }
}

}  // namespace sluice::onerma
