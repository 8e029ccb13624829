#include "rack/settings/box_settings.h"

#include <fmt/core.h>

#include <bit>

#include "wire/address.h"

namespace sluice::rack {

void BoxSettings::declare(Schema& s) {
  s.choice("box", box, {"off", "watch", "clover", "words", "clover+words"},
           "SwordBox in the switch's path: watch only counts, clover steers the appends and reads of the rack's Clover "
           "store, words replaces atomics on the memory nodes by WRITEs on shared connections, on memory that no store "
           "has taken; clover+words does both")
      .integer("cores", cores, 1, 64,
               "threads for the box, memory nodes divided among them; 1: all on the switch's own thread")
      .choice("box-order", order, {"pipelined", "strict"},
              "pipelined: append behind appends under way; strict: one append a round trip and key")
      .toggle("box-steer-writes", steer_writes, "send CASes to the tail of their key's chain")
      .toggle("box-steer-reads", steer_reads, "send READs of old versions to the tail")
      .duration("box-steer-reads-for", steer_reads_for, Duration::milliseconds(1), Duration::milliseconds(900),
                "READs of a version are steered for so long after it has got a successor; below the store's max-flight")
      .integer("box-keys", keys, 1, 1u << 22, "steer only so many keys, the hottest")
      .integer("box-history", history, 16, 1u << 26, "node addresses remembered")
      .integer("box-connections", connections, 16, 65'536,
               "most connections followed at once; then one that has been silent for 10 s gives way to a new one")
      .integer("box-held-frames", held_frames, kLeastHeldFrames, 1u << 20,
               "packets that may wait in the box; what does not fit is dropped")
      .integer("box-words", words, 16, 1u << 22, "words whose atomics are replaced, at once")
      .list(
          "box-servers", servers,
          "replace atomics on the memory of these servers, too, which no directory tells of; rdma_cm has to set their "
          "connections up, and what is not is shut out",
          "the IP address of a server, such as 192.0.2.7")
      .duration("box-flight", flight, Duration::milliseconds(10), Duration::seconds(60),
                "what a client has sent is executed within this or never: above its retries all together")
      .integer("box-ring", ring, 16, 4096, "operations remembered of each connection, a power of two")
      .duration("box-repair-after", repair_after, Duration::microseconds(50), Duration::seconds(10),
                "the box sends an append that is not acknowledged again after; an operation on a word after at most an "
                "eighth of box-flight")
      .duration("box-fence", fence, Duration::milliseconds(1), Duration::seconds(600),
                "after the loss of a steering switch, connections from before it are shut out for")
      .toggle("box-verify-icrc", verify_icrc, "let packets with a wrong ICRC pass without looking at them");
}

Result<void> BoxSettings::check() const {
  if (!std::has_single_bit(ring)) return fail(fmt::format("box-ring = \"{}\": must be a power of two", ring));
  if (cores != 1 && !wanted())
    return fail(fmt::format("cores = \"{}\": it is the box's work that is spread over them; say --box, too", cores));
  for (const std::string& server : servers) {
    const auto gid = wire::Gid::parse(server);
    if (!gid) return fail(fmt::format("box-servers = \"{}\": {}", server, gid.error().message));
    if (!shares()) return fail(fmt::format("box-servers = \"{}\": say --box words or clover+words, too", server));
  }
  return {};
}

}  // namespace sluice::rack
