// Ethernet frames in UDP datagrams, many a datagram: works between any two machines, without privileges.
//
// Made by:    UdpPort::connect (the calling end), or UdpListener: each address that says hello becomes a Port.
// Life:       see udp_session.h. The calling end greets for ever, with back-off, from whatever address its host has then; a
//             listener's port that has lost its caller stays kDown and is its owner's to destroy.
// Sharing:    a listener and its ports share one socket. Whichever is polled receives for all; frames wait in the buffers
//             they came in, a few for each port. wait_descriptor() is that socket for all of them.
// Cost:       a system call a flush and a poll, not a frame: docs/performance.md.
// Limits:     UdpOptions. A frame that no datagram of the path's MTU holds goes alone and is fragmented by IP.
// Errors:     malformed, stale and overrun datagrams are counted; ECONNREFUSED means a lost peer.
// Threads:    one owner for a listener and all its ports; they may be destroyed in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "port/listener.h"
#include "port/port.h"
#include "ports/udp_container.h"
#include "ports/udp_session.h"
#include "ports/udp_socket.h"

namespace sluice::ports {

struct UdpOptions {
  std::size_t datagram_bytes = 0;  // at most so many in a datagram; 0: what the path's MTU allows
  std::size_t most_peers = 256;    // of a listener
};

class UdpPort;

// One socket and the ports that live on it.
class UdpHub {
 public:
  // One buffer of arrived datagrams, on its way to the port that it is for.
  struct Inbound {
    std::size_t buffer = 0;
    std::size_t length = 0;
    std::size_t segment = 0;
  };

  UdpHub(UdpSocket socket, std::size_t buffers);

  // Receives once for every port. `generation` counts such polls; see UdpPort::receive().
  void poll(Time now);
  std::uint64_t generation() const { return generation_; }
  Time polled_at() const { return polled_at_; }
  std::uint8_t* buffer(std::size_t index) { return buffers_[index].get(); }
  void give_back(std::size_t index) { free_.push_back(index); }
  // Tells those ports whose peers are gone so, after an error on the socket.
  void spread_refusals(Time now);

  UdpSocket& socket() { return socket_; }
  SessionId session() const { return session_; }

  // The ports: one under the default address on a connected socket.
  void enter(const SocketAddress& peer, UdpPort& port);
  void leave(const SocketAddress& peer, const UdpPort& port);

  // Listener's side: who said hello and has no port yet.
  struct Greeting {
    SocketAddress peer;
    ContainerHeader hello;
  };
  void admit_strangers(std::size_t most_peers) { most_peers_ = most_peers; }
  // Whether an address, as text, may have a port, and keep it; asked at a greeting and from time to time.
  using Admit = std::function<bool(Time now, const std::string& host)>;
  void admit_only(Admit admit) { admit_ = std::move(admit); }
  bool admits(Time now, const SocketAddress& peer) const { return !admit_ || admit_(now, peer.host()); }
  void refuse() { ++refused_; }
  std::deque<Greeting>& greetings() { return greetings_; }
  std::uint64_t refused() const { return refused_; }

 private:
  void dispatch(const UdpSocket::Arrival& arrival, std::size_t buffer);
  void meet_stranger(const SocketAddress& source, ByteView datagram);

  UdpSocket socket_;
  SessionId session_;
  std::vector<std::unique_ptr<std::uint8_t[]>> buffers_;
  std::vector<std::size_t> free_;  // used last in, first out
  std::map<SocketAddress, UdpPort*> ports_;
  std::deque<Greeting> greetings_;
  std::size_t most_peers_ = 0;
  Admit admit_;
  std::uint64_t generation_ = 0;
  Time polled_at_ = Time::never();  // when the socket was last read
  std::uint64_t refused_ = 0;
};

class UdpPort final : public port::Port {
 public:
  static Result<std::unique_ptr<UdpPort>> connect(const HostPort& peer, UdpOptions options = {});
  ~UdpPort() override;

  std::uint8_t* reserve(std::size_t length) override;
  void commit(std::size_t length) override;
  bool make_room() override;
  bool flush_some(Time now) override;
  void discard() override { counters_.tx_discarded += forget_train(); }
  std::size_t receive(Time now, std::span<port::Frame> burst) override;
  Time next_deadline() const override;
  int wait_descriptor() const override { return hub_->socket().descriptor(); }
  bool arm() override { return inbound_.empty(); }
  port::PortState state() const override {
    return session_.up() && !expelled_ ? port::PortState::kUp : port::PortState::kDown;
  }
  const port::PortCounters& counters() const override { return counters_; }
  std::string name() const override { return "udp:" + peer_.to_string(); }

  std::size_t datagram_bytes() const { return train_.datagram_bytes(); }

 private:
  friend class UdpHub;
  friend class UdpListener;

  UdpPort(std::shared_ptr<UdpHub> hub, UdpSession::Role role, SocketAddress peer, UdpOptions options, Time now);

  void take(const UdpHub::Inbound& inbound);
  void on_refused(Time now);
  // False: no datagram waits. True: one was looked at; its frames, if any, are in reader_.
  bool open_next_datagram(Time now);
  void on_time(Time now);
  void send_control(Time now);
  bool send_some(Time now);
  std::uint64_t forget_train();
  const SocketAddress* destination() const { return role_ == UdpSession::Role::kCaller ? nullptr : &peer_; }

  static constexpr std::size_t kMostInbound = 32;     // buffers that wait for one port
  static constexpr std::uint32_t kMostPutOff = 1000;  // looks for what is due, while the socket is never emptied

  std::shared_ptr<UdpHub> hub_;
  UdpSession::Role role_;
  SocketAddress peer_;
  UdpSession session_;
  ContainerTrain train_;
  std::deque<UdpHub::Inbound> inbound_;  // the front one is being read
  std::size_t offset_ = 0;               // in the front one: where its next datagram begins
  ContainerReader reader_;
  std::vector<std::size_t> spent_;  // buffers read to their end, whose frames are still out
  std::uint64_t seen_generation_ = 0;
  Time retry_at_ = Time::never();
  Time last_now_;
  Time next_overrun_look_;
  std::uint32_t put_off_ = 0;
  std::uint64_t overruns_ = 0;  // of the socket, at the last look
  bool expelled_ = false;       // the listener does not admit this peer any more
  std::size_t reserved_ = 0;
  bool reserved_scrap_ = false;
  port::PortCounters counters_;
  std::unique_ptr<std::uint8_t[]> scrap_;  // where frames for a dead peer are written
};

class UdpListener final : public port::Listener {
 public:
  static Result<std::unique_ptr<UdpListener>> listen(const HostPort& local, UdpOptions options = {});

  // Before the first accept().
  void admit_only(UdpHub::Admit admit) { hub_->admit_only(std::move(admit)); }
  std::unique_ptr<port::Port> accept(Time now) override;
  int wait_descriptor() const override { return hub_->socket().descriptor(); }
  Time next_deadline() const override { return hub_->greetings().empty() ? Time::never() : Time(); }
  std::uint64_t refused() const override { return hub_->refused(); }
  std::uint64_t lost() const override { return hub_->socket().overruns(); }
  std::string name() const override { return "udp:" + hub_->socket().local().to_string(); }
  // The port that was asked for, or the one that the kernel chose for 0.
  std::uint16_t port_number() const;

 private:
  UdpListener(std::shared_ptr<UdpHub> hub, UdpOptions options) : hub_(std::move(hub)), options_(options) {}

  std::shared_ptr<UdpHub> hub_;
  UdpOptions options_;
  std::uint64_t seen_generation_ = 0;
};

}  // namespace sluice::ports
