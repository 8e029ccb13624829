// Many Ethernet frames in one UDP datagram: the container's bytes, without any input or output.
//
// Layout:   magic (2) "sL", version (1), kind (1), sender's session (4), receiver's session (4), then for kData records of
//           length (2) and frame, big-endian. A length of zero, or fewer than two bytes, ends the records: the rest is
//           padding, which makes datagrams of a train equally long (UDP segmentation offload wants that).
// Trust:    parse() and ContainerReader accept any bytes; what is wrong is said, never read beyond.
// Limits:   a frame is at most kMaxFrame bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/strong.h"
#include "port/port.h"

namespace sluice::ports {

using SessionId = Strong<struct SessionIdTag, std::uint32_t>;  // 0: none

enum class ContainerKind : std::uint8_t { kData, kHello, kWelcome, kKeepAlive, kGoodbye };

inline constexpr std::size_t kContainerHeader = 12;
inline constexpr std::size_t kRecordPrefix = 2;

struct ContainerHeader {
  ContainerKind kind = ContainerKind::kData;
  SessionId sender;
  SessionId receiver;

  // REQUIRES: kContainerHeader bytes at `out`.
  void write(std::uint8_t* out) const;
  // Nothing: too short, another protocol or version, an unknown kind.
  static std::optional<ContainerHeader> parse(ByteView datagram);
};

// Walks the frames of one datagram, in place.
class ContainerReader {
 public:
  ContainerReader() = default;
  // REQUIRES: ContainerHeader::parse() accepted the datagram.
  explicit ContainerReader(MutableBytes datagram) : rest_(datagram.subspan(kContainerHeader)) {}

  // The next frame; nothing at the end or where a record is wrong.
  std::optional<port::Frame> next();
  // Something is left to look at; next() may still find that it was padding or wrong.
  bool more() const { return rest_.size() >= kRecordPrefix; }
  bool malformed() const { return malformed_; }

 private:
  MutableBytes rest_;
  bool malformed_ = false;
};

enum class Padding : std::uint8_t { kNone, kToFullSize };

// Frames on their way out, packed into datagrams that lie one behind the other in one buffer.
//
// Life:       reserve -> commit ... -> close -> datagrams -> sent; refused reserve(): send first.
// Invariant:  a datagram is at most datagram_bytes long, unless a single frame does not fit: then it is that frame alone.
class ContainerTrain {
 public:
  struct Datagram {
    std::size_t offset = 0;
    std::size_t length = 0;
    std::uint32_t frames = 0;
  };

  explicit ContainerTrain(std::size_t capacity);

  // REQUIRES: empty(); 64 <= bytes <= capacity.
  void set_datagram(std::size_t bytes, Padding padding);
  std::size_t datagram_bytes() const { return datagram_bytes_; }

  std::uint8_t* reserve(std::size_t length);
  void commit(std::size_t length);

  bool empty() const { return waiting_ == datagrams_.size() && open_.frames == 0; }
  // Ends the open datagram and writes its header and those of the ones before it that wait.
  void close(const ContainerHeader& header);
  // What waits to be sent, after close().
  std::span<const Datagram> datagrams() const { return std::span(datagrams_).subspan(waiting_); }
  MutableBytes bytes(const Datagram& datagram) { return {buffer_.get() + datagram.offset, datagram.length}; }
  // The first `count` of datagrams() are done with.
  void sent(std::size_t count);

 private:
  bool begin(std::size_t needed);
  void end_open();

  std::unique_ptr<std::uint8_t[]> buffer_;
  std::size_t capacity_;
  std::size_t datagram_bytes_;
  Padding padding_ = Padding::kNone;
  std::vector<Datagram> datagrams_;
  std::size_t waiting_ = 0;  // index of the first not yet sent
  Datagram open_;            // has a place only while it has frames or a reservation
  bool is_open_ = false;
};

}  // namespace sluice::ports
