// EDM stage: the rack's memory traffic, granted by EDM's scheduler, as a stage of the switch; for RoCEv2 packets of NICs that know nothing of it.
//
// What it does:  a READ request is the demand of its answer (EDM §2.3): it waits here until both ports of the answer are free for as long as
//                that takes at the port rate, so what waits is requests of 80 bytes and not data. WRITEs and SENDs come unasked: their
//                packets wait here, and leave chunk by chunk as granted. Either way a port is not sent more than its rate. Atomics, ACKs and what
//                answers carry have been granted with their requests, or are too small to matter: they pass.
// Answers:       a request says how much is to come, which need not be true: a NAK frees the ports of what was granted. Of a READ longer than `chunk`
//                each further chunk is asked for as the answer's packets come (for its rank all that is left counts), and no other of its host at that
//                node meanwhile; with its last packet, a NAK, or when nothing has come for `hold`, what is left is forgotten.
//                Where kReadsAsked READs have been granted and no packet of an answer has come for `hold`, a host's READs of that node pass unasked until
//                one comes: a node that is dead, or refuses all, takes nobody's time.
// Life:          as a stage; last in a chain, for what it gives back passes no other.
// Order:         requests of one host to another stay in order, so those of a queue pair do.
// Degrades:      to a plain switch, counted: what has waited for `hold` goes; when the room for frames is used up, what comes goes with all that its host
//                has for the other one. What goes so takes its demand back, or the ports would be taken for it once more after it has gone. Hosts beyond kHosts are not scheduled while those that are there speak or are spoken to.
// Departures:    without EDM's NICs the first chunk's grant lets a whole READ's answer come: those beyond `chunk` are paced by its first chunk only. A
//                READ's later chunks are demands of their own, so first come, first served has others' of meanwhile before them.
//                Answers start after a time that varies from host to host, so a few may meet at a port.
// Threads:       the switch's owner.
// Source:        EDM §2.3, §3.1; DESIGN §5.6 "in real time".
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "edm/scheduler.h"
#include "switching/stage.h"
#include "wire/frame.h"

namespace sluice::rack {

struct EdmStageSettings {
  std::uint64_t bits_per_second = 10'000'000'000;  // of every port
  std::uint64_t chunk = std::uint64_t{256} << 10;  // READs up to here are granted whole
  std::uint64_t burst = 8u << 10;                  // of WRITEs and SENDs, granted at once
  Duration hold = Duration::milliseconds(5);
  std::uint32_t frames = 4'096;  // room; at least 512
  edm::Policy policy = edm::Policy::kShortestRemaining;
  // What is sent to it passes: it is nobody's port, and answers come from elsewhere. All zero: there is none.
  wire::MacAddress router{};
};

class EdmStage final : public switching::Stage {
 public:
  static constexpr std::uint32_t kHosts = 128;
  static constexpr Duration kSilence = Duration::seconds(1);  // after which a host may lose its place to a new one
  static constexpr std::uint8_t kReadsAsked = 8;  // of one host at another, at the scheduler; further ones wait behind

  struct Counters {
    std::uint64_t reads = 0;       // requests that were granted
    std::uint64_t read_bytes = 0;  // that they asked for
    std::uint64_t frames = 0;      // of WRITEs and SENDs that were granted
    std::uint64_t frame_bytes = 0;
    std::uint64_t waited = 0;      // of both: not granted at once
    std::uint64_t overdue = 0;     // frames let go after `hold`
    std::uint64_t overflow = 0;    // … for want of room
    std::uint64_t lost = 0;        // … dropped, as not even that helped
    std::uint64_t strangers = 0;   // … of hosts beyond kHosts
    std::uint64_t unanswered = 0;  // READs … of nodes that do not answer
    std::uint64_t refused = 0;     // READs whose ports or rest a NAK has freed
    std::uint64_t abandoned = 0;   // … whose answer broke off
    std::uint64_t most_held = 0;   // frames at once
    Duration longest{};            // wait
  };

  explicit EdmStage(const EdmStageSettings& settings);

  void process(Time now, std::span<switching::Packet> packets, port::FrameSink& outbox) override;
  Time next_deadline() const override;
  void on_deadline(Time now, port::FrameSink& outbox) override;

  // {"on": false}: what may change at run time. Off, what waits is let go, and everything passes.
  Result<void> change(const std::string& json);
  std::string status_json() const;
  const Counters& counters() const { return counters_; }
  std::uint32_t held() const { return held_; }

 private:
  static constexpr std::uint32_t kNone = ~0u;
  static constexpr std::uint8_t kNobody = 0xFF;
  static constexpr std::uint32_t kNumbersBits = 9;  // four places a host
  static constexpr std::uint32_t kSpare = 128;      // frames' room for what goes again at once
  enum class What : std::uint8_t { kRead, kData, kSmall };
  struct Slot {
    std::uint32_t next = kNone;
    std::uint32_t length = 0;
    std::uint32_t answer = 0;  // bytes, of a READ
    wire::Psn psn{};
    wire::Qpn at{};  // its queue pair
    Time since{};
    What what{};
  };
  // The READ of a line that was granted last.
  struct Granted {
    wire::Psn first{};          // of its answer
    std::uint32_t packets = 1;  // of its answer; until one has come, that one alone is known
    wire::Qpn at{};             // whose answer
    std::uint32_t answer = 0;
    Time until{};             // its ports are taken
    std::uint64_t left = 0;   // bytes to ask for; while there are any, no other READ of the line is asked for
    std::uint64_t bytes = 0;  // granted
    std::uint64_t came = 0;   // of them, if some are left
    Time heard{};             // something of it
    bool asked = false;       // a chunk of what is left is at the scheduler
    bool begun = false;       // a packet has come, and said:
    wire::Qpn reader{};

    bool covers(wire::Psn psn) const {
      const std::int32_t place = psn.since(first);
      return place >= 0 && static_cast<std::uint32_t>(place) < packets;
    }
  };
  // Requests of one host to another, oldest first; the leading ones of one kind are asked for.
  struct Line {
    std::uint32_t first = kNone;
    std::uint32_t last = kNone;
    std::uint32_t asked_last = kNone;  // the last READ that was asked for
    std::uint32_t reads_asked = 0;     // leading READs at the scheduler
    std::uint32_t bytes_asked = 0;     // of leading data
    std::uint32_t credit = 0;          // granted of that, and not used yet
    bool listed = false;               // in busy_
    std::uint32_t unanswered = 0;      // READs granted since a packet of an answer came
    Time unanswered_since{};           // the first of them
    Granted granted{};

    // Of answers: all that is known.
    void forget() {
      unanswered = 0;
      granted = {};
    }
  };

  bool take(Time now, const switching::Packet& packet);
  void answered(Time now, const port::Frame& frame, const wire::ParsedFrame& parsed);
  void answer_came(Time now, std::uint32_t line, const wire::ParsedFrame& parsed);
  void refused(Time now, std::uint32_t line);
  bool is_silent(Time now, const Line& line) const;
  static bool is_asked_anew(const Granted& granted, const wire::ParsedFrame& request);
  bool is_long(std::uint32_t slot) const { return slots_[slot].answer > settings_.chunk; }
  bool notify(Time now, std::uint32_t line, std::uint64_t bytes, std::uint64_t later);
  void ask_chunk(Time now, std::uint32_t line);
  void end_read(Time now, std::uint32_t line);
  void granted_read(Time now, std::uint32_t line, const edm::Grant& grant);
  std::uint32_t host(std::uint64_t mac);
  std::uint32_t number_of(std::uint64_t mac);
  std::uint8_t* place_of(std::uint64_t mac);
  std::uint32_t place_of_silent();
  bool is_idle(std::uint32_t number) const;
  void push(Time now, std::uint32_t line, const port::Frame& frame, const Slot& slot);
  void ask(Time now, std::uint32_t line);
  void ask_reads(Time now, std::uint32_t line);
  void ask_data(Time now, std::uint32_t line);
  void schedule(Time now);
  void granted(Time now, const edm::Grant& grant);
  void release_first(Time now, Line& line);
  void release_granted(Time now, Line& line);
  void let_go_first(std::uint32_t line);
  void let_go(std::uint32_t line, std::uint64_t& counter);
  void sweep(Time now);
  void emit(port::FrameSink& outbox);
  edm::PortId from(std::uint32_t line) const { return edm::PortId(static_cast<std::uint16_t>(line / kHosts)); }
  edm::PortId to(std::uint32_t line) const { return edm::PortId(static_cast<std::uint16_t>(line % kHosts)); }

  EdmStageSettings settings_;
  edm::Scheduler scheduler_;
  bool on_ = true;
  struct Host {
    std::uint64_t mac = 0;
    Time seen{};  // in either direction
  };
  std::array<std::uint8_t, std::size_t{1} << kNumbersBits>
      numbers_{};                    // by MAC, in the first free place from where its hash says
  std::vector<Host> known_;          // by number
  Time next_look_{};                 // for one that is silent
  std::vector<Line> lines_;          // by source and destination
  std::vector<std::uint32_t> busy_;  // those that hold something, or did a while ago
  std::vector<Slot> slots_;
  std::vector<std::uint8_t> bytes_;
  std::uint32_t free_ = 0;  // slots, linked
  std::uint32_t free_count_ = 0;
  std::uint32_t ready_first_ = kNone;
  std::uint32_t ready_last_ = kNone;
  std::uint32_t held_ = 0;  // frames in lines
  Time now_{};
  Time sweep_at_ = Time::never();
  Counters counters_;
};

}  // namespace sluice::rack
