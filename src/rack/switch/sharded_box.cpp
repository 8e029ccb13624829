#include "rack/switch/sharded_box.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "ports/shm_port.h"
#include "switching/frame_buffer.h"
#include "swordbox/shard.h"

namespace sluice::rack {
namespace {

using nlohmann::json;
using switching::LearningSwitch;

constexpr std::size_t kRing = std::size_t{4} << 20;

bool is_management(const wire::ParsedFrame& parsed) {
  return parsed.traits().transport == wire::Transport::kUd && parsed.destination == wire::kCmQpn;
}

// Adds up what is counted, puts lists together, leaves the rest as the first that has it says.
void merge(json& all, const json& one) {
  for (const auto& [name, value] : one.items()) {
    if (value.is_object()) {
      merge(all[name], value);
    } else if (value.is_array()) {
      for (const json& entry : value) all[name].push_back(entry);
    } else if (!all.contains(name) || (all[name].is_string() && all[name].get_ref<const std::string&>().empty())) {
      all[name] = value;
    } else if (value.is_number_unsigned()) {
      all[name] = all[name].get<std::uint64_t>() + value.get<std::uint64_t>();
    }
  }
}

void keep_most(json& list, const char* by, std::size_t most) {
  std::stable_sort(list.begin(), list.end(), [by](const json& a, const json& b) {
    return a[by].get<std::uint64_t>() > b[by].get<std::uint64_t>();
  });
  while (list.size() > most) list.erase(list.size() - 1);
}

}  // namespace

// One thread with one box, at the far end of a cable.
class ShardedBox::Shard final : private nic::Pollable {
 public:
  static Result<std::unique_ptr<Shard>> start(const std::string& socket, const BoxSettings& settings, Duration fence) {
    auto near = ports::ShmPort::listen_one(socket, {.ring_bytes = kRing});
    if (!near) return tl::unexpected(near.error());
    auto far = ports::ShmPort::connect(socket);
    if (!far) return tl::unexpected(far.error());
    return std::unique_ptr<Shard>(new Shard(std::move(*near), std::move(*far), settings, fence));
  }
  ~Shard() override { thread_.reset(); }

  port::Port& near() { return *near_; }
  // How often the ring back was full. In the shard's thread.
  std::uint64_t ring_back_full() const { return far_->counters().tx_full; }
  // In the shard's thread.
  template <class F>
  void post(F function) {
    thread_->loop().post([this, function = std::move(function)](Time now) { function(now, *stage_); });
  }
  // The same, and waits for its end.
  template <class F>
  void call(F function) {
    thread_->call([&](Time) { function(*stage_); });
  }

 private:
  Shard(std::unique_ptr<port::Port> near, std::unique_ptr<port::Port> far, const BoxSettings& settings, Duration fence)
      : near_(std::move(near)), far_(std::move(far)), burst_(LearningSwitch::kBurst) {
    thread_ = std::make_unique<nic::LoopThread>([this, settings, fence](nic::PollLoop& loop) {
      stage_ = std::make_unique<BoxStage>(settings, fence == Duration() ? Time() : loop.now() + fence);
      loop.add(*this);
      loop.add_port(*far_);
    });
  }

  std::size_t poll(Time now) override {
    const std::size_t n = far_->receive(now, burst_);
    if (n != 0) judge(now, std::span(burst_).first(n));
    if (now >= stage_->next_deadline()) {
      stage_->on_deadline(now, made_);
      send_made();
    }
    return n;
  }
  Time next_deadline() const override { return stage_->next_deadline(); }

  void judge(Time now, std::span<port::Frame> burst) {
    std::array<switching::Packet, LearningSwitch::kBurst> packets;
    std::array<bool, LearningSwitch::kBurst> is_copy{};
    for (std::size_t i = 0; i < burst.size(); ++i) {
      packets[i] = {.frame = burst[i]};
      wire::ParsedFrame parsed;
      is_copy[i] = wire::parse(burst[i].bytes(), parsed) == wire::Verdict::kOk && is_management(parsed);
    }
    stage_->process(now, std::span(packets).first(burst.size()), made_);
    for (std::size_t i = 0; i < burst.size(); ++i) {
      if (packets[i].action == switching::Packet::Action::kForward && !is_copy[i]) send(packets[i].frame);
    }
    send_made();
  }
  void send_made() {
    for (std::size_t i = 0; i < made_.size(); ++i) send(made_.frame(i));
    made_.clear();
  }
  void send(const port::Frame& frame) {
    std::uint8_t* const room = far_->reserve(frame.length);
    if (room == nullptr) return;  // counted by the port: ring_back_full()
    std::memcpy(room, frame.data, frame.length);
    far_->commit(frame.length);
  }

  std::unique_ptr<port::Port> near_;  // the switch's thread
  std::unique_ptr<port::Port> far_;   // the shard's, as all below
  std::unique_ptr<BoxStage> stage_;
  std::vector<port::Frame> burst_;
  switching::FrameBuffer made_;
  std::unique_ptr<nic::LoopThread> thread_;
};

ShardedBox::ShardedBox(nic::PollLoop& loop, LearningSwitch& machine)
    : loop_(loop), machine_(machine), burst_(LearningSwitch::kBurst) {}

Result<std::unique_ptr<ShardedBox>> ShardedBox::start(const std::string& path, const BoxSettings& settings,
                                                      Duration fence, nic::PollLoop& loop, LearningSwitch& machine) {
  std::unique_ptr<ShardedBox> box(new ShardedBox(loop, machine));
  for (std::uint64_t i = 0; i < settings.cores; ++i) {
    auto shard = Shard::start(fmt::format("{}/box-{}.sock", path, i), settings, fence);
    if (!shard) return fail(fmt::format("cores = \"{}\": {}", settings.cores, shard.error().message));
    box->shards_.push_back(std::move(*shard));
    loop.add_port(box->shards_.back()->near());
  }
  loop.add(*box);
  return box;
}

ShardedBox::~ShardedBox() {
  for (const auto& shard : shards_) loop_.remove_port(shard->near());
  loop_.remove(*this);
}

bool ShardedBox::hand_over(Shard& shard, const port::Frame& frame) {
  std::uint8_t* const room = shard.near().reserve(frame.length);
  if (room == nullptr) {
    ++rings_full_;
    return false;
  }
  std::memcpy(room, frame.data, frame.length);
  shard.near().commit(frame.length);
  return true;
}

// The shard sends it on, or not.
void ShardedBox::give_to(std::uint32_t shard, switching::Packet& packet) {
  hand_over(*shards_[shard], packet.frame);
  packet.action = switching::Packet::Action::kDrop;
}

void ShardedBox::process(Time, std::span<switching::Packet> packets, port::FrameSink&) {
  for (switching::Packet& packet : packets) {
    wire::ParsedFrame parsed;
    const wire::Verdict verdict = wire::parse(packet.frame.bytes(), parsed);
    if (verdict != wire::Verdict::kOk && verdict != wire::Verdict::kUnknownOpcode) continue;
    const auto& mac = agent_mac_.bytes;
    const bool is_agents = has_agent_ && (std::memcmp(packet.frame.data, mac.data(), mac.size()) == 0 ||
                                          std::memcmp(packet.frame.data + mac.size(), mac.data(), mac.size()) == 0);
    if (is_agents) continue;
    const auto shards = static_cast<std::uint32_t>(shards_.size());
    if (verdict == wire::Verdict::kUnknownOpcode) {
      give_to(swordbox::shard_of_unknown(packet.frame.data, parsed, shards), packet);
      continue;
    }
    if (is_management(parsed)) {
      for (const auto& shard : shards_) hand_over(*shard, packet.frame);
      continue;
    }
    const std::uint32_t shard = swordbox::shard_of(packet.frame.data, parsed, shards);
    if (shard != swordbox::kEveryShard) give_to(shard, packet);
  }
}

std::size_t ShardedBox::poll(Time now) {
  std::size_t work = 0;
  for (const auto& shard : shards_) {
    const std::size_t n = shard->near().receive(now, burst_);
    for (std::size_t i = 0; i < n; ++i) machine_.forward_made(now, burst_[i]);
    work += n;
  }
  return work;
}

void ShardedBox::set_store(Time, const std::optional<StoreMemory>& store) {
  for (const auto& shard : shards_) shard->post([store](Time now, BoxStage& stage) { stage.set_store(now, store); });
}

void ShardedBox::set_words(Time, const std::vector<swordbox::WordRegion>& regions) {
  for (const auto& shard : shards_)
    shard->post([regions](Time now, BoxStage& stage) { stage.set_words(now, regions); });
}

void ShardedBox::set_agent(wire::MacAddress mac, Agent agent) {
  agent_mac_ = mac;
  has_agent_ = agent != nullptr;
  for (std::uint32_t i = 0; i < shards_.size(); ++i) {
    Agent in_its_name;
    if (agent) {
      in_its_name = [agent, i](Errand errand) {
        errand.shard = i;
        agent(errand);
      };
    }
    // At once: the one before may be gone when we return.
    shards_[i]->call([&](BoxStage& stage) { stage.set_agent(mac, in_its_name); });
  }
}

void ShardedBox::on_repair(Time, const Errand& errand, std::optional<std::uint64_t> prior) {
  shards_[errand.shard]->post([errand, prior](Time now, BoxStage& stage) { stage.on_repair(now, errand, prior); });
}

Result<void> ShardedBox::change(const std::string& text) {
  Result<void> outcome;
  // They have the same settings, but have not seen the same packets: all are asked before one is changed.
  for (const auto& shard : shards_) {
    shard->call([&](BoxStage& stage) { outcome = stage.may_change(text); });
    if (!outcome) return outcome;
  }
  for (const auto& shard : shards_) shard->call([&](BoxStage& stage) { stage.make_change(text); });
  return outcome;
}

std::string ShardedBox::status_json(std::size_t most) {
  json all{{"top_connections", json::array()}, {"top_keys", json::array()}};  // though there be none
  json shares = json::array();
  std::uint64_t rings_back_full = 0;
  for (const auto& shard : shards_) {
    std::string text;
    shard->call([&](BoxStage& stage) {
      text = stage.status_json(most);
      rings_back_full += shard->ring_back_full();
    });
    json one = json::parse(text);
    shares.push_back({{"frames", shard->near().counters().tx_frames},
                      {"connections", one["connections"]},
                      {"tracked_keys", one["tracked_keys"]},
                      {"tracked_words", one["tracked_words"]}});
    // All see all connections, and all have the same limits.
    for (const char* name : {"connections", "limits", "volumes"}) {
      if (shares.size() > 1) one.erase(name);
    }
    merge(all, one);
  }
  keep_most(all["top_connections"], "requests", most);
  keep_most(all["top_keys"], "heat", most);
  all["shards"] = std::move(shares);
  all["shard_rings_full"] = rings_full_;
  all["shard_rings_back_full"] = rings_back_full;
  return all.dump();
}

}  // namespace sluice::rack
