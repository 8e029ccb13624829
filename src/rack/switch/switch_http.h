// What the switch answers over HTTP besides the directory: the rack as a whole.
//
//   GET  /                      the live view, a page for people (it loads /live.js, nothing else)
//   GET  /v1/state              {"at_ms", "nodes", "switch", "box" or null}: all that the live view and `sluice top` show
//   GET  /v1/live               the same as a server-sent event, at once and every second
//   GET  /v1/switch             ports, their counters; how long operations take
//   GET  /v1/box                SwordBox's state and counters, where there is one;  POST: BoxControl::change(), then the same
//   GET  /v1/edm                EDM's grants, where the switch has them;  POST: EdmStage::change()
//   GET  /v1/cowbird            Cowbird's engine in the switch, where there is one;  POST: CowbirdStage::control()
//   POST /v1/capture            what passes the switch, as pcapng (capture_http.h)
//   GET  /metrics               the switch's, for Prometheus;  /metrics/NAME: of the daemon NAME of this run directory
//   GET  /v1/targets            every daemon that can be scraped, for Prometheus's http_sd_configs
//
// Threads:  the server's own; loop, ports and box are asked in the loop's thread. All that is given outlives the server.
#pragma once

#include <string>

#include "nic/poll_loop.h"
#include "rack/directory/directory_store.h"
#include "rack/settings/run_directory.h"
#include "rack/switch/box_stage.h"
#include "rack/switch/capture.h"
#include "rack/switch/cowbird_stage.h"
#include "rack/switch/door.h"
#include "rack/switch/edm_stage.h"
#include "rack/switch/port_labels.h"
#include "rack/switch/switch_ports.h"
#include "telemetry/http_server.h"

namespace sluice::rack {

struct SwitchParts {
  RunDirectory run;
  nic::PollLoop& loop;
  SwitchPorts& ports;
  Captures& captures;
  DirectoryStore& directory;
  PortLabels& port_labels;
  BoxControl* box = nullptr;
  CowbirdStage* cowbird = nullptr;
  EdmStage* edm = nullptr;
  const Door* door = nullptr;
};

void add_switch_routes(telemetry::HttpServer& server, const SwitchParts& parts);

}  // namespace sluice::rack
