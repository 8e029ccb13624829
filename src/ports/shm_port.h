// A cable between two processes of one host: one shared-memory ring in each direction, frames read and written in place.
//
// Made by:    ShmListener (each process that connects becomes a Port: what the switch uses) and ShmPort::connect, or,
//             without a switch, ShmPort::listen_one and ShmPort::connect: a cable between exactly two.
// Life:       kDown -> (the hello arrives) kUp -> (peer died or broke the protocol) kDown. The side that connects tries again
//             by itself with back-off from 1 to 100 ms; listen_one takes the next peer; a port of a ShmListener stays
//             kDown and is its owner's to destroy. Frames that a dead peer had published are still received.
// Waking:     wait_descriptor() is an epoll descriptor over the socket (wake-ups and death) and what reattachment needs.
// Cost:       no system call while both sides poll, but one look at the socket a millisecond; none at all while asleep.
// Trust:      see shm_ring.h. A peer that breaks the rings costs itself the connection: rx_malformed and resets count it.
// Threads:    one owner for each end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "port/listener.h"
#include "port/port.h"
#include "ports/descriptor.h"
#include "ports/shm_region.h"

namespace sluice::ports {

struct ShmOptions {
  std::size_t ring_bytes = std::size_t{1} << 20;  // each direction; the listening side decides
};

// What connect() makes of a listener that is not there (yet).
enum class Absent : std::uint8_t { kFail, kWait };

class ShmPort final : public port::Port {
 public:
  static Result<std::unique_ptr<ShmPort>> connect(const std::string& path, Absent absent = Absent::kFail);
  static Result<std::unique_ptr<ShmPort>> listen_one(const std::string& path, ShmOptions options = {});
  ~ShmPort() override;

  std::uint8_t* reserve(std::size_t length) override;
  void commit(std::size_t length) override;
  bool flush_some(Time now) override;
  void discard() override;
  std::size_t receive(Time now, std::span<port::Frame> burst) override;
  Time next_deadline() const override;
  int wait_descriptor() const override { return epoll_.get(); }
  bool arm() override { return reader_.arm(); }
  void disarm() override;
  port::PortState state() const override { return up_ ? port::PortState::kUp : port::PortState::kDown; }
  const port::PortCounters& counters() const override { return counters_; }
  std::string name() const override { return "shm:" + path_; }

 private:
  friend class ShmListener;
  enum class Role : std::uint8_t { kAccepted, kListening, kConnecting };

  ShmPort(Role role, std::string path, ShmOptions options);
  bool offer(Descriptor socket);
  void attach(Descriptor socket, ShmRegion region, unsigned side);
  void lose(Time now);
  void look_around(Time now);
  void accept_peer();
  void seek_peer(Time now);
  bool watch(int fd);

  Role role_;
  std::string path_;
  ShmOptions options_;
  Descriptor epoll_;
  Descriptor listener_;  // kListening
  Descriptor socket_;
  ShmRegion region_;
  RingWriter writer_;
  RingReader reader_;
  bool up_ = false;
  bool refused_ = false;      // reserve() said no since the last flush()
  std::size_t reserved_ = 0;  // 0: no reservation
  std::uint64_t shown_ = 0;   // of counters_.tx_frames
  Time retry_at_ = Time::never();
  Time next_look_;  // at the socket
  Time attached_at_;
  Duration backoff_;
  port::PortCounters counters_;
  std::unique_ptr<std::uint8_t[]> scrap_;  // where frames for a dead peer are written
};

class ShmListener final : public port::Listener {
 public:
  static Result<std::unique_ptr<ShmListener>> listen(const std::string& path, ShmOptions options = {});
  ~ShmListener() override;

  std::unique_ptr<port::Port> accept(Time now) override;
  int wait_descriptor() const override { return socket_.get(); }
  std::uint64_t refused() const override { return refused_; }
  std::string name() const override { return "shm:" + path_; }

 private:
  ShmListener(std::string path, ShmOptions options, Descriptor socket);
  void say_out_of_descriptors();

  std::string path_;
  ShmOptions options_;
  Descriptor socket_;
  Descriptor spare_;  // given up to turn a peer away when descriptors have run out
  std::uint64_t refused_ = 0;
  bool said_ = false;  // that descriptors ran out: once
};

}  // namespace sluice::ports
