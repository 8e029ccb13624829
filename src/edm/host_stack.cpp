#include "edm/host_stack.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::edm {

bool HostStack::read(Time now, PortId node, std::uint64_t address, std::uint32_t bytes, std::uint64_t tag) {
  return ask(now,
             {.unit = {.kind = read_kind(address, bytes), .port = node, .bytes = bytes, .address = address, .data = {}},
              .operands = {},
              .tag = tag});
}

bool HostStack::write(Time now, PortId node, std::uint64_t address, std::vector<std::uint8_t> bytes) {
  Line& line = lines_[node.value];
  if (!full(line.writes)) {
    Asked asked{MegaMessage(layout()), {}};
    asked.message.add(static_cast<std::uint32_t>(bytes.size()));
    asked.writes.push_back({address, std::move(bytes)});
    return start_writes(now, node, std::move(asked));
  }
  line.waiting_writes.push_back({address, std::move(bytes)});
  return true;
}

bool HostStack::modify(Time now, PortId node, std::uint64_t address, ModifyOp op, std::uint64_t operand,
                       std::uint64_t compare, std::uint64_t tag) {
  std::vector<std::uint8_t> operands(op == ModifyOp::kCompareAndSwap ? 16 : 8);
  store_le(operands.data(), op == ModifyOp::kCompareAndSwap ? compare : operand);
  if (op == ModifyOp::kCompareAndSwap) store_le(operands.data() + 8, operand);
  return ask(now, {.unit = {.kind = UnitKind::kModify, .port = node, .op = op, .address = address, .data = {}},
                   .operands = std::move(operands),
                   .tag = tag});
}

bool HostStack::ask(Time now, Question question) {
  Line& line = lines_[question.unit.port.value];
  question.deadline = now + config_.read_timer;
  if (!full(line.reads)) return start_read(now, std::move(question));
  line.waiting_reads.push_back(std::move(question));
  return true;
}

bool HostStack::start_read(Time now, Question question) {
  Unit& unit = question.unit;
  Line& line = lines_[unit.port.value];
  if (line.reads == kMessageIds) return false;
  ++line.reads;
  const std::uint32_t wanted = unit.kind == UnitKind::kModify ? 8 : unit.bytes;
  const Read read{question.tag, question.deadline, Time::never(), {}, wanted};
  while (line.asked - line.settled < kMessageIds) {
    const auto id = static_cast<std::uint8_t>(line.asked++);
    // One that the switch has refused keeps its id until its timer ends.
    if (!reads_.try_emplace({unit.port.value, id}, read).second) continue;
    unit.id = MessageId(id);
    request(after(now, kRequestCycles), unit, std::move(question.operands));
    return true;
  }
  const auto later = [&](const Unsent& other) { return other.deadline > read.deadline; };
  unsent_.insert(std::ranges::find_if(unsent_, later), {unit.port, read.tag, read.deadline});
  return true;
}

bool HostStack::start_writes(Time now, PortId node, Asked&& asked) {
  std::uint8_t& next = next_write_.at(node.value);
  const std::uint32_t bytes = asked.message.bytes();
  // Writes whose /N/ or last grant was lost keep their ids.
  std::uint32_t in_use = 0;
  while (writes_.contains({node.value, next})) {
    if (++in_use == kMessageIds) return false;
    ++next;
  }
  writes_.try_emplace({node.value, next}, std::move(asked));
  ++lines_[node.value].writes;
  request(after(now, kRequestCycles),
          {.kind = UnitKind::kNotify, .port = node, .id = MessageId(next++), .bytes = bytes, .data = {}});
  return true;
}

void HostStack::read_over(Time now, PortId node) {
  Line& line = lines_[node.value];
  --line.reads;
  if (line.waiting_reads.empty()) return;
  Question next = std::move(line.waiting_reads.front());
  line.waiting_reads.pop_front();
  SLUICE_CHECK(start_read(now, std::move(next)));  // X is less than there are message ids
}

void HostStack::write_over(Time now, PortId node) {
  Line& line = lines_[node.value];
  --line.writes;
  Asked next{MegaMessage(layout()), {}};
  for (auto& waiting = line.waiting_writes; !waiting.empty(); waiting.pop_front()) {
    const auto bytes = static_cast<std::uint32_t>(waiting.front().data.size());
    if (!next.writes.empty() && next.message.bytes_with(bytes) > config_.mega_bytes) break;
    next.message.add(bytes);
    next.writes.push_back(std::move(waiting.front()));
  }
  if (next.writes.empty()) return;
  if (next.writes.size() > 1) batched_ += next.writes.size();
  SLUICE_CHECK(start_writes(now, node, std::move(next)));  // the id of the one that is over is free
}

void HostStack::request(Time at, const Unit& unit, std::vector<std::uint8_t> data) {
  requests_.push_back({at, unit, std::move(data)});
}

void HostStack::granted(Time at, const Unit& unit, std::vector<std::uint8_t> data) {
  if (!granted_.empty()) at = std::max(at, granted_.back().at);
  granted_.push_back({at, unit, std::move(data)});
}

const HostStack::Ready* HostStack::next_ready() const {
  if (requests_.empty() || granted_.empty())
    return !granted_.empty() ? &granted_.front() : !requests_.empty() ? &requests_.front() : nullptr;
  const Ready& request = requests_.front();
  const Ready& grant = granted_.front();
  const bool request_first = request.at < grant.at && link_free_ < grant.at;
  return request_first ? &request : &grant;
}

bool HostStack::poll(Time now, Unit& out) {
  const Ready* const next = next_ready();
  if (next == nullptr || std::max(next->at, link_free_) > now) return false;
  auto& from = !granted_.empty() && next == &granted_.front() ? granted_ : requests_;
  sending_ = std::move(from.front());
  from.pop_front();
  out = sending_.unit;
  out.data = sending_.data;
  if (config_.block > Duration{}) link_free_ = now + config_.block * static_cast<std::int64_t>(unit_blocks(out));
  if (out.kind == UnitKind::kWrite && out.last) ++writes_left_.at(out.port.value);
  return true;
}

Time HostStack::next_deadline() const {
  const Ready* const ready = next_ready();
  Time next = ready == nullptr ? Time::never() : std::max(ready->at, link_free_);
  for (const auto& [peer, read] : reads_) next = std::min(next, read.deadline);
  if (!unsent_.empty()) next = std::min(next, unsent_.front().deadline);
  for (const auto& [node, line] : lines_) {
    if (!line.waiting_reads.empty()) next = std::min(next, line.waiting_reads.front().deadline);
  }
  return next;
}

void HostStack::null(Time now, std::uint64_t tag) {
  done_.push_back({.tag = tag, .null = true, .first_block = now, .last_block = now, .data = {}});
}

void HostStack::end_waiting(Time now) {
  for (auto& [node, line] : lines_) {
    auto& waiting = line.waiting_reads;  // in order of time
    for (; !waiting.empty() && waiting.front().deadline <= now; waiting.pop_front()) null(now, waiting.front().tag);
  }
}

void HostStack::on_deadline(Time now) {
  std::vector<PortId> ended;
  const auto end = [&](std::uint64_t tag, PortId node) {
    null(now, tag);
    ended.push_back(node);
  };
  for (auto it = reads_.begin(); it != reads_.end();) {
    if (it->second.deadline > now) {
      ++it;
      continue;
    }
    end(it->second.tag, PortId(it->first.first));
    it = reads_.erase(it);
  }
  for (; !unsent_.empty() && unsent_.front().deadline <= now; unsent_.pop_front())
    end(unsent_.front().tag, unsent_.front().node);
  end_waiting(now);
  for (const PortId node : ended) read_over(now, node);
}

bool HostStack::poll_done(Done& out) {
  if (done_.empty()) return false;
  out = std::move(done_.front());
  done_.pop_front();
  return true;
}

void HostStack::take(Time first_block, Time now, const Unit& unit) {
  const Peer peer{unit.port.value, unit.id.value};
  switch (unit.kind) {
    case UnitKind::kReadLine:
    case UnitKind::kReadShort:
    case UnitKind::kRead: return serve(now, unit);
    case UnitKind::kModify: return modify_here(now, unit);
    case UnitKind::kResponse:
    case UnitKind::kNull:
      if (unit.to != config_.port) break;
      return answered(first_block, now, unit);
    case UnitKind::kWrite: {
      if (unit.port != config_.port || !inside(unit.address, unit.bytes)) break;
      std::ranges::copy(unit.data, memory_.begin() + static_cast<std::ptrdiff_t>(unit.address));
      if (config_.keeps_written)
        written_.push_back(
            {after(first_block, kDataTakenCycles), after(now, kDataTakenCycles), unit.address, unit.bytes});
      return;
    }
    case UnitKind::kGrant: {
      if (unit.bytes == 0 || unit.bytes > kMaxChunkBytes) break;  // of no scheduler
      const Duration memory = unit.of_response && each_chunk() ? config_.dram : Duration{};
      const Time at = after(now, kGrantCycles + kGrantQueueCycles + kDataCycles) + memory;
      if (unit.of_response) {
        const auto answer = answers_.find(peer);
        if (answer == answers_.end()) {
          // Of an answer that was NULL: its further grants have made circuits, which must be used.
          granted(at, {.kind = UnitKind::kNull, .port = config_.port, .to = unit.port, .id = unit.id, .data = {}});
          break;
        }
        send_answer(at, peer, answer->second, unit.bytes);
        if (answer->second.sent == answer->second.data.size()) answers_.erase(answer);
        return;
      }
      const auto asked = writes_.find(peer);
      if (asked == writes_.end()) break;
      send_writes(at, peer, asked->second, unit.bytes);
      if (!asked->second.message.all_granted()) return;
      writes_.erase(asked);
      write_over(now, unit.port);
      return;
    }
    case UnitKind::kNotify: break;
  }
  ++strays_;
}

void HostStack::send_writes(Time at, const Peer& peer, Asked& asked, std::uint32_t bytes) {
  asked.message.grant(bytes, pieces_);
  for (const MegaMessage::Piece& piece : pieces_) {
    const Write& write = asked.writes[piece.write];
    const auto begin = write.data.begin() + static_cast<std::ptrdiff_t>(piece.from);
    const Unit unit{.kind = UnitKind::kWrite,
                    .port = PortId(peer.first),
                    .id = MessageId(peer.second),
                    .bytes = piece.bytes,
                    .last = piece.last_of_write,
                    .more = !piece.last_of_chunk,
                    .address = write.address + piece.from,
                    .data = {}};
    granted(at, unit, {begin, begin + static_cast<std::ptrdiff_t>(piece.bytes)});
  }
}

void HostStack::send_answer(Time at, const Peer& peer, Answer& answer, std::uint32_t bytes) {
  const std::size_t n = std::min<std::size_t>(bytes, answer.data.size() - answer.sent);
  const auto begin = answer.data.begin() + static_cast<std::ptrdiff_t>(answer.sent);
  answer.sent += n;
  const Unit unit{.kind = UnitKind::kResponse,
                  .port = config_.port,
                  .to = PortId(peer.first),
                  .id = MessageId(peer.second),
                  .bytes = static_cast<std::uint32_t>(n),
                  .last = answer.sent == answer.data.size(),
                  .data = {}};
  granted(at, unit, {begin, begin + static_cast<std::ptrdiff_t>(n)});
}

// The request is the first chunk's grant.
void HostStack::serve(Time now, const Unit& request) {
  const Peer peer{request.port.value, request.id.value};
  if (!inside(request.address, request.bytes) || request.bytes == 0) {
    ++strays_;
    return granted(
        after(now, kRequestTakenCycles + kGrantQueueCycles + kDataCycles) + (each_chunk() ? config_.dram : Duration{}),
        {.kind = UnitKind::kNull, .port = config_.port, .to = request.port, .id = request.id, .data = {}});
  }
  const auto begin = memory_.begin() + static_cast<std::ptrdiff_t>(request.address);
  Answer answer{{begin, begin + request.bytes}};
  const Time at = after(now, kRequestTakenCycles + kGrantQueueCycles + kDataCycles) + config_.dram;
  send_answer(at, peer, answer, config_.chunk_bytes);
  if (answer.sent != answer.data.size()) answers_.insert_or_assign(peer, std::move(answer));
}

// Read, change and write back at one instant: nothing comes between.
void HostStack::modify_here(Time now, const Unit& request) {
  const Time at =
      after(now, kRequestTakenCycles + kGrantQueueCycles + kDataCycles) + config_.dram * (each_chunk() ? 1 : 2);
  if (!inside(request.address, 8) || request.address % 8 != 0) {
    ++strays_;
    return granted(at,
                   {.kind = UnitKind::kNull, .port = config_.port, .to = request.port, .id = request.id, .data = {}});
  }
  std::uint8_t* const word = memory_.data() + request.address;
  const auto before = load_le<std::uint64_t>(word);
  const auto first = load_le<std::uint64_t>(request.data.data());
  std::uint64_t after_it = before;
  if (request.op == ModifyOp::kSwap) after_it = first;
  if (request.op == ModifyOp::kFetchAndAdd) after_it = before + first;
  if (request.op == ModifyOp::kCompareAndSwap && before == first)
    after_it = load_le<std::uint64_t>(request.data.data() + 8);
  store_le(word, after_it);
  std::vector<std::uint8_t> answer(8);
  store_le(answer.data(), before);
  granted(at,
          {.kind = UnitKind::kResponse,
           .port = config_.port,
           .to = request.port,
           .id = request.id,
           .bytes = 8,
           .last = true,
           .data = {}},
          std::move(answer));
}

void HostStack::settle(const Unit& answer) {
  const auto line = lines_.find(answer.port.value);
  if (line == lines_.end() || line->second.asked == 0) return;
  const std::uint64_t newest = line->second.asked - 1;
  const std::uint64_t number = newest - ((newest - answer.id.value) & (kMessageIds - 1));
  if (number > newest) return;  // of a read that there never was
  // A NULL may be one of several: a node that has nothing to send uses all circuits of its grants. The next answer says that they are over.
  line->second.settled = std::max(line->second.settled, number + (answer.last ? 1 : 0));
}

void HostStack::answered(Time first_block, Time now, const Unit& unit) {
  settle(unit);
  const auto found = reads_.find({unit.port.value, unit.id.value});
  if (found == reads_.end()) {
    ++strays_;  // its timer has ended
    return;
  }
  Read& read = found->second;
  if (unit.data.size() > read.wanted - read.data.size()) {
    ++strays_;  // of an earlier read that had its number
    return;
  }
  read.first_block = std::min(read.first_block, after(first_block, kDataTakenCycles));
  read.data.insert(read.data.end(), unit.data.begin(), unit.data.end());
  const bool null = unit.kind == UnitKind::kNull;
  if (!null && read.data.size() < read.wanted) return;
  done_.push_back({.tag = read.tag,
                   .null = null,
                   .first_block = read.first_block,
                   .last_block = after(now, kDataTakenCycles),
                   .data = std::move(read.data)});
  reads_.erase(found);
  read_over(now, unit.port);
}

}  // namespace sluice::edm
