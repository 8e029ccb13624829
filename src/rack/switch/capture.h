// Captures: what goes through the switch, copied for whoever asks to see it (SPAN, port mirroring), as pcapng.
//
// Life:       Captures::begin() -> a Capture, whose reader calls next() until it has had enough, and lets it go. The switch goes on without it
//             at its next flush.
// A frame:    the switch's thread filters, stamps and copies it into the capture's ring; the reader's thread makes blocks of it.
// Cost:       to the switch, a look at an empty tap while nobody captures; else a filter and a copy a frame and capture. It never waits for a
//             reader: what finds the ring full is counted, and the next packet that found room says how many those were.
// Errors:     a filter that libpcap does not understand, in its words, or that is too long; more than kMost captures at once.
// Limits:     kMostFilter letters and kMostInstructions of a filter; of a frame the last bytes of port::kMaxFrame are cut off, which no RoCE has.
// Threads:    Captures: the switch's, but for begin(). Capture: a reader's and the switch's, as it says.
// Source:     pcap-filter(7); ports/pcapng.h.
#pragma once

#include <pcap/pcap.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "nic/poll_loop.h"
#include "ports/pcapng.h"
#include "ports/shm_region.h"
#include "switching/learning_switch.h"
#include "wire/address.h"

namespace sluice::rack {

struct CaptureWish {
  std::string filter{};                // as tcpdump takes it; empty: everything
  std::vector<wire::MacAddress> of{};  // only frames from or to one of these, or a program on its NIC; empty: of all
  bool in = true;                      // frames as they come in
  bool out = false;                    // frames as they leave
  std::uint32_t snap = 0;              // bytes of each frame; 0: all
  std::uint64_t buffer = std::uint64_t{16} << 20;  // bytes that wait for the reader; a ring's size (ports/shm_region.h)
};

// The name and the description of a port, as the capture's reader is to see it.
struct PortNames {
  std::string name;
  std::string description;
};

class Capture {
 public:
  static constexpr std::size_t kMostFilter = 2048;
  static constexpr std::size_t kMostNodes = 32;
  static constexpr unsigned kMostInstructions = 1024;  // each frame may meet them all

  static Result<std::shared_ptr<Capture>> make(const CaptureWish& wish);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // --- the reader's thread ---
  // What has been captured since the last call, as blocks, about kMostAtOnce bytes at most; "" when that is nothing. `names_of` is asked once for every
  // port that is new. The first interface is the switch as a whole: what was lost is counted there.
  std::string next(const std::function<PortNames(switching::PortNumber)>& names_of);

  // --- the switch's thread ---
  void sees(switching::PortNumber port, switching::Direction direction, ByteView frame);
  void detached(switching::PortNumber port);
  void flush() { writer_.publish(); }

 private:
  static constexpr std::size_t kMostAtOnce = std::size_t{1} << 20;
  // Before each frame in the ring.
  struct Head {
    std::int64_t at_ns;
    std::uint64_t lost;  // frames, since the capture began
    std::uint32_t length;
    std::uint16_t port;
    std::uint8_t what;  // a switching::Direction, or kGone
    std::uint8_t unused;
  };
  static constexpr std::uint8_t kGone = 255;  // the port is no more

  Capture() = default;
  bool tell_gone();
  bool put(const Head& head, ByteView bytes);
  void add_interface(std::string& out, const PortNames& names);

  CaptureWish wish_;
  bpf_program filter_{};
  ports::ShmRegion region_;
  ports::RingWriter writer_;
  std::atomic<std::uint64_t> lost_{0};  // written by the switch's thread alone
  std::vector<std::uint16_t> gone_;     // ports of which the reader could not be told yet

  ports::RingReader reader_;
  std::map<std::uint16_t, std::uint32_t> interfaces_;  // by port: the how manieth
  std::uint32_t interfaces_made_ = 0;
  std::uint64_t lost_told_ = 0;
  std::uint64_t lost_told_by_statistics_ = 0;
};

class Captures final : public switching::Tap, public nic::Pollable {
 public:
  static constexpr std::size_t kMost = 4;

  // Both outlive it.
  Captures(nic::PollLoop& loop, switching::LearningSwitch& machine);
  ~Captures() override;

  // From any thread but the loop's, while the loop turns.
  Result<std::shared_ptr<Capture>> begin(const CaptureWish& wish);
  Result<void> add(std::shared_ptr<Capture> capture);
  std::size_t open() const { return open_.size(); }

  void sees(switching::PortNumber port, switching::Direction direction, ByteView frame) override;
  void detached(switching::PortNumber port) override;
  std::size_t poll(Time) override { return 0; }
  void transmit(Time now) override;

 private:
  void forget_left();

  nic::PollLoop& loop_;
  switching::LearningSwitch& machine_;
  std::vector<std::shared_ptr<Capture>> open_;
};

}  // namespace sluice::rack
