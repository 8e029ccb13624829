// Switch channel: carries out the requests of one channel of a Cowbird instance by packets alone, from the switch between the application's
// NIC and the memory nodes. Both are passive: they answer READs and WRITEs and know nothing of it.
//
// Life:       made -> connect() for each memory node, set_regions() -> attaches by itself (reads how far the last engine got) -> probe() when
//             its turn has come -> on_answer() ... -> dropped. Another engine takes up where this one left off.
// A read:     probe response -> READ of new entries -> READ of the pool -> each READ response turned into a WRITE to the application's ring
//             -> its ACK -> one WRITE of the progress line. A write: the mirror, from the application's data ring to the pool.
// Connections: probes, entries and progress go over a queue pair between the application's NIC and the switch itself. Data go over one
//             between the NIC and the memory node, on which the switch speaks for each end towards the other: a READ response becomes
//             a WRITE for whom it was addressed to anyway.
// Order:      requests are begun in the order of issue. Reads wait while a write is out; a write waits until all reads before it are
//             published (until then they may be executed again). So each type completes in order, and a read sees earlier writes.
// Errors:     a memory node that has not answered for `silence` what was asked of it: its connection is closed and stays so until connect(), over which its
//             requests begin again. After `patience` they fail (kUnreachable; kUnknown if a WRITE may have arrived). A refusal: kDenied, and the
//             connection is closed. The application's NIC: tried for ever.
// Stops:      time in which the switch itself stood still is no memory node's fault: `patience` does not count it.
// Trust:      as the spot engine: entry_check.h.
// Threads:    one owner. No allocation but in connect() and set_regions().
// Limits:     kWindow requests at once; a request is at most kMostBytes. Nodes that are not connected are known as long as a region or a request names them:
//             the application says which.
// Source:     Cowbird §5.2 (phases), §5.3 (pausing reads, go-back-N), figures 5 to 7. Ours: writes wait for reads, closing, errors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cowbird/error_log.h"
#include "cowbird/layout.h"
#include "cowbird/request_stream.h"
#include "cowbird/status.h"

namespace sluice::cowbird {

struct SwitchEngineConfig {
  Duration probe_slot = Duration::microseconds(2);  // between two probes, of whichever channels
  Duration probe_least = Duration::microseconds(2);
  Duration probe_most = Duration::milliseconds(1);
  Duration awake = Duration::milliseconds(20);
  Duration heartbeat = Duration::milliseconds(50);
  Duration timeout = Duration::milliseconds(4);  // without an answer, then twice as long …
  Duration longest_timeout = Duration::milliseconds(128);
  Duration max_flight = Duration::milliseconds(100);  // a packet of a connection that is closed may still arrive
  Duration silence =
      Duration::milliseconds(400);  // of a memory node; then its connection is closed, and the host makes another
  Duration patience = Duration::seconds(5);  // with a memory node, over however many connections
};

struct SwitchEngineCounters {
  std::uint64_t probes = 0;
  std::uint64_t reads = 0;  // completed, with success or not
  std::uint64_t writes = 0;
  std::uint64_t relayed = 0;   // READ responses that became WRITEs
  std::uint64_t unwanted = 0;  // READ responses of data that came at the wrong time
  std::uint64_t publications = 0;
  std::uint64_t paused = 0;   // times that requests had to wait for others
  std::uint64_t rewinds = 0;  // go-back-N
  std::uint64_t timeouts = 0;
  std::uint64_t closed = 0;  // connections to memory nodes
  std::uint64_t failed = 0;
  std::uint64_t denied = 0;     // of them, those that their memory node does not export, or refuses
  std::uint64_t malformed = 0;  // of them, those that made no sense
};

// One end of a queue pair, as the other end must know it.
struct ConnectionEnd {
  wire::MacAddress mac{};
  wire::Gid gid{};
  wire::Qpn qpn{};
  wire::Psn expected{};  // the PSN that its next request must have

  friend bool operator==(const ConnectionEnd&, const ConnectionEnd&) = default;
};

// Where a channel's rings are, and the queue pair for probes and bookkeeping.
struct ChannelConfig {
  InstanceLayout layout{};
  std::uint32_t channel = 0;
  std::uint64_t address = 0;  // of the instance's block, as the NIC has registered it
  wire::RKey key{};
  ConnectionEnd host{};
  ConnectionEnd engine{};  // the switch's own end; it expects nothing
  std::uint32_t mtu = 1024;
  std::uint32_t max_reads = 16;
};

// The queue pair between the NIC and a memory node.
struct DataConnection {
  std::uint32_t node = 0;  // of the directory, as in the region table
  ConnectionEnd host{};
  ConnectionEnd pool{};
  std::uint32_t mtu = 1024;
  std::uint32_t host_reads = 16;  // that each end answers at once
  std::uint32_t pool_reads = 16;
};

class SwitchChannel {
 public:
  static constexpr std::uint32_t kWindow = 256;
  static constexpr std::uint32_t kMostBytes = 1u << 20;
  static constexpr std::uint64_t kBytesUnderWay = 512 << 10;  // of READs to one side, but for one that is longer
  static constexpr std::uint32_t kLeastMtu = 512;             // the error log travels in one packet

  // One of the streams of a channel, for whom it finds an answer addressed to.
  enum class Stream : std::uint8_t { kControl, kToHost, kToPool };
  struct StreamId {
    Stream stream = Stream::kControl;
    std::uint32_t connection = 0;  // a place in connections()
    friend bool operator==(const StreamId&, const StreamId&) = default;
  };

  SwitchChannel(Time now, const ChannelConfig& config, const SwitchEngineConfig& engine);
  ~SwitchChannel();
  SwitchChannel(const SwitchChannel&) = delete;
  SwitchChannel& operator=(const SwitchChannel&) = delete;

  // Its place in connections(). One to the same node is closed. What waited for it may be tried again after max_flight.
  std::uint32_t connect(Time now, const DataConnection& connection);
  // False: there is none.
  bool disconnect(Time now, std::uint32_t node);
  // The regions as the application's block numbers them, as of `generation`. Requests wait while the block says another one.
  void set_regions(Time now, std::uint64_t generation, std::vector<Region> regions);

  void on_answer(Time now, StreamId to, const std::uint8_t* frame, const wire::ParsedFrame& parsed,
                 port::FrameSink& sink);
  void on_deadline(Time now, port::FrameSink& sink);
  Time next_deadline() const;
  // When a probe is due; never: not now.
  Time probe_due() const;
  // REQUIRES: probe_due() <= now. False: the sink is full.
  bool probe(Time now, port::FrameSink& sink);

  const ChannelConfig& config() const { return config_; }
  bool attached() const { return attached_; }
  // The block has made no sense, or the NIC has refused: nothing is done any more.
  bool broken() const { return broken_; }
  std::uint64_t under_way() const { return fetched_ - retired_; }
  std::uint64_t generation() const { return generation_; }
  const SwitchEngineCounters& counters() const { return counters_; }
  struct ConnectionState {
    std::uint32_t node;
    bool open;
    DataConnection ends;  // of the last one that was open
  };
  std::vector<ConnectionState> connections() const;
  // Of those that regions and requests name, the ones that were never connected.
  std::size_t absent_nodes() const { return absent_.size(); }

 private:
  enum class State : std::uint8_t { kNew, kMoving, kDone };
  struct Connection;
  struct Request {
    Entry entry;
    State state = State::kNew;
    Status status = Status::kOk;
    std::uint64_t index = 0;
    std::uint32_t packets = 0;
    Region region{};
    Connection* connection = nullptr;  // over which it moves
    bool fetching = false;             // a READ of its data is under way
    bool placed = false;               // its WRITE has PSNs, from `first` on
    bool touched = false;              // a WRITE to the pool has left
    bool in_doubt = false;  // … over a connection that is closed, or an earlier engine's: it may have happened
    wire::Psn first{};
  };
  enum Purpose : std::uint8_t { kAttach, kProbe, kEntries, kErrorLog, kErrorCount, kProgressLine, kFetch, kMove };

  Request& request(std::uint64_t index) { return requests_[index % kWindow]; }
  RequestStream& source(const Request& r);
  RequestStream& target(const Request& r);
  RequestStream* stream(StreamId id);
  Connection* find(std::uint32_t node);
  static Time quiet_since(const Connection& connection, Time now);
  // A node that was never connected.
  struct Absent {
    std::uint32_t node;
    Time since;
  };
  void note_absent(std::vector<Absent>& noted, std::uint32_t node, Time now);
  // REQUIRES: a region names it that is not denied, or a request that moves.
  Time absent_since(std::uint32_t node) const;
  std::uint64_t at(std::size_t offset) const { return base_ + offset; }
  std::uint32_t moved(const Request& r);

  void pump(Time now, RequestStream& stream, port::FrameSink& sink);
  void pump_all(Time now, port::FrameSink& sink);
  ByteView words_of(const StreamOp& op);
  void rewind(RequestStream& stream);
  void refused(Time now, StreamId id, RequestStream& stream);
  void check_time(Time now, RequestStream& stream);
  void notice_stop(Time now);

  void on_data(Time now, StreamId id, RequestStream& stream, const std::uint8_t* frame, const wire::ParsedFrame& parsed,
               port::FrameSink& sink);
  void on_written(const StreamOp& op);
  void take_attachment(Time now, ByteView bytes);
  void take_probe(Time now, ByteView bytes);
  void take_entries(ByteView bytes);
  // False: the packet is of no use now.
  bool relay(Time now, const StreamOp& read, std::uint32_t packet, const std::uint8_t* frame,
             const wire::ParsedFrame& parsed, port::FrameSink& sink);
  bool is_next(const Request& r);
  void end_of_fetch(StreamId id, const StreamOp& read);

  // What may go on: entries to fetch, requests to begin, data to ask for, progress to publish.
  void go_on(Time now, port::FrameSink& sink);
  void read_entries();
  void begin();
  bool may_begin(const Request& r) const;
  void fetch(Time now);
  enum class Fetch : std::uint8_t { kAsked, kNoConnection, kNoRoom };
  Fetch fetch_one(Time now, Request& r);
  void publish(Time now);
  // Into published_ and the error log. Returns the first request that must wait for the next publication.
  std::uint64_t take_finished();
  void finish(Request& r, Status status);
  void close(Connection& connection, Time absent_since);
  static Status unreachable(const Request& r) { return r.touched ? Status::kUnknown : Status::kUnreachable; }

  ChannelConfig config_;
  SwitchEngineConfig engine_;
  ChannelLayout layout_;
  std::uint64_t base_;  // of the channel
  std::uint32_t entries_at_once_;
  RequestStream control_;
  std::vector<std::unique_ptr<Connection>> connections_;  // one for each node that was ever connected
  std::vector<Absent> absent_;                            // the others that regions and requests name
  std::vector<Region> regions_;
  std::uint64_t generation_ = 0;
  bool regions_current_ = false;        // as of the last probe
  std::uint64_t block_generation_ = 0;  // as of the last probe
  bool attached_ = false;
  bool attaching_ = false;
  // Its first progress line stands in the block: nothing is looked for, and so nothing moved, before.
  bool told_ = false;
  Time connection_due_ = Time::never();  // when to look again at requests that have no connection
  bool broken_ = false;

  std::vector<Request> requests_;   // by index
  std::uint64_t retired_ = 0;       // all before are published, and the NIC has said so
  std::uint64_t published_to_ = 0;  // all before are in a publication that has been sent
  std::uint64_t done_ = 0;          // all before are done
  std::uint64_t fetch_from_ = 0;    // none before needs its data to be asked for
  std::uint64_t begun_ = 0;         // all before have been begun
  std::uint64_t fetched_ = 0;       // all before have been read from the ring
  std::uint64_t tail_ = 0;          // as last probed
  // Writes before may have been carried out by an engine that did not live to publish them. Not known before the first look.
  std::optional<std::uint64_t> doubtful_to_;
  std::uint64_t newest_[2] = {};  // sequence of the newest fetched one
  std::uint64_t writes_out_ = 0;  // begun and not done
  std::uint64_t reads_open_ = 0;  // begun and not retired
  bool paused_ = false;
  bool reading_entries_ = false;

  bool probing_ = false;
  Time seen_;  // when this channel was last seen to be served
  Time next_probe_;
  Duration interval_{};
  Time last_work_;

  std::uint64_t published_[2] = {};
  std::uint64_t heartbeat_ = 0;
  std::uint64_t epoch_ = 0;
  bool publishing_ = false;
  Time next_heartbeat_ = Time::never();
  std::uint8_t progress_[kLine] = {};
  ErrorLog errors_;
  bool stalled_ = false;  // a sink was full
  Time again_;
  SwitchEngineCounters counters_;
};

}  // namespace sluice::cowbird
