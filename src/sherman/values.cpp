#include "sherman/values.h"

#include <algorithm>

#include "base/check.h"

namespace sluice::sherman {

using remote::Operation;
using remote::Status;
using remote::Task;

void Values::open() {
  if (c_.geometry.long_bytes != 0) buffers_ = std::make_shared<Buffers>(kBlockHeader + c_.geometry.long_bytes);
}

Space* Values::space_of(std::uint32_t block_bytes) {
  if (block_bytes < kBlockHeader || Geometry::block_bytes(block_bytes - kBlockHeader) != block_bytes) return nullptr;
  if (block_bytes > Geometry::block_bytes(c_.geometry.long_bytes)) return nullptr;
  return &spaces_.try_emplace(block_bytes, c_, block_bytes).first->second;
}

void Values::take_marks(std::vector<Operation>& operations) {
  for (const FarValue& far : marks_) operations.push_back(remote::swap_operation(c_.map.at(far.block), far.tag, 0));
  marks_.clear();
}

Task<void> Values::send_marks() {
  std::vector<Operation> operations;
  take_marks(operations);
  if (!operations.empty()) co_await c_.chain(operations);
}

bool Values::hold(const FarValue& far) {
  if (!plausible(far)) return false;
  Space& space = space_for(far.length);
  return space.owns(far.block) && space.hold(far.block);
}

Task<void> Values::mark(const FarValue& far) {
  if (!plausible(far)) co_return;
  marks_.push_back(far);
  if (marks_.size() >= kAtOnce) co_await send_marks();
}

Task<Space::Given> Values::write(Key key, ByteView value, Time deadline, FarValue& far) {
  SLUICE_CHECK(value.size() <= c_.geometry.long_bytes);
  const auto length = static_cast<std::uint32_t>(value.size());
  Space& space = space_for(length);
  Buffer buffer(buffers_);
  const MutableBytes block = buffer.bytes().first(kBlockHeader + value.size());
  Duration backoff{};
  std::vector<Operation> operations;
  while (c_.now() < deadline) {
    FarValue next{.block = {}, .tag = std::uint64_t{c_.client} << 40 | ++tags_, .length = length};
    const Space::Given given = co_await space.take(deadline, next.block);
    if (given != Space::Given::kOk) co_return given;
    put_block(block, key, next, value);
    operations.assign(1, remote::write_operation(c_.map.at(next.block), block));
    take_marks(operations);
    co_await c_.chain(operations);
    if (operations[0].status == Status::kOk) {
      far = next;
      co_return Space::Given::kOk;
    }
    ++c_.counters.failures;
    space.give_back(next.block);
    co_await c_.back_off(backoff);
  }
  co_return Space::Given::kUnavailable;
}

Task<Values::Seen> Values::read(Key key, FarValue far, MutableBytes into, Time deadline) {
  if (!plausible(far)) co_return Seen::kChanged;
  Buffer buffer(buffers_);
  const MutableBytes block = buffer.bytes().first(kBlockHeader + far.length);
  Duration backoff{};
  while (c_.now() < deadline) {
    const Status status = co_await c_.read(c_.map.at(far.block), block);
    if (status == Status::kOk) {
      if (!is_block(block, key, far)) co_return Seen::kChanged;
      std::ranges::copy(block.subspan(kBlockHeader), into.begin());
      co_return Seen::kYes;
    }
    ++c_.counters.failures;
    co_await c_.back_off(backoff);
  }
  co_return Seen::kUnavailable;
}

Task<void> Values::read_some(std::span<Wanted> wanted) {
  std::vector<Operation> operations;
  std::vector<Wanted*> asked;
  for (std::size_t i = 0; i < wanted.size();) {
    operations.clear();
    asked.clear();
    for (; i < wanted.size() && operations.size() < kAtOnce; ++i) {
      Wanted& one = wanted[i];
      if (!plausible(one.far)) continue;
      one.block.resize(kBlockHeader + one.far.length);
      operations.push_back(remote::read_operation(c_.map.at(one.far.block), one.block));
      asked.push_back(&one);
    }
    co_await c_.chain(operations);
    for (std::size_t n = 0; n < asked.size(); ++n) {
      const bool arrived = operations[n].status == Status::kOk;
      if (!arrived) ++c_.counters.failures;
      asked[n]->there = arrived && is_block(asked[n]->block, asked[n]->key, asked[n]->far);
    }
  }
}

}  // namespace sluice::sherman
