#include "ports/udp_container.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::ports {
namespace {

constexpr std::uint16_t kMagic = 0x734C;
constexpr std::uint8_t kVersion = 1;

}  // namespace

void ContainerHeader::write(std::uint8_t* out) const {
  store_be<std::uint16_t>(out, kMagic);
  out[2] = kVersion;
  out[3] = static_cast<std::uint8_t>(kind);
  store_be<std::uint32_t>(out + 4, sender.value);
  store_be<std::uint32_t>(out + 8, receiver.value);
}

std::optional<ContainerHeader> ContainerHeader::parse(ByteView datagram) {
  if (datagram.size() < kContainerHeader) return std::nullopt;
  const std::uint8_t* at = datagram.data();
  if (load_be<std::uint16_t>(at) != kMagic || at[2] != kVersion) return std::nullopt;
  if (at[3] > static_cast<std::uint8_t>(ContainerKind::kGoodbye)) return std::nullopt;
  return ContainerHeader{.kind = ContainerKind{at[3]},
                         .sender = SessionId(load_be<std::uint32_t>(at + 4)),
                         .receiver = SessionId(load_be<std::uint32_t>(at + 8))};
}

std::optional<port::Frame> ContainerReader::next() {
  if (rest_.size() < kRecordPrefix) return std::nullopt;
  const std::size_t length = load_be<std::uint16_t>(rest_.data());
  if (length == 0) {
    rest_ = {};
    return std::nullopt;
  }
  if (length > port::kMaxFrame || length > rest_.size() - kRecordPrefix) {
    malformed_ = true;
    rest_ = {};
    return std::nullopt;
  }
  const port::Frame frame{rest_.data() + kRecordPrefix, static_cast<std::uint32_t>(length)};
  rest_ = rest_.subspan(kRecordPrefix + length);
  return frame;
}

ContainerTrain::ContainerTrain(std::size_t capacity)
    : buffer_(std::make_unique_for_overwrite<std::uint8_t[]>(capacity)),
      capacity_(capacity),
      datagram_bytes_(capacity) {
  SLUICE_CHECK(capacity >= kContainerHeader + kRecordPrefix + port::kMaxFrame);
  datagrams_.reserve(capacity / 64 + 1);
}

void ContainerTrain::set_datagram(std::size_t bytes, Padding padding) {
  SLUICE_CHECK(empty() && bytes >= 64 && bytes <= capacity_);
  datagram_bytes_ = bytes;
  padding_ = padding;
  is_open_ = false;
}

std::uint8_t* ContainerTrain::reserve(std::size_t length) {
  const std::size_t needed = kRecordPrefix + length;
  if (!is_open_ || (open_.frames > 0 && open_.length + needed > datagram_bytes_)) {
    if (is_open_) end_open();
    if (!begin(needed)) return nullptr;
  } else if (open_.offset + open_.length + needed > capacity_) {
    return nullptr;  // an oversized frame after a smaller reservation that was forgotten
  }
  return buffer_.get() + open_.offset + open_.length + kRecordPrefix;
}

void ContainerTrain::commit(std::size_t length) {
  std::uint8_t* record = buffer_.get() + open_.offset + open_.length;
  store_be<std::uint16_t>(record, static_cast<std::uint16_t>(length));
  open_.length += kRecordPrefix + length;
  ++open_.frames;
}

// Opens a datagram behind the last one, where one of full size (and this frame) has room.
bool ContainerTrain::begin(std::size_t needed) {
  const std::size_t start = datagrams_.empty() ? 0 : datagrams_.back().offset + datagrams_.back().length;
  if (start + std::max(datagram_bytes_, kContainerHeader + needed) > capacity_) return false;
  open_ = {.offset = start, .length = kContainerHeader, .frames = 0};
  is_open_ = true;
  return true;
}

// The open datagram is full: the next frame begins another.
void ContainerTrain::end_open() {
  if (padding_ == Padding::kToFullSize && open_.length < datagram_bytes_) {
    std::fill_n(buffer_.get() + open_.offset + open_.length, datagram_bytes_ - open_.length, std::uint8_t{0});
    open_.length = datagram_bytes_;
  }
  datagrams_.push_back(open_);
  is_open_ = false;
}

void ContainerTrain::close(const ContainerHeader& header) {
  if (is_open_ && open_.frames > 0) datagrams_.push_back(open_);
  is_open_ = false;
  open_ = {};
  for (const auto& datagram : datagrams()) header.write(buffer_.get() + datagram.offset);
}

void ContainerTrain::sent(std::size_t count) {
  waiting_ += count;
  SLUICE_CHECK(waiting_ <= datagrams_.size());
  if (waiting_ == datagrams_.size() && !is_open_) {
    datagrams_.clear();
    waiting_ = 0;
  }
}

}  // namespace sluice::ports
