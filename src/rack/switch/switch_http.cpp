#include "rack/switch/switch_http.h"

#include <fmt/core.h>
#include <httplib.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "rack/directory/directory_http.h"
#include "rack/directory/directory_json.h"
#include "rack/process/ask.h"
#include "rack/process/daemon_http.h"
#include "rack/process/metrics.h"
#include "rack/settings/schema.h"
#include "rack/switch/capture_http.h"
#include "rack/switch/cowbird_stage.h"
#include "rack/switch/live_page.h"

namespace sluice::rack {
namespace {

using nlohmann::json;
using telemetry::HttpServer;
using telemetry::kJson;
using telemetry::MetricSet;

constexpr std::size_t kMostListed = 20;
constexpr Duration kLivePeriod = Duration::seconds(1);
constexpr Duration kScrape = Duration::seconds(1);  // of another daemon: it holds a thread of ours meanwhile
const char* const kBusy = R"({"error": "the switch is busy"})";

// A request's Host need not be UTF-8, nor a certificate's name.
std::string text_of(const json& out) { return out.dump(-1, ' ', false, json::error_handler_t::replace); }

std::string switch_status(const SwitchParts& parts) {
  const auto report = ask<SwitchReport>(
      parts.loop, [&ports = parts.ports](Time now) -> Result<SwitchReport> { return ports.report(now); });
  return report ? report->to_json() : kBusy;
}

std::string box_status(const SwitchParts& parts) {
  return ask<std::string>(parts.loop,
                          [box = parts.box](Time) -> Result<std::string> { return box->status_json(kMostListed); })
      .value_or(kBusy);
}

// For everybody who can connect: it opens nothing, and of what nodes say of themselves there is only what is nobody's secret.
void make_picture(NodeDescription& node) {
  for (RegionRecord& region : node.regions) {
    region.key = 0;
    region.address = 0;
  }
  std::erase_if(node.attributes, [](const auto& attribute) {
    return attribute.first != kTenantAttribute && attribute.first != kMachineAttribute && attribute.first != "pid";
  });
}

// Keys of a store, where in memory they are, and numbers of connections are what others' frames would need.
std::string picture_of_box(const std::string& status) {
  json box = json::parse(status, nullptr, false);
  if (!box.is_object()) return status;
  for (const char* const list : {"top_keys", "top_connections"}) {
    if (box.contains(list)) box[list] = json::array();
  }
  return text_of(box);
}

// Whose applications use which channels, and where from.
std::string picture_of_cowbird(const std::string& status) {
  json cowbird = json::parse(status, nullptr, false);
  if (!cowbird.is_object() || !cowbird.contains("channels")) return status;
  cowbird["channels"] = json::array();
  return text_of(cowbird);
}

std::string state(const SwitchParts& parts, bool for_the_rack) {
  auto snapshot = parts.directory.nodes();
  if (snapshot) {
    for (NodeRecord& node : snapshot->nodes) make_picture(node.description);
  }
  json out{{"at_ms",
            std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
                .count()},
           {"nodes", snapshot ? to_json(*snapshot)["nodes"] : json::array()},
           {"switch", json::parse(switch_status(parts), nullptr, false)},
           {"may_change", for_the_rack},  // whether who asks may POST /v1/box
           {"box", nullptr}};
  if (!snapshot) out["nodes_error"] = snapshot.error().message;
  if (parts.box != nullptr) {
    const std::string box = box_status(parts);
    out["box"] = json::parse(for_the_rack ? box : picture_of_box(box), nullptr, false);
  }
  return text_of(out);
}

// What the loop's thread says of itself.
struct Moment {
  nic::PollLoopCounters loop;
  SwitchReport report;
  std::string box;  // JSON; empty: there is none
  std::optional<CowbirdStage::Counts> cowbird;
  std::size_t captures = 0;
};

void collect(const Moment& moment, MetricSet& set, const SwitchParts& parts, const Result<Snapshot>& snapshot) {
  add_loop(set, moment.loop);
  set.gauge("directory_answers", "1 while the directory, or the store behind it, can be read", snapshot ? 1 : 0);
  if (snapshot) add_directory(set, *snapshot);
  if (parts.door != nullptr) {
    set.counter("door_handshakes_failed", "machines without a certificate that counts",
                parts.door->handshakes_failed());
    set.counter("door_revoked", "requests of machines that were shut out", parts.door->revoked());
  }
  moment.report.collect(set, parts.port_labels.look(moment.report, snapshot ? &*snapshot : nullptr));
  set.gauge("switch_captures", "captures that are under way", static_cast<double>(moment.captures));
  add_latency(set, moment.report.latency);
  const json status = json::parse(moment.box, nullptr, false);
  if (status.is_object()) add_box(set, status);
  if (moment.cowbird) moment.cowbird->collect(set);
}

std::string scrape_switch(const SwitchParts& parts) {
  // The directory may be at its disk: it is asked here, not in the loop's thread.
  using Standings = std::vector<Tenants::Standing>;
  return scrape("switch", parts.loop,
                [parts, snapshot = parts.directory.nodes(),
                 tenants = parts.directory.tenants().list().value_or(Standings{})](Time now) {
                  const Moment moment{parts.loop.counters(), parts.ports.report(now),
                                      parts.box == nullptr ? "" : parts.box->status_json(0),
                                      parts.cowbird == nullptr ? std::nullopt : std::optional(parts.cowbird->counts()),
                                      parts.captures.open()};
                  return [moment, parts, snapshot, tenants](MetricSet& set) {
                    collect(moment, set, parts, snapshot);
                    add_tenants(set, parts.directory.tenants(), tenants);
                  };
                });
}

// A daemon of this run directory, asked at its own socket.
void answer_for(const SwitchParts& parts, const std::string& daemon, httplib::Response& response) {
  const std::string socket = parts.run.http_socket(daemon);
  if (!std::filesystem::exists(socket))
    return telemetry::answer_error(response, 404, fmt::format("no daemon '{}' answers in this run directory", daemon));
  auto body = DirectoryClient({socket}, Duration()).get("/metrics", kScrape);
  if (!body)
    return telemetry::answer_error(
        response, 502,
        fmt::format("daemon '{}' does not answer within {}; is it stopped?", daemon, duration_text(kScrape)));
  response.set_content(*body, MetricSet::kContentType);
}

// Prometheus's "HTTP SD": where it asked us it can ask for all whose sockets we reach; others have addresses of their own.
// One that gets an error goes on with what it had; "none" would silence every alert.
Result<std::string> targets(const SwitchParts& parts, const std::string& host) {
  json all = json::array();
  const auto add = [&all](const std::string& target, const std::string& path, const NodeRecord& node) {
    all.push_back({{"targets", {target}},
                   {"labels",
                    {{"__metrics_path__", path},
                     {"role", std::string(to_string(node.description.kind))},  // no name that a metric's own label has
                     {"instance", node.description.name}}}});
  };
  const auto snapshot = parts.directory.nodes();
  if (!snapshot) return tl::unexpected(snapshot.error());
  for (const NodeRecord& node : snapshot->nodes) {
    const NodeDescription& d = node.description;
    // What a tenant says is not for others to act on; who has left is not missing.
    const bool has_left = node.state == NodeState::kGone && node.has_left;
    if (!tenant_of(d).empty() || has_left) continue;
    if (d.kind == NodeKind::kSwitch) {
      add(host, "/metrics", node);
    } else if (std::filesystem::exists(parts.run.http_socket(d.name))) {
      add(host, "/metrics/" + d.name, node);
    } else if (d.attributes.contains(kHttpAttribute)) {
      add(d.attributes.at(kHttpAttribute), "/metrics", node);
    }
  }
  return text_of(all);
}

}  // namespace

void add_switch_routes(HttpServer& server, const SwitchParts& parts) {
  const auto is_rack = [parts, at_socket = server.is_at_socket()](const httplib::Request& request) {
    return parts.directory.tenants().is_rack(token_of(request), at_socket);
  };
  server.serve("/v1/switch", kJson, [parts] { return switch_status(parts); });
  server.serve_each("/v1/state", kJson,
                    [parts, is_rack](const auto& request) { return state(parts, is_rack(request)); });
  server.stream("/v1/live", kLivePeriod,
                [parts, is_rack](const auto& request) { return state(parts, is_rack(request)); });
  server.serve("/", "text/html; charset=utf-8", [] { return std::string(live_page()); });
  server.serve("/live.js", "text/javascript; charset=utf-8", [] { return std::string(live_script()); });
  server.serve("/metrics", MetricSet::kContentType, [parts] { return scrape_switch(parts); });
  server.http().Get(R"(/metrics/([A-Za-z0-9_.-]+))",
                    [parts](const httplib::Request& request, httplib::Response& response) {
                      answer_for(parts, request.matches[1].str(), response);
                    });
  server.http().Get("/v1/targets", [parts](const httplib::Request& request, httplib::Response& response) {
    const auto all = targets(parts, request.get_header_value("Host"));
    if (!all) return telemetry::answer_error(response, 503, all.error().message);
    response.set_content(*all, kJson);
  });
  add_capture_route(server, parts);
  if (parts.cowbird != nullptr) {
    server.serve_each("/v1/cowbird", kJson, [parts, is_rack](const auto& request) {
      const auto status = ask<std::string>(
          parts.loop, [stage = parts.cowbird](Time) -> Result<std::string> { return stage->status_json(); });
      if (!status) return std::string(kBusy);
      return is_rack(request) ? *status : picture_of_cowbird(*status);
    });
    server.take("/v1/cowbird", [parts](const std::string& body) {
      return ask<std::string>(parts.loop,
                              [stage = parts.cowbird, body](Time now) { return stage->control(now, body); });
    });
  }
  if (parts.edm != nullptr) {
    server.serve("/v1/edm", kJson, [parts] {
      return ask<std::string>(parts.loop,
                              [stage = parts.edm](Time) -> Result<std::string> { return stage->status_json(); })
          .value_or(kBusy);
    });
    server.take("/v1/edm", [parts](const std::string& body) {
      return ask<std::string>(parts.loop, [stage = parts.edm, body](Time) -> Result<std::string> {
        if (auto changed = stage->change(body); !changed) return tl::unexpected(changed.error());
        return stage->status_json();
      });
    });
  }
  if (parts.box == nullptr) return;
  server.serve_each("/v1/box", kJson, [parts, is_rack](const auto& request) {
    return is_rack(request) ? box_status(parts) : picture_of_box(box_status(parts));
  });
  server.take("/v1/box", [parts](const std::string& body) {
    return ask<std::string>(parts.loop, [box = parts.box, body](Time) -> Result<std::string> {
      if (auto changed = box->change(body); !changed) return tl::unexpected(changed.error());
      return box->status_json(kMostListed);
    });
  });
}

}  // namespace sluice::rack
