// What all rdma_cm ids of a process share: who listens, which connection belongs to which id, and who is waited for.
//
// Why so patient: programs that listen, talk, and listen again at the same port (perftest -R) rely on a peer that needs some time to resolve
//             its route; ours takes none. So a request for a port whose listener has just gone, or that is bound and not listened at yet,
//             waits kLinger for one; and who has just talked to a peer asks it so long again.
// Threads:    any; what is guarded, by the NIC's lock.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <variant>
#include <vector>

#include "rc/connection_manager.h"
#include "verbs/connection.h"

namespace sluice::verbs {

constexpr Duration kLinger = Duration::seconds(2);
// From when an id's connection is over until its queue pair may be used again, RDMA_CM_EVENT_TIMEWAIT_EXIT: as long as the connection manager rests
// by default.
inline constexpr Duration kTimeWait = wire::cm_timeout(rc::ConnectionManager::kDefaultAckTimeout);

using Request = std::variant<rc::ConnectionEvent, rc::ResolutionEvent>;

struct Service {
  static constexpr std::uint16_t kFirstEphemeral = 32'768;

  std::mutex mutex;                // guards the first use
  ibv_context* context = nullptr;  // then constant
  // Guarded by the NIC's lock:
  std::multimap<Endpoint, ConnectionId*> bound{};
  std::map<Endpoint, ConnectionId*> listeners{};
  std::map<std::uint32_t, ConnectionId*> connections{};  // by rc::ConnectionId
  std::map<std::uint32_t, ConnectionId*> resolutions{};  // by rc::ResolutionId
  std::uint16_t last_port = 0;                           // that has been given to an id of ours which asked for any
  // Services whose listener is gone or not there yet, until when requests for them wait for one, and those that do.
  struct Lingering {
    Time until{};
    ports::Descriptor alone{};  // its lock
  };
  std::map<wire::ServiceId, Lingering> lingering{};
  std::vector<Request> waiting{};  // swept by the NIC's alarm
  struct Acquaintance {
    wire::Gid remote{};
    std::uint16_t port = 0;
    Time until{};
  };
  std::vector<Acquaintance> acquaintances{};
  struct Resting {
    ConnectionId* id = nullptr;
    Time until{};
  };
  std::vector<Resting> resting{};  // ids whose connection is over; swept by the NIC's alarm
  bool ended = false;              // the program ends, and with it all connections
};

// Lives to the end.
Service& service();
// The device, opened at first use. Null: there is none, or it has stayed with the parent of a fork; errno says so.
ibv_context* open_context();
// Its NIC. REQUIRES: it has been opened, if only in the parent.
ProcessNic& open_nic();
// Where programs give no protection domain: one for all. Null: errno says why.
ibv_pd* default_domain(ibv_context* context);
ProcessNic& nic_of(const ConnectionId& id);
rc::ConnectionManager& manager_of(const ConnectionId& id);
wire::Gid own_gid(const ProcessNic& nic, bool v4);
void set_source(ConnectionId& id, const wire::Gid& gid, std::uint16_t port);
void set_destination(ConnectionId& id, const wire::Gid& gid, std::uint16_t port);
wire::ServiceId service_at(const ConnectionId& id, std::uint16_t port);
wire::ServiceId service_of(const ConnectionId& id);  // at its own port
std::uint16_t next_port(Service& s);                 // for who asks for any; REQUIRES the lock
Result<void> listen_at(ProcessNic& nic, wire::ServiceId service);

// All below REQUIRE the lock.
// False: another id has that port, and one of the two does not share it.
bool take_port(Service& s, ConnectionId& id, const wire::Gid& own, std::uint16_t port);
void leave_port(Service& s, ConnectionId& id);
// Requests for the service, which is listened at in the connection manager, wait for a listener for a while.
void await_listener(ProcessNic& nic, wire::ServiceId service, ports::Descriptor alone);
// A request that an id has been made for is turned away: its event will not be fetched.
void drop_request(ProcessNic& nic, ConnectionId& id);
void queue_event(ConnectionId& id, std::unique_ptr<CmEvent> event);
void queue_event(ConnectionId& id, rdma_cm_event_type type);
// Of an id that goes.
void forget_events(const ConnectionId& id);
// A connection is over that we may have asked for.
void remember_peer(Service& s, const ConnectionId& id);
// Of a connection that there is, or that has just ended.
bool knows_peer(const Service& s, const ConnectionId& id);
// Whether anybody listens at that port, at whatever address.
bool has_listener(const Service& s, wire::ServiceId service);
// Who listens for requests to that address of ours: the one that is bound to it, or to any. Null: nobody.
ConnectionId* listener_for(const Service& s, wire::ServiceId service, const wire::Gid& local);
// There is a listener now.
void serve_waiting(Service& s, wire::ServiceId service);

}  // namespace sluice::verbs
