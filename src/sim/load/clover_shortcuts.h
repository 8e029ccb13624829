// Clover's shortcuts as its published clients keep them: a word a key in remote memory, moved on by threads of the client machine that do
// nothing else.
//
// Life:       linked() queues what has been appended -> the key's keeper takes what has come, up to kBatch, WRITEs the shortcuts of the keys
//             among it (the first of several of one key, as published), tells the metadata server and waits for its answer -> again; when nothing
//             has come it sleeps.
// Lag:        what the naps, those two round trips and the rest of KeeperTimes come to. WRITEs of several machines overtake each other, so that a shortcut may
//             also point back.
// Processor:  keepers mostly sleep; who has slept goes before those who poll, so they have their time to themselves.
// Threads:    one owner.
// Source:     Clover's published client (mitsume_tool_gc.cc: gc_running_thread; mitsume_tool.cc: pointer_chasing; mitsume_util.cc: schedule);
//             the captures of it in the SwordBox authors' rack show the same READs and WRITEs.
#pragma once

#include <array>
#include <cstdint>
#include <deque>

#include "clover/client.h"
#include "remote/message_channel.h"
#include "sim/load/host_memory.h"

namespace sluice::sim {

// Where the shortcuts lie: eight bytes a key, key 0 first.
struct ShortcutTable {
  remote::RemoteAddress base{};
  std::uint64_t keys = 0;

  static constexpr std::uint64_t bytes(std::uint64_t keys) { return keys * sizeof(std::uint64_t); }
};

// A request of the published client's that ours does not make, as long as theirs takes: one about a key, and its answer.
remote::Task<void> ask_server(remote::MessageChannel& server, clover::Key key);

struct KeeperTimes {
  Duration nap{};     // when nothing has come
  Duration record{};  // for each entry of a batch, here and in the server
  Duration batch{};   // for a batch, besides what that and its round trips take
};

class ShortcutKeepers final : public clover::Shortcuts {
 public:
  static constexpr std::uint32_t kThreads = 4;
  // 16 as published. The SwordBox authors' clients took more: as many shortcuts are left out as batches of 64 entries leave out (docs/evaluation.md).
  static constexpr std::size_t kBatch = 64;

  // `memory` and its scheduler are the keepers' alone: kThreads threads. All references outlive this; its coroutines go with the scheduler,
  // before this.
  ShortcutKeepers(HostMemory& memory, remote::MessageChannel& channel, const ShortcutTable& table,
                  const KeeperTimes& times);

  remote::RemoteAddress word_of(clover::Key key) const override;
  void linked(clover::Key key, clover::NodePointer newest) override;

 private:
  struct Appended {
    clover::Key key = 0;
    clover::NodePointer newest;
  };
  remote::Task<void> keep(std::uint32_t thread);

  HostMemory& memory_;
  remote::MessageChannel& channel_;
  ShortcutTable table_;
  KeeperTimes times_;
  std::array<std::deque<Appended>, kThreads> queues_;
};

}  // namespace sluice::sim
