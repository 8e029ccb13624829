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

std::size_t MacTable::first_slot(std::uint64_t mac) const {
  const std::uint64_t mixed = (mac ^ seed_) * 0x9E3779B97F4A7C15u;
  return static_cast<std::size_t>(mixed >> 20) & mask_;
}

bool MacTable::learn(Time now, const wire::MacAddress& mac, PortNumber port) {
  const std::uint64_t number = number_of(mac);
  const std::size_t first = first_slot(number);
  Slot* free = nullptr;
  for (std::size_t i = 0; i < kProbes; ++i) {
    Slot& slot = slots_[(first + i) & mask_];
    if (slot.mac == number) {
      if (slot.port != port && alive(slot, now)) ++moves_;
      slot.seen = now;
      slot.port = port;
      return true;
    }
    if (free == nullptr && !alive(slot, now)) free = &slot;
  }
  if (free == nullptr || number == 0) {
    ++refused_;
    return false;
  }
  *free = {number, now, port};
  return true;
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
}

std::vector<MacTable::Entry> MacTable::entries(Time now) const {
  std::vector<Entry> alive_ones;
  for (const Slot& slot : slots_) {
    if (alive(slot, now)) alive_ones.push_back({mac_of(slot.mac), slot.port, slot.seen});
  }
  return alive_ones;
}

}  // namespace sluice::switching
