// What each daemon can be told, by TOML table and by flags of the same names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rack/settings/box_settings.h"
#include "rack/settings/run_directory.h"
#include "rack/settings/schema.h"

namespace sluice::rack {

inline constexpr std::uint16_t kConnectionPort = 7471;  // where memory nodes and the metadata server listen for RDMA-CM

// [switch]
struct SwitchSettings {
  std::vector<std::string> listen;  // besides the run directory's shm socket
  std::vector<std::string> ports;
  std::uint64_t ring = std::uint64_t{1} << 20;
  std::uint64_t max_ports = 1024;
  std::uint64_t mac_slots = 16'384;
  Duration mac_age = Duration::seconds(300);
  std::uint64_t queue = std::uint64_t{4} << 20;
  std::uint64_t ecn_threshold = 0;
  std::uint64_t flood_rate = 20'000;
  wire::Ipv4Address subnet{0x0A4D0000};
  std::string http;               // serve the live view, metrics and the directory there
  std::string serve;              // where machines that were invited join
  std::vector<std::string> etcd;  // where the directory's state is; empty: in a file of the run directory
  std::string etcd_prefix = "/sluice";
  std::string etcd_tls;   // folder with authority.pem and, to show one, certificate.pem and key.pem; empty: plain TCP
  std::string etcd_user;  // empty: none
  std::string etcd_password;  // a file that holds it
  std::string tenants;        // file of the rack's tenants; empty: tenants.json in the run directory
  std::string tls;            // folder of the rack's authority; empty: tls in the run directory
  bool router = true;
  BoxSettings box{};
  bool cowbird = false;
  Duration cowbird_probe = Duration::microseconds(2);
  Duration cowbird_idle_probe = Duration::milliseconds(1);
  Duration cowbird_patience = Duration::seconds(5);
  bool edm = false;
  std::uint64_t edm_rate = 10'000;  // Mb/s
  std::uint64_t edm_chunk = std::uint64_t{256} << 10;
  std::string edm_policy = "srpt";
  Duration edm_hold = Duration::milliseconds(5);

  void declare(Schema& schema);
  // Of what cannot be checked one by one.
  Result<void> check() const;
};

// [memory]
inline constexpr std::uint64_t kLineRate = 40'000;  // Mb/s; of a NIC's link, unless it is told another

struct MemorySettings {
  std::string name = "memory1";
  std::uint64_t size = std::uint64_t{16} << 30;
  std::uint64_t tenant_size = std::uint64_t{16} << 30;
  bool shared = false;
  std::uint64_t connections = 4096;
  std::string port;  // empty: the run directory's switch
  bool dcqcn = false;
  std::uint64_t line_rate = kLineRate;
  bool cowbird = false;
  Duration cowbird_probe = Duration::microseconds(2);
  Duration cowbird_idle_probe = Duration::milliseconds(1);
  Duration cowbird_patience = Duration::seconds(5);
  std::uint64_t cowbird_rings = std::uint64_t{1} << 30;
  std::string http;  // serve metrics there

  void declare(Schema& schema);
  Result<void> check() const;
};

// [metadata]
struct MetadataSettings {
  std::string name = "metadata";
  std::uint64_t value_size = 1000;
  std::uint64_t replication = 1;
  std::uint64_t memory_nodes = 1;  // wait for so many
  std::uint64_t space = 0;         // of each memory node; 0: all
  Duration cursor_lifetime = Duration::seconds(1);
  std::uint64_t connections = 4096;
  std::string port;
  std::string http;

  void declare(Schema& schema);
  Result<void> check() const;
};

// [cowbird]
struct CowbirdSettings {
  std::string name = "cowbird";
  std::string engine = "here";
  std::string socket;  // empty: cowbird.sock in the run directory
  std::string port;
  Duration probe = Duration::microseconds(2);
  Duration idle_probe = Duration::milliseconds(1);
  std::uint64_t batch_size = 256;
  std::uint64_t instances = 256;
  Duration patience = Duration::seconds(5);
  std::string http;

  void declare(Schema& schema);
  Result<void> check() const;
};

// [rack]
struct RackSettings {
  std::string dir = RunDirectory::default_path();
  std::string token_file;  // empty: as SLUICE_TOKEN_FILE says
  std::uint64_t memory_nodes = 2;
  bool metadata = true;
  // 0 or empty: as [memory], [metadata] and [switch] say.
  std::uint64_t memory_size = 0;
  std::uint64_t value_size = 0;
  std::uint64_t replication = 0;
  std::string box;
  bool cowbird = false;
  bool memory_cowbird = false;
  bool edm = false;
  std::string http;
  std::string serve;
  Duration start_timeout = Duration::seconds(15);

  void declare(Schema& schema);
};

}  // namespace sluice::rack
