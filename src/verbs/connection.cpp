#include "verbs/connection.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

namespace sluice::verbs {
namespace {

constexpr std::uint16_t kFirstEphemeral = 32'768;
// Programs that listen, talk, and listen again at the same port (perftest -R) rely on a peer that needs some time to resolve its route.
constexpr Duration kLinger = Duration::seconds(2);

// Such programs, as the peer that takes no time, come before a slow server listens again: who has just talked to it asks again.
struct Acquaintance {
  wire::Gid remote{};
  std::uint16_t port = 0;
  Time until{};
};

// What all ids of this process share. Lives to the end.
struct Service {
  std::mutex mutex;                // guards the first use
  ibv_context* context = nullptr;  // then constant
  // Guarded by the NIC's lock:
  std::map<std::uint16_t, ConnectionId*> listeners{};
  std::map<std::uint32_t, ConnectionId*> connections{};
  std::uint16_t next_port = kFirstEphemeral;
  // Ports whose listener is gone or not there yet, until when requests for them wait for one, and those that do.
  struct Lingering {
    Time until{};
    ports::Descriptor alone{};  // its lock
  };
  std::map<std::uint16_t, Lingering> lingering{};
  std::vector<rc::ConnectionEvent> waiting{};
  std::vector<Acquaintance> acquaintances{};
};

Service& service() {
  static Service* const one = new Service;
  return *one;
}

ProcessNic& nic_of(const ConnectionId& id) { return *Context::of(id.abi.verbs).nic; }
rc::ConnectionManager& manager_of(const ConnectionId& id) { return nic_of(id).adapter().connections(); }

int failed(int error, std::string_view why) {
  refuse(error, why);
  return -1;
}

sockaddr_storage socket_address(const wire::Gid& gid, std::uint16_t port) {
  sockaddr_storage storage{};
  if (gid.is_v4()) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    v4.sin_addr.s_addr = htonl(gid.v4().value);
  } else {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    std::ranges::copy(gid.bytes, v6.sin6_addr.s6_addr);
  }
  return storage;
}

std::uint16_t port_of(const sockaddr* address) {
  if (address->sa_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(address)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port);
}

// Nothing: of a family without GIDs.
std::optional<wire::Gid> gid_of(const sockaddr* address) {
  wire::Gid gid;
  if (address->sa_family == AF_INET) {
    return wire::Gid::from({ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr)});
  }
  if (address->sa_family != AF_INET6) return std::nullopt;
  std::ranges::copy(reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr.s6_addr, gid.bytes.begin());
  return gid;
}

bool is_any(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr == INADDR_ANY;
  return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr) != 0;
}

// 127.0.0.0/8 and ::1 mean this host.
bool is_loopback(const wire::Gid& gid) {
  if (gid.is_v4()) return gid.v4().value >> 24 == 127;
  wire::Gid one;
  one.bytes[15] = 1;
  return gid == one;
}

wire::Gid own_gid(const ProcessNic& nic, bool v4) {
  const auto& gids = nic.settings().gids;
  return *std::ranges::find_if(gids, [v4](const wire::Gid& gid) { return gid.is_v4() == v4; });
}

void set_source(ConnectionId& id, const wire::Gid& gid, std::uint16_t port) {
  id.abi.route.addr.src_storage = socket_address(gid, port);
  std::ranges::copy(gid.bytes, id.abi.route.addr.addr.ibaddr.sgid.raw);
  id.abi.route.addr.addr.ibaddr.pkey = 0xFFFF;
}

void set_destination(ConnectionId& id, const wire::Gid& gid, std::uint16_t port) {
  id.remote = gid;
  id.abi.route.addr.dst_storage = socket_address(gid, port);
  std::ranges::copy(gid.bytes, id.abi.route.addr.addr.ibaddr.dgid.raw);
}

// REQUIRES: the lock.
void queue_event(ConnectionId& id, std::unique_ptr<CmEvent> event) {
  event->counted = &id;
  EventChannel& channel = EventChannel::of(id.abi.channel);
  channel.events.push_back(std::move(event));
  const std::uint64_t one = 1;
  static_cast<void>(!write(channel.abi.fd, &one, sizeof one));
}

void queue_event(ConnectionId& id, rdma_cm_event_type type, int status = 0) {
  auto event = std::make_unique<CmEvent>();
  event->abi.id = &id.abi;
  event->abi.event = type;
  event->abi.status = status;
  queue_event(id, std::move(event));
}

std::unique_ptr<CmEvent> translate(const rc::ConnectionEvent& told, ConnectionId& id, rdma_cm_event_type type) {
  auto event = std::make_unique<CmEvent>();
  event->private_data = told.private_data;
  event->abi.id = &id.abi;
  event->abi.event = type;
  rdma_conn_param& conn = event->abi.param.conn;
  conn.private_data = event->private_data.empty() ? nullptr : event->private_data.data();
  conn.private_data_len = static_cast<std::uint8_t>(std::min<std::size_t>(event->private_data.size(), 255));
  conn.responder_resources = told.responder_resources;
  conn.initiator_depth = told.initiator_depth;
  conn.qp_num = told.remote_qpn.value;
  return event;
}

// A request for a port whose listener is gone.
void on_orphan(Service& s, const rc::ConnectionEvent& told) {
  ProcessNic& nic = *Context::of(s.context).nic;
  if (nic.now() < s.lingering[told.port].until) {
    s.waiting.push_back(told);
    return;
  }
  s.lingering.erase(told.port);
  nic.adapter().connections().reject(nic.now(), told.id, {});
  nic.adapter().connections().stop_listening(told.port);
}

// A new id for a request that has come to a listener.
void on_request(Service& s, const rc::ConnectionEvent& told) {
  const auto listener = s.listeners.find(told.port);
  if (listener == s.listeners.end()) return on_orphan(s, told);
  ConnectionId& parent = *listener->second;
  auto* const id = new ConnectionId;  // the program's, by the event
  id->abi.verbs = parent.abi.verbs;
  id->abi.channel = parent.abi.channel;
  id->abi.context = parent.abi.context;
  id->abi.ps = parent.abi.ps;
  id->abi.port_num = 1;
  id->abi.qp_type = IBV_QPT_RC;
  id->abi.pd = parent.abi.pd;
  id->connection = told.id;
  set_source(*id, own_gid(nic_of(*id), told.remote.is_v4()), told.port);
  set_destination(*id, told.remote, 0);
  s.connections[told.id.value] = id;
  auto event = translate(told, *id, RDMA_CM_EVENT_CONNECT_REQUEST);
  event->abi.listen_id = &parent.abi;
  queue_event(parent, std::move(event));
}

rdma_cm_event_type type_of(rc::ConnectionEvent::Kind kind) {
  switch (kind) {
    case rc::ConnectionEvent::Kind::kRequest: return RDMA_CM_EVENT_CONNECT_REQUEST;
    case rc::ConnectionEvent::Kind::kResponse: return RDMA_CM_EVENT_CONNECT_RESPONSE;
    case rc::ConnectionEvent::Kind::kEstablished: return RDMA_CM_EVENT_ESTABLISHED;
    case rc::ConnectionEvent::Kind::kRejected: return RDMA_CM_EVENT_REJECTED;
    case rc::ConnectionEvent::Kind::kUnreachable: return RDMA_CM_EVENT_UNREACHABLE;
    case rc::ConnectionEvent::Kind::kDisconnected: return RDMA_CM_EVENT_DISCONNECTED;
  }
  return RDMA_CM_EVENT_CONNECT_ERROR;
}

// A connection is over that we may have asked for.
void remember_peer(Service& s, const ConnectionId& id) {
  const std::uint16_t port = port_of(&id.abi.route.addr.dst_addr);
  if (port == 0) return;  // the peer asked
  const Time now = nic_of(id).now();
  std::erase_if(s.acquaintances,
                [&](const Acquaintance& a) { return a.until < now || (a.remote == id.remote && a.port == port); });
  s.acquaintances.push_back({id.remote, port, now + kLinger});
}

// Of a connection that there is, or that has just ended.
bool knows_peer(const Service& s, const ConnectionId& id) {
  const std::uint16_t port = port_of(&id.abi.route.addr.dst_addr);
  const Time now = nic_of(id).now();
  return std::ranges::any_of(s.connections,
                             [&](const auto& entry) {
                               const ConnectionId& other = *entry.second;
                               return other.remote == id.remote && port_of(&other.abi.route.addr.dst_addr) == port;
                             }) ||
         std::ranges::any_of(s.acquaintances, [&](const Acquaintance& a) {
           return a.remote == id.remote && a.port == port && now < a.until;
         });
}

void on_connection_event(const rc::ConnectionEvent& told) {
  using Kind = rc::ConnectionEvent::Kind;
  Service& s = service();
  if (told.kind == Kind::kRequest) return on_request(s, told);
  const auto found = s.connections.find(told.id.value);
  if (found == s.connections.end()) return;
  ConnectionId& id = *found->second;
  auto event = translate(told, id, type_of(told.kind));
  if (told.kind == Kind::kRejected) event->abi.status = static_cast<int>(told.reject_reason);
  if (told.kind == Kind::kUnreachable) event->abi.status = -ETIMEDOUT;
  if (told.kind == Kind::kDisconnected) remember_peer(s, id);
  queue_event(id, std::move(event));
  const bool over = told.kind == Kind::kRejected || told.kind == Kind::kUnreachable || told.kind == Kind::kDisconnected;
  if (!over) return;
  s.connections.erase(found);
  id.connection.reset();
}

// The device, opened at first use. Null: there is none, and errno says so.
ibv_context* open_context() {
  Service& s = service();
  const std::lock_guard guard(s.mutex);
  if (s.context != nullptr) return s.context;
  int count = 0;
  ibv_device** const list = ibv_get_device_list(&count);
  if (count != 0) s.context = ibv_open_device(list[0]);
  ibv_free_device_list(list);
  if (s.context == nullptr) {
    errno = ENODEV;
    return nullptr;
  }
  ProcessNic& nic = *Context::of(s.context).nic;
  const NicLock locked(nic.lock());
  nic.set_connection_handler(on_connection_event);
  return s.context;
}

rc::ConnectionParameters parameters_of(const ConnectionId& id, const rdma_conn_param* conn) {
  rc::ConnectionParameters p;
  if (id.abi.qp != nullptr) {
    p.pair = QueuePair::of(id.abi.qp).pair;
  } else if (conn != nullptr) {
    p.qpn = rc::Qpn(conn->qp_num);
  }
  p.traffic_class = id.traffic_class;
  if (id.timeout != 0) p.ack_timeout = id.timeout;
  if (conn == nullptr) return p;
  const auto* const bytes = static_cast<const std::uint8_t*>(conn->private_data);
  if (bytes != nullptr) p.private_data.assign(bytes, bytes + conn->private_data_len);
  const auto most = static_cast<std::uint8_t>(nic_of(id).adapter().config().limits.max_reads_in_flight);
  p.responder_resources = std::min(conn->responder_resources, most);
  p.initiator_depth = std::min(conn->initiator_depth, most);
  p.retry_count = std::min(conn->retry_count, std::uint8_t{7});
  p.rnr_retry_count = std::min(conn->rnr_retry_count, std::uint8_t{7});
  return p;
}

// From now on the id's events are told on `to`, also those that wait.
void move_events(ConnectionId& id, rdma_event_channel& to) {
  const NicLock guard(Context::of(open_context()).nic->lock());
  auto& events = EventChannel::of(id.abi.channel).events;
  id.abi.channel = &to;
  std::deque<std::unique_ptr<CmEvent>> staying;
  for (auto& event : events) {
    if (event->counted == &id) {
      queue_event(id, std::move(event));
    } else {
      staying.push_back(std::move(event));
    }
  }
  events = std::move(staying);
}

// The request that made an id stays to be read at it; its listener need not outlive it.
void keep_event(ConnectionId& id, rdma_cm_event& event) {
  const NicLock guard(nic_of(id).lock());
  ++std::exchange(CmEvent::of(&event).counted, &id)->events_acknowledged;
  ++id.events_given;
  id.abi.event = &event;
}

// The end of a call that an event answers: an id without a channel waits for it.
int finish(ConnectionId& id) {
  if (!id.synchronous) return 0;
  if (id.abi.event != nullptr) {
    rdma_ack_cm_event(id.abi.event);
    id.abi.event = nullptr;
  }
  if (rdma_get_cm_event(id.abi.channel, &id.abi.event) != 0) return -1;
  const int status = id.abi.event->status;
  if (status == 0) return 0;
  errno = id.abi.event->event == RDMA_CM_EVENT_REJECTED ? ECONNREFUSED : std::abs(status);
  return -1;
}

// False: somebody listens there. REQUIRES: the NIC's lock.
bool take_port(Service& s, ProcessNic& nic, std::uint16_t port, ports::Descriptor& alone) {
  if (s.listeners.contains(port)) return false;
  if (!nic.is_shared()) return true;
  const auto lingering = s.lingering.find(port);
  alone = lingering != s.lingering.end() && lingering->second.alone
              ? std::move(lingering->second.alone)
              : nic.take_service(static_cast<std::uint32_t>(wire::rdma_service(port).value & 0xFF'FFFF));
  return static_cast<bool>(alone);
}

// One that nobody has, for an id that asks for any.
std::uint16_t any_port(ConnectionId& id) {
  Service& s = service();
  const NicLock guard(nic_of(id).lock());
  do {
    s.next_port = static_cast<std::uint16_t>(std::max(s.next_port + 1, int{kFirstEphemeral}));
  } while (!take_port(s, nic_of(id), s.next_port, id.port_lock));
  return s.next_port;
}

int bind_to(ConnectionId& id, const sockaddr* address) {
  const auto gid = gid_of(address);
  if (!gid) return failed(EAFNOSUPPORT, "rdma_cm: IPv4 and IPv6 addresses only");
  const ProcessNic& nic = nic_of(id);
  const bool any = is_any(address) || is_loopback(*gid);
  const wire::Gid own = any ? own_gid(nic, gid->is_v4()) : *gid;
  if (std::ranges::find(nic.settings().gids, own) == nic.settings().gids.end()) {
    return failed(EADDRNOTAVAIL, fmt::format("rdma_cm: {} is no address of this NIC", own.to_string()));
  }
  std::uint16_t port = port_of(address);
  if (port == 0) port = any_port(id);
  set_source(id, own, port);
  return 0;
}

// Programs that tell their peer a port before they listen at it (qperf 0.4.11) rely on the same slow peer.
void expect_listener(ConnectionId& id) {
  Service& s = service();
  ProcessNic& nic = nic_of(id);
  const NicLock guard(nic.lock());
  const std::uint16_t port = port_of(&id.abi.route.addr.src_addr);
  if (s.listeners.contains(port) || s.lingering.contains(port) || (nic.is_shared() && !id.port_lock)) return;
  if (manager_of(id).listen(port)) s.lingering[port].until = nic.now() + kLinger;
}

}  // namespace

void forget_pair_of_connection(const ibv_qp* qp) {
  Service& s = service();
  const auto found =
      std::ranges::find_if(s.connections, [qp](const auto& entry) { return entry.second->abi.qp == qp; });
  if (found == s.connections.end()) return;
  ConnectionId& id = *found->second;
  manager_of(id).forget_pair(*id.connection);
}

}  // namespace sluice::verbs

using namespace sluice;
using namespace sluice::verbs;

SLUICE_VERB rdma_event_channel* rdma_create_event_channel() {
  if (open_context() == nullptr) return nullptr;
  auto channel = std::make_unique<EventChannel>();
  channel->abi.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  return channel->abi.fd < 0 ? nullptr : &channel.release()->abi;
}

SLUICE_VERB void rdma_destroy_event_channel(rdma_event_channel* channel) {
  close(channel->fd);
  delete &EventChannel::of(channel);
}

SLUICE_VERB int rdma_create_id(rdma_event_channel* channel, rdma_cm_id** out, void* context, rdma_port_space space) {
  if (space == RDMA_PS_UDP || space == RDMA_PS_IPOIB)
    return failed(EOPNOTSUPP, "rdma_cm: datagrams are not supported; connections (RDMA_PS_TCP) are");
  ibv_context* const verbs = open_context();
  if (verbs == nullptr) return -1;
  auto id = std::make_unique<ConnectionId>();
  id->synchronous = channel == nullptr;
  id->abi.channel = channel == nullptr ? rdma_create_event_channel() : channel;
  id->abi.context = context;
  id->abi.ps = space;
  id->abi.qp_type = IBV_QPT_RC;
  *out = &id.release()->abi;
  return 0;
}

SLUICE_VERB int rdma_destroy_id(rdma_cm_id* handle) {
  ConnectionId& id = ConnectionId::of(handle);
  if (handle->event != nullptr) rdma_ack_cm_event(handle->event);
  ibv_context* const verbs = open_context();
  ProcessNic& nic = *Context::of(verbs).nic;
  {
    const NicLock guard(nic.lock());
    if (id.listening != 0) {
      service().listeners.erase(id.listening);
      service().lingering[id.listening] = {nic.now() + kLinger, std::move(id.port_lock)};
    }
    if (id.connection) {
      remember_peer(service(), id);
      nic.adapter().connections().release(nic.now(), *id.connection);
      service().connections.erase(id.connection->value);
      nic.transmit();
    }
    std::erase_if(EventChannel::of(handle->channel).events, [&](const auto& event) { return event->counted == &id; });
  }
  await_acknowledged(nic, id.events_given, id.events_acknowledged);
  if (id.synchronous) rdma_destroy_event_channel(handle->channel);
  delete handle->route.path_rec;
  delete &id;
  return 0;
}

SLUICE_VERB int rdma_bind_addr(rdma_cm_id* handle, sockaddr* address) {
  ConnectionId& id = ConnectionId::of(handle);
  handle->verbs = open_context();
  if (bind_to(id, address) != 0) return -1;
  expect_listener(id);
  handle->port_num = 1;
  return 0;
}

SLUICE_VERB int rdma_resolve_addr(rdma_cm_id* handle, sockaddr* source, sockaddr* destination, int) {
  ConnectionId& id = ConnectionId::of(handle);
  auto gid = gid_of(destination);
  if (!gid) return failed(EAFNOSUPPORT, "rdma_cm: IPv4 and IPv6 addresses only");
  handle->verbs = open_context();
  handle->port_num = 1;
  ProcessNic& nic = nic_of(id);
  if (source != nullptr && bind_to(id, source) != 0) return -1;
  const wire::Gid own = own_gid(nic, gid->is_v4());
  if (is_loopback(*gid)) gid = own;
  {
    const NicLock guard(nic.lock());
    set_destination(id, *gid, port_of(destination));
    if (handle->route.addr.src_addr.sa_family == AF_UNSPEC) set_source(id, own, 0);
    queue_event(id, RDMA_CM_EVENT_ADDR_RESOLVED);
  }
  return finish(id);
}

SLUICE_VERB int rdma_resolve_route(rdma_cm_id* handle, int) {
  ConnectionId& id = ConnectionId::of(handle);
  if (handle->verbs == nullptr) return failed(EINVAL, "rdma_cm: resolve the address first");
  if (handle->route.path_rec == nullptr) {
    handle->route.path_rec = new ibv_sa_path_rec{};
    std::ranges::copy(handle->route.addr.addr.ibaddr.dgid.raw, handle->route.path_rec->dgid.raw);
    std::ranges::copy(handle->route.addr.addr.ibaddr.sgid.raw, handle->route.path_rec->sgid.raw);
    handle->route.path_rec->pkey = 0xFFFF;
    handle->route.num_paths = 1;
  }
  {
    const NicLock guard(nic_of(id).lock());
    queue_event(id, RDMA_CM_EVENT_ROUTE_RESOLVED);
  }
  return finish(id);
}

SLUICE_VERB int rdma_listen(rdma_cm_id* handle, int) {
  ConnectionId& id = ConnectionId::of(handle);
  if (handle->verbs == nullptr) return failed(EINVAL, "rdma_cm: bind to an address first");
  Service& s = service();
  const NicLock guard(nic_of(id).lock());
  const std::uint16_t port = port_of(&handle->route.addr.src_addr);
  if (!id.port_lock && !take_port(s, nic_of(id), port, id.port_lock))
    return failed(EADDRINUSE, "rdma_cm: another id or program of this host listens at that port");
  if (s.lingering.erase(port) == 0) {
    if (auto listening = manager_of(id).listen(port); !listening) return failed(EADDRINUSE, listening.error().message);
  }
  s.listeners[port] = &id;
  id.listening = port;
  for (const rc::ConnectionEvent& told : s.waiting) {
    if (told.port == port) on_request(s, told);
  }
  std::erase_if(s.waiting, [port](const rc::ConnectionEvent& told) { return told.port == port; });
  return 0;
}

SLUICE_VERB int rdma_connect(rdma_cm_id* handle, rdma_conn_param* conn) {
  ConnectionId& id = ConnectionId::of(handle);
  if (handle->verbs == nullptr) return failed(EINVAL, "rdma_cm: resolve the address first");
  {
    ProcessNic& nic = nic_of(id);
    const NicLock guard(nic.lock());
    rc::ConnectionParameters parameters = parameters_of(id, conn);
    if (knows_peer(service(), id)) parameters.patience = kLinger;
    const auto connection =
        manager_of(id).connect(nic.now(), id.remote, port_of(&handle->route.addr.dst_addr), parameters);
    if (!connection) return failed(EINVAL, connection.error().message);
    id.connection = *connection;
    service().connections[connection->value] = &id;
    nic.transmit();
  }
  return finish(id);
}

SLUICE_VERB int rdma_accept(rdma_cm_id* handle, rdma_conn_param* conn) {
  ConnectionId& id = ConnectionId::of(handle);
  {
    ProcessNic& nic = nic_of(id);
    const NicLock guard(nic.lock());
    if (!id.connection) return failed(EINVAL, "rdma_cm: there is no request to accept (any more)");
    const auto accepted = manager_of(id).accept(nic.now(), *id.connection, parameters_of(id, conn));
    if (!accepted) return failed(EINVAL, accepted.error().message);
    nic.transmit();
  }
  return finish(id);
}

SLUICE_VERB int rdma_reject(rdma_cm_id* handle, const void* data, std::uint8_t length) {
  ConnectionId& id = ConnectionId::of(handle);
  ProcessNic& nic = nic_of(id);
  const NicLock guard(nic.lock());
  if (!id.connection) return failed(EINVAL, "rdma_cm: there is no request to reject (any more)");
  manager_of(id).reject(nic.now(), *id.connection,
                        {static_cast<const std::uint8_t*>(data), data == nullptr ? std::size_t{0} : length});
  service().connections.erase(id.connection->value);
  id.connection.reset();
  nic.transmit();
  return 0;
}

SLUICE_VERB int rdma_establish(rdma_cm_id* handle) {
  ConnectionId& id = ConnectionId::of(handle);
  ProcessNic& nic = nic_of(id);
  const NicLock guard(nic.lock());
  if (!id.connection) return failed(EINVAL, "rdma_cm: there is no connection to establish");
  if (auto done = manager_of(id).establish(nic.now(), *id.connection); !done)
    return failed(EINVAL, done.error().message);
  nic.transmit();
  return 0;
}

SLUICE_VERB int rdma_disconnect(rdma_cm_id* handle) {
  ConnectionId& id = ConnectionId::of(handle);
  bool told = false;
  {
    ProcessNic& nic = nic_of(id);
    const NicLock guard(nic.lock());
    if (id.connection) {
      manager_of(id).disconnect(nic.now(), *id.connection);
      nic.transmit();
      told = true;
    }
  }
  return told ? finish(id) : 0;
}

SLUICE_VERB int rdma_notify(rdma_cm_id* handle, ibv_event_type type) {
  ConnectionId& id = ConnectionId::of(handle);
  if (type != IBV_EVENT_COMM_EST || handle->qp == nullptr) return failed(EINVAL, "rdma_cm: no event to be notified of");
  ProcessNic& nic = nic_of(id);
  const NicLock guard(nic.lock());
  manager_of(id).on_communication_established(nic.now(), rc::Qpn(handle->qp->qp_num));
  return 0;
}

SLUICE_VERB int rdma_get_cm_event(rdma_event_channel* handle, rdma_cm_event** event) {
  EventChannel& channel = EventChannel::of(handle);
  for (;;) {
    std::uint64_t one = 0;
    if (read(handle->fd, &one, sizeof one) != static_cast<ssize_t>(sizeof one)) return -1;
    const NicLock guard(Context::of(open_context()).nic->lock());
    if (channel.events.empty()) continue;  // of an id that has been destroyed
    CmEvent* const next = channel.events.front().release();
    channel.events.pop_front();
    ++next->counted->events_given;
    *event = &next->abi;
    return 0;
  }
}

SLUICE_VERB int rdma_ack_cm_event(rdma_cm_event* handle) {
  CmEvent& event = CmEvent::of(handle);
  {
    const NicLock guard(Context::of(open_context()).nic->lock());
    ++event.counted->events_acknowledged;
  }
  delete &event;
  return 0;
}

SLUICE_VERB int rdma_get_request(rdma_cm_id* listener, rdma_cm_id** out) {
  rdma_cm_event* event = nullptr;
  if (!ConnectionId::of(listener).synchronous) return failed(EINVAL, "rdma_cm: the listener has an event channel");
  if (rdma_get_cm_event(listener->channel, &event) != 0) return -1;
  ConnectionId& id = ConnectionId::of(event->id);
  if (rdma_migrate_id(&id.abi, nullptr) != 0) return -1;  // calls on it wait for their events, too
  keep_event(id, *event);
  if (auto attributes = ConnectionId::of(listener).queue_pairs) {
    if (rdma_create_qp(&id.abi, listener->pd, &*attributes) != 0) return -1;
  }
  *out = &id.abi;
  return 0;
}

SLUICE_VERB int rdma_migrate_id(rdma_cm_id* handle, rdma_event_channel* to) {
  ConnectionId& id = ConnectionId::of(handle);
  const bool synchronous = to == nullptr;
  if (synchronous) to = rdma_create_event_channel();
  if (to == nullptr) return -1;
  if (id.synchronous && handle->event != nullptr) rdma_ack_cm_event(std::exchange(handle->event, nullptr));
  rdma_event_channel* const from = handle->channel;
  move_events(id, *to);
  // The channel of its own that an id without one had.
  if (std::exchange(id.synchronous, synchronous)) rdma_destroy_event_channel(from);
  return 0;
}

SLUICE_VERB int rdma_init_qp_attr(rdma_cm_id* handle, ibv_qp_attr* attributes, int* mask) {
  ConnectionId& id = ConnectionId::of(handle);
  const NicLock guard(nic_of(id).lock());
  const ibv_qp_state state = attributes->qp_state;
  std::memset(attributes, 0, sizeof *attributes);
  attributes->qp_state = state;
  attributes->port_num = 1;
  if (state == IBV_QPS_INIT) {
    attributes->qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    *mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    return 0;
  }
  const bool receive = state == IBV_QPS_RTR;
  const auto found = id.connection ? manager_of(id).attributes(*id.connection, receive ? rc::QpState::kReadyToReceive
                                                                                       : rc::QpState::kReadyToSend)
                                   : std::nullopt;
  if (!found || (!receive && state != IBV_QPS_RTS)) return failed(EINVAL, "rdma_cm: not known yet for that state");
  if (receive) {
    attributes->ah_attr.is_global = 1;
    attributes->ah_attr.port_num = 1;
    std::ranges::copy(found->remote_gid->bytes, attributes->ah_attr.grh.dgid.raw);
    attributes->ah_attr.grh.sgid_index = found->source_gid_index.value_or(0);
    attributes->ah_attr.grh.hop_limit = found->hop_limit.value_or(64);
    attributes->ah_attr.grh.traffic_class = found->traffic_class.value_or(0);
    const std::uint32_t mtu = found->path_mtu.value_or(1024);
    attributes->path_mtu = IBV_MTU_256;
    while (128u << attributes->path_mtu < mtu) attributes->path_mtu = static_cast<ibv_mtu>(attributes->path_mtu + 1);
    attributes->dest_qp_num = found->remote_qpn->value;
    attributes->rq_psn = found->receive_psn->value();
    attributes->max_dest_rd_atomic = found->max_reads_in.value_or(0);
    attributes->min_rnr_timer = found->min_rnr_timer.value_or(12);
    *mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
            IBV_QP_MIN_RNR_TIMER;
    return 0;
  }
  attributes->sq_psn = found->send_psn->value();
  attributes->timeout = found->timeout.value_or(14);
  attributes->retry_cnt = found->retry_count.value_or(7);
  attributes->rnr_retry = found->rnr_retry_count.value_or(7);
  attributes->max_rd_atomic = found->max_reads_out.value_or(0);
  *mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  return 0;
}

SLUICE_VERB int rdma_set_option(rdma_cm_id* handle, int level, int name, void* value, std::size_t length) {
  ConnectionId& id = ConnectionId::of(handle);
  if (level == RDMA_OPTION_ID && length >= 1) {
    const auto byte = *static_cast<const std::uint8_t*>(value);
    if (name == RDMA_OPTION_ID_TOS) id.traffic_class = byte;
    if (name == RDMA_OPTION_ID_ACK_TIMEOUT) id.timeout = byte;
    return 0;
  }
  return failed(EOPNOTSUPP, "rdma_cm: no such option");
}

SLUICE_VERB __be16 rdma_get_src_port(rdma_cm_id* id) { return htons(port_of(&id->route.addr.src_addr)); }
SLUICE_VERB __be16 rdma_get_dst_port(rdma_cm_id* id) { return htons(port_of(&id->route.addr.dst_addr)); }

SLUICE_VERB ibv_context** rdma_get_devices(int* count) {
  ibv_context* const context = open_context();
  // NOLINTNEXTLINE(bugprone-sizeof-expression): pointers are what it holds
  auto** const list = static_cast<ibv_context**>(std::calloc(2, sizeof(ibv_context*)));
  if (list != nullptr) list[0] = context;
  if (count != nullptr) *count = context == nullptr ? 0 : 1;
  return list;
}
SLUICE_VERB void rdma_free_devices(ibv_context** list) { std::free(list); }
