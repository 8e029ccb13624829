// EDM and its rivals as the published simulation has them, by its own rules where they are not the protocols': what Figure 8's data come from. Message by message
// it ends in the same slots as the artifact itself (docs/edm.md).
// The protocols themselves are edm_rivals.h's. docs/edm.md, "What the published simulation does", says what each rule does to the figure.
//
// Life:       run_published() takes the rows of a trace, until the published simulation would end, or until nothing moves; rival_count.h has its mean.
// Rules:      of each program, where they are not the protocol's (work_per_timeslot(), initialize_flow()):
//   dctcp, pfabric   a node sends its messages by turns of 1,500 B; a write's first turn is one block, and the last block of any message is a turn of
//                    its own. Who joins the line at the end of a turn is not chosen in that slot: alone, it leaves the link idle. Acknowledgements take
//                    neither room nor time. A block of a message of more than 256 B has 32 B. pFabric's ports send first what has least left to
//                    receive; its nodes do not.
//   pfc              turns likewise, but a message that has been sent keeps its node until it has come. A read is a write of what is read. Each
//                    block that finds a short queue has the switch tell its sender to resume, if it is not being told: a block on that node's link
//                    down. Who was paused is told so by nothing else. DCTCP's windows and marks, no DCQCN.
//   cxl              131,072 blocks of credit. A block without credit lets those behind it pass, of 9,999 that the switch looks at. Requests overtake what is
//                    being sent. Ends when 1,500 lines are over.
//   ird              the switch grants: to each receiver a chunk of 256 B at a time, the shortest message first. A receiver is free again as soon as the
//                    chunk has left its sender, and a sender is always taken for free.
//   edm              likewise, but a sender must be free too; both are, unless more than 256 B are on their way to the receiver. Like ird and fastpass, it
//                    forgets what is left of a chunk that is no whole number of blocks, so that its message is never over.
//   fastpass         edm, but a node asks once in 128 slots. A message that may not ask yet stands in its node's line once more for each slot, and
//                    each of these copies takes a slot when it has been sent.
// Units:      slots of a block of 8 B.
// Errors:     none: rows are checked when read.
// Source:     the public artifact of EDM (wegul/EDM, netsimu/src): dctcp.c, pfabric.c, pfc.c, cxl.c, ird.c, edm.c, fastpass.c.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/edm/edm_rivals.h"
#include "sim/edm/edm_trace.h"
#include "sim/edm/rival_count.h"

namespace sluice::sim {

struct PublishedRun {
  std::vector<PublishedRow> rows;
  std::int64_t end = 0;
  std::uint64_t blocks = 0;  // that nodes have sent
  std::uint64_t trace_hash = 0;
};

// No protocol: EDM itself. `hop`: slots that a link takes.
PublishedRun run_published(std::optional<Rival> protocol, std::int64_t hop, std::uint32_t nodes,
                           const std::vector<TraceRow>& rows);

}  // namespace sluice::sim
