#include "rack/clients/store_parts.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>

namespace sluice::rack {

using What = StorePart::What;

std::vector<StorePart> parts_on(const Snapshot& snapshot, std::uint64_t least) {
  std::vector<StorePart> parts;
  for (const NodeRecord& node : snapshot.nodes) {
    const NodeDescription& its = node.description;
    if (its.kind != NodeKind::kMemory || its.regions.empty()) continue;
    const bool ready = node.state == NodeState::kReady;
    for (const RegionRecord& region : its.regions) {
      // What a region was moved to may stand beside another; what others own is theirs.
      if (region.owner != its.regions.front().owner) continue;
      if (region.length < least || region.name.starts_with(kLeaving) || region.name.starts_with(kArriving)) continue;
      parts.push_back({.node = its.name,
                       .name = region.owner.empty() ? region.name : region.owner + '/' + region.name,
                       .region = {node.id, remote::RegionKey(region.key), region.address},
                       .length = region.length,
                       .first = &region == &its.regions.front(),
                       .what = ready ? What::kSilent : What::kGone,
                       .left = node.state == NodeState::kGone && node.has_left});
    }
  }
  return parts;
}

std::string too_small(const Snapshot& snapshot, std::uint64_t least) {
  for (const NodeRecord* node : snapshot.ready(NodeKind::kMemory)) {
    const auto& regions = node->description.regions;
    if (!regions.empty() && regions.front().length < least) return node->description.name;
  }
  return "";
}

remote::Task<void> look_at_parts(remote::RemoteMemory& memory, std::uint64_t offset, JudgePart judge,
                                 std::span<StorePart> parts) {
  std::vector<std::array<std::uint8_t, kStorePartRead>> bytes(parts.size());
  std::vector<remote::Operation> reads;
  std::vector<std::size_t> whose;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].what == What::kGone) continue;
    reads.push_back(remote::read_operation(parts[i].region + offset, bytes[i]));
    whose.push_back(i);
  }
  if (!reads.empty()) co_await memory.all(reads);
  for (std::size_t i = 0; i < reads.size(); ++i) {
    StorePart& part = parts[whose[i]];
    part.what = What::kSilent;
    if (reads[i].status == remote::Status::kOk) judge(bytes[whose[i]], part);
  }
}

namespace {

constexpr auto kNone = StorePlan::kNone;

// Parts of one store, by their index.
struct Found {
  std::vector<std::size_t> order;
  std::size_t here = 0;
  bool made = false;
  const StorePart* any = nullptr;

  bool whole() const { return here == order.size(); }
  bool usable() const { return whole() || (any->has_copies && here * 2 > order.size()); }
};

std::map<std::uint32_t, Found> stores_in(std::span<const StorePart> parts) {
  std::map<std::uint32_t, Found> stores;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const StorePart& part = parts[i];
    if (part.what != What::kPart) continue;
    Found& store = stores[part.store_id];
    if (store.any == nullptr) {
      store.any = &part;
      store.order.assign(part.parts, kNone);
    }
    store.made = store.made || part.made;
    if (part.parts != store.order.size() || part.length < part.least) continue;
    std::size_t& at = store.order[part.index];
    store.here += at == kNone;
    if (at == kNone || parts[at].life < part.life) at = i;
  }
  std::erase_if(stores, [](const auto& store) { return !store.second.made; });
  return stores;
}

// "memory1, memory2 and memory3"; of first regions alone, so that each node is named once.
struct Names {
  Names(std::span<const StorePart> parts, std::initializer_list<What> kinds) {
    for (const StorePart& part : parts) {
      if (part.first && std::ranges::find(kinds, part.what) != kinds.end()) names.push_back(part.node);
    }
  }
  std::string text() const {
    std::string out;
    for (std::size_t i = 0; i < names.size(); ++i)
      out += fmt::format("{}{}", i == 0 ? "" : i + 1 == names.size() ? " and " : ", ", names[i]);
    return out;
  }
  std::string_view one_or_more(std::string_view one, std::string_view more) const {
    return names.size() == 1 ? one : more;
  }
  std::vector<std::string> names;
};

std::string refusal_of(const Found& store, std::span<const StorePart> parts, std::string_view kind) {
  const std::size_t lacking = store.order.size() - store.here;
  const Names gone(parts, {What::kGone});
  const Names blank(parts, {What::kNothing, What::kMaking});
  const Names silent(parts, {What::kSilent});
  const std::size_t all = gone.names.size() + blank.names.size() + silent.names.size();
  if (all == lacking && gone.names.size() == all)
    return fmt::format("{} {} away, and part of the {} lies there", gone.text(), gone.one_or_more("is", "are"), kind);
  if (all == lacking && silent.names.size() == all)
    return fmt::format("{} {} not answer, and part of the {} lies there", silent.text(),
                       silent.one_or_more("does", "do"), kind);
  if (all == lacking && blank.names.size() == all)
    return fmt::format("{} {} started anew, and the part of the {} that lay there is lost; {}", blank.text(),
                       blank.one_or_more("was", "were"), kind, kStartAnew);
  std::string text = fmt::format("the {} lies on {} memory nodes, and of {} of them nothing is to be seen", kind,
                                 store.order.size(), lacking);
  if (!gone.names.empty()) text += fmt::format("; {} {} away", gone.text(), gone.one_or_more("is", "are"));
  if (!silent.names.empty()) text += fmt::format("; {} {} not answer", silent.text(), silent.one_or_more("does", "do"));
  if (!blank.names.empty()) text += fmt::format("; {} {} empty", blank.text(), blank.one_or_more("is", "are"));
  return text;
}

// Gives places of which nothing is to be seen to memory that is away, or blank: what was there may come back in it.
void fill_gaps(std::vector<std::size_t>& order, std::span<const StorePart> parts, std::uint64_t least) {
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const StorePart& part = parts[i];
    if (part.first && part.what != What::kPart && part.what != What::kOther && part.length >= least)
      others.push_back(i);
  }
  const auto gaps = static_cast<std::size_t>(std::ranges::count(order, kNone));
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i] != kNone) continue;
    // If that leaves a choice: a store is made in the order of the nodes' numbers.
    const auto fits = [&](std::size_t other) {
      if (others.size() <= gaps) return true;
      const auto number = [&](std::size_t part) { return parts[part].region.node; };
      const auto known = [](std::size_t part) { return part != kNone; };
      const auto above = std::find_if(order.begin() + static_cast<std::ptrdiff_t>(i), order.end(), known);
      return (i == 0 || order[i - 1] == kNone || number(order[i - 1]) < number(other)) &&
             (above == order.end() || number(other) < number(*above));
    };
    const auto chosen = std::ranges::find_if(others, [&](std::size_t other) { return other != kNone && fits(other); });
    if (chosen == others.end()) continue;
    order[i] = *chosen;
    *chosen = kNone;
  }
}

// What comes back has no memory yet, and its place would be given to other memory.
bool may_be_joining(const StorePlan& plan, std::span<const StorePart> parts, const Snapshot& snapshot) {
  const auto is_there = [&](std::size_t part) { return part != kNone && parts[part].what == What::kPart; };
  const auto joins = [](const NodeRecord& node) {
    return node.description.kind == NodeKind::kMemory && node.state == NodeState::kJoining;
  };
  return !std::ranges::all_of(plan.order, is_there) && std::ranges::any_of(snapshot.nodes, joins);
}

}  // namespace

StorePlan plan_store(std::span<const StorePart> parts, std::string_view kind) {
  const auto stores = stores_in(parts);
  const auto is_usable = [](const auto& store) { return store.second.usable(); };
  const auto usable = std::ranges::count_if(stores, is_usable);
  if (usable > 1)
    return {.refusal = fmt::format("there are {} {}s in this memory, and which is meant cannot be told", usable, kind)};
  if (usable == 1) {
    const Found& store = std::ranges::find_if(stores, is_usable)->second;
    StorePlan plan{.what = StorePlan::What::kUse, .order = store.order};
    fill_gaps(plan.order, parts, store.any->least);
    return plan;
  }
  const auto any = [&](What what) {
    return std::ranges::any_of(parts, [&](const StorePart& part) { return part.first && part.what == what; });
  };
  // One of which some superblocks are written may be on its way: to make one is to wait for that.
  if (!stores.empty() && !any(What::kMaking)) {
    const auto most = std::ranges::max_element(stores, {}, [](const auto& store) { return store.second.here; });
    return {.may_answer_yet = any(What::kSilent), .refusal = refusal_of(most->second, parts, kind)};
  }
  if (any(What::kOther))
    return {.refusal = fmt::format("the memory is in use by another store, or by locks; {}", kStartAnew)};
  const Names silent(parts, {What::kSilent});
  if (!silent.names.empty())
    return {.may_answer_yet = true,
            .refusal = fmt::format("{} {} not answer", silent.text(), silent.one_or_more("does", "do"))};
  std::vector<StorePart> lost(parts.begin(), parts.end());
  std::erase_if(lost, [](const StorePart& part) { return part.left; });
  const Names gone(lost, {What::kGone});
  if (!gone.names.empty())
    return {.refusal = fmt::format("there is none, and {} {} away, where one may lie; one can be made when {} back, or "
                                   "three days after {} lost",
                                   gone.text(), gone.one_or_more("is", "are"), gone.one_or_more("it is", "they are"),
                                   gone.one_or_more("it was", "they were"))};
  StorePlan plan{.what = StorePlan::What::kMake};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].first && !parts[i].left) plan.order.push_back(i);
  }
  return plan;
}

remote::Task<StorePlan> find_store(remote::RemoteMemory& memory, const Snapshot& snapshot, const StoreSearch& search,
                                   const MakeStore& make, std::vector<StorePart>& parts) {
  constexpr Duration kLookAgain = Duration::milliseconds(20);
  remote::Scheduler& scheduler = memory.scheduler();
  const Time give_up = scheduler.now() + search.patience;
  std::string seen_before;
  while (true) {
    parts = parts_on(snapshot, search.least);
    co_await look_at_parts(memory, search.offset, search.judge, parts);
    StorePlan plan = plan_store(parts, search.kind);
    const bool late = scheduler.now() >= give_up;
    if (plan.what == StorePlan::What::kUse && (late || !may_be_joining(plan, parts, snapshot))) co_return plan;
    const bool certain = plan.refusal == seen_before && !plan.may_answer_yet;
    if (plan.what == StorePlan::What::kRefuse && (late || certain)) co_return plan;
    seen_before = plan.refusal;
    if (late) co_return StorePlan{.refusal = fmt::format("there is no {}", search.kind)};
    if (plan.what == StorePlan::What::kMake && make) {
      std::string refused;
      const bool made = co_await make(plan, refused);
      if (made) continue;
      if (!refused.empty()) co_return StorePlan{.refusal = std::move(refused)};
    }
    co_await scheduler.sleep_for(kLookAgain);
  }
}

std::vector<std::size_t> find_missing(std::span<const StorePart> parts, const StorePart& store,
                                      std::span<const StorePart> places) {
  std::vector<std::size_t> order(places.size(), kNone);
  const auto is_missing = [&](std::size_t place) { return places[place].region == kNowhere; };
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const StorePart& part = parts[i];
    const bool is_of_it = part.what == What::kPart && part.store_id == store.store_id && part.parts == places.size();
    if (!is_of_it || part.length < part.least || !is_missing(part.index)) continue;
    std::size_t& at = order[part.index];
    if (at == kNone || parts[at].life < part.life) at = i;
  }
  if (!store.has_copies) return order;
  for (std::size_t place = 0; place < places.size(); ++place) {
    if (!is_missing(place) || order[place] != kNone) continue;
    // A node that was forgotten comes back with its name, and another number.
    const auto came_back = std::ranges::find_if(parts, [&](const StorePart& part) {
      return part.what == What::kNothing && part.node == places[place].node && part.name == places[place].name &&
             part.length >= store.least;
    });
    if (came_back != parts.end()) order[place] = static_cast<std::size_t>(came_back - parts.begin());
  }
  return order;
}

}  // namespace sluice::rack
