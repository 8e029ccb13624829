// What a NIC counts: one number for each way a packet can end. Never logged a packet; read by metrics and tests.
//
// Invariant:  every frame handed to the NIC adds to rx_frames and to at least one other rx_ counter: no silence without a reason
//             (fuzz/adapter_properties.h looks for one).
#pragma once

#include <cstdint>

namespace sluice::rc {

// name, what it means
#define SLUICE_ADAPTER_COUNTERS(X)                                               \
  X(rx_frames, "frames handed to the NIC")                                       \
  X(rx_not_ours, "frames for another MAC or IP address")                         \
  X(rx_malformed, "frames that could not be parsed")                             \
  X(rx_bad_icrc, "frames whose ICRC was wrong")                                  \
  X(rx_neighbor, "ARP and neighbour discovery messages")                         \
  X(rx_mads, "management datagrams for the connection manager")                  \
  X(rx_bad_pkey, "packets with a foreign P_Key")                                 \
  X(rx_unknown_qp, "packets for a queue pair that does not exist")               \
  X(rx_wrong_transport, "packets whose opcode does not fit their queue pair")    \
  X(rx_wrong_state, "packets for a queue pair that may not receive")             \
  X(rx_wrong_source, "packets from an address that is not the peer's")           \
  X(rx_requests, "request packets executed")                                     \
  X(rx_responses, "response packets accepted")                                   \
  X(rx_duplicate_requests, "requests with a PSN already executed")               \
  X(rx_stale_duplicates, "duplicate READs and atomics too old to answer again")  \
  X(rx_out_of_sequence, "requests beyond the expected PSN")                      \
  X(rx_invalid_requests, "requests refused with NAK invalid request")            \
  X(rx_access_errors, "requests refused with NAK remote access error")           \
  X(rx_operation_errors, "requests refused with NAK remote operational error")   \
  X(rx_no_receive, "requests that found no receive request")                     \
  X(rx_put_off, "READs and atomics dropped as too many answers were waiting")    \
  X(rx_ignored_responses, "responses to nothing that is outstanding")            \
  X(rx_bad_responses, "responses that contradict their request")                 \
  X(rx_ecn_marked, "packets that a switch marked congested")                     \
  X(rx_cnp, "congestion notifications received")                                 \
  X(rx_ud_dropped, "datagrams without a receive request, or with a wrong Q_Key") \
  X(tx_packets, "packets written, retransmissions included")                     \
  X(tx_retransmits, "request packets sent again")                                \
  X(tx_acks, "ACKs sent")                                                        \
  X(tx_acks_coalesced, "ACKs that a later one made needless")                    \
  X(tx_naks, "NAKs sent")                                                        \
  X(tx_rnr_naks, "receiver-not-ready NAKs sent")                                 \
  X(tx_cnp, "congestion notifications sent")                                     \
  X(rx_naks, "sequence NAKs received")                                           \
  X(rx_refusals, "NAKs received that end a connection")                          \
  X(rx_rnr_naks, "receiver-not-ready NAKs received")                             \
  X(implied_naks, "responses missing from an otherwise live stream")             \
  X(timeouts, "retransmission time-outs")                                        \
  X(retries_exceeded, "connections given up")                                    \
  X(expired, "connections given up since work had become too old to be sent")    \
  X(completions_lost, "completions that found their queue full")

struct AdapterCounters {
#define X(name, meaning) std::uint64_t name = 0;
  SLUICE_ADAPTER_COUNTERS(X)
#undef X

  bool operator==(const AdapterCounters&) const = default;

  // f(name, meaning, value) for each, in the order above.
  template <class F>
  void for_each(F&& f) const {
#define X(name, meaning) f(#name, meaning, name);
    SLUICE_ADAPTER_COUNTERS(X)
#undef X
  }
};

}  // namespace sluice::rc
