// Captures over HTTP: POST /v1/capture {"filter": "udp port 4791", "nodes": ["memory-0"], "in": true, "out": false, "snap": 0}, every key
// optional, answers pcapng without an end. As all that changes something it is for the rack itself, not for tenants: who sees the
// frames sees everybody's data and keys.
//
// Blocks:   a section, the nodes' addresses by name, an interface for the switch and one for each port before its first packet, packets; how many frames were lost; the names of nodes that have
//           come since, or none, several times a second: a sign of life.
// Threads:  as for switch_http.h.
#pragma once

#include "rack/switch/capture.h"
#include "rack/switch/switch_http.h"

namespace sluice::rack {

inline constexpr const char* kCapturePath = "/v1/capture";

void add_capture_route(telemetry::HttpServer& server, const SwitchParts& parts);

}  // namespace sluice::rack
