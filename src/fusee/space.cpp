#include "fusee/space.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::fusee {

using remote::Status;
using remote::Task;

namespace {
constexpr std::size_t kScannedAtOnce = 16;  // blocks
}

bool Space::cut(Pool& pool, Purpose purpose, Piece& piece) {
  if (!has(pool, purpose)) return false;
  Block* block = nullptr;
  std::uint32_t index = 0;
  if (!pool.waiting.empty() && pool.waiting.front().ready <= c_.now()) {
    block = pool.waiting.front().block;
    index = pool.waiting.front().index;
    pool.waiting.pop_front();
    ++c_.counters.reused;
  } else {
    while (pool.unused < pool.blocks.size() &&
           pool.blocks[pool.unused]->fresh == pool.blocks[pool.unused]->shape.objects)
      ++pool.unused;
    if (pool.unused == pool.blocks.size()) return false;
    block = pool.blocks[pool.unused];
    index = block->fresh++;
    --pool.fresh;
  }
  ++pool.busy;
  const std::uint64_t sequence = std::uint64_t{c_.client} << 40 | ++sequences_;
  block->items[index] = {.sequence = sequence, .since = {}, .use = Block::Use::kBusy};
  piece = {block, index, sequence};
  return true;
}

void Space::placed(const Piece& piece) {
  auto& item = piece.block->items[piece.index];
  item.use = Block::Use::kPlaced;
  item.since = c_.now();
  --pools_[piece.block->shape.units].busy;
}

void Space::give_back(const Piece& piece) {
  --pools_[piece.block->shape.units].busy;
  free_later(*piece.block, piece.index);
}

bool Space::free_own(Word old, std::uint64_t sequence) {
  const auto found = by_place_.find(c_.map.block_of(old).raw);
  if (found == by_place_.end()) return false;
  Block& block = *found->second;
  const auto index = static_cast<std::uint32_t>((c_.map.mark(old).offset() - block.at.offset()) / 8);
  const auto& item = block.items.at(index);
  if (item.use != Block::Use::kPlaced || item.sequence != sequence || sequence == 0) return false;
  free_later(block, index);
  return true;
}

void Space::free_later(Block& block, std::uint32_t index) {
  block.items[index].use = Block::Use::kWaiting;
  pools_[block.shape.units].waiting.push_back({&block, index, c_.now() + (c_.config.hold + c_.config.flight)});
}

Task<Space::Given> Space::take(std::uint32_t units, Purpose purpose, Time deadline, Piece& piece) {
  const std::uint32_t size = class_of(units);
  Pool& pool = pools_[size];
  Duration backoff{};
  bool searched = false;
  while (!cut(pool, purpose, piece)) {
    if (c_.now() >= deadline) co_return Given::kUnavailable;
    if (filling_) {
      co_await c_.wait_for_another(c_.config.backoff_first);
      continue;
    }
    filling_ = true;
    Given given = co_await refill(pool, size, purpose, deadline);
    if (given == Given::kNoSpace && !has(pool, purpose) && !searched) {
      searched = true;
      const bool read = co_await scan_pool(pool, deadline);
      if (!read) given = Given::kUnavailable;
    }
    filling_ = false;
    if (given == Given::kOk) continue;
    if (given == Given::kUnavailable) co_return given;
    if (has(pool, purpose)) {
      co_await c_.scheduler.sleep_until(std::min(deadline, pool.waiting.front().ready));
    } else if (purpose != Purpose::kMore && pool.busy != 0) {
      co_await c_.back_off(backoff);  // what those replace comes free
    } else {
      co_return Given::kNoSpace;
    }
  }
  co_return Given::kOk;
}

Task<Space::Given> Space::take_any(std::uint32_t units, Purpose purpose, Time deadline, Piece& piece) {
  Duration backoff{};
  while (c_.now() < deadline) {
    Time ready = Time::never();
    bool busy = false;
    for (auto sized = pools_.lower_bound(class_of(units)); sized != pools_.end(); ++sized) {
      Pool& pool = sized->second;
      if (cut(pool, purpose, piece)) co_return Given::kOk;
      if (has(pool, purpose)) ready = std::min(ready, pool.waiting.front().ready);
      busy = busy || pool.busy != 0;
    }
    if (ready != Time::never()) {
      co_await c_.scheduler.sleep_until(std::min(deadline, ready));
    } else if (purpose != Purpose::kMore && busy) {
      co_await c_.back_off(backoff);
    } else {
      co_return Given::kNoSpace;
    }
  }
  co_return Given::kUnavailable;
}

Task<bool> Space::scan_pool(Pool& pool, Time deadline) {
  bool whole = true;
  for (std::size_t i = 0; i < pool.blocks.size() && whole; ++i) whole = co_await scan(*pool.blocks[i], deadline);
  co_return whole;
}

Task<Space::Given> Space::refill(Pool& pool, std::uint32_t units, Purpose purpose, Time deadline) {
  for (std::size_t i = 0; i < std::min(kScannedAtOnce, pool.blocks.size()); ++i) {
    const bool read = co_await scan(*pool.blocks[pool.cursor++ % pool.blocks.size()], deadline);
    if (!read) break;
  }
  const std::uint32_t end = purpose == Purpose::kLast ? c_.map.blocks() : c_.map.free_blocks();
  co_return co_await claim(units, end, deadline);
}

Task<bool> Space::scan(Block& block, Time deadline) {
  marks_.resize(std::size_t{8} * block.shape.objects);
  std::array<remote::Operation, 1> operation = {remote::read_operation(c_.map.at(block.at, 0), marks_)};
  const bool read = co_await c_.read_all(operation, deadline);
  if (!read) co_return false;
  for (std::uint32_t i = 0; i < block.shape.objects; ++i) {
    const auto& item = block.items[i];
    if (item.use != Block::Use::kPlaced || item.sequence == 0) continue;
    if (load_le<std::uint64_t>(marks_.data() + std::size_t{8} * i) == item.sequence) free_later(block, i);
  }
  co_return true;
}

Task<bool> Space::scan_all(Time deadline) {
  while (filling_) co_await c_.wait_for_another(c_.config.backoff_first);
  filling_ = true;
  bool whole = true;
  for (std::size_t i = 0; i < blocks_.size() && whole; ++i) whole = co_await scan(*blocks_[i], deadline);
  filling_ = false;
  co_return whole;
}

Task<void> Space::retire(Word old, std::uint64_t sequence) {
  const bool own = free_own(old, sequence);
  if (own) co_return;
  std::array<std::uint8_t, 8> mark;
  store_le(mark.data(), sequence);
  const Time deadline = c_.now() + c_.config.timeout;
  Duration backoff{};
  while (c_.now() < deadline) {
    const remote::RemoteAddress at = c_.map.at(c_.map.mark(old), 0);
    const Status status = co_await c_.write(at, mark);
    if (status == Status::kOk) co_return;
    c_.trouble(at.node);
    if (status == Status::kUnknown) {
      co_await c_.back_off(backoff);
      continue;
    }
    const bool again = co_await c_.again(deadline);
    if (!again) co_return;  // an audit will find it
  }
}

Block& Space::adopt(Place at, std::uint32_t units) {
  auto& block = *blocks_.emplace_back(std::make_unique<Block>());
  block.at = at;
  block.shape = shape_of(c_.geometry.block_bytes, units);
  block.items.resize(block.shape.objects);
  by_place_[at.raw] = &block;
  pools_[units].blocks.push_back(&block);
  pools_[units].fresh += block.shape.objects;
  if (c_.map.is_kept(at)) pools_[units].kept += block.shape.objects;
  ++c_.counters.blocks;
  return block;
}

Block* Space::adopt_used(Place at, std::uint32_t units) {
  if (owns(at)) return nullptr;
  Block& block = adopt(at, units);
  block.fresh = block.shape.objects;
  pools_[units].fresh -= block.shape.objects;
  for (auto& item : block.items) item.use = Block::Use::kPlaced;
  return &block;
}

void Space::close_claim(Owner claim) {
  std::erase_if(open_claims_, [claim](Owner open) { return open.raw == claim.raw; });
}

bool Space::claims_fresh(Owner owner) const {
  return std::ranges::any_of(open_claims_, [owner](Owner claim) { return claim.raw == owner.raw; });
}

bool Space::owns(Place at) const { return by_place_.contains(at.raw); }

Task<Space::Given> Space::claim(std::uint32_t units, std::uint32_t end, Time deadline) {
  const std::uint32_t partitions = c_.map.partitions();
  if (hints_.empty()) {
    hints_.resize(partitions);
    turn_ = first_partition();
  }
  Given worst = Given::kNoSpace;
  for (std::uint32_t i = 0; i < partitions; ++i) {
    const std::uint32_t partition = turn_;
    turn_ = (turn_ + 1) % partitions;
    const Given given = co_await claim_in(partition, units, end, deadline);
    if (given == Given::kOk) co_return given;
    if (given == Given::kUnavailable) worst = given;
  }
  co_return worst;
}

Task<Space::Given> Space::claim_in(std::uint32_t partition, std::uint32_t units, std::uint32_t end, Time deadline) {
  std::array<std::uint8_t, 512> owners;
  std::uint32_t& hint = hints_[partition];
  while (hint < end) {
    const std::uint32_t some = std::min<std::uint32_t>(end - hint, owners.size() / 8);
    const Time seen = c_.now();
    std::array<remote::Operation, 1> operation = {remote::read_operation(
        c_.map.at(c_.map.owner(partition, hint), 0), MutableBytes(owners).first(std::size_t{8} * some))};
    const bool read = co_await c_.read_all(operation, deadline);
    if (!read) co_return Given::kUnavailable;
    std::uint32_t skipped = 0;
    for (; skipped < some; ++skipped) {
      const Owner owner{load_le<std::uint64_t>(owners.data() + std::size_t{8} * skipped)};
      if (owner.raw == 0) break;
      // Ours, though we had to give it up as unknown? What was taken over is recovery's to look through.
      const Place at = c_.map.block(partition, hint + skipped);
      if (!claims_fresh(owner) || owns(at)) continue;
      adopt(at, owner.units());
      close_claim(owner);
      if (owner.units() == units) co_return Given::kOk;
    }
    hint += skipped;
    if (skipped == some) continue;
    const Owner mine = Owner::of(c_.client, next_claim(), units);
    const Place at = c_.map.owner(partition, hint);
    open_claims_.push_back(mine);
    const Changed changed =
        co_await snapshot_.change(WordKind::kOwner, at, 0, mine.raw, Snapshot::kEverywhere, seen, deadline);
    if (changed != Changed::kUnknown) close_claim(mine);
    if (changed == Changed::kWon) {
      adopt(c_.map.block(partition, hint), units);
      ++hint;
      co_return Given::kOk;
    }
    // What has become of it shows when somebody looks there again.
    if (changed == Changed::kUnknown || changed == Changed::kUnavailable) co_return Given::kUnavailable;
  }
  co_return Given::kNoSpace;
}

}  // namespace sluice::fusee
