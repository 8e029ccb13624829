#include "sim/load/clover_shortcuts.h"

#include <algorithm>
#include <span>

#include "base/bytes.h"
#include "base/check.h"
#include "clover/messages.h"

namespace sluice::sim {

remote::Task<void> ask_server(remote::MessageChannel& server, clover::Key key) {
  std::array<std::uint8_t, clover::kRequestHeader + sizeof(std::uint64_t)> request{};
  std::array<std::uint8_t, remote::kMaxMessage> response{};
  clover::MessageWriter body(request);
  put_header(body, clover::RequestHeader{clover::Request::kLookup, 1, 0, 0});
  body.put(key);
  co_await server.call(request, response);
}

ShortcutKeepers::ShortcutKeepers(HostMemory& memory, remote::MessageChannel& channel, const ShortcutTable& table,
                                 const KeeperTimes& times)
    : memory_(memory), channel_(channel), table_(table), times_(times) {
  for (std::uint32_t thread = 0; thread < kThreads; ++thread) memory_.scheduler().spawn(keep(thread));
}

remote::RemoteAddress ShortcutKeepers::word_of(clover::Key key) const {
  SLUICE_CHECK(key < table_.keys);
  return table_.base + ShortcutTable::bytes(key);
}

void ShortcutKeepers::linked(clover::Key key, clover::NodePointer newest) {
  queues_.at(key % kThreads).push_back({key, newest});
}

remote::Task<void> ShortcutKeepers::keep(std::uint32_t thread) {
  std::deque<Appended>& queue = queues_.at(thread);
  std::array<clover::Key, kBatch> keys{};
  std::array<std::array<std::uint8_t, sizeof(std::uint64_t)>, kBatch> words{};
  std::array<remote::Operation, kBatch> writes{};
  for (;;) {
    while (queue.empty()) co_await memory_.scheduler().sleep_for(times_.nap);
    std::size_t count = 0;
    std::size_t taken = 0;
    for (; taken < kBatch && !queue.empty(); ++taken, queue.pop_front()) {
      const Appended& appended = queue.front();
      const bool moves = std::ranges::count(std::span(keys).first(count), appended.key) == 0;
      if (!moves) continue;
      keys.at(count) = appended.key;
      store_le(words.at(count).data(), appended.newest.word);
      writes.at(count) = remote::write_operation(word_of(appended.key), words.at(count));
      ++count;
    }
    memory_.enter(thread);
    co_await memory_.all(std::span(writes).first(count));
    co_await memory_.scheduler().sleep_for(times_.record * static_cast<std::int64_t>(taken) + times_.batch);
    co_await ask_server(channel_, keys.front());  // in the place of what it tells of the garbage
  }
}

}  // namespace sluice::sim
