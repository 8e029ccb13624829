#include "sim/edm/rival_slots.h"

#include <utility>

namespace sluice::sim::slots {
namespace {

// The block that is due, if any.
std::optional<Block> come_out(std::deque<Block>& link, std::int64_t now) {
  if (link.empty() || link.front().due > now) return std::nullopt;
  const Block block = link.front();
  link.pop_front();
  return block;
}

}  // namespace

Rack::Rack(std::int64_t hop, std::uint32_t nodes, const std::vector<TraceRow>& rows)
    : nodes_(nodes),
      in_(nodes),
      out_(nodes),
      hop_(hop),
      rows_(rows),
      next_answer_(rows.size()),
      up_(nodes),
      down_(nodes) {}

void Rack::run() {
  constexpr std::int64_t kAtRest = 1'000;  // longer than a link, and than any node waits
  messages_.reserve(rows_.size() * 2);     // with the answers, so that none moves
  for (std::uint32_t i = 0; i < rows_.size(); ++i) {
    Message m = message_of(rows_[i]);
    m.row = i;
    m.source = rows_[i].source;
    m.destination = rows_[i].destination;
    m.created = rows_[i].slot;
    messages_.push_back(m);
  }
  for (; next_row_ < rows_.size() || now_ - moved_ < kAtRest; ++now_) {
    come();
    decide();
    forward();
    for (std::uint16_t node = 0; node < nodes(); ++node) send(node);
    for (std::uint16_t port = 0; port < nodes(); ++port) {
      if (instead(port) || out_[port].empty()) continue;
      const auto next = out_[port].begin() + static_cast<std::ptrdiff_t>(next_of(port));
      const Block block = *next;
      out_[port].erase(next);
      send_down(port, block);
      left(block);
    }
    for (std::uint16_t port = 0; port < nodes(); ++port)
      if (const auto block = come_out(up_[port], now_)) at_switch(port, *block);
    for (std::uint16_t node = 0; node < nodes(); ++node)
      if (const auto block = come_out(down_[node], now_)) at_node(*block);
    if (over()) return;
  }
}

void Rack::come() {
  if (next_row_ < rows_.size()) moved_ = now_;
  for (; next_row_ < rows_.size() && rows_[next_row_].slot <= now_; ++next_row_)
    nodes_[messages_[next_row_].source].line.push_back(static_cast<std::uint32_t>(next_row_));
  for (; next_answer_ < messages_.size(); ++next_answer_)
    nodes_[messages_[next_answer_].source].line.push_back(static_cast<std::uint32_t>(next_answer_));
}

void Rack::forward() {
  for (auto& line : in_)
    for (; !line.empty(); line.pop_front()) out_[line.front().to].push_back(line.front());
}

void Rack::send_data(std::uint32_t which, std::int64_t bytes) {
  Message& m = messages_[which];
  if (m.started < 0) {
    m.started = now_;
    ++started_;
  }
  send_up(m.source, {.message = which, .from = m.source, .to = m.destination, .first = m.sent, .bytes = bytes});
  m.sent += bytes;
  m.turn -= bytes;
}

void Rack::send_up(std::uint16_t node, Block block) {
  ++blocks_;
  moved_ = now_;
  block.due = now_ + hop_;
  up_[node].push_back(block);
}

void Rack::send_down(std::uint16_t port, Block block) {
  moved_ = now_;
  block.due = now_ + hop_;
  down_[port].push_back(block);
}

void Rack::take(const Block& block) {
  Message& m = messages_[block.message];
  m.received += block.bytes;
  if (m.over() || m.received < m.bytes) return;
  m.finished = now_;
  ++finished_;
}

void Rack::answer(std::uint32_t request, std::int64_t turn, State state) {
  Message& asked = messages_[request];
  const auto which = static_cast<std::uint32_t>(messages_.size());
  asked.answer = which;
  messages_.push_back({.row = asked.row,
                       .part = Part::kAnswer,
                       .source = asked.destination,
                       .destination = asked.source,
                       .bytes = rows_[asked.row].request_bytes,
                       .turn = turn,
                       .state = state,
                       .created = now_ + 1});
}

void Rack::begin(Node& node, std::size_t place) {
  node.current = node.line[place];
  node.line.erase(node.line.begin() + static_cast<std::ptrdiff_t>(place));
}

}  // namespace sluice::sim::slots
