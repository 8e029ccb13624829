// Link: one queue pair to one node, kept up: connected by RDMA-CM, and connected anew, with growing pauses, whenever it fails;
// with a smaller path MTU when the peer refuses that.
//
// Life:       want(address) -> kConnecting -> kUp -> (failure) -> kWaiting -> kConnecting …        want(nothing) -> kIdle.
// Invariant:  the owner's on_up and on_down come in turns; between on_down and the next on_up no queue pair of this link exists.
// Errors:     the last reason why it is not up, for people.
// Threads:    the adapter's owner.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nic/connector.h"
#include "rc/adapter.h"

namespace sluice::rack {

struct LinkConfig {
  rc::QueuePairConfig pair{};
  std::uint8_t retry_count = 7;
  std::vector<std::uint8_t> private_data{};   // that the peer is told when it is asked for a connection
  std::optional<std::uint8_t> ack_timeout{};  // a code; absent: the connection manager's default
  Duration response_timeout = Duration::milliseconds(200);
  std::uint8_t max_retries = 4;
  Duration first_pause = Duration::milliseconds(20);
  Duration longest_pause = Duration::seconds(1);
};

class Link {
 public:
  enum class State : std::uint8_t { kIdle, kConnecting, kUp, kWaiting };
  struct Peer {
    wire::Gid gid{};
    std::uint16_t port = 0;
    friend bool operator==(const Peer&, const Peer&) = default;
  };
  struct Events {
    std::function<void(Time, rc::QueuePair&)> on_up;
    // The pair is in ERR and destroyed when this returns.
    std::function<void(Time, rc::QueuePair&)> on_down;
    // The pair has been made and is in RESET.
    std::function<void(Time, rc::QueuePair&)> on_made;
  };

  Link(nic::Connector& connector, LinkConfig config, Events events);
  ~Link();

  // Where to be connected; another peer than before ends the present connection. Null: nowhere.
  void want(Time now, std::optional<Peer> peer);
  // The pair does not work any more; only while up.
  void failed(Time now, std::string why);
  // Connects when it is time. Cheap.
  void poll(Time now);
  Time next_deadline() const { return state_ == State::kWaiting ? retry_at_ : Time::never(); }

  State state() const { return state_; }
  bool up() const { return state_ == State::kUp; }
  const std::string& why() const { return why_; }
  std::uint64_t connects() const { return connects_; }
  std::uint32_t path_mtu() const;  // REQUIRES: up

 private:
  void connect(Time now);
  void on_event(Time now, const rc::ConnectionEvent& event);
  void ask_for_less();
  void drop(Time now);
  void pause(Time now, std::string why);

  nic::Connector& connector_;
  LinkConfig config_;
  Events events_;
  State state_ = State::kIdle;
  std::optional<Peer> peer_;
  rc::QueuePair* pair_ = nullptr;
  rc::ConnectionId id_{};
  std::uint32_t path_mtu_ = 0;  // 0: the adapter's; less when the peer has refused that
  Time retry_at_;
  Duration pause_;
  std::string why_ = "not tried yet";
  std::uint64_t connects_ = 0;
};

}  // namespace sluice::rack
