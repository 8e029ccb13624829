// Connector: gives each event of an adapter's connection manager to whom it concerns.
//
// Life:       listen(port, on_request) -> accept(id, …, on_event)       connect(gid, port, …, on_event)       -> events -> forget(id)
// Invariant:  a handler hears of its own connection only, and of nothing after kRejected, kUnreachable, kDisconnected or forget().
// Threads:    the adapter's owner. A handler may call anything here.
#pragma once

#include <functional>
#include <map>
#include <unordered_map>

#include "nic/poll_loop.h"
#include "rc/adapter.h"
#include "rc/connection_manager.h"

namespace sluice::nic {

class Connector final : public Pollable {
 public:
  using Handler = std::function<void(Time now, const rc::ConnectionEvent& event)>;

  explicit Connector(rc::Adapter& adapter) : adapter_(adapter) {}

  // `on_request` accepts or rejects, now or later.
  Result<void> listen(std::uint16_t port, Handler on_request);
  Result<void> accept(Time now, rc::ConnectionId id, const rc::ConnectionParameters& parameters, Handler on_event);
  void reject(Time now, rc::ConnectionId id) { manager().reject(now, id, {}); }
  Result<rc::ConnectionId> connect(Time now, const wire::Gid& remote, std::uint16_t port,
                                   const rc::ConnectionParameters& parameters, Handler on_event);
  // Tells the peer that it is over, and hears no more of it. The queue pair is the caller's to destroy.
  void forget(Time now, rc::ConnectionId id);

  std::size_t poll(Time now) override;

  rc::Adapter& adapter() { return adapter_; }

 private:
  rc::ConnectionManager& manager() { return adapter_.connections(); }
  void deliver(Time now, const rc::ConnectionEvent& event);

  rc::Adapter& adapter_;
  std::map<std::uint16_t, Handler> listeners_;
  std::unordered_map<std::uint32_t, Handler> connections_;  // by ConnectionId
};

}  // namespace sluice::nic
