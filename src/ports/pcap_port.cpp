#include "ports/pcap_port.h"

#include <fmt/core.h>
#include <pcap/pcap.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "ports/pcapng.h"
#include "ports/private_output.h"

namespace sluice::ports {
namespace {

constexpr std::int64_t kNanosecondsPerSecond = 1'000'000'000;
constexpr Duration kWriteOutInterval = Duration::milliseconds(100);
constexpr std::size_t kFileHeader = 24;
constexpr std::size_t kRecordHeader = 16;

}  // namespace

Duration distance(const timeval& from, const timeval& to) {
  __extension__ using Wide = __int128;  // a broken capture may have any stamps
  constexpr Wide kFurthest = Wide{100} * 86'400 * kNanosecondsPerSecond;
  const Wide ns = (Wide{to.tv_sec} - from.tv_sec) * kNanosecondsPerSecond + to.tv_usec - from.tv_usec;
  return Duration::nanoseconds(static_cast<std::int64_t>(std::clamp(ns, -kFurthest, kFurthest)));
}

// Replay --------------------------------------------------------------------------------------------------------------

PcapPort::PcapPort(std::string file, Pace pace, pcap* reader)
    : file_(std::move(file)),
      pace_(pace),
      reader_(reader),
      never_readable_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      frames_(std::make_unique_for_overwrite<std::uint8_t[]>((kBurst + 1) * port::kMaxFrame)) {
  read_ahead();
  if (next_) first_recorded_ = next_->recorded;
}

PcapPort::~PcapPort() { pcap_close(reader_); }

Result<std::unique_ptr<PcapPort>> PcapPort::open(const std::string& file, Pace pace) {
  std::array<char, PCAP_ERRBUF_SIZE> error{};
  pcap* reader = pcap_open_offline_with_tstamp_precision(file.c_str(), PCAP_TSTAMP_PRECISION_NANO, error.data());
  if (reader == nullptr) {
    std::string_view why = error.data();
    if (why.starts_with(file + ": ")) why.remove_prefix(file.size() + 2);
    return fail(fmt::format("cannot replay {}: {}", file, why));
  }
  if (const int link = pcap_datalink(reader); link != DLT_EN10MB) {
    const char* name = pcap_datalink_val_to_name(link);
    pcap_close(reader);
    return fail(fmt::format("cannot replay {}: it holds {} frames; only Ethernet captures can be replayed", file,
                            name == nullptr ? "unknown" : name));
  }
  return std::unique_ptr<PcapPort>(new PcapPort(file, pace, reader));
}

void PcapPort::read_ahead() {
  next_.reset();
  pcap_pkthdr* header = nullptr;
  const std::uint8_t* data = nullptr;
  int read = 0;
  while ((read = pcap_next_ex(reader_, &header, &data)) == 1) {
    if (header->caplen != header->len || header->caplen == 0 || header->caplen > port::kMaxFrame) {
      ++counters_.rx_malformed;  // cut short, or longer than any RoCEv2 frame
      continue;
    }
    next_ = Next{.data = data, .length = header->caplen, .recorded = header->ts};
    return;
  }
  if (read == PCAP_ERROR_BREAK || broken_) return;
  broken_ = true;
  ++counters_.rx_malformed;
  std::fprintf(stderr, "the replay of %s ends before the file does: %s\n", file_.c_str(), pcap_geterr(reader_));
}

Time PcapPort::due(const Next& next) const {
  if (pace_ == Pace::kAsPolled || !started_) return Time();
  return *started_ + distance(first_recorded_, next.recorded);
}

Time PcapPort::next_deadline() const { return next_ ? due(*next_) : Time::never(); }

std::size_t PcapPort::receive(Time now, std::span<port::Frame> burst) {
  reserved_ = 0;
  if (!started_) started_ = now;
  std::size_t count = 0;
  for (; count < std::min(burst.size(), kBurst) && next_ && due(*next_) <= now; ++count) {
    std::uint8_t* copy = frames_.get() + count * port::kMaxFrame;
    std::memcpy(copy, next_->data, next_->length);
    burst[count] = {copy, next_->length};
    counters_.rx_bytes += next_->length;
    read_ahead();
  }
  counters_.rx_frames += count;
  return count;
}

std::uint8_t* PcapPort::reserve(std::size_t length) {
  SLUICE_CHECK(length <= port::kMaxFrame);
  reserved_ = length;
  return frames_.get() + kBurst * port::kMaxFrame;
}

void PcapPort::commit(std::size_t length) {
  SLUICE_CHECK(length > 0 && length <= reserved_);
  reserved_ = 0;
  ++counters_.tx_frames;
  counters_.tx_bytes += length;
}

// Record --------------------------------------------------------------------------------------------------------------

RecordingPort::RecordingPort(std::unique_ptr<port::Port> inner, std::string file, pcap* format, pcap_dumper* writer)
    : inner_(std::move(inner)), file_(std::move(file)), format_(format), writer_(writer) {
  pieces_.add(kFileHeader);
}

RecordingPort::~RecordingPort() {
  write_out();
  pcap_dump_close(writer_);
  pcap_close(format_);
}

Result<std::unique_ptr<RecordingPort>> recording(std::unique_ptr<port::Port> inner, const std::string& file) {
  pcap* format = pcap_open_dead_with_tstamp_precision(DLT_EN10MB, 65535, PCAP_TSTAMP_PRECISION_NANO);
  std::FILE* const stream = file == "-" ? stdout : open_private_output(file);
  pcap_dumper* const writer = stream == nullptr ? nullptr : pcap_dump_fopen(format, stream);
  if (writer == nullptr) {
    auto error = fail(stream == nullptr ? fmt::format("cannot record: {}: {}", file, std::strerror(errno))
                                        : fmt::format("cannot record: {}", pcap_geterr(format)));
    // libpcap has closed the stream already.
    pcap_close(format);
    return error;
  }
  return std::unique_ptr<RecordingPort>(new RecordingPort(std::move(inner), file, format, writer));
}

std::uint8_t* RecordingPort::reserve(std::size_t length) { return reserved_ = inner_->reserve(length); }

void RecordingPort::commit(std::size_t length) {
  record({reserved_, length});
  inner_->commit(length);
}

bool RecordingPort::flush_some(Time now) {
  now_ = now;
  const bool more = inner_->flush_some(now);
  if (now >= next_write_out_) write_out();
  return more;
}

// What is recorded is written out also when nothing more comes: who looks at a program that hangs wants its last frames.
Time RecordingPort::next_deadline() const {
  return std::min(inner_->next_deadline(), unwritten_ ? next_write_out_ : Time::never());
}

std::size_t RecordingPort::receive(Time now, std::span<port::Frame> burst) {
  now_ = now;
  const std::size_t count = inner_->receive(now, burst);
  for (const auto& frame : burst.first(count)) record(frame.bytes());
  return count;
}

void RecordingPort::record(ByteView frame) {
  if (broken_) {
    ++lost_;
    return;
  }
  if (!zero_ns_) zero_ns_ = pcapng::wall_clock_ns() - now_.since_start().nanoseconds();
  const std::int64_t at_ns = *zero_ns_ + now_.since_start().nanoseconds();
  pcap_pkthdr header{};
  header.ts.tv_sec = at_ns / kNanosecondsPerSecond;
  header.ts.tv_usec = at_ns % kNanosecondsPerSecond;  // nanoseconds, by the file's precision
  header.caplen = header.len = static_cast<bpf_u_int32>(frame.size());
  auto* user = reinterpret_cast<u_char*>(writer_);
  pcap_dump(user, &header, frame.data());
  pieces_.add(kRecordHeader + frame.size());
  // What could not be written then, flushing does not tell: the stream forgets it.
  if (std::ferror(pcap_dump_file(writer_)) != 0) {
    ++lost_;
    return give_up();
  }
  ++recorded_;
  unwritten_ = true;
}

void RecordingPort::write_out() {
  next_write_out_ = now_ + kWriteOutInterval;
  unwritten_ = false;
  if (broken_) return;
  if (pcap_dump_flush(writer_) != 0) return give_up();
  pieces_.written();
}

void RecordingPort::give_up() {
  broken_ = true;
  pieces_.cut(pcap_dump_file(writer_));
  std::fprintf(stderr, "recording to %s ends here, the traffic goes on: %s\n", file_.c_str(), std::strerror(errno));
}

}  // namespace sluice::ports
