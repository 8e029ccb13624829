#include "sherman/space.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace sluice::sherman {

using remote::Operation;
using remote::Status;
using remote::Task;

namespace {
constexpr std::size_t kChunksATime = 4;     // looked through for marks, before another one is claimed
constexpr std::size_t kReadsATime = 16;     // heads of pieces that are read at once
constexpr std::uint32_t kReadBytes = 4096;  // pieces shorter than this are read several at a time
}  // namespace

// ------------------------------------------------------------------------------------------------------- pieces

bool Space::add(NodePointer start, Use use) {
  const std::size_t pieces = c_.geometry.chunk_bytes / piece_bytes();
  return chunks_.try_emplace(start.raw, Chunk{start, std::vector<Use>(pieces, use)}).second;
}

void Space::adopt(NodePointer chunk) { add(chunk, Use::kDoubtful); }

const Space::Chunk* Space::chunk_of(NodePointer piece) const {
  auto after = chunks_.upper_bound(piece.raw);
  if (after == chunks_.begin()) return nullptr;
  const Chunk& chunk = std::prev(after)->second;
  return piece.raw - chunk.start.raw < chunk.uses.size() * piece_bytes() ? &chunk : nullptr;
}

Space::Use Space::use_of(NodePointer piece) const {
  const Chunk* const chunk = chunk_of(piece);
  SLUICE_CHECK(chunk != nullptr);
  return chunk->uses[(piece.raw - chunk->start.raw) / piece_bytes()];
}

void Space::set(NodePointer piece, Use use) {
  const Chunk* const chunk = chunk_of(piece);
  SLUICE_CHECK(chunk != nullptr);
  const std::size_t index = (piece.raw - chunk->start.raw) / piece_bytes();
  chunks_.find(chunk->start.raw)->second.uses[index] = use;
  for (Watch* const watch : *watches_) {
    if (watch->chunk_ == chunk) watch->touched_[index] = true;
  }
}

bool Space::hold(NodePointer piece) {
  if (use_of(piece) == Use::kFree) return false;
  ++in_hand_[piece.raw].operations;
  set(piece, Use::kInHand);
  return true;
}

void Space::settle(NodePointer piece, Use use) {
  SLUICE_CHECK(use_of(piece) != Use::kFree);  // else it would be given out twice
  if (const auto held = in_hand_.find(piece.raw); held != in_hand_.end()) {
    Hand& hand = held->second;
    hand.said = std::min(hand.said, use);
    if (--hand.operations != 0) return;
    use = hand.said;
    in_hand_.erase(held);
  }
  set(piece, use);
  if (use == Use::kFree) returned_.push_back({piece, c_.now() + c_.config.flight});
}

bool Space::cut(NodePointer& piece) {
  if (!returned_.empty() && returned_.front().from <= c_.now()) {
    piece = returned_.front().piece;
    returned_.pop_front();
  } else if (left_ != 0) {
    piece = next_;
    next_ = NodePointer::at(next_.node(), next_.offset() + piece_bytes());
    --left_;
  } else {
    return false;
  }
  ++in_hand_[piece.raw].operations;
  set(piece, Use::kInHand);
  return true;
}

Task<Space::Given> Space::take(Time deadline, NodePointer& piece) {
  Given given = Given::kUnavailable;
  while (!cut(piece)) {
    if (c_.now() >= deadline) co_return given;
    if (claiming_) {
      co_await c_.wait_for_another(c_.config.backoff_first);
      continue;
    }
    claiming_ = true;
    given = Given::kOk;
    co_await collect_some(deadline);
    if (returned_.empty() || returned_.front().from > c_.now()) given = co_await claim(deadline);
    claiming_ = false;
    if (given == Given::kNoSpace && !returned_.empty()) {
      co_await c_.scheduler.sleep_until(std::min(returned_.front().from, deadline));
      continue;
    }
    if (given != Given::kOk) co_return given;
    given = Given::kUnavailable;
  }
  co_return Given::kOk;
}

// ------------------------------------------------------------------------------------------------------ collecting

Task<bool> Space::read_heads(const Chunk& chunk, const std::vector<std::uint8_t>& wanted, std::uint32_t bytes,
                             Time deadline, std::vector<std::uint8_t>& heads) {
  const std::size_t pieces = chunk.uses.size();
  const std::size_t size = piece_bytes();
  const std::size_t at_once = std::max<std::size_t>(1, kReadBytes / size);
  const std::size_t run_bytes = (at_once - 1) * size + bytes;
  heads.assign(pieces * bytes, 0);
  std::vector<std::size_t> runs;  // that are to be read, by their first pieces
  for (std::size_t first = 0; first < pieces; first += at_once) {
    const auto here = std::span(wanted).subspan(first, std::min(at_once, pieces - first));
    if (std::ranges::any_of(here, [](auto w) { return w != 0; })) runs.push_back(first);
  }
  std::vector<std::uint8_t> buffer(kReadsATime * run_bytes);
  std::vector<Operation> operations;
  Duration backoff{};
  while (!runs.empty()) {
    if (c_.now() >= deadline) co_return false;
    operations.clear();
    for (std::size_t i = 0; i < std::min(kReadsATime, runs.size()); ++i) {
      const std::size_t here = std::min(at_once, pieces - runs[i]);
      const auto into = MutableBytes(buffer).subspan(i * run_bytes, (here - 1) * size + bytes);
      operations.push_back(remote::read_operation(c_.map.at(piece(chunk, runs[i])), into));
    }
    co_await c_.chain(operations);
    std::vector<std::size_t> left;
    for (std::size_t i = 0; i < operations.size(); ++i) {
      if (operations[i].status != Status::kOk) {
        ++c_.counters.failures;
        left.push_back(runs[i]);
        continue;
      }
      for (std::size_t n = 0; n < std::min(at_once, pieces - runs[i]); ++n) {
        std::ranges::copy(std::span(buffer).subspan(i * run_bytes + n * size, bytes),
                          std::span(heads).subspan((runs[i] + n) * bytes).begin());
      }
    }
    if (!left.empty()) co_await c_.back_off(backoff);
    left.insert(left.end(), runs.begin() + static_cast<std::ptrdiff_t>(operations.size()), runs.end());
    runs = std::move(left);
  }
  co_return true;
}

Task<std::size_t> Space::collect(const Chunk& chunk, Time deadline) {
  std::vector<std::uint8_t> wanted(chunk.uses.size());
  std::ranges::transform(chunk.uses, wanted.begin(), [](Use use) { return use == Use::kPlaced; });
  const Watch watch(*this, chunk);
  std::vector<std::uint8_t> tags;
  const bool read = co_await read_heads(chunk, wanted, 8, deadline, tags);
  std::size_t found = 0;
  for (std::size_t i = 0; read && i < wanted.size(); ++i) {
    if (wanted[i] == 0 || watch.touched(i) || load_le<std::uint64_t>(tags.data() + i * 8) != 0) continue;
    set(piece(chunk, i), Use::kFree);
    returned_.push_front({piece(chunk, i), c_.now()});  // whoever has marked it knew that its entry is gone
    ++found;
  }
  c_.counters.collected += found;
  co_return found;
}

Task<void> Space::collect_some(Time deadline) {
  if (block_bytes_ == 0) co_return;
  std::size_t found = 0;
  for (std::size_t i = 0; i < std::min(kChunksATime, chunks_.size()); ++i) {
    auto next = chunks_.upper_bound(collected_);
    if (next == chunks_.end()) next = chunks_.begin();
    collected_ = next->first;
    found += co_await collect(next->second, deadline);
    if (found * 4 >= next->second.uses.size()) break;
  }
}

// -------------------------------------------------------------------------------------------------------- claiming

Task<Space::Given> Space::claim(Time deadline) {
  const std::uint32_t nodes = c_.map.nodes();
  if (hints_.empty()) {
    hints_.resize(nodes);
    turn_ = c_.client % nodes;
  }
  Given worst = Given::kNoSpace;
  for (std::uint32_t i = 0; i < nodes; ++i) {
    const std::uint32_t node = turn_;
    turn_ = (turn_ + 1) % nodes;
    const Given given = co_await claim_on(node, deadline);
    if (given == Given::kOk) co_return given;
    if (given == Given::kUnavailable) worst = given;
  }
  co_return worst;
}

Task<Space::Given> Space::claim_on(std::uint32_t node, Time deadline) {
  std::array<std::uint8_t, 512> owners;
  const std::uint32_t chunks = c_.map.chunks(node);
  std::uint32_t& hint = hints_[node];
  Duration backoff{};
  while (hint < chunks) {
    if (c_.now() >= deadline) co_return Given::kUnavailable;
    const std::uint32_t some = std::min<std::uint32_t>(chunks - hint, owners.size() / 8);
    const Status seen =
        co_await c_.read(c_.map.owner_of_chunk(node, hint), MutableBytes(owners).first(std::size_t{8} * some));
    if (seen == Status::kUnreachable || seen == Status::kNodeUnknown) co_return Given::kUnavailable;
    if (seen != Status::kOk) {
      ++c_.counters.failures;
      co_await c_.back_off(backoff);
      continue;
    }
    std::uint32_t skipped = 0;
    while (skipped < some && load_le<std::uint64_t>(owners.data() + std::size_t{8} * skipped) != 0) ++skipped;
    hint += skipped;
    if (skipped == some) continue;
    const ChunkOwner mine = ChunkOwner::of(c_.client, block_bytes_, ++c_.claims);
    const auto at = c_.map.owner_of_chunk(node, hint);
    const auto swapped = co_await c_.swap(at, 0, mine.raw);
    bool ours = swapped.status == Status::kOk && swapped.prior == 0;
    if (swapped.status != Status::kOk) {
      ++c_.counters.failures;
      co_await c_.outlive();
      bool known = false;
      while (!known && c_.now() < deadline) {
        const Status status = co_await c_.read(at, MutableBytes(owners).first(8));
        known = status == Status::kOk;
        if (!known) co_await c_.back_off(backoff);
      }
      if (!known) co_return Given::kUnavailable;
      ours = load_le<std::uint64_t>(owners.data()) == mine.raw;
    }
    if (!ours) continue;  // read again from here
    const NodePointer start = c_.map.start_of_chunk(node, hint);
    if (add(start, Use::kFree)) {  // else an audit has found it meanwhile, and looks through it
      next_ = start;
      left_ = c_.geometry.chunk_bytes / piece_bytes();
    }
    ++hint;
    ++c_.counters.chunks;
    co_return Given::kOk;
  }
  co_return Given::kNoSpace;
}

}  // namespace sluice::sherman
