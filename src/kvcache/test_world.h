// A whole cache in one process, for its tests: replicas and clients over the local backend.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "kvcache/client.h"
#include "kvcache/server.h"
#include "remote/test_loop.h"

namespace sluice::kvcache {

inline ByteView view(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}
inline std::string text_of(ByteView bytes) { return {bytes.begin(), bytes.end()}; }

struct WorldConfig {
  remote::LocalOptions local{};
  std::uint32_t replicas = 3;
  Geometry geometry{.buckets = 64, .log_bytes = 64 << 10};
  std::uint32_t clients = 2;
  std::uint32_t max_value = 512;
};

class World : public remote::TestLoop {
 public:
  static constexpr std::uint64_t kMailbox = 1024;

  explicit World(const WorldConfig& config) : remote::TestLoop(config.local), config_(config) {
    set_check_context("seed " + std::to_string(config.local.seed));
    for (std::uint32_t i = 0; i < config.replicas; ++i) {
      const auto node = fabric.add_node();
      nodes.push_back(node);
      tables.push_back(
          fabric.add_region(node, 0x10'0000, config.geometry.table_bytes(), {.write = false, .atomic = false}));
      std::vector<remote::RemoteAddress> boxes;
      for (std::uint32_t c = 0; c < config.clients; ++c) {
        boxes.push_back(fabric.add_region(node, 0x100'0000 + 0x1'0000 * c, kMailbox, {.atomic = false}));
      }
      mailboxes.push_back(boxes);
      servers.emplace_back();
      begin(i, i + 1);
    }
    scheduler.spawn(serve());
    for (std::uint32_t c = 0; c < config.clients; ++c) {
      memories.push_back(std::make_unique<remote::LocalMemory>(scheduler, fabric));
      std::vector<Replica> replicas;
      for (std::uint32_t i = 0; i < config.replicas; ++i) replicas.push_back({tables[i], mailboxes[i][c], kMailbox});
      clients.push_back(std::make_unique<Client>(*memories.back(), replicas,
                                                 ClientConfig{.number = static_cast<std::uint16_t>(c + 1),
                                                              .max_value = config.max_value,
                                                              .look_after = Duration::microseconds(50),
                                                              .answer_pause = Duration::nanoseconds(200),
                                                              .change_deadline = Duration::milliseconds(5)}));
      EXPECT_EQ(wait_for(clients.back()->join()), Outcome::kOk);
    }
  }

  // A replica begins a life, empty.
  void begin(std::uint32_t replica, std::uint64_t life) {
    servers[replica] = std::make_unique<Server>(fabric.region_bytes(tables[replica]), config_.geometry, life);
    for (const auto& box : mailboxes[replica]) servers[replica]->add_mailbox(fabric.region_bytes(box));
  }
  void kill(std::uint32_t replica) {
    servers[replica].reset();
    fabric.kill_node(nodes[replica]);
  }
  // What a lookup finds, or how it ended.
  std::string get(Client& client, const std::string& key) {
    std::vector<std::uint8_t> into(config_.max_value);
    const GetResult result = wait_for(client.get(view(key), into));
    if (result.outcome != Outcome::kOk) return "(" + std::string(to_string(result.outcome)) + ")";
    return text_of(ByteView(into).first(result.length));
  }
  Outcome set(Client& client, const std::string& key, const std::string& value) {
    return wait_for(client.set(view(key), view(value)));
  }
  Outcome erase(Client& client, const std::string& key) { return wait_for(client.erase(view(key))); }

  std::vector<remote::NodeId> nodes;
  std::vector<remote::RemoteAddress> tables;
  std::vector<std::vector<remote::RemoteAddress>> mailboxes;  // by replica, client
  std::vector<std::unique_ptr<Server>> servers;
  std::vector<std::unique_ptr<remote::LocalMemory>> memories;
  std::vector<std::unique_ptr<Client>> clients;

 private:
  remote::Task<void> serve() {
    for (;;) {
      for (const auto& server : servers) {
        if (server != nullptr) server->poll();
      }
      co_await scheduler.sleep_for(Duration::nanoseconds(300));
    }
  }

  WorldConfig config_;
};

}  // namespace sluice::kvcache
