#include "cowbird/request_stream.h"

#include <algorithm>

#include "base/check.h"
#include "wire/frame_editor.h"

namespace sluice::cowbird {

using wire::Bth;
using wire::Opcode;
using wire::Reth;

StreamOp& RequestStream::append(StreamOp added) {
  SLUICE_CHECK(has_room());
  added.first = next_;
  added.packets = packets_of(added.length);
  if (added.kind == StreamOp::Kind::kRead) ++reads_;
  next_ = added.end();
  StreamOp& place = op(tail_++);
  place = added;
  return place;
}

StreamOp* RequestStream::unsent() {
  if (all_sent()) return nullptr;
  while (sent_.since(op(sending_).end()) >= 0) ++sending_;
  return &op(sending_);
}

StreamOp* RequestStream::find(wire::Psn psn) {
  for (std::uint32_t i = head_; i != tail_; ++i) {
    if (psn.since(op(i).first) >= 0 && psn.since(op(i).end()) < 0) return &op(i);
  }
  return nullptr;
}

void RequestStream::pop() {
  if (front().kind == StreamOp::Kind::kRead) --reads_;
  ++head_;
  if (static_cast<std::int32_t>(sending_ - head_) < 0) sending_ = head_;
}

void RequestStream::on_sent(Time now, wire::Psn sent) {
  sent_ = sent;
  if (deadline_ == Time::never()) deadline_ = now + config_.timeout;
  if (owed_an_answer()) silent_since_ = std::min(silent_since_, now);
}

void RequestStream::on_progress(Time now) {
  gap_noted_ = false;
  tries_ = 0;
  const bool waiting = sent_.since(una_) > 0;
  deadline_ = waiting ? now + config_.timeout : Time::never();
  silent_since_ = owed_an_answer() ? now : Time::never();
}

bool RequestStream::note_gap() { return !std::exchange(gap_noted_, true); }

void RequestStream::rewind() {
  sent_ = una_;
  sending_ = head_;
}

bool RequestStream::timed_out(Time now) {
  if (now < deadline_) return false;
  tries_ = std::min(tries_ + 1, 16u);
  deadline_ = now + std::min(config_.timeout * (std::int64_t{1} << tries_), config_.longest_timeout);
  gap_noted_ = false;
  return true;
}

std::uint8_t* RequestStream::begin_packet(port::FrameSink& sink, Bth bth, std::size_t body) {
  std::uint8_t* const frame = sink.reserve(headers_.frame_size(Bth::kSize + body));
  if (frame == nullptr) return nullptr;
  const std::size_t at = headers_.write(frame, Bth::kSize + body);
  bth.destination = config_.destination;
  bth.psn = sent_;
  bth.write(frame + at);
  return frame;
}

void RequestStream::end_packet(port::FrameSink& sink, std::uint8_t* frame, std::size_t body) {
  sink.commit(headers_.seal(frame, headers_.bth_offset() + Bth::kSize + body));
}

bool RequestStream::send_read(Time now, port::FrameSink& sink) {
  const StreamOp& read = *unsent();
  std::uint8_t* const frame = begin_packet(sink, {.opcode = Opcode::kRcReadRequest}, Reth::kSize);
  if (frame == nullptr) return false;
  // What has come already is not asked for again.
  const std::uint32_t skipped = static_cast<std::uint32_t>(sent_.since(read.first)) * config_.mtu;
  Reth{read.address + skipped, read.key, read.length - skipped}.write(frame + headers_.bth_offset() + Bth::kSize);
  end_packet(sink, frame, Reth::kSize);
  on_sent(now, read.end());
  return true;
}

bool RequestStream::send_write(Time now, ByteView payload, port::FrameSink& sink) {
  const StreamOp& write = *unsent();
  SLUICE_CHECK(write.packets == 1 && payload.size() == write.length && payload.size() % 4 == 0);
  const std::size_t body = Reth::kSize + payload.size();
  std::uint8_t* const frame = begin_packet(sink, {.opcode = Opcode::kRcWriteOnly, .ack_request = true}, body);
  if (frame == nullptr) return false;
  std::uint8_t* const at = frame + headers_.bth_offset() + Bth::kSize;
  Reth{write.address, write.key, write.length}.write(at);
  std::copy(payload.begin(), payload.end(), at + Reth::kSize);
  end_packet(sink, frame, body);
  on_sent(now, write.end());
  return true;
}

bool RequestStream::relay(Time now, const std::uint8_t* frame, const wire::ParsedFrame& parsed, port::FrameSink& sink) {
  const StreamOp& write = *unsent();
  const bool first = sent_ == write.first;
  const bool last = sent_ + 1 == write.end();
  std::uint8_t* const made = sink.reserve(parsed.length + Reth::kSize);
  if (made == nullptr) return false;
  std::copy_n(frame, parsed.length, made);
  wire::ParsedFrame now_parsed = parsed;
  wire::FrameEditor editor(made, now_parsed);
  editor.set_psn(sent_);
  editor.set_ack_request(last);
  std::array<std::uint8_t, Reth::kSize> reth;
  Reth{write.address, write.key, write.length}.write(reth.data());
  const Opcode opcode = first ? (last ? Opcode::kRcWriteOnly : Opcode::kRcWriteFirst)
                              : (last ? Opcode::kRcWriteLast : Opcode::kRcWriteMiddle);
  editor.replace_extended(opcode, first ? ByteView(reth) : ByteView());
  sink.commit(editor.commit());
  on_sent(now, sent_ + 1);
  return true;
}

bool RequestStream::consume(Time now) {
  una_ = una_ + 1;
  if (sent_.since(una_) < 0) sent_ = una_;
  const bool whole = una_ == front().end();
  if (whole) pop();
  on_progress(now);
  return whole;
}

}  // namespace sluice::cowbird
