// Ports and listeners from text: what flags and configuration files say, and what to do when they say it wrongly.
//
//   shm:/path           shared memory: connects to the switch (or the cable) that listens at the socket /path
//   cable:/path         shared memory: waits at /path for exactly one shm:/path, no switch between
//   udp:HOST:PORT       Ethernet frames in UDP datagrams; options: datagram=BYTES (default: what the path's MTU allows)
//   packet:INTERFACE    RoCEv2 on a real interface (AF_PACKET, needs CAP_NET_RAW); options: filter=roce|all
//   pcap:FILE           replays a capture; options: pace=fast|recorded
//   dpdk:DEVICE         a virtual device of DPDK's, in programs that have it; options: the driver's, see dpdk/dpdk_port.h
// Any of them may end in ",record=FILE", which writes what passes on the wire to a capture, and in ",impair(...)", see
// port/impairment.h.
// Errors:  name the text, what is wrong with it, and what is allowed.
#pragma once

#include <memory>
#include <string_view>

#include "base/result.h"
#include "port/listener.h"
#include "port/port.h"
#include "ports/shm_port.h"
#include "ports/spec.h"

namespace sluice::ports {

// `absent` matters for shm: alone; the calling end of udp: always waits for its peer.
Result<std::unique_ptr<port::Port>> open_port(std::string_view spec, Absent absent = Absent::kFail);

// "shm:/path" or "udp:HOST:PORT". Options: ring=BYTES (shm), datagram=BYTES and peers=COUNT (udp).
Result<std::unique_ptr<port::Listener>> open_listener(std::string_view spec);

// Another kind, in a program that brings its libraries. REQUIRES: before the first port is opened.
using PortOpener = Result<std::unique_ptr<port::Port>> (*)(const PortSpec&);
void add_port_kind(std::string_view name, PortOpener opener);

}  // namespace sluice::ports
