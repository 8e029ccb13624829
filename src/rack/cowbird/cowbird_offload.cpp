#include "rack/cowbird/cowbird_offload.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "rack/endpoint/link.h"
#include "rack/switch/cowbird_stage.h"

namespace sluice::rack {

using cowbird::ConnectionEnd;
using nlohmann::json;

namespace {

constexpr std::uint32_t kControlMtu = 4096;
constexpr Duration kLook = Duration::milliseconds(1);  // at what applications have changed
constexpr Duration kRenewal = Duration::milliseconds(500);
constexpr Duration kRetry = Duration::milliseconds(200);
constexpr Duration kRegionsRest =
    Duration::milliseconds(10);  // until a channel's regions are told of again: an application changes them as it likes
constexpr const char* kPath = "/v1/cowbird";

}  // namespace

// Asks the switch, one question after the other, in a thread of its own; answers come back in the loop's. Farewells come before all else, and what was
// to be said of a channel before its own is not said: however much an application has made us ask, it is let go of at once.
class CowbirdOffload::Desk {
 public:
  using Done = std::function<void(Time, Result<json>)>;

  Desk(HttpAddress address, Endpoint& endpoint)
      : address_(std::move(address)), endpoint_(endpoint), loop_(endpoint.loop()), thread_([this] { work(); }) {}
  // Farewells are said still, to the first that fails: the switch forgets whom it does not hear.
  ~Desk() {
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
      std::erase_if(questions_, [](const Question& question) { return !question.farewell; });
    }
    changed_.notify_one();
    thread_.join();
  }

  // The number of the question.
  std::uint64_t ask(json wish, Done done) {
    sign(wish);
    const std::scoped_lock lock(mutex_);
    questions_.push_back({.wish = std::move(wish), .done = std::move(done)});
    changed_.notify_one();
    return ++asked_;
  }
  void tell(json wish) { ask(std::move(wish), {}); }
  // The switch lets go of the channel.
  void detach(std::uint32_t id) {
    if (id == 0) return;
    forget(id);
    json wish{{"do", "detach"}, {"id", id}};
    sign(wish);
    const std::scoped_lock lock(mutex_);
    const auto others = std::ranges::find_if(questions_, [](const Question& question) { return !question.farewell; });
    questions_.insert(others, {.wish = std::move(wish), .farewell = true});
    changed_.notify_one();
  }
  // Nothing more is asked of the channel.
  void forget(std::uint32_t id) {
    const std::scoped_lock lock(mutex_);
    std::erase_if(questions_, [id](const Question& question) { return question.wish.value("id", 0u) == id; });
  }

 private:
  struct Question {
    json wish{};
    Done done{};
    bool farewell = false;
  };

  // Whose it is.
  void sign(json& wish) const {
    wish["owner"] = endpoint_.node().description.name;
    wish["incarnation"] = endpoint_.node().incarnation;
  }
  void work() {
    DirectoryClient directory(address_, Duration{});
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || !questions_.empty(); });
      if (questions_.empty()) return;
      Question question = std::move(questions_.front());
      questions_.pop_front();
      const bool last = stopping_;
      lock.unlock();
      auto answer = directory.ask(kPath, question.wish);
      const bool failed = !answer;
      if (question.done && !last)
        loop_.post([done = std::move(question.done), answer = std::move(answer)](Time now) { done(now, answer); });
      lock.lock();
      if (failed && stopping_) return;
    }
  }

  HttpAddress address_;
  Endpoint& endpoint_;
  nic::PollLoop& loop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Question> questions_;
  std::uint64_t asked_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

// One channel of a block: its queue pairs, and what the switch has been told of them.
class CowbirdOffload::Channel {
 public:
  Channel(CowbirdOffload& owner, std::uint32_t index) : owner_(owner), index_(index) {}
  ~Channel() { reset(Time(), Reset::kTell); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  enum class Reset : std::uint8_t { kTell, kForget };
  // No queue pair is left, and the switch is told so unless it has forgotten anyway.
  void reset(Time now, Reset how) {
    if (id_ != 0) how == Reset::kTell ? owner_.desk_->detach(id_) : owner_.desk_->forget(id_);
    id_ = 0;
    std::exchange(lanes_, {}).clear();  // their links say that they are down, and find no lane any more
    drop_control();
    told_generation_.reset();
    telling_ = false;
    retry_at_ = now + kRetry;
    regions_at_ = Time();
  }

  void look(Time now, const std::shared_ptr<Block>& block);
  void on_renewed(Time now, const json& channels, std::uint64_t question);
  void nodes_changed() { told_generation_.reset(); }
  bool broken() const { return broken_; }
  bool attaching() const { return attaching_; }
  std::uint32_t id() const { return id_; }

 private:
  struct Lane {
    std::uint64_t incarnation = 0;
    std::unique_ptr<Link> link;
    std::uint64_t told_by = 0;  // the question; 0: not yet
  };

  void attach(Time now, const std::shared_ptr<Block>& block);
  void on_attached(Time now, const Result<json>& answer);
  void tell_regions(Time now, const std::shared_ptr<Block>& block, std::uint64_t generation);
  void want_lane(Time now, std::uint32_t node);
  void on_up(std::uint32_t node, rc::QueuePair& pair);
  void drop_control() {
    if (control_ != nullptr) owner_.endpoint_.adapter().destroy(std::exchange(control_, nullptr));
  }
  ConnectionEnd own_end(wire::Qpn qpn, wire::Psn expected) const {
    const NodeRecord& node = owner_.endpoint_.node();
    return {node.mac, wire::Gid::from(node.ip), qpn, expected};
  }

  CowbirdOffload& owner_;
  std::uint32_t index_;
  std::uint32_t id_ = 0;  // of the switch's; 0: none
  rc::QueuePair* control_ = nullptr;
  bool attaching_ = false;
  bool broken_ = false;
  Time retry_at_;
  std::optional<std::uint64_t> told_generation_;
  bool telling_ = false;                 // the switch has not answered yet
  Time regions_at_;                      // when the switch may be told again
  std::map<std::uint32_t, Lane> lanes_;  // by memory node
};

class CowbirdOffload::Block {
 public:
  Block(CowbirdOffload& owner, MutableBytes bytes, const cowbird::InstanceLayout& layout, memory::Key key)
      : bytes_(bytes), layout_(layout), key_(key), owner_(owner) {
    for (std::uint32_t i = 0; i < layout.channels; ++i) channels.push_back(std::make_unique<Channel>(owner, i));
  }
  ~Block() {
    channels.clear();
    owner_.endpoint_.adapter().regions().remove(key_);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  const cowbird::InstanceLayout& layout() const { return layout_; }
  memory::Key key() const { return key_; }
  std::uint64_t generation(std::uint32_t channel) const {
    const std::size_t at =
        layout_.channel_at(channel) + cowbird::ChannelLayout::kIssuer + cowbird::IssuerLine::kRegionsGeneration;
    return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(bytes_.data() + at)).load(std::memory_order_acquire);
  }
  cowbird::Region region(std::size_t i) const {
    return cowbird::Region::parse(bytes_.data() + cowbird::InstanceLayout::kRegions + i * cowbird::kRegionBytes);
  }

  std::vector<std::unique_ptr<Channel>> channels;

 private:
  MutableBytes bytes_;
  cowbird::InstanceLayout layout_;
  memory::Key key_;
  CowbirdOffload& owner_;
};

class CowbirdOffload::Serving final : public CowbirdServing {
 public:
  Serving(CowbirdOffload& owner, std::shared_ptr<Block> block) : owner_(owner), block_(std::move(block)) {}
  ~Serving() override { give_back(); }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;
  void stop() override { give_back(); }
  bool ended() const override { return !block_; }
  std::size_t broken() const override { return block_ ? count_broken() : broken_; }

 private:
  std::size_t count_broken() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(block_->channels, [](const auto& channel) { return channel->broken(); }));
  }
  void give_back() {
    if (!block_) return;
    broken_ = count_broken();
    owner_.blocks_.remove(block_);
    block_.reset();
  }

  CowbirdOffload& owner_;
  std::shared_ptr<Block> block_;
  std::size_t broken_ = 0;
};

// A channel -----------------------------------------------------------------------------------------------------------

void CowbirdOffload::Channel::look(Time now, const std::shared_ptr<Block>& block) {
  if (broken_) return;
  if (id_ == 0) {
    if (!attaching_ && now >= retry_at_) attach(now, block);
    return;
  }
  // However often they change meanwhile, only the newest are told of once it has answered.
  if (const auto generation = block->generation(index_);
      generation != told_generation_ && !telling_ && now >= regions_at_) {
    tell_regions(now, block, generation);
  }
  for (auto& [node, lane] : lanes_) {
    lane.link->poll(now);
  }
}

void CowbirdOffload::Channel::attach(Time now, const std::shared_ptr<Block>& block) {
  drop_control();
  rc::Adapter& adapter = owner_.endpoint_.adapter();
  auto made = adapter.create_queue_pair({.pd = owner_.domain_,
                                         .send_completions = owner_.completions_,
                                         .receive_completions = owner_.completions_,
                                         .send_depth = 1,
                                         .receive_depth = 1});
  if (!made) {
    spdlog::warn("cowbird: {}", made.error().message);
    retry_at_ = now + kRetry;
    return;
  }
  control_ = *made;
  attaching_ = true;
  const auto& layout = block->layout();
  json wish{{"do", "attach"},
            {"layout",
             {{"channels", layout.channels},
              {"entries", layout.shape.entries},
              {"request_bytes", layout.shape.request_bytes},
              {"response_bytes", layout.shape.response_bytes}}},
            {"channel", index_},
            {"address", kBlockBase},
            {"key", block->key().value},
            {"host", end_json(own_end(control_->qpn(), {}))},
            {"mtu", kControlMtu},
            {"max_reads", nic::kReadsInFlight}};
  owner_.desk_->ask(std::move(wish),
                    [this, owner = &owner_, weak = std::weak_ptr(block)](Time t, const Result<json>& answer) {
                      if (const auto alive = weak.lock()) return on_attached(t, answer);
                      // The application has gone meanwhile.
                      if (answer) owner->desk_->detach(answer->value("id", 0u));
                    });
}

void CowbirdOffload::Channel::on_attached(Time now, const Result<json>& answer) {
  attaching_ = false;
  retry_at_ = now + kRetry;
  if (!answer) {
    drop_control();
    if (!std::exchange(owner_.complained_, true)) {
      spdlog::warn("cowbird: the switch does not take channels: {}; is it `sluice switch --cowbird`?",
                   answer.error().message);
    }
    return;
  }
  owner_.complained_ = false;
  if (control_ == nullptr) {  // the switch was another one meanwhile
    return owner_.desk_->detach(answer->at("id").get<std::uint32_t>());
  }
  const auto engine = parse_end(answer->at("engine"));
  if (!engine) return drop_control();
  id_ = answer->at("id").get<std::uint32_t>();
  rc::Adapter& adapter = owner_.endpoint_.adapter();
  auto ready = adapter.modify(now, *control_, {.state = rc::QpState::kInit, .access = memory::kAllAccess});
  if (ready) {
    ready = adapter.modify(now, *control_,
                           {.state = rc::QpState::kReadyToReceive,
                            .remote_gid = engine->gid,
                            .remote_mac = engine->mac,
                            .remote_qpn = engine->qpn,
                            .path_mtu = kControlMtu,
                            .receive_psn = wire::Psn(answer->at("psn").get<std::uint32_t>()),
                            .min_rnr_timer = 1,
                            .max_reads_in = nic::kReadsInFlight});
  }
  if (!ready) {
    spdlog::warn("cowbird: {}", ready.error().message);
    return reset(now, Reset::kTell);
  }
  // A connection may have been made under another switch's eyes.
  owner_.check_boot(now, answer->at("boot").get<std::uint64_t>(), this);
}

// What the directory contradicts the memory node would refuse, and the connection would be lost with it.
void CowbirdOffload::Channel::tell_regions(Time now, const std::shared_ptr<Block>& block, std::uint64_t generation) {
  json regions = json::array();
  const std::size_t count = std::min<std::uint64_t>(generation, cowbird::kMaxRegions);
  for (std::size_t i = 0; i < count; ++i) {
    cowbird::Region region = block->region(i);
    region.denied = owner_.exports_.denies(region);
    if (region.length != 0 && !region.denied) want_lane(now, region.node);
    regions.push_back({{"node", region.node},
                       {"key", region.key},
                       {"base", region.base},
                       {"length", region.length},
                       {"writable", region.writable},
                       {"denied", region.denied}});
  }
  told_generation_ = generation;
  telling_ = true;
  regions_at_ = now + kRegionsRest;
  owner_.desk_->ask({{"do", "regions"}, {"id", id_}, {"generation", generation}, {"regions", std::move(regions)}},
                    [this, id = id_, weak = std::weak_ptr(block)](Time t, const Result<json>& answer) {
                      if (weak.expired() || id != id_) return;
                      telling_ = false;
                      if (answer) return;
                      told_generation_.reset();
                      regions_at_ = t + kRetry;
                    });
}

void CowbirdOffload::Channel::want_lane(Time now, std::uint32_t node) {
  const auto ready = owner_.nodes_.ready(NodeKind::kMemory);
  const auto record =
      std::find_if(ready.begin(), ready.end(), [&](const NodeRecord* n) { return n->id.value == node; });
  if (record == ready.end() || (*record)->description.regions.empty()) return;
  Lane& lane = lanes_[node];
  if (lane.link && lane.incarnation == (*record)->incarnation) return;
  lane = {.incarnation = (*record)->incarnation, .link = nullptr};
  LinkConfig config;
  config.pair = {.pd = owner_.domain_,
                 .send_completions = owner_.completions_,
                 .receive_completions = owner_.completions_,
                 .send_depth = 1,
                 .receive_depth = 1};
  lane.link = std::make_unique<Link>(
      owner_.endpoint_.connector(), config,
      Link::Events{.on_up = [this, node](Time, rc::QueuePair& pair) { on_up(node, pair); },
                   .on_down =
                       [this, node](Time, rc::QueuePair&) {
                         if (const auto it = lanes_.find(node); it != lanes_.end()) it->second.told_by = 0;
                         if (id_ != 0) owner_.desk_->tell({{"do", "disconnect"}, {"id", id_}, {"node", node}});
                       },
                   .on_made = {}});
  lane.link->want(now, Link::Peer{wire::Gid::from((*record)->ip), (*record)->description.cm_port});
}

void CowbirdOffload::Channel::on_up(std::uint32_t node, rc::QueuePair& pair) {
  const auto ready = owner_.nodes_.ready(NodeKind::kMemory);
  const auto record =
      std::find_if(ready.begin(), ready.end(), [&](const NodeRecord* n) { return n->id.value == node; });
  const rc::QueuePairAttributes& a = pair.attributes();
  if (record == ready.end() || id_ == 0) return;
  const ConnectionEnd pool{(*record)->mac, a.remote_gid.value_or(wire::Gid{}), a.remote_qpn.value_or(wire::Qpn{}),
                           a.send_psn.value_or(wire::Psn{})};
  lanes_[node].told_by =
      owner_.desk_->ask({{"do", "connect"},
                         {"id", id_},
                         {"node", node},
                         {"host", end_json(own_end(pair.qpn(), a.receive_psn.value_or(wire::Psn{})))},
                         {"pool", end_json(pool)},
                         {"mtu", a.path_mtu.value_or(1024)},
                         {"host_reads", a.max_reads_in.value_or(1)},
                         {"pool_reads", a.max_reads_out.value_or(1)}},
                        [node](Time, const Result<json>& answer) {
                          if (!answer) spdlog::warn("cowbird: node {}: {}", node, answer.error().message);
                        });
}

// What the switch knows of this channel, as of the answer to `question`.
void CowbirdOffload::Channel::on_renewed(Time now, const json& channels, std::uint64_t question) {
  if (id_ == 0) return;
  const auto mine =
      std::find_if(channels.begin(), channels.end(), [&](const json& c) { return c.value("id", 0u) == id_; });
  if (mine == channels.end()) return reset(now, Reset::kForget);
  if (mine->value("broken", false) && !std::exchange(broken_, true)) {
    spdlog::warn("cowbird: channel {} of an application makes no sense; it is not served any more", index_);
    return;
  }
  const json& open = mine->at("nodes");
  for (auto& [node, lane] : lanes_) {
    if (lane.told_by == 0 || lane.told_by >= question || !lane.link->up()) continue;
    if (std::find(open.begin(), open.end(), node) == open.end()) {
      lane.told_by = 0;
      lane.link->failed(now, "the switch had no answer from it");
    }
  }
}

// All of them ---------------------------------------------------------------------------------------------------------

CowbirdOffload::CowbirdOffload(Endpoint& endpoint, HttpAddress directory)
    : endpoint_(endpoint),
      domain_(endpoint.adapter().create_domain()),
      completions_(endpoint.adapter().create_completion_queue(64)),
      desk_(std::make_unique<Desk>(std::move(directory), endpoint)) {}

CowbirdOffload::~CowbirdOffload() {
  blocks_.clear();
  desk_.reset();
  endpoint_.adapter().destroy(completions_);
}

void CowbirdOffload::set_nodes(Time, const Snapshot& snapshot) {
  nodes_ = snapshot;
  exports_.set(exports_of(snapshot, {}));
  for (const auto& block : blocks_) {
    for (const auto& channel : block->channels) channel->nodes_changed();
  }
}

Result<std::unique_ptr<CowbirdServing>> CowbirdOffload::serve(MutableBytes bytes,
                                                              const cowbird::InstanceLayout& layout) {
  auto key = endpoint_.adapter().regions().add(
      {.pd = domain_, .bytes = bytes, .address = kBlockBase, .access = memory::kAllAccess});
  if (!key) return tl::unexpected(key.error());
  auto block = std::make_shared<Block>(*this, bytes, layout, *key);
  blocks_.push_back(block);
  return std::make_unique<Serving>(*this, std::move(block));
}

// Another switch than before has forgotten all, but for what it has just answered of.
void CowbirdOffload::check_boot(Time now, std::uint64_t boot, const Channel* but) {
  const std::uint64_t before = std::exchange(boot_, boot);
  if (before == 0 || before == boot) return;
  for (const auto& block : blocks_) {
    for (const auto& channel : block->channels) {
      if (channel.get() != but) channel->reset(now, Channel::Reset::kForget);
    }
  }
}

void CowbirdOffload::on_renewed(Time now, const json& channels) {
  detach_strays(channels);
  for (const auto& block : blocks_) {
    for (const auto& channel : block->channels) channel->on_renewed(now, channels, renewal_);
  }
}

void CowbirdOffload::detach_strays(const json& channels) {
  std::set<std::uint32_t> ours;
  for (const auto& block : blocks_) {
    for (const auto& channel : block->channels) {
      if (channel->attaching()) return;  // it may be one of these
      ours.insert(channel->id());
    }
  }
  for (const json& channel : channels) {
    const auto id = channel.value("id", 0u);
    if (!ours.contains(id)) desk_->detach(id);
  }
}

std::size_t CowbirdOffload::poll(Time now) {
  if (now < next_look_) return 0;
  next_look_ = now + kLook;
  for (const auto& block : blocks_) {
    for (const auto& channel : block->channels) channel->look(now, block);
  }
  if (now >= next_renewal_ && !renewing_ && !blocks_.empty()) {
    next_renewal_ = now + kRenewal;
    renewing_ = true;
    renewal_ = desk_->ask({{"do", "renew"}}, [this](Time t, const Result<json>& answer) {
      renewing_ = false;
      if (!answer) return;
      check_boot(t, answer->at("boot").get<std::uint64_t>(), nullptr);
      on_renewed(t, answer->at("channels"));
    });
  }
  return 0;
}

}  // namespace sluice::rack
