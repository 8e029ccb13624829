// The names of all verdicts and events: one table for the box in C++ and for the program in the kernel (src/xdp), which is C.
//
// Source:     docs/design/swordbox.md.
#pragma once

// name, action, what it means
#define SLUICE_BOX_VERDICTS(X)                                                                                    \
  X(NotRoce, kForward, "no RoCE: not the box's business")                                                         \
  X(Malformed, kForward, "cannot be parsed: the receiver's to refuse")                                            \
  X(BadIcrc, kForward, "its ICRC is wrong: the receiver's to refuse")                                             \
  X(NotReliable, kForward, "no packet of a reliable connection")                                                  \
  X(Management, kForward, "connection management")                                                                \
  X(Off, kForward, "the box is switched off")                                                                     \
  X(Unknown, kForward, "of a connection that the box does not know (yet)")                                        \
  X(StrangerDropped, kDrop, "an atomic, or an unreliable WRITE, on watched memory that cannot be followed now")   \
  X(NotUnderstood, kDrop, "of an unknown opcode, to memory with words that it might change")                      \
  X(Fenced, kDrop, "on a connection from before a box was lost: it must be set up anew")                          \
  X(Plain, kForward, "nothing to do")                                                                             \
  X(Gap, kForward, "a request beyond the expected PSN: the responder will refuse it")                             \
  X(GapDropped, kDrop, "an atomic beyond the expected PSN: the responder would refuse it")                        \
  X(Repeated, kForward, "a retransmission that was not changed the first time")                                   \
  X(RepeatedSteered, kForward, "a retransmission, steered to where the original went")                            \
  X(Response, kForward, "a response")                                                                             \
  X(Nak, kForward, "a refusal by the responder")                                                                  \
  X(NodeWritten, kForward, "a WRITE of a node: remembered")                                                       \
  X(CasUnknownNode, kForward, "a CAS whose swap value names no node the box has seen written")                    \
  X(CasAgain, kForward, "a CAS for a node whose link was tried before: left alone")                               \
  X(CasReaimed, kForward, "another CAS for a link under way: aimed where the first went")                         \
  X(CasCold, kForward, "a CAS of a key that is not hot enough to be tracked")                                     \
  X(CasElsewhere, kForward, "a CAS of a key whose tail lies on another node or region")                           \
  X(CasBusy, kForward, "a CAS of a key with a link under way, where nothing is held: left alone")                 \
  X(CasLearning, kForward, "a CAS from whose answer the tail will be known")                                      \
  X(CasAtTail, kForward, "a CAS at its key's tail: a link, unchanged")                                            \
  X(CasSteered, kForward, "a CAS aimed at an old node: a link, steered to the tail")                              \
  X(CasProbe, kForward, "a CAS that expects another kind of tail: steered there to learn so")                     \
  X(CasNoRoom, kDrop, "a CAS for which there is no room to remember it: the client sends it again")               \
  X(CasFenced, kDrop, "a CAS for a node from before a box was lost, whose chain nobody knows")                    \
  X(ReadAtTail, kForward, "a READ of the tail")                                                                   \
  X(ReadSteered, kForward, "a READ of an old node, steered to the tail")                                          \
  X(ReadCold, kForward, "a READ of a node of a key that is not tracked")                                          \
  X(ReadElsewhere, kForward, "a READ of a key whose tail lies on another node or region, or is longer")           \
  X(ReadTooOld, kForward, "a READ of a node that has been an old one for too long")                               \
  X(ReadNoTail, kForward, "a READ of a key whose tail is not known now")                                          \
  X(AtomicReplaced, kForward, "an atomic on a tracked word: a WRITE of its outcome, on the shared connection")    \
  X(WriteMoved, kForward, "a WRITE of a tracked word, moved to the shared connection")                            \
  X(WordPassed, kForward, "an operation on tracked words by itself: its answer tells their value")                \
  X(RepeatedRenumbered, kForward, "a retransmission, with the number that the original got")                      \
  X(WordNoRoom, kDrop, "an operation on a tracked word for which there is no room: it will be sent again")        \
  X(ReadTooLong, kDrop, "a READ of more packets than a connection with operations on words may have: it fails")   \
  X(Damaged, kDrop, "what it says would be acted upon, but its ICRC is wrong")                                    \
  X(SharedAnswer, kDrop, "an answer on the shared connection: given to those whom it concerns")                   \
  X(CongestionShared, kDrop, "congestion on the shared connection: told to those whose operations are under way") \
  X(AnsweredAgain, kDrop, "an operation that is answered: its answer is given again")                             \
  X(StillUnderWay, kDrop, "a replaced operation under way: the box itself sends it again")                        \
  X(Late, kDrop, "an operation that comes again late, on words in use: its client is asked for it later")         \
  X(Stale, kDrop, "a number that the box has forgotten, or an atomic that may not be executed any more")          \
  X(CutOff, kDrop, "of a connection that shared operations were lost with: it must be set up anew")               \
  X(HeldRequest, kHold, "a request that waits for its key's turn, or behind one that does")                       \
  X(HeldResponse, kHold, "a response that waits for the links it depends on, or behind one that does")            \
  X(HeldAlready, kDrop, "a retransmission of a request that is held")                                             \
  X(HoldFull, kDrop, "to be held, but there is no room: it will be sent again")                                   \
  X(Withheld, kDrop, "a response that must not be given, for its chain is broken")                                \
  X(TablesHeld, kDrop, "it came while another core had the tables for too long: it will be sent again (XDP)")

// name, what it means
#define SLUICE_BOX_EVENTS(X)                                                                      \
  X(connections_announced, "connections learned from connection management or the control plane") \
  X(connections_inferred, "connections learned from a request and its answer")                    \
  X(connections_ambiguous, "answers that fitted more than one unknown connection")                \
  X(connections_refused, "connections for which the table had no room")                           \
  X(connections_closed, "connections taken down")                                                 \
  X(connections_expired, "connections forgotten for their silence")                               \
  X(frames_released, "held packets let go")                                                       \
  X(frames_stale, "held requests dropped because their client was silent meanwhile")              \
  X(releases_cut_short, "turns that ended with packets that woke one another: must never happen") \
  X(outbox_full, "packets lost because the way out was full")                                     \
  X(keys_admitted, "keys taken under observation")                                                \
  X(keys_evicted, "keys given up for hotter ones")                                                \
  X(tails_learned, "tails known from an acknowledged link")                                       \
  X(tails_lost, "tails that became unknown: changed by other means, or memory used anew")         \
  X(links_opened, "links forwarded")                                                              \
  X(links_committed, "links acknowledged together with all before them")                          \
  X(links_failed, "links that the server refused and nothing depended on")                        \
  X(links_expired, "links that nobody answered in time, given up (XDP)")                          \
  X(links_resent, "links sent again by the box")                                                  \
  X(repairs_requested, "links handed to the repair agent")                                        \
  X(repairs_done, "links that the repair agent found or made whole")                              \
  X(requests_renumbered, "requests that got another number on the way to the server")             \
  X(words_tracked, "words taken under observation")                                               \
  X(words_evicted, "words given up for others")                                                   \
  X(words_learned, "words whose value an answer has told")                                        \
  X(operations_answered, "replaced operations answered by the box")                               \
  X(congestion_told, "clients told of congestion on a shared connection")                         \
  X(operations_sent_again, "replaced operations sent again by the box")                           \
  X(operations_carried_over, "words written anew because their shared connection was lost")       \
  X(operations_abandoned, "replaced operations that are never answered")                          \
  X(carriers_chosen, "connections chosen to be shared")                                           \
  X(carriers_lost, "shared connections that did not get on any more")                             \
  X(paths_one_way, "asymmetric routing found: atomics are not replaced any more")                 \
  X(chains_broken, "links refused though others already depended on them: must never happen")
