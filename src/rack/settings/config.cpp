#include "rack/settings/config.h"

#include <fmt/core.h>

#include <bit>

#include "clover/layout.h"
#include "ports/shm_region.h"
#include "rack/settings/names.h"
#include "switching/egress_queue.h"

namespace sluice::rack {
namespace {

constexpr std::uint64_t kKib = 1024;
constexpr std::uint64_t kGib = kKib * kKib * kKib;
constexpr std::uint64_t kLeastMemory = 4 * kKib;  // of a memory node
constexpr const char* kPortForms =
    "a port such as shm:/path, udp:HOST:PORT, packet:INTERFACE, dpdk:DEVICE, with ,impair(...) if wanted";
constexpr const char* kHttpForm = "HOST:PORT, such as 127.0.0.1:7470; port 0: any that is free";
constexpr const char* kHttpWhat = "serve metrics at this HOST:PORT too, for who cannot ask the switch";

// Of Cowbird's engines.
constexpr Duration kShortestProbe = Duration::nanoseconds(100);
constexpr Duration kLongestProbe = Duration::seconds(1);
constexpr Duration kShortestPatience = Duration::milliseconds(10);
constexpr Duration kLongestPatience = Duration::seconds(600);
constexpr std::size_t kMostSocketPath = 107;  // that a UNIX socket may have
constexpr const char* kIdleProbeWhat = "the same while nobody asks for anything";
constexpr const char* kPatienceWhat = "fail requests to a memory node that has been out of reach for so long";

}  // namespace

void SwitchSettings::declare(Schema& s) {
  s.list("listen", listen, "also take ports that connect here, e.g. udp:0.0.0.0:7471", kPortForms)
      .list("ports", ports, "also open these ports, e.g. packet:eth1 or udp:10.0.0.1:7471", kPortForms)
      .bytes("ring", ring, ports::kMinRing, ports::kMaxRing,
             "shared-memory ring of each port and direction, a power of two")
      .integer("max-ports", max_ports, 2, 4096, "most ports at once")
      .integer("mac-slots", mac_slots, 16, 1 << 20, "addresses that can be learned, a power of two")
      .duration("mac-age", mac_age, Duration::seconds(1), Duration::seconds(86'400),
                "a silent address is forgotten after")
      .bytes("queue", queue, 2 * port::kMaxFrame, kGib, "frames that may wait for a full port")
      .bytes("ecn-threshold", ecn_threshold, 0, kGib,
             "mark ECN-capable RoCEv2 packets that find longer queues; 0: never")
      .integer("flood-rate", flood_rate, 1, 10'000'000, "flooded frames a second and port")
      .ipv4("subnet", subnet, "the rack's /16, from which nodes get their addresses")
      .http("http", http, "serve the live view, metrics and the directory at this HOST:PORT; empty: nowhere")
      .http("serve", serve,
            "let machines that were invited join the rack at this HOST:PORT, TCP and UDP; empty: nowhere")
      .text("tls", tls, "folder of the rack's authority (`sluice rack init`); empty: tls in the run directory",
            kFolderPath)
      .text("tenants", tenants,
            "file that keeps the rack's tenants; empty: tenants.json in the run directory; not used with etcd",
            kFilePath)
      .list("etcd", etcd,
            "keep the directory's state in etcd, reached at these HOST:PORT; empty: in a file of the run directory",
            kHttpForm)
      .text("etcd-prefix", etcd_prefix, "before the names of this rack's keys in etcd", "such as /sluice or /racks/a")
      .text(
          "etcd-tls", etcd_tls,
          "TLS to etcd: folder with its authority.pem and, to show one, certificate.pem and key.pem; empty: plain TCP",
          kFolderPath)
      .text("etcd-user", etcd_user, "user of etcd's; empty: none", "a name")
      .text("etcd-password", etcd_password, "file whose first line is that user's password", kFilePath)
      .toggle("router", router, "route IPv4 sent to the switch's own MAC")
      .toggle("cowbird", cowbird,
              "move data for Cowbird's applications in the switch (`sluice cowbird engine --engine switch`)")
      .duration("cowbird-probe", cowbird_probe, kShortestProbe, kLongestProbe,
                "between two looks at applications' rings while they are busy; all channels take turns")
      .duration("cowbird-idle-probe", cowbird_idle_probe, Duration::microseconds(1), kLongestProbe, kIdleProbeWhat)
      .duration("cowbird-patience", cowbird_patience, kShortestPatience, kLongestPatience, kPatienceWhat)
      .toggle("edm", edm, "grant the rack's memory traffic by EDM's scheduler: no port is sent more than edm-rate")
      .integer("edm-rate", edm_rate, 1, 1'000'000, "rate of every port, in Mb/s, by which EDM grants")
      .bytes("edm-chunk", edm_chunk, 4 * kKib, 8 * kKib * kKib, "READs up to this long are granted as a whole")
      .choice("edm-policy", edm_policy, {"srpt", "fcfs"},
              "srpt: the READ or burst with the least left is granted first, for traffic with few long ones; fcfs: in "
              "the order of coming, so that short ones never keep a long one waiting")
      .duration("edm-hold", edm_hold, Duration::microseconds(10), Duration::seconds(1),
                "what has waited for a grant so long goes without one");
  box.declare(s);
}

Result<void> SwitchSettings::check() const {
  if (!std::has_single_bit(mac_slots))
    return fail(fmt::format("mac-slots = \"{}\": must be a power of two", mac_slots));
  if (!std::has_single_bit(ring)) return fail(fmt::format("ring = \"{}\": must be a power of two", bytes_text(ring)));
  if (ecn_threshold >= queue)
    return fail(fmt::format("ecn-threshold = \"{}\": must be less than queue, {}, or nothing is ever marked",
                            bytes_text(ecn_threshold), bytes_text(queue)));
  if ((subnet.value & 0xFFFF) != 0)
    return fail(
        fmt::format("subnet = \"{}\": must end in .0.0; the rack has all 65,536 addresses", subnet.to_string()));
  if (edm && box.cores != 1)
    return fail(fmt::format("cores = \"{}\": what several cores forward is not granted by --edm; say one of the two",
                            box.cores));
  return box.check();
}

Result<void> MemorySettings::check() const {
  if (auto sound = check_name("--name:", name, kMostNodeName); !sound) return sound;
  if (!dcqcn && line_rate != kLineRate) return fail("line-rate: needs dcqcn; nothing else goes by it");
  return {};
}
Result<void> MetadataSettings::check() const { return check_name("--name:", name, kMostNodeName); }
Result<void> CowbirdSettings::check() const {
  if (socket.size() > kMostSocketPath)
    return fail(fmt::format("--socket = \"{}\": must have at most {} bytes", socket, kMostSocketPath));
  return check_name("--name:", name, kMostNodeName);
}

void MemorySettings::declare(Schema& s) {
  s.text("name", name, "name on the rack", "a name")
      .bytes("size", size, kLeastMemory, 1024 * kGib, "memory to export; only touched pages are paid for")
      .bytes("tenant-size", tenant_size, 0, 1024 * kGib,
             "memory besides, from which tenants get regions; only touched pages are paid for")
      .toggle("shared", shared, "let every tenant use the memory that is exported; none gets a region of its own here")
      .integer("connections", connections, 1, 65'536, "most connections at once")
      .text("port", port, "connect here instead of to the switch of the run directory", kPortForms)
      .toggle("dcqcn", dcqcn, "obey and send congestion notifications")
      .integer("line-rate", line_rate, 1, 1'000'000, "rate of the node's link, in Mb/s, from which DCQCN goes down")
      .toggle("cowbird", cowbird,
              "move data for Cowbird's applications of other machines (`sluice cowbird engine --engine at:NAME`)")
      .duration("cowbird-probe", cowbird_probe, kShortestProbe, kLongestProbe,
                "between two looks at applications' rings while they are busy; of each application")
      .duration("cowbird-idle-probe", cowbird_idle_probe, Duration::microseconds(1), kLongestProbe, kIdleProbeWhat)
      .duration("cowbird-patience", cowbird_patience, kShortestPatience, kLongestPatience, kPatienceWhat)
      .bytes("cowbird-rings", cowbird_rings, 64 * kKib, 1024 * kGib,
             "rings that are served at once; each takes as much memory here")
      .http("http", http, kHttpWhat);
}

void MetadataSettings::declare(Schema& s) {
  s.text("name", name, "name on the rack", "a name")
      .bytes("value-size", value_size, 8, 16'360, "the longest value")
      .integer("replication", replication, 1, 3, "copies of each value, on different memory nodes")
      .integer("memory-nodes", memory_nodes, 1, clover::kMaxVolumes, "wait for so many memory nodes")
      .bytes("space", space, 0, 1024 * kGib, "memory to use of each node; 0: all")
      .duration("cursor-lifetime", cursor_lifetime, Duration::milliseconds(10), Duration::seconds(60),
                "how long clients trust a cursor")
      .integer("connections", connections, 1, 65'536, "most connections at once")
      .text("port", port, "connect here instead of to the switch of the run directory", kPortForms)
      .http("http", http, kHttpWhat);
}

void CowbirdSettings::declare(Schema& s) {
  s.text("name", name, "name on the rack", "a name")
      .choice(
          "engine", engine, {"here", "switch"},
          "who moves the data: this process, or a switch or memory node with --cowbird, for which this process only "
          "makes the applications' memory reachable",
          "at:NODE")
      .text("socket", socket, "where applications find the engine; empty: cowbird.sock in the run directory", "a path")
      .text("port", port, "connect here instead of to the switch of the run directory", kPortForms)
      .duration("probe", probe, kShortestProbe, kLongestProbe,
                "between two looks at applications' rings while they are busy; of each application")
      .duration("idle-probe", idle_probe, Duration::microseconds(1), kLongestProbe, kIdleProbeWhat)
      .integer("batch-size", batch_size, 1, 65'536, "most reads whose data goes back in one batch")
      .integer("instances", instances, 1, 65'536, "most applications at once")
      .duration("patience", patience, kShortestPatience, kLongestPatience, kPatienceWhat)
      .http("http", http, kHttpWhat);
}

void RackSettings::declare(Schema& s) {
  s.text("dir", dir, "run directory: sockets, state, logs and pid files of the rack", kFolderPath)
      .text("token-file", token_file,
            "file with the token of a tenant, who is asking; empty: as SLUICE_TOKEN_FILE says", kFilePath)
      .integer("memory-nodes", memory_nodes, 1, 64, "memory nodes to start")
      .toggle("metadata", metadata, "start a Clover metadata server")
      .bytes_or_0(
          "memory-size", memory_size, kLeastMemory, 1024 * kGib,
          fmt::format("memory of each memory node; 0: as [memory] size says, or {}", bytes_text(MemorySettings{}.size)))
      .bytes("value-size", value_size, 0, 16'360,
             fmt::format("Clover's longest value; 0: as [metadata] value-size says, or {}",
                         bytes_text(MetadataSettings{}.value_size)))
      .integer(
          "replication", replication, 0, 3,
          fmt::format("copies of each value; 0: as [metadata] replication says, or {}", MetadataSettings{}.replication))
      .choice("box", box, {"", "off", "watch", "clover", "words", "clover+words"},
              "SwordBox in the switch; empty: as [switch] box says")
      .toggle("cowbird", cowbird, "Cowbird's engine in the switch")
      .toggle("memory-cowbird", memory_cowbird, "Cowbird's engines on the memory nodes")
      .toggle("edm", edm, "EDM's grants in the switch, for ports as fast as [switch] edm-rate says")
      .http("http", http, "serve the live view and metrics at this HOST:PORT; empty: as [switch] http says")
      .http("serve", serve, "let invited machines join at this HOST:PORT; empty: as [switch] serve says")
      .duration("start-timeout", start_timeout, Duration::seconds(1), Duration::seconds(600),
                "give up when a daemon is not ready after");
}

}  // namespace sluice::rack
