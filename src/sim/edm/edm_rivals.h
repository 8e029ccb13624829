// The protocols that EDM is compared with, on the same links, nodes and traces as edm_cluster.h: packets, the switch's queues, and who may send when.
//
// Life:     run_rival() takes the rows of a trace, to their end.
// Links:    a packet is forwarded as its first block comes (cut-through); packets wait in the queue of their way out, whole packets one after
//           another. Control packets (acknowledgements, tokens, requests to an arbiter and its answers) go before data.
// Losses:   a dropped packet is sent again one `retransmit_after` later, and nothing else is.
// Not here: DRAM's time; the host's stack and the switch's layer 2, whose latencies are Table 1's (edm_stacks.h): every rival has EDM's few
//           blocks, which favours them.
// Protocols:
//   DCTCP            windows per message; marks above `mark_blocks`; drop-tail. Nodes send their messages by turns.
//   receiver-driven  a receiver knows of its messages at once, and gives tokens of a packet: to its shortest one, at its link's rate, no more
//                    than a round trip's at once. A sender with tokens of several serves the shortest first. Neither knows of the other's choice.
//                    A message's first round trip needs no token, rounded up to whole packets: Homa's unscheduled bytes, which every message has;
//                    pHost has free tokens for those alone that fit into it, NDP pushes a first window, ExpressPass waits for credits. The EDM paper's
//                    "combines the best features", so it begins as those that wait for the least.
//   pFabric          the shortest goes first, in nodes and in queues; a full queue drops the longest. Windows as DCTCP's ("running on top of DCTCP",
//                    EDM §4.3).
//   PFC, DCQCN       nothing is dropped: who has more than `pause_blocks` in the switch is paused, all its messages; rates per message by DCQCN.
//   CXL              credits a link: `credit_blocks` where packets come in, `egress_blocks` where they go out; who comes in waits in one line.
//   Fastpass         an arbiter behind a link of its own, which matches in no time (edm/scheduler.h, greedy); every message asks it, every packet
//                    is granted by it.
// Units:    blocks, as in edm_cluster.h.
// Errors:   none: rows are checked when read.
// Source:   DCTCP (SIGCOMM '10), pFabric (SIGCOMM '13), DCQCN (SIGCOMM '15), Fastpass (SIGCOMM '14), for the receiver-driven one pHost
//           (CoNEXT '15; its authors' NetSys/simulator, ext/capabilityflow.cpp, init_capa_size()), Homa (SIGCOMM '18; PlatformLab/HomaModule, protocol.md,
//           rtt_bytes) and ExpressPass (SIGCOMM '17); EDM §4.3.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/edm/edm_cluster.h"
#include "sim/edm/edm_hardware.h"
#include "sim/edm/edm_trace.h"

namespace sluice::sim {

enum class Rival : std::uint8_t { kDctcp, kReceiverDriven, kPfabric, kPfc, kCxl, kFastpass };

struct RivalSettings {
  Rival rival = Rival::kDctcp;
  std::uint32_t nodes = 144;
  std::uint32_t packet_bytes = 1'456;       // of a message in one packet, at most
  std::uint32_t packet_framing_bytes = 0;   // of each packet besides
  std::uint32_t message_framing_bytes = 0;  // of each write besides, if it has no more than 256 bytes
  std::uint32_t control_bytes = 8;          // of a token, a request to the arbiter and its answer
  std::uint32_t ack_bytes = 0;              // of an acknowledgement; 0: it takes no room, only time

  // DCTCP and pFabric.
  std::uint32_t window_bytes = 14'600;  // to begin with: ten segments (RFC 6928)
  // DCTCP's K: 65 packets of 1,500 B, for 10 Gb/s and 100 us. Its rule is a seventh of what is on the way in a round trip (DCTCP §3.4), which is far
  // less in a rack: experiments in which messages have many packets set it so.
  std::uint32_t mark_blocks = 12'000;
  std::uint32_t buffer_blocks = 50'000;  // of a queue; DCTCP and pFabric drop above it
  Duration retransmit_after = Duration::microseconds(10);
  // PFC with DCQCN; DCQCN's own constants are its paper's (edm_rivals.cpp).
  std::uint32_t pause_blocks = 12'000;
  std::uint32_t resume_blocks = 11'000;
  // CXL.
  std::uint32_t credit_blocks = 1'024;  // of 64 B: 128 flits
  std::uint32_t egress_blocks = 1'024;
};

struct RivalOutcome {
  std::vector<MessageTimes>
      times;  // by row; started is the answer's for a read; demanded: of a read, when its request had come
  std::uint64_t packets = 0;
  std::uint64_t dropped = 0;
  std::uint64_t marked = 0;
  std::uint64_t pauses = 0;
  std::int64_t longest_queue = 0;  // blocks, of data in front of a node's link
  std::uint64_t events = 0;
  std::uint64_t trace_hash = 0;
};

RivalOutcome run_rival(const EdmHardware& hardware, const RivalSettings& settings, const std::vector<TraceRow>& rows);

// In blocks, for that message alone with that protocol: by simulation of it alone.
std::int64_t alone_blocks(const EdmHardware& hardware, const RivalSettings& settings, const TraceRow& row);

}  // namespace sluice::sim
