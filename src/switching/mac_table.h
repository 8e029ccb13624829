// Which port a MAC address was last seen at.
//
// Invariant:  an entry older than `age` is as good as gone; a lookup never returns it and a new address may take its slot.
// Limits:     a fixed number of slots, made at once. An address lives in one of kProbes slots; when others live in all of them, the oldest of
//             the port that has most addresses goes, be it the newcomer's own: who makes up addresses crowds out those of
//             his own port, his neighbours' behind it, too; a port keeps its share, of the slots divided by the ports that want more than that.
//             Where no port has more than the newcomer's, it is not learned: its frames are flooded. For a port that thousands live
//             behind, make more slots.
// Threads:    one owner.
// Source:     IEEE 802.1D §7.9 (filtering database; ageing time 300 s).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/time.h"
#include "switching/types.h"
#include "wire/address.h"

namespace sluice::switching {

class MacTable {
 public:
  static constexpr std::size_t kProbes = 16;

  // REQUIRES: slots is a power of two, at least kProbes. `seed` hides which addresses collide.
  MacTable(std::size_t slots, Duration age, std::uint64_t seed);

  // `mac` was seen at `port`: learns it, moves it, or makes it young again. False: no room, not learned.
  bool learn(Time now, const wire::MacAddress& mac, PortNumber port);
  std::optional<PortNumber> find(Time now, const wire::MacAddress& mac) const;
  // Forgets all that was seen at a port.
  void forget(PortNumber port);

  struct Entry {
    wire::MacAddress mac;
    PortNumber port;
    Time seen;
  };
  // All that is alive, for people to read.
  std::vector<Entry> entries(Time now) const;
  std::uint64_t refused() const { return refused_; }
  // Addresses, still alive, that made room for others.
  std::uint64_t replaced() const { return replaced_; }
  // Addresses that were seen at another port than before.
  std::uint64_t moves() const { return moves_; }

 private:
  struct Slot {
    std::uint64_t mac = 0;  // 48 bits; 0 when free: no station has that address
    Time seen;
    PortNumber port;
  };
  std::size_t first_slot(std::uint64_t mac) const;
  Slot* replaceable(std::size_t first, PortNumber port);
  void put(Slot& slot, std::uint64_t mac, Time now, PortNumber port);
  std::uint32_t& slots_of(PortNumber port);
  bool alive(const Slot& slot, Time now) const { return slot.mac != 0 && now - slot.seen < age_; }

  std::vector<Slot> slots_;
  std::vector<std::uint32_t> slots_of_;  // by port: how many have its addresses, the aged among them
  std::size_t mask_;
  Duration age_;
  std::uint64_t seed_;
  std::uint64_t refused_ = 0;
  std::uint64_t replaced_ = 0;
  std::uint64_t moves_ = 0;
};

}  // namespace sluice::switching
