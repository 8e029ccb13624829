// Captures as ports: replay a pcap file as received frames, or record every frame of another port into one.
//
// Replay:     frames in the file's order, as fast as they are polled or at the distances in time at which they were recorded,
//             counted from the first receive(), a hundred days at most. What is sent into it goes nowhere and is counted as sent. At the file's end
//             kDown; also where it is broken, which is counted as a malformed frame and said once on stderr. Classic pcap and pcapng, as libpcap reads them; Ethernet captures only.
// Record:     frames as they were handed in (also what is discarded then) and out, nanosecond timestamps: `now`, offset by the wall clock at the start.
//             Written out every 100 ms and at the end. A full disk is counted and said once on stderr; the port goes on.
// Threads:    one owner.
// Source:     pcap(3pcap), pcap-savefile(5).
#pragma once

#include <sys/time.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "port/port.h"
#include "ports/descriptor.h"
#include "ports/private_output.h"

struct pcap;
struct pcap_dumper;

namespace sluice::ports {

// From one packet of a capture to another, as libpcap stamps them with nanoseconds; no further than a hundred days either way, which a
// Duration holds.
Duration distance(const timeval& from, const timeval& to);

enum class Pace : std::uint8_t { kAsPolled, kAsRecorded };

class PcapPort final : public port::Port {
 public:
  static Result<std::unique_ptr<PcapPort>> open(const std::string& file, Pace pace = Pace::kAsPolled);
  ~PcapPort() override;

  std::uint8_t* reserve(std::size_t length) override;
  void commit(std::size_t length) override;
  bool flush_some(Time) override { return false; }
  void discard() override { reserved_ = 0; }
  std::size_t receive(Time now, std::span<port::Frame> burst) override;
  Time next_deadline() const override;
  int wait_descriptor() const override { return never_readable_.get(); }
  bool arm() override { return !next_ || pace_ == Pace::kAsRecorded; }
  port::PortState state() const override { return next_ ? port::PortState::kUp : port::PortState::kDown; }
  const port::PortCounters& counters() const override { return counters_; }
  std::string name() const override { return "pcap:" + file_; }

 private:
  // The next frame of the file, read ahead; its bytes are libpcap's until the one after is read.
  struct Next {
    const std::uint8_t* data = nullptr;
    std::uint32_t length = 0;
    timeval recorded{};  // with nanoseconds
  };
  static constexpr std::size_t kBurst = 64;

  PcapPort(std::string file, Pace pace, pcap* reader);
  void read_ahead();
  Time due(const Next& next) const;

  std::string file_;
  Pace pace_;
  pcap* reader_;
  std::optional<Next> next_;
  timeval first_recorded_{};
  std::optional<Time> started_;
  Descriptor never_readable_;  // so that a poll loop can sleep until the next frame is due
  bool broken_ = false;
  std::unique_ptr<std::uint8_t[]> frames_;  // kBurst received ones and one to send
  std::size_t reserved_ = 0;
  port::PortCounters counters_;
};

class RecordingPort final : public port::Port {
 public:
  ~RecordingPort() override;

  std::uint8_t* reserve(std::size_t length) override;
  void commit(std::size_t length) override;
  bool make_room() override { return inner_->make_room(); }
  bool flush_some(Time now) override;
  void discard() override { inner_->discard(); }
  std::size_t receive(Time now, std::span<port::Frame> burst) override;
  Time next_deadline() const override;
  int wait_descriptor() const override { return inner_->wait_descriptor(); }
  bool arm() override { return inner_->arm(); }
  void disarm() override { inner_->disarm(); }
  port::PortState state() const override { return inner_->state(); }
  const port::PortCounters& counters() const override { return inner_->counters(); }
  std::string name() const override { return inner_->name(); }

  std::uint64_t recorded() const { return recorded_; }
  // Frames that could not be written.
  std::uint64_t lost() const { return lost_; }

 private:
  friend Result<std::unique_ptr<RecordingPort>> recording(std::unique_ptr<port::Port> inner, const std::string& file);
  RecordingPort(std::unique_ptr<port::Port> inner, std::string file, pcap* format, pcap_dumper* writer);
  void record(ByteView frame);
  void write_out();
  void give_up();

  std::unique_ptr<port::Port> inner_;
  std::string file_;
  pcap* format_;
  pcap_dumper* writer_;
  WholePieces pieces_;
  std::optional<std::int64_t> zero_ns_;  // wall clock at time zero, since 1970
  std::uint8_t* reserved_ = nullptr;
  Time now_;  // the owner's last
  Time next_write_out_;
  bool unwritten_ = false;
  bool broken_ = false;
  std::uint64_t recorded_ = 0;
  std::uint64_t lost_ = 0;
};

// Records what passes through `inner` into `file`, which is overwritten.
Result<std::unique_ptr<RecordingPort>> recording(std::unique_ptr<port::Port> inner, const std::string& file);

}  // namespace sluice::ports
