#include "switching/mac_table.h"

#include <bit>

#include "base/bytes.h"
#include "base/check.h"

namespace sluice::switching {
namespace {

std::uint64_t number_of(const wire::MacAddress& mac) {
  return std::uint64_t{load_be<std::uint32_t>(mac.bytes.data())} << 16 | load_be<std::uint16_t>(mac.bytes.data() + 4);
}

wire::MacAddress mac_of(std::uint64_t number) {
  wire::MacAddress mac;
  store_be(mac.bytes.data(), static_cast<std::uint32_t>(number >> 16));
  store_be(mac.bytes.data() + 4, static_cast<std::uint16_t>(number));
  return mac;
}

}  // namespace

MacTable::MacTable(std::size_t slots, Duration age, std::uint64_t seed)
    : slots_(slots), mask_(slots - 1), age_(age), seed_(seed) {
  SLUICE_CHECK(std::has_single_bit(slots) && slots >= kProbes);
}

// Addresses differ in any of their bytes (a host's programs in the second alone), and whoever sends chooses his: each bit has to count.
// The finaliser of splitmix64 (Steele, Lea, Flood 2014).
std::size_t MacTable::first_slot(std::uint64_t mac) const {
  std::uint64_t mixed = mac ^ seed_;
  mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9u;
  mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBu;
  return static_cast<std::size_t>(mixed ^ mixed >> 31) & mask_;
}

bool MacTable::learn(Time now, const wire::MacAddress& mac, PortNumber port) {
  const std::uint64_t number = number_of(mac);
  if (number == 0) {
    ++refused_;
    return false;
  }
  const std::size_t first = first_slot(number);
  Slot* free = nullptr;
  for (std::size_t i = 0; i < kProbes; ++i) {
    Slot& slot = slots_[(first + i) & mask_];
    if (slot.mac == number) {
      if (slot.port == port) {
        slot.seen = now;
        return true;
      }
      if (alive(slot, now)) ++moves_;
      free = &slot;
      break;
    }
    if (free == nullptr && !alive(slot, now)) free = &slot;
  }
  if (free == nullptr) {
    free = replaceable(first, port);
    ++(free == nullptr ? refused_ : replaced_);
  }
  if (free != nullptr) put(*free, number, now, port);
  return free != nullptr;
}

// Of all that live where an address of `port` might: the oldest of the port that has most. To make ports with one more change places with it
// would be no gain.
MacTable::Slot* MacTable::replaceable(std::size_t first, PortNumber port) {
  const std::uint32_t own = slots_of(port);
  Slot* found = nullptr;
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < kProbes; ++i) {
    Slot& slot = slots_[(first + i) & mask_];
    const std::uint32_t has = slots_of(slot.port);
    if (slot.port != port && has <= own + 1) continue;
    if (found == nullptr || has > most || (has == most && slot.seen < found->seen)) {
      found = &slot;
      most = has;
    }
  }
  return found;
}

void MacTable::put(Slot& slot, std::uint64_t mac, Time now, PortNumber port) {
  if (slot.mac != 0) --slots_of(slot.port);
  slot = {mac, now, port};
  ++slots_of(port);
}

std::uint32_t& MacTable::slots_of(PortNumber port) {
  if (slots_of_.size() <= port.value) slots_of_.resize(port.value + std::size_t{1});
  return slots_of_[port.value];
}

std::optional<PortNumber> MacTable::find(Time now, const wire::MacAddress& mac) const {
  const std::uint64_t number = number_of(mac);
  const std::size_t first = first_slot(number);
  for (std::size_t i = 0; i < kProbes; ++i) {
    const Slot& slot = slots_[(first + i) & mask_];
    if (slot.mac == number) return alive(slot, now) ? std::optional(slot.port) : std::nullopt;
  }
  return std::nullopt;
}

void MacTable::forget(PortNumber port) {
  for (Slot& slot : slots_) {
    if (slot.port == port) slot = {};
  }
  slots_of(port) = 0;
}

std::vector<MacTable::Entry> MacTable::entries(Time now) const {
  std::vector<Entry> alive_ones;
  for (const Slot& slot : slots_) {
    if (alive(slot, now)) alive_ones.push_back({mac_of(slot.mac), slot.port, slot.seen});
  }
  return alive_ones;
}

}  // namespace sluice::switching
