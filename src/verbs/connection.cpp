#include "verbs/connection.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "verbs/connection_addresses.h"
#include "verbs/connection_service.h"

namespace sluice::verbs {
namespace {

constexpr std::uint32_t kMostBacklog = 1024;  // as Linux: net.rdma_ucm.max_backlog

int failed(int error, std::string_view why) {
  refuse(error, why);
  return -1;
}

// An id has one as soon as it is bound, its address resolved, or a request has made it.
bool has_device(const rdma_cm_id* id) {
  if (id->verbs != nullptr) return open_context() != nullptr;
  refuse(EINVAL, "rdma_cm: resolve the address first");
  return false;
}

// … and a peer when its address has been resolved, or a request has made it.
bool has_peer(rdma_cm_id* id) {
  if (!has_device(id)) return false;
  if (ConnectionId::of(id).remote != wire::Gid{}) return true;
  refuse(EINVAL, "rdma_cm: resolve the peer's address first");
  return false;
}

// As librdmacm: what the device cannot do is refused, which the greatest number never is ("as much as there is"); and without a queue
// pair of the id's somebody has to say which.
bool are_possible(const ConnectionId& id, const rdma_conn_param* conn) {
  if (id.is_datagram()) return true;
  if (conn == nullptr && id.abi.qp == nullptr) {
    refuse(EINVAL, "rdma_cm: the id has no queue pair, and no parameters name one");
    return false;
  }
  if (conn == nullptr) return true;
  const rc::AdapterLimits& limits = nic_of(id).adapter().config().limits;
  const auto beyond = [](std::uint8_t asked, std::uint8_t all, std::uint32_t most) {
    return asked != all && asked > most;
  };
  if (!beyond(conn->responder_resources, RDMA_MAX_RESP_RES, limits.max_reads_in_flight) &&
      !beyond(conn->initiator_depth, RDMA_MAX_INIT_DEPTH, limits.max_reads_started))
    return true;
  refuse(EINVAL, fmt::format("rdma_cm: {} READs at once to answer and {} to start: the device has at most {} and {}",
                             conn->responder_resources, conn->initiator_depth, limits.max_reads_in_flight,
                             limits.max_reads_started));
  return false;
}

std::vector<std::uint8_t> private_data_of(const rdma_conn_param* conn) {
  if (conn == nullptr || conn->private_data == nullptr) return {};
  const auto* const bytes = static_cast<const std::uint8_t*>(conn->private_data);
  return {bytes, bytes + conn->private_data_len};
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
  p.private_data = private_data_of(conn);
  const auto most = static_cast<std::uint8_t>(nic_of(id).adapter().config().limits.max_reads_in_flight);
  p.responder_resources = std::min(conn->responder_resources, most);
  p.initiator_depth = std::min(conn->initiator_depth, most);
  p.retry_count = std::min(conn->retry_count, std::uint8_t{7});
  p.rnr_retry_count = std::min(conn->rnr_retry_count, std::uint8_t{7});
  return p;
}

// The address it is bound to, if the peer's is of that kind. rsockets write a family alone into an id.
std::optional<wire::Gid> source_of(const ConnectionId& id) {
  const auto source = gid_of(&id.abi.route.addr.src_addr);
  const auto& own = nic_of(id).settings().gids;
  const bool fits = source && source->is_v4() == id.remote.is_v4() && std::ranges::find(own, *source) != own.end();
  return fits ? source : std::nullopt;
}

// REQUIRES: the lock.
int connect(ConnectionId& id, const rdma_conn_param* conn) {
  rc::ConnectionParameters parameters = parameters_of(id, conn);
  if (knows_peer(service(), id)) parameters.patience = kLinger;
  parameters.source = source_of(id);
  parameters.source_port = port_of(&id.abi.route.addr.src_addr);
  const auto connection =
      manager_of(id).connect(nic_of(id).now(), id.remote, port_of(&id.abi.route.addr.dst_addr), parameters);
  if (!connection) return failed(EINVAL, connection.error().message);
  id.connection = *connection;
  service().connections[connection->value] = &id;
  return 0;
}

// REQUIRES: the lock.
int accept(ConnectionId& id, const rdma_conn_param* conn) {
  if (!id.connection) return failed(EINVAL, "rdma_cm: there is no request to accept (any more)");
  const auto accepted = manager_of(id).accept(nic_of(id).now(), *id.connection, parameters_of(id, conn));
  if (!accepted) return failed(EINVAL, accepted.error().message);
  id.unanswered = false;
  return 0;
}

// From now on the id's events are told on `to`, also those that wait.
void move_events(ConnectionId& id, rdma_event_channel& to) {
  const NicLock guard(open_nic().lock());
  if (id.abi.channel == &to) return;
  EventChannel& from = EventChannel::of(std::exchange(id.abi.channel, &to));
  std::deque<std::unique_ptr<CmEvent>> staying;
  for (auto& event : from.events) {
    ConnectionId& whose = *event->counted;
    if (whose.abi.channel != &to) {
      staying.push_back(std::move(event));
      continue;
    }
    // An id for a request that nobody has fetched goes along with its listener.
    if (event->abi.event == RDMA_CM_EVENT_CONNECT_REQUEST) event->abi.id->channel = &to;
    queue_event(whose, std::move(event));
  }
  take_tokens(from.abi.fd, from.events.size() - staying.size());
  from.events = std::move(staying);
}

// The port stays with who else listens at it, or waits for somebody. REQUIRES: the lock.
void stop_listening(ProcessNic& nic, ConnectionId& id) {
  Service& s = service();
  const wire::ServiceId at = id.listening->first;
  s.listeners.erase(*id.listening);
  if (!has_listener(s, at)) return await_listener(nic, at, std::move(id.port_lock));
  if (id.port_lock) s.listeners.lower_bound({at, {}})->second->port_lock = std::move(id.port_lock);
}

// A listener goes, and with it the ids of the requests that nobody has fetched. REQUIRES: the lock.
void drop_requests(ProcessNic& nic, ConnectionId& listener) {
  std::vector<ConnectionId*> dropped;
  for (const auto& event : EventChannel::of(listener.abi.channel).events) {
    if (event->counted == &listener && event->abi.event == RDMA_CM_EVENT_CONNECT_REQUEST)
      dropped.push_back(&ConnectionId::of(event->abi.id));
  }
  for (ConnectionId* const id : dropped) drop_request(nic, *id);
  if (!dropped.empty()) nic.transmit();
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

// False: somebody listens there. Of a port at which ids of ours listen, one of them has the lock. REQUIRES: the NIC's lock.
bool take_service(Service& s, ProcessNic& nic, const Endpoint& at, ports::Descriptor& alone) {
  if (s.listeners.contains(at)) return false;
  const wire::ServiceId wanted = at.first;
  if (!nic.is_shared() || has_listener(s, wanted)) return true;
  const auto lingering = s.lingering.find(wanted);
  alone = lingering != s.lingering.end() && lingering->second.alone
              ? std::move(lingering->second.alone)
              : nic.take_service(static_cast<std::uint32_t>(wanted.value & 0xFF'FFFF));
  return static_cast<bool>(alone);
}

// A port that nobody has, for an id that asks for any.
void set_any_port(ConnectionId& id, const wire::Gid& own) {
  Service& s = service();
  const NicLock guard(nic_of(id).lock());
  std::uint16_t port = 0;
  do {
    port = next_port(s);
  } while (!take_port(s, id, own, port) || !take_service(s, nic_of(id), {service_at(id, port), own}, id.port_lock));
  set_source(id, own, port);
}

// There is only one.
bool take_device(rdma_cm_id& id) {
  ibv_context* const context = open_context();
  if (context == nullptr) return false;
  id.verbs = context;
  if (id.pd == nullptr) id.pd = default_domain(id.verbs);
  id.port_num = 1;
  return true;
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
  const std::uint16_t port = port_of(address);
  if (port == 0) {
    set_any_port(id, own);
    id.any_address = is_any(address);
    return 0;
  }
  const NicLock guard(nic_of(id).lock());
  if (!take_port(service(), id, own, port))
    return failed(EADDRINUSE, fmt::format("rdma_cm: another id is bound to {} port {}", own.to_string(), port));
  set_source(id, own, port);
  id.any_address = is_any(address);
  return 0;
}

// Programs that tell their peer a port before they listen at it (qperf 0.4.11) rely on the same slow peer.
void expect_listener(ConnectionId& id) {
  Service& s = service();
  ProcessNic& nic = nic_of(id);
  const NicLock guard(nic.lock());
  const wire::ServiceId expected = service_of(id);
  if (has_listener(s, expected) || s.lingering.contains(expected) || (nic.is_shared() && !id.port_lock)) return;
  if (listen_at(nic, expected)) await_listener(nic, expected, {});
}

// --- datagrams: a question and its answer instead of a connection; either side may send once it knows the other's queue pair ---

// REQUIRES: the lock.
int resolve(ConnectionId& id, const rdma_conn_param* conn) {
  ProcessNic& nic = nic_of(id);
  rc::ResolutionParameters parameters{
      .private_data = private_data_of(conn), .traffic_class = id.traffic_class, .source = source_of(id)};
  if (knows_peer(service(), id)) parameters.patience = kLinger;
  const auto asked = manager_of(id).resolver().resolve(
      nic.now(), id.remote, wire::rdma_datagram_service(port_of(&id.abi.route.addr.dst_addr)), parameters);
  if (!asked) return failed(EINVAL, asked.error().message);
  id.resolution = *asked;
  service().resolutions[asked->value] = &id;
  return 0;
}

// REQUIRES: the lock.
int answer(ConnectionId& id, const rdma_conn_param* conn) {
  if (!id.resolution || (id.abi.qp == nullptr && conn == nullptr))
    return failed(EINVAL, "rdma_cm: there is no request to accept (any more), or no queue pair to name");
  const rc::Qpn qpn(id.abi.qp != nullptr ? id.abi.qp->qp_num : conn->qp_num);
  const auto answered =
      manager_of(id).resolver().answer(*id.resolution, qpn, wire::QKey(RDMA_UDP_QKEY), private_data_of(conn));
  return answered ? 0 : failed(EINVAL, answered.error().message);
}

}  // namespace

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
  {
    const NicLock guard(open_nic().lock());
    // Ids of it should have gone before.
    std::erase_if(service().resting, [&](const Service::Resting& one) { return one.id->abi.channel == channel; });
  }
  close(channel->fd);
  delete &EventChannel::of(channel);
}

SLUICE_VERB int rdma_create_id(rdma_event_channel* channel, rdma_cm_id** out, void* context, rdma_port_space space) {
  if (space == RDMA_PS_IPOIB)
    return failed(EOPNOTSUPP, "rdma_cm: RDMA_PS_IPOIB is not supported; RDMA_PS_TCP and RDMA_PS_UDP are");
  if (space != RDMA_PS_TCP && space != RDMA_PS_UDP && space != RDMA_PS_IB)
    return failed(EINVAL, fmt::format("rdma_cm: {:#x} is no port space", static_cast<unsigned>(space)));
  ibv_context* const verbs = open_context();
  if (verbs == nullptr) return -1;
  auto id = std::make_unique<ConnectionId>();
  id->synchronous = channel == nullptr;
  id->abi.channel = channel == nullptr ? rdma_create_event_channel() : channel;
  if (id->abi.channel == nullptr) return -1;
  id->abi.context = context;
  id->abi.ps = space;
  id->abi.qp_type = space == RDMA_PS_UDP ? IBV_QPT_UD : IBV_QPT_RC;
  *out = &id.release()->abi;
  return 0;
}

SLUICE_VERB int rdma_destroy_id(rdma_cm_id* handle) {
  ConnectionId& id = ConnectionId::of(handle);
  if (handle->event != nullptr) rdma_ack_cm_event(handle->event);
  ProcessNic& nic = open_nic();
  {
    const NicLock guard(nic.lock());
    leave_port(service(), id);
    if (id.listening) {
      stop_listening(nic, id);
      drop_requests(nic, id);
    }
    if (id.resolution) {
      remember_peer(service(), id);
      nic.adapter().connections().resolver().release(*id.resolution);
      service().resolutions.erase(id.resolution->value);
      nic.transmit();
    }
    if (id.connection) {
      remember_peer(service(), id);
      nic.adapter().connections().release(nic.now(), *id.connection);
      service().connections.erase(id.connection->value);
      nic.transmit();
    }
    forget_events(id);
  }
  await_acknowledged(nic, id.events_given, id.events_acknowledged);
  if (id.synchronous) rdma_destroy_event_channel(handle->channel);
  delete handle->route.path_rec;
  delete &id;
  return 0;
}

SLUICE_VERB int rdma_bind_addr(rdma_cm_id* handle, sockaddr* address) {
  ConnectionId& id = ConnectionId::of(handle);
  if (!take_device(*handle)) return -1;
  if (id.bound || id.remote != wire::Gid{}) return failed(EINVAL, "rdma_cm: the id has its address already");
  if (bind_to(id, address) != 0) return -1;
  expect_listener(id);
  return 0;
}

SLUICE_VERB int rdma_resolve_addr(rdma_cm_id* handle, sockaddr* source, sockaddr* destination, int) {
  ConnectionId& id = ConnectionId::of(handle);
  auto gid = gid_of(destination);
  if (!gid) return failed(EAFNOSUPPORT, "rdma_cm: IPv4 and IPv6 addresses only");
  if (!take_device(*handle)) return -1;
  if (id.remote != wire::Gid{} || id.listening)
    return failed(EINVAL, "rdma_cm: the id listens, or has its peer's address already");
  ProcessNic& nic = nic_of(id);
  if (source != nullptr && bind_to(id, source) != 0) return -1;
  const wire::Gid own = own_gid(nic, gid->is_v4());
  if (is_loopback(*gid)) gid = own;
  {
    const NicLock guard(nic.lock());
    set_destination(id, *gid, port_of(destination));
    if (handle->route.addr.src_addr.sa_family == AF_UNSPEC) set_source(id, own, next_port(service()));
    queue_event(id, RDMA_CM_EVENT_ADDR_RESOLVED);
  }
  return finish(id);
}

SLUICE_VERB int rdma_resolve_route(rdma_cm_id* handle, int) {
  ConnectionId& id = ConnectionId::of(handle);
  if (!has_peer(handle)) return -1;
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

SLUICE_VERB int rdma_listen(rdma_cm_id* handle, int backlog) {
  ConnectionId& id = ConnectionId::of(handle);
  if (handle->verbs == nullptr) {
    sockaddr_in any{};  // as Linux
    any.sin_family = AF_INET;
    if (rdma_bind_addr(handle, reinterpret_cast<sockaddr*>(&any)) != 0) return -1;
  }
  if (!has_device(handle)) return -1;
  Service& s = service();
  const NicLock guard(nic_of(id).lock());
  const wire::ServiceId wanted = service_of(id);
  const Endpoint at(wanted, gid_of(&handle->route.addr.src_addr).value_or(wire::Gid{}));
  if (!id.port_lock && !take_service(s, nic_of(id), at, id.port_lock))
    return failed(EADDRINUSE, "rdma_cm: another id or program of this host listens at that port");
  if (!has_listener(s, wanted) && s.lingering.erase(wanted) == 0) {
    if (auto listening = listen_at(nic_of(id), wanted); !listening)
      return failed(EADDRINUSE, listening.error().message);
  }
  s.listeners[at] = &id;
  id.listening = at;
  id.backlog = backlog > 0 ? std::min(static_cast<std::uint32_t>(backlog), kMostBacklog) : kMostBacklog;
  serve_waiting(s, wanted);
  return 0;
}

SLUICE_VERB int rdma_connect(rdma_cm_id* handle, rdma_conn_param* conn) {
  ConnectionId& id = ConnectionId::of(handle);
  if (!has_peer(handle)) return -1;
  {
    ProcessNic& nic = nic_of(id);
    const NicLock guard(nic.lock());
    if (id.connection || id.resolution || id.incoming || id.listening)
      return failed(EINVAL,
                    "rdma_cm: an id connects once, and one that listens, or that a request has made, not at all");
    if (handle->route.path_rec == nullptr) return failed(EINVAL, "rdma_cm: resolve the route first");
    if (!are_possible(id, conn)) return -1;
    if ((id.is_datagram() ? resolve(id, conn) : connect(id, conn)) != 0) return -1;
    nic.transmit();
  }
  return finish(id);
}

SLUICE_VERB int rdma_accept(rdma_cm_id* handle, rdma_conn_param* conn) {
  if (!has_device(handle)) return -1;
  ConnectionId& id = ConnectionId::of(handle);
  {
    ProcessNic& nic = nic_of(id);
    const NicLock guard(nic.lock());
    if (!are_possible(id, conn)) return -1;
    if ((id.is_datagram() ? answer(id, conn) : accept(id, conn)) != 0) return -1;
    nic.transmit();
  }
  if (!id.is_datagram()) return finish(id);
  // No event follows.
  if (id.synchronous && handle->event != nullptr) rdma_ack_cm_event(std::exchange(handle->event, nullptr));
  return 0;
}

SLUICE_VERB int rdma_reject(rdma_cm_id* handle, const void* data, std::uint8_t length) {
  if (!has_device(handle)) return -1;
  ConnectionId& id = ConnectionId::of(handle);
  ProcessNic& nic = nic_of(id);
  const NicLock guard(nic.lock());
  const ByteView private_data(static_cast<const std::uint8_t*>(data), data == nullptr ? std::size_t{0} : length);
  const std::size_t most =
      id.is_datagram() ? rc::ServiceResolver::kPrivateAnswer : rc::ConnectionManager::kPrivateReject;
  if (private_data.size() > most)
    return failed(EINVAL, fmt::format("rdma_cm: {} bytes of private data: at most {}", private_data.size(), most));
  if (id.resolution) {
    manager_of(id).resolver().refuse(*id.resolution, wire::SidrStatus::kRejected, private_data);
    service().resolutions.erase(id.resolution->value);
    id.resolution.reset();
  } else if (id.connection) {
    if (!manager_of(id).reject(nic.now(), *id.connection, private_data))
      return failed(EINVAL, "rdma_cm: neither a request nor a reply waits here");
    service().connections.erase(id.connection->value);
    id.connection.reset();
    id.unanswered = false;
  } else {
    return failed(EINVAL, "rdma_cm: there is no request to reject (any more)");
  }
  nic.transmit();
  return 0;
}

SLUICE_VERB int rdma_establish(rdma_cm_id* handle) {
  if (!has_device(handle)) return -1;
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
  if (!has_device(handle)) return -1;
  ConnectionId& id = ConnectionId::of(handle);
  if (id.is_datagram()) return failed(EINVAL, "rdma_cm: datagrams have no connection to end");
  if (id.unanswered) return failed(EINVAL, "rdma_cm: a request is accepted or rejected, there is nothing to end yet");
  if (handle->qp != nullptr) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    if (const int error = ibv_modify_qp(handle->qp, &attributes, IBV_QP_STATE); error != 0)
      return failed(error, "rdma_cm: the queue pair does not end");
  }
  bool told = false;
  {
    ProcessNic& nic = nic_of(id);
    const NicLock guard(nic.lock());
    if (id.connection) {
      manager_of(id).disconnect(nic.now(), *id.connection);
      nic.turn();  // what has never been a connection is over at once
      told = true;
    } else if (std::exchange(id.ended_at_exit, false)) {
      queue_event(id, RDMA_CM_EVENT_DISCONNECTED);
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
  if (open_context() == nullptr) return -1;
  EventChannel& channel = EventChannel::of(handle);
  for (;;) {
    std::uint64_t one = 0;
    if (read(handle->fd, &one, sizeof one) != static_cast<ssize_t>(sizeof one)) return -1;
    const NicLock guard(open_nic().lock());
    if (channel.events.empty()) continue;  // of an id that has been destroyed
    CmEvent* const next = channel.events.front().release();
    channel.events.pop_front();
    ++next->counted->events_given;
    if (next->abi.event == RDMA_CM_EVENT_CONNECT_REQUEST) --next->counted->unfetched;
    *event = &next->abi;
    return 0;
  }
}

SLUICE_VERB int rdma_ack_cm_event(rdma_cm_event* handle) {
  if (handle == nullptr) return failed(EINVAL, "rdma_cm: no event to acknowledge");
  CmEvent& event = CmEvent::of(handle);
  {
    const NicLock guard(open_nic().lock());
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
  const bool migrated = rdma_migrate_id(&id.abi, nullptr) == 0;  // calls on it wait for their events, too
  keep_event(id, *event);
  auto attributes = ConnectionId::of(listener).queue_pairs;
  if (!migrated || (attributes && rdma_create_qp(&id.abi, listener->pd, &*attributes) != 0)) {
    // Nobody has seen the request: the peer need not wait.
    const int error = errno;
    rdma_destroy_id(&id.abi);
    errno = error;
    return -1;
  }
  *out = &id.abi;
  return 0;
}

SLUICE_VERB int rdma_migrate_id(rdma_cm_id* handle, rdma_event_channel* to) {
  if (open_context() == nullptr) return -1;
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
  if (!has_device(handle)) return -1;
  ConnectionId& id = ConnectionId::of(handle);
  const NicLock guard(nic_of(id).lock());
  const ibv_qp_state state = attributes->qp_state;
  std::memset(attributes, 0, sizeof *attributes);
  attributes->qp_state = state;
  attributes->port_num = 1;
  if (id.is_datagram()) {
    attributes->qkey = RDMA_UDP_QKEY;
    *mask = IBV_QP_STATE;
    if (state == IBV_QPS_INIT) *mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    if (state == IBV_QPS_RTS) *mask |= IBV_QP_SQ_PSN;
    return 0;
  }
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
    attributes->path_mtu = mtu_code(found->path_mtu.value_or(1024));
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
    switch (name) {
      case RDMA_OPTION_ID_TOS: id.traffic_class = byte; return 0;
      case RDMA_OPTION_ID_ACK_TIMEOUT: id.timeout = byte; return 0;
      case RDMA_OPTION_ID_REUSEADDR: id.shares_port = byte != 0; return 0;
      case RDMA_OPTION_ID_AFONLY: id.one_family = byte != 0; return 0;
      default: return failed(ENOSYS, "rdma_cm: no such option");
    }
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
