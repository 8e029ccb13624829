// What the connection manager tells, as events of rdma_cm ids.
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "verbs/connection_addresses.h"
#include "verbs/connection_service.h"

namespace sluice::verbs {
namespace {

rc::ConnectionManager& manager(const Service& s) { return Context::of(s.context).nic->adapter().connections(); }

bool is_datagram(wire::ServiceId service) { return service.value >> 16 == wire::rdma_datagram_service(0).value >> 16; }

wire::ServiceId service_of(const Request& request) {
  return std::visit([](const auto& told) { return told.service; }, request);
}

template <class Told>
std::unique_ptr<CmEvent> make_event(const Told& told, ConnectionId& id, rdma_cm_event_type type) {
  auto event = std::make_unique<CmEvent>();
  event->private_data = told.private_data;
  event->abi.id = &id.abi;
  event->abi.event = type;
  return event;
}

std::unique_ptr<CmEvent> translate(const rc::ConnectionEvent& told, ConnectionId& id, rdma_cm_event_type type) {
  auto event = make_event(told, id, type);
  rdma_conn_param& conn = event->abi.param.conn;
  conn.private_data = event->private_data.empty() ? nullptr : event->private_data.data();
  conn.private_data_len = static_cast<std::uint8_t>(std::min<std::size_t>(event->private_data.size(), 255));
  conn.responder_resources = told.responder_resources;
  conn.initiator_depth = told.initiator_depth;
  conn.retry_count = told.retry_count;
  conn.rnr_retry_count = told.rnr_retry_count;
  conn.srq = told.peer_has_srq ? 1 : 0;
  conn.qp_num = told.remote_qpn.value;
  return event;
}

std::unique_ptr<CmEvent> translate(const rc::ResolutionEvent& told, ConnectionId& id, rdma_cm_event_type type) {
  auto event = make_event(told, id, type);
  rdma_ud_param& ud = event->abi.param.ud;
  ud.private_data = event->private_data.empty() ? nullptr : event->private_data.data();
  ud.private_data_len = static_cast<std::uint8_t>(std::min<std::size_t>(event->private_data.size(), 255));
  if (told.kind != rc::ResolutionEvent::Kind::kResolved) return event;
  const auto& gids = nic_of(id).settings().gids;
  const auto own = std::ranges::find(gids, told.local);
  ud.ah_attr.is_global = 1;
  ud.ah_attr.port_num = 1;
  std::ranges::copy(told.remote.bytes, ud.ah_attr.grh.dgid.raw);
  ud.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(own - gids.begin());
  ud.ah_attr.grh.hop_limit = 64;
  ud.ah_attr.grh.traffic_class = id.traffic_class;
  ud.qp_num = told.qpn.value;
  ud.qkey = told.qkey.value;
  return event;
}

void take_in(Service& s, ConnectionId& id, const rc::ConnectionEvent& told) {
  set_destination(id, told.remote, told.remote_port);
  id.connection = told.id;
  s.connections[told.id.value] = &id;
}

void take_in(Service& s, ConnectionId& id, const rc::ResolutionEvent& told) {
  set_destination(id, told.remote, 0);
  id.resolution = told.id;
  s.resolutions[told.id.value] = &id;
}

void turn_down(const Service& s, const rc::ConnectionEvent& told) {
  manager(s).reject(Context::of(s.context).nic->now(), told.id, {});
}

void turn_down(const Service& s, const rc::ResolutionEvent& told) {
  manager(s).resolver().refuse(told.id, wire::SidrStatus::kNoSuchService, {});
}

void turn_down(const Service& s, const Request& request) {
  std::visit([&](const auto& told) { turn_down(s, told); }, request);
}

void stop_listening(const Service& s, wire::ServiceId service) {
  if (is_datagram(service)) {
    manager(s).resolver().stop_listening(service);
  } else {
    manager(s).stop_listening(service);
  }
}

// For some services no listener has come; some ids have rested.
void on_alarm(Time now) {
  Service& s = service();
  std::erase_if(s.resting, [now](const Service::Resting& one) {
    if (now < one.until) return false;
    queue_event(*one.id, RDMA_CM_EVENT_TIMEWAIT_EXIT);
    return true;
  });
  for (const Service::Resting& one : s.resting) Context::of(s.context).nic->set_alarm(one.until);
  const auto is_over = [&](wire::ServiceId wanted) {
    const auto found = s.lingering.find(wanted);
    return found != s.lingering.end() && found->second.until <= now;
  };
  for (const Request& request : s.waiting) {
    if (is_over(service_of(request))) turn_down(s, request);
  }
  std::erase_if(s.waiting, [&](const Request& request) { return is_over(service_of(request)); });
  std::erase_if(s.lingering, [&](const auto& entry) {
    if (now < entry.second.until) return false;
    stop_listening(s, entry.first);
    return true;
  });
  for (const auto& [wanted, lingering] : s.lingering) Context::of(s.context).nic->set_alarm(lingering.until);
}

// A new id for a request that has come to a listener.
void on_request(Service& s, const Request& request) {
  const wire::ServiceId wanted = service_of(request);
  ConnectionId* const listener =
      listener_for(s, wanted, std::visit([](const auto& told) { return told.local; }, request));
  if (listener == nullptr) return s.lingering.contains(wanted) ? s.waiting.push_back(request) : turn_down(s, request);
  ConnectionId& parent = *listener;
  if (parent.unfetched == parent.backlog) return turn_down(s, request);
  ++parent.unfetched;
  auto* const id = new ConnectionId;  // the program's, by the event
  id->incoming = id->unanswered = true;
  id->abi.verbs = parent.abi.verbs;
  id->abi.channel = parent.abi.channel;
  id->abi.context = parent.abi.context;
  id->abi.ps = parent.abi.ps;
  id->abi.port_num = 1;
  id->abi.qp_type = parent.abi.qp_type;
  id->abi.pd = parent.abi.pd;
  std::visit(
      [&](const auto& told) {
        take_in(s, *id, told);
        set_source(*id, told.local, told.port);
        auto event = translate(told, *id, RDMA_CM_EVENT_CONNECT_REQUEST);
        event->abi.listen_id = &parent.abi;
        queue_event(parent, std::move(event));
      },
      request);
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

void on_connection_event(const rc::ConnectionEvent& told) {
  using Kind = rc::ConnectionEvent::Kind;
  Service& s = service();
  if (told.kind == Kind::kRequest) return on_request(s, told);
  const auto found = s.connections.find(told.id.value);
  if (found == s.connections.end()) return;
  if (s.ended) {  // the id may be gone
    s.connections.erase(found);
    return;
  }
  ConnectionId& id = *found->second;
  auto event = translate(told, id, type_of(told.kind));
  if (told.kind == Kind::kRejected) event->abi.status = static_cast<int>(told.reject_reason);
  if (told.kind == Kind::kUnreachable) event->abi.status = -ETIMEDOUT;
  if (told.kind == Kind::kDisconnected) {
    remember_peer(s, id);
    ProcessNic& nic = nic_of(id);
    s.resting.push_back({&id, nic.now() + kTimeWait});
    nic.set_alarm(s.resting.back().until);
  }
  // From now on the queue pair is the program's alone, as librdmacm has it: a peer that goes leaves it in RTS, so that what has arrived
  // before is not followed by flushed requests; rdma_disconnect moves it on.
  if (told.kind == Kind::kEstablished) manager(s).forget_pair(told.id);
  queue_event(id, std::move(event));
  const bool over = told.kind == Kind::kRejected || told.kind == Kind::kUnreachable || told.kind == Kind::kDisconnected;
  if (!over) return;
  s.connections.erase(found);
  id.connection.reset();
}

// The program ends: its peers are told, as the kernel does when it closes the program's devices.
void on_end(Time until) {
  Service& s = service();
  ProcessNic& nic = open_nic();
  s.ended = true;
  s.listeners.clear();
  s.lingering.clear();
  s.resting.clear();
  const bool silent = s.waiting.empty() && s.connections.empty() && s.resolutions.empty();
  if (silent) return;
  for (const Request& request : std::exchange(s.waiting, {})) turn_down(s, request);
  for (const auto& [number, id] : std::exchange(s.resolutions, {})) {
    manager(s).resolver().release(*id->resolution);
    id->resolution.reset();
  }
  for (const auto& [number, id] : s.connections) {
    manager(s).disconnect(nic.now(),
                          rc::ConnectionId(number));  // of a request that waits: a rejection, which nobody answers
    id->ended_at_exit = !std::exchange(id->unanswered, false);
    id->connection.reset();
  }
  std::erase_if(s.connections, [](const auto& entry) { return !entry.second->ended_at_exit; });
  nic.turn();
  while (!s.connections.empty() && nic.now() < until) {
    if (nic.turn() == 0) sched_yield();
  }
  s.connections.clear();
}

// As Linux: whatever the answer says, what is not an address is "unreachable".
void on_resolution_event(const rc::ResolutionEvent& told) {
  using Kind = rc::ResolutionEvent::Kind;
  Service& s = service();
  if (told.kind == Kind::kQuery) return on_request(s, told);
  const auto found = s.resolutions.find(told.id.value);
  if (found == s.resolutions.end()) return;
  ConnectionId& id = *found->second;
  const bool resolved = told.kind == Kind::kResolved;
  auto event = translate(told, id, resolved ? RDMA_CM_EVENT_ESTABLISHED : RDMA_CM_EVENT_UNREACHABLE);
  if (told.kind == Kind::kRefused) event->abi.status = static_cast<int>(told.status);
  if (told.kind == Kind::kUnreachable) event->abi.status = -ETIMEDOUT;
  queue_event(id, std::move(event));
  if (resolved) return;
  s.resolutions.erase(found);
  id.resolution.reset();
}

}  // namespace

Service& service() {
  static Service* const one = new Service;
  return *one;
}

ProcessNic& nic_of(const ConnectionId& id) { return *Context::of(id.abi.verbs).nic; }
rc::ConnectionManager& manager_of(const ConnectionId& id) { return nic_of(id).adapter().connections(); }

ProcessNic& open_nic() { return *Context::of(service().context).nic; }

ibv_context* open_context() {
  if (is_forked()) {
    refuse(ENODEV, "rdma_cm: the device was opened before fork(): a child has no NIC of its own");
    return nullptr;
  }
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
  nic.set_connection_handlers(on_connection_event, on_resolution_event);
  nic.set_alarm_handler(on_alarm);
  nic.set_end_handler(on_end);
  return s.context;
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

wire::ServiceId service_at(const ConnectionId& id, std::uint16_t port) {
  return id.is_datagram() ? wire::rdma_datagram_service(port) : wire::rdma_service(port);
}

wire::ServiceId service_of(const ConnectionId& id) { return service_at(id, port_of(&id.abi.route.addr.src_addr)); }

bool take_port(Service& s, ConnectionId& id, const wire::Gid& own, std::uint16_t port) {
  const Endpoint wanted(service_at(id, port), own);
  for (auto [one, end] = s.bound.equal_range(wanted); one != end; ++one) {
    const ConnectionId& other = *one->second;
    if (&other != &id && !(other.shares_port && id.shares_port)) return false;
  }
  leave_port(s, id);
  id.bound = wanted;
  s.bound.emplace(wanted, &id);
  return true;
}

void leave_port(Service& s, ConnectionId& id) {
  if (!id.bound) return;
  const auto [begin, end] = s.bound.equal_range(*id.bound);
  s.bound.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == &id; }));
  id.bound.reset();
}

// Begins where no other process of this host is likely to be: several may have one address.
std::uint16_t next_port(Service& s) {
  constexpr std::uint32_t kPortsEach = 257;
  const std::uint32_t next = s.last_port == 0 ? static_cast<std::uint32_t>(getpid()) * kPortsEach : s.last_port + 1u;
  s.last_port = static_cast<std::uint16_t>(Service::kFirstEphemeral | next);
  return s.last_port;
}

Result<void> listen_at(ProcessNic& nic, wire::ServiceId service) {
  rc::ConnectionManager& connections = nic.adapter().connections();
  return is_datagram(service) ? connections.resolver().listen(service) : connections.listen(service);
}

void queue_event(ConnectionId& id, std::unique_ptr<CmEvent> event) {
  event->counted = &id;
  EventChannel& channel = EventChannel::of(id.abi.channel);
  channel.events.push_back(std::move(event));
  add_token(channel.abi.fd);
}

void queue_event(ConnectionId& id, rdma_cm_event_type type) {
  auto event = std::make_unique<CmEvent>();
  event->abi.id = &id.abi;
  event->abi.event = type;
  queue_event(id, std::move(event));
}

void await_listener(ProcessNic& nic, wire::ServiceId service, ports::Descriptor alone) {
  const Time until = nic.now() + kLinger;
  verbs::service().lingering[service] = {until, std::move(alone)};
  nic.set_alarm(until);
}

void drop_request(ProcessNic& nic, ConnectionId& id) {
  Service& s = service();
  if (id.connection) {
    nic.adapter().connections().release(nic.now(), *id.connection);
    s.connections.erase(id.connection->value);
  }
  if (id.resolution) {
    nic.adapter().connections().resolver().refuse(*id.resolution, wire::SidrStatus::kNoSuchService, {});
    s.resolutions.erase(id.resolution->value);
  }
  forget_events(id);
  delete &id;
}

void forget_events(const ConnectionId& id) {
  std::erase_if(service().resting, [&](const Service::Resting& one) { return one.id == &id; });
  EventChannel& channel = EventChannel::of(id.abi.channel);
  take_tokens(channel.abi.fd, std::erase_if(channel.events, [&](const auto& event) { return event->counted == &id; }));
}

void remember_peer(Service& s, const ConnectionId& id) {
  if (id.incoming) return;
  const std::uint16_t port = port_of(&id.abi.route.addr.dst_addr);
  const Time now = nic_of(id).now();
  std::erase_if(s.acquaintances,
                [&](const auto& a) { return a.until < now || (a.remote == id.remote && a.port == port); });
  s.acquaintances.push_back({id.remote, port, now + kLinger});
}

bool knows_peer(const Service& s, const ConnectionId& id) {
  const std::uint16_t port = port_of(&id.abi.route.addr.dst_addr);
  const Time now = nic_of(id).now();
  const auto same = [&](const auto& entry) {
    const ConnectionId& other = *entry.second;
    return !other.incoming && other.remote == id.remote && port_of(&other.abi.route.addr.dst_addr) == port;
  };
  return std::ranges::any_of(s.connections, same) || std::ranges::any_of(s.resolutions, same) ||
         std::ranges::any_of(s.acquaintances,
                             [&](const auto& a) { return a.remote == id.remote && a.port == port && now < a.until; });
}

bool has_listener(const Service& s, wire::ServiceId service) {
  const auto first = s.listeners.lower_bound({service, {}});
  return first != s.listeners.end() && first->first.first == service;
}

ConnectionId* listener_for(const Service& s, wire::ServiceId service, const wire::Gid& local) {
  ConnectionId* any = nullptr;
  for (auto one = s.listeners.lower_bound({service, {}}); one != s.listeners.end(); ++one) {
    const auto& [wanted, own] = one->first;
    if (wanted != service) break;
    ConnectionId& id = *one->second;
    if (!id.any_address && own == local) return &id;
    if (!id.any_address) continue;
    // That of the same family before one of IPv6, which is for both unless it says otherwise.
    if (own.is_v4() == local.is_v4() || (!own.is_v4() && !id.one_family && any == nullptr)) any = &id;
  }
  return any;
}

void serve_waiting(Service& s, wire::ServiceId service) {
  for (const Request& request : s.waiting) {
    if (service_of(request) == service) on_request(s, request);
  }
  std::erase_if(s.waiting, [service](const Request& request) { return service_of(request) == service; });
}

void forget_pair_of_connection(const ibv_qp* qp) {
  Service& s = service();
  const auto found =
      std::ranges::find_if(s.connections, [qp](const auto& entry) { return entry.second->abi.qp == qp; });
  if (found == s.connections.end()) return;
  ConnectionId& id = *found->second;
  manager_of(id).forget_pair(*id.connection);
}

}  // namespace sluice::verbs
