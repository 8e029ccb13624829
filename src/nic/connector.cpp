#include "nic/connector.h"

#include <utility>

namespace sluice::nic {

using rc::ConnectionEvent;

Result<void> Connector::listen(std::uint16_t port, Handler on_request) {
  auto listening = manager().listen(port);
  if (listening) listeners_[port] = std::move(on_request);
  return listening;
}

Result<void> Connector::accept(Time now, rc::ConnectionId id, const rc::ConnectionParameters& parameters,
                               Handler on_event) {
  auto accepted = manager().accept(now, id, parameters);
  if (accepted) connections_[id.value] = std::move(on_event);
  return accepted;
}

Result<rc::ConnectionId> Connector::connect(Time now, const wire::Gid& remote, std::uint16_t port,
                                            const rc::ConnectionParameters& parameters, Handler on_event) {
  auto id = manager().connect(now, remote, port, parameters);
  if (id) connections_[id->value] = std::move(on_event);
  return id;
}

void Connector::forget(Time now, rc::ConnectionId id) {
  if (connections_.erase(id.value) != 0) manager().release(now, id);
}

std::size_t Connector::poll(Time now) {
  std::size_t events = 0;
  while (const auto event = manager().poll_event()) {
    deliver(now, *event);
    ++events;
  }
  return events;
}

void Connector::deliver(Time now, const ConnectionEvent& event) {
  if (event.kind == ConnectionEvent::Kind::kRequest) {
    const auto listener = listeners_.find(event.port);
    if (listener == listeners_.end()) {
      manager().reject(now, event.id, {});
      return;
    }
    const Handler on_request = listener->second;
    return on_request(now, event);
  }
  const auto found = connections_.find(event.id.value);
  if (found == connections_.end()) return;
  const bool last = event.kind == ConnectionEvent::Kind::kRejected ||
                    event.kind == ConnectionEvent::Kind::kUnreachable ||
                    event.kind == ConnectionEvent::Kind::kDisconnected;
  const Handler on_event = found->second;  // a copy: the handler may change the map
  if (last) connections_.erase(found);
  on_event(now, event);
}

}  // namespace sluice::nic
