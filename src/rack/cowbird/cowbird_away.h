// Cowbird away: makes the rings of this machine's applications reachable for the engine of a memory node, and offers them in the directory.
//
// Life:       serve() registers a block with the NIC, in a protection domain of its own, and offers it -> the engine connects, once for each
//             block, and serves it (cowbird_near.h) -> stop() ends the connection and takes the offer back.
// Fencing:    a block has one connection at a time, and each is served from what has been published on: when an engine is let in, the last
//             one's connection ends first, so nothing of that one comes late.
// Cost:       the NIC's answers to the engine; nothing a request.
// Trust:      only the address of the node that was named is let in, and to blocks that are offered.
// Errors:     a node that is not there, or has no engine: waited for, and said once.
// Threads:    the loop's owner.
// Source:     Cowbird §5.2 Phase I, §6. Ours: the directory tells the engine.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nic/connector.h"
#include "rack/cowbird/cowbird_host.h"
#include "rack/endpoint/memory_node.h"

namespace sluice::rack {

inline constexpr const char* kCowbirdAttribute = "cowbird";  // of a memory node that has an engine
inline constexpr const char* kCowbirdAtAttribute =
    "cowbird-at";  // of a host: the memory node that it wants to be served by
inline constexpr const char* kCowbirdOffersAttribute = "cowbird-offers";  // of a host: its blocks

// One block, as an engine has to know it. `serial` is what the engine says when it connects; no two blocks ever have the same.
struct CowbirdOffer {
  std::uint64_t serial = 0;
  std::uint32_t key = 0;
  cowbird::InstanceLayout layout{};
};
// A word for each, its numbers with colons between.
std::string offers_text(const std::vector<CowbirdOffer>& offers);
// What makes no sense is left out.
std::vector<CowbirdOffer> parse_offers(std::string_view text);
// What an engine says when it connects, and reading it.
std::vector<std::uint8_t> greeting_for(const CowbirdOffer& offer);
std::uint64_t greeted_serial(ByteView private_data);

// Why the memory node of this name moves no data now; empty: it does.
std::string complaint_about(const Snapshot& snapshot, const std::string& engine);

class CowbirdAway final : public CowbirdService {
 public:
  // Tells of these offers, all there are; why they are too many, if they are.
  using Offer = std::function<Result<void>(const std::string& offers)>;
  // `engine`: the memory node's name. `offer` is called whenever the offers have changed.
  CowbirdAway(nic::PollLoop& loop, nic::Connector& connector, std::string engine, Offer offer);
  ~CowbirdAway() override;
  CowbirdAway(const CowbirdAway&) = delete;
  CowbirdAway& operator=(const CowbirdAway&) = delete;

  Result<void> listen(std::uint16_t port) { return acceptor_->listen(port); }
  void set_nodes(Time now, const Snapshot& snapshot);
  Result<std::unique_ptr<CowbirdServing>> serve(MutableBytes block, const cowbird::InstanceLayout& layout) override;
  const Acceptor& acceptor() const { return *acceptor_; }

 private:
  class Serving;
  struct Block {
    memory::PdId domain;
    CowbirdOffer offer;
  };
  std::optional<memory::PdId> let_in(Time now, const rc::ConnectionEvent& event);
  void take_back(std::uint64_t serial);
  Result<void> tell();
  void remove(std::uint64_t serial);

  nic::PollLoop& loop_;
  nic::Connector& connector_;
  std::string engine_;
  Offer offer_;
  std::optional<wire::Gid> engine_at_;
  std::string complaint_ = "?";  // as last said; empty: all is well
  std::map<std::uint64_t, Block> blocks_;
  rc::CompletionQueue* completions_;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace sluice::rack
