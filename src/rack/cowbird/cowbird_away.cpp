#include "rack/cowbird/cowbird_away.h"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <array>
#include <charconv>
#include <random>
#include <utility>

namespace sluice::rack {
namespace {

constexpr std::size_t kMostConnections = 65'536;

std::uint64_t new_serial() {
  std::random_device chance;
  return std::uint64_t{chance()} << 32 | chance();
}

// Six numbers with colons between; anything else is none.
bool parse_numbers(std::string_view word, std::array<std::uint64_t, 6>& numbers) {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), numbers[i]);
    if (error != std::errc{}) return false;
    word.remove_prefix(static_cast<std::size_t>(end - word.data()));
    if (i + 1 == numbers.size()) return word.empty();
    if (!word.starts_with(':')) return false;
    word.remove_prefix(1);
  }
  return false;
}

}  // namespace

std::string offers_text(const std::vector<CowbirdOffer>& offers) {
  std::string text;
  for (const CowbirdOffer& offer : offers) {
    const cowbird::InstanceLayout& layout = offer.layout;
    text += fmt::format("{}{}:{}:{}:{}:{}:{}", text.empty() ? "" : " ", offer.serial, offer.key, layout.channels,
                        layout.shape.entries, layout.shape.request_bytes, layout.shape.response_bytes);
  }
  return text;
}

std::vector<CowbirdOffer> parse_offers(std::string_view text) {
  std::vector<CowbirdOffer> offers;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    std::array<std::uint64_t, 6> n{};
    const auto is_short = [](std::uint64_t number) { return number >> 32 == 0; };
    if (!parse_numbers(word, n) || !std::all_of(n.begin() + 1, n.end(), is_short)) continue;
    const auto number = [&](std::size_t i) { return static_cast<std::uint32_t>(n[i]); };
    const CowbirdOffer offer{
        .serial = n[0],
        .key = number(1),
        .layout = {.shape = {.entries = number(3), .request_bytes = number(4), .response_bytes = number(5)},
                   .channels = number(2)}};
    if (offer.layout.check()) offers.push_back(offer);
  }
  return offers;
}

std::vector<std::uint8_t> greeting_for(const CowbirdOffer& offer) {
  std::vector<std::uint8_t> bytes(sizeof offer.serial);
  store_le(bytes.data(), offer.serial);
  return bytes;
}

std::uint64_t greeted_serial(ByteView private_data) {
  return private_data.size() < sizeof(std::uint64_t) ? 0 : load_le<std::uint64_t>(private_data.data());
}

class CowbirdAway::Serving final : public CowbirdServing {
 public:
  Serving(CowbirdAway& owner, std::uint64_t serial) : owner_(owner), serial_(serial) {}
  ~Serving() override { give_back(); }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;
  void stop() override { give_back(); }
  bool ended() const override { return ended_; }
  std::size_t broken() const override { return 0; }  // the engine knows

 private:
  void give_back() {
    if (!std::exchange(ended_, true)) owner_.take_back(serial_);
  }

  CowbirdAway& owner_;
  std::uint64_t serial_;
  bool ended_ = false;
};

CowbirdAway::CowbirdAway(nic::PollLoop& loop, nic::Connector& connector, std::string engine, Offer offer)
    : loop_(loop),
      connector_(connector),
      engine_(std::move(engine)),
      offer_(std::move(offer)),
      completions_(connector.adapter().create_completion_queue(16)) {
  const rc::QueuePairConfig pair{
      .send_completions = completions_, .receive_completions = completions_, .send_depth = 1, .receive_depth = 1};
  Acceptor::Events events;
  events.domain_for = [this](Time now, const rc::ConnectionEvent& event) { return let_in(now, event); };
  acceptor_ = std::make_unique<Acceptor>(connector, pair, kMostConnections, std::move(events));
}

CowbirdAway::~CowbirdAway() {
  acceptor_.reset();
  connector_.adapter().destroy(completions_);
}

namespace {

// Null: it is not there, or not ready.
const NodeRecord* find_engine(const Snapshot& snapshot, const std::string& engine) {
  const NodeRecord* const node = snapshot.find(engine);
  const bool is_there =
      node != nullptr && node->description.kind == NodeKind::kMemory && node->state == NodeState::kReady;
  return is_there ? node : nullptr;
}

}  // namespace

std::string complaint_about(const Snapshot& snapshot, const std::string& engine) {
  const NodeRecord* const node = find_engine(snapshot, engine);
  if (node == nullptr) return fmt::format("no memory node \"{}\" is on the rack; applications wait for it", engine);
  if (node->description.attributes.contains(kCowbirdAttribute)) return "";
  return fmt::format("{} has no engine; applications wait for one: is it `sluice memory --cowbird`?", engine);
}

void CowbirdAway::set_nodes(Time now, const Snapshot& snapshot) {
  acceptor_->drop_gone(now, snapshot);
  const NodeRecord* const node = find_engine(snapshot, engine_);
  engine_at_ = node != nullptr ? std::optional(wire::Gid::from(node->ip)) : std::nullopt;
  const std::string complaint = complaint_about(snapshot, engine_);
  if (complaint == complaint_) return;
  complaint_ = complaint;
  if (complaint.empty()) {
    spdlog::info("cowbird: the engine of {} moves the data", engine_);
  } else {
    spdlog::warn("cowbird: {}", complaint);
  }
}

std::optional<memory::PdId> CowbirdAway::let_in(Time now, const rc::ConnectionEvent& event) {
  const auto block = blocks_.find(greeted_serial(event.private_data));
  if (event.remote != engine_at_ || block == blocks_.end()) return std::nullopt;
  acceptor_->drop_domain(now, block->second.domain);
  return block->second.domain;
}

Result<std::unique_ptr<CowbirdServing>> CowbirdAway::serve(MutableBytes bytes, const cowbird::InstanceLayout& layout) {
  rc::Adapter& adapter = connector_.adapter();
  const memory::PdId domain = adapter.create_domain();
  const auto key = adapter.regions().add({.pd = domain,
                                          .bytes = bytes,
                                          .address = kBlockBase,
                                          .access = memory::kLocalWrite | memory::kRemoteRead | memory::kRemoteWrite});
  if (!key) return tl::unexpected(key.error());
  const CowbirdOffer offer{.serial = new_serial(), .key = key->value, .layout = layout};
  blocks_[offer.serial] = {domain, offer};
  if (auto told = tell(); !told) {
    remove(offer.serial);
    return tl::unexpected(told.error());
  }
  return std::make_unique<Serving>(*this, offer.serial);
}

void CowbirdAway::take_back(std::uint64_t serial) {
  acceptor_->drop_domain(loop_.now(), blocks_.at(serial).domain);
  remove(serial);
  static_cast<void>(tell());  // fewer than there were
}

void CowbirdAway::remove(std::uint64_t serial) {
  connector_.adapter().regions().remove(memory::Key(blocks_.at(serial).offer.key));
  blocks_.erase(serial);
}

Result<void> CowbirdAway::tell() {
  std::vector<CowbirdOffer> offers;
  for (const auto& [serial, block] : blocks_) offers.push_back(block.offer);
  return offer_(offers_text(offers));
}

}  // namespace sluice::rack
