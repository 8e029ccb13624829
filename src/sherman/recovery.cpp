// What a dead client has left: locks, chunks, and in them nodes and blocks that the tree may lead to or not. And what unknown outcomes leave.
//
// Why what is found to be nobody's stays so. Only its owner, who looks for it here and has no operation under way with it, makes the tree lead to a node or
//   block. What it, or the client whose chunk it was, has submitted earlier is executed by now, or stands behind a lock in a redo record. So it is
//   looked for twice: without a lock, and if it is not there, under the lock of the node that would have to lead to it, which has finished any such record.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "sherman/client.h"

namespace sluice::sherman {

using remote::Status;
using remote::Task;

namespace {
constexpr std::size_t kShares = 4;  // into so many goes what was left behind on a memory node, and an audit takes one
constexpr std::size_t kLeftATime = 64;  // chunks
}  // namespace

// ------------------------------------------------------------------------------------------------------ looking

Task<bool> Client::cover(std::uint8_t level, Key key, bool locked, MutableBytes image, Time limit, NodePointer& node) {
  const Time deadline = patience_until(limit);
  node = {};
  bool descended = false;
  while (c_.now() < deadline) {
    if (!node) {
      const bool found = co_await descend(key, level, deadline, node);
      if (!found) co_return false;
    }
    bool read = false;
    if (locked) {
      Grip grip;
      read = co_await locks_.lock_and_read(node, image, deadline, grip);
      if (read) co_await locks_.release(grip);
    } else if (level == 0) {
      read = co_await read_leaf(node, image, deadline, key, First::kRead);
    } else {
      read = co_await read_internal(node, image, deadline);
    }
    if (!read) co_return false;
    const bool whole = level == 0 ? believable(node, image, key) : internal_whole(image, node);
    if (!whole) {
      ++c_.counters.damaged;
      co_return false;
    }
    const NodeHeader header = parse_header(image);
    if (key >= header.low && key <= header.last) co_return true;
    if (level == 0) {
      if (!step_right(key, header, node, descended)) node = {};
    } else {
      ++c_.counters.walks;
      cache_->forget(static_cast<std::uint8_t>(level + 1), key);
      node = header.sibling;
    }
  }
  co_return false;
}

Task<Client::Stands> Client::named(Key key, NodePointer block, Time limit) {
  Buffer image(c_.buffers);
  for (const bool locked : {false, true}) {
    NodePointer node;
    const bool known = co_await cover(0, key, locked, image.bytes(), limit, node);
    if (!known) co_return Stands::kUnknown;
    const Place place = find(Leaf(image.bytes(), c_.geometry), key);
    if (place.found == Found::kYes && place.entry.far && far_value(place.entry).block == block) {
      co_return Stands::kYes;
    }
  }
  co_return Stands::kNo;
}

Task<Client::Stands> Client::linked(NodePointer piece, ByteView header_bytes, Time limit) {
  const NodeHeader header = parse_header(header_bytes);
  if (header.self != piece) co_return Stands::kNo;  // never written, or not to its end
  if (!root_.node || root_.level < header.level) {
    const bool known = co_await read_root(patience_until(limit));
    if (!known) co_return Stands::kUnknown;
    if (root_.level < header.level) co_return Stands::kNo;
  }
  Buffer image(c_.buffers);
  for (const bool locked : {false, true}) {
    NodePointer node;
    const bool known = co_await cover(header.level, header.low, locked, image.bytes(), limit, node);
    if (!known) co_return Stands::kUnknown;
    if (node == piece) co_return Stands::kYes;
  }
  co_return Stands::kNo;
}

// -------------------------------------------------------------------------------------------------------- audits

Task<bool> Client::examine(Space& space, const Space::Chunk& chunk, bool blocks, bool only_doubtful, Time limit) {
  std::vector<std::uint8_t> wanted(chunk.uses.size());
  bool any = false;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    // A node that is placed stays so.
    const auto use = chunk.uses[i];
    wanted[i] = use == Space::Use::kDoubtful || (use == Space::Use::kPlaced && blocks && !only_doubtful);
    any = any || wanted[i] != 0;
  }
  if (!any) co_return true;
  const Space::Watch watch(space, chunk);
  const std::uint32_t head = blocks ? kBlockHeader : kNodeHeader;
  std::vector<std::uint8_t> heads;
  const bool read = co_await space.read_heads(chunk, wanted, head, patience_until(limit), heads);
  if (!read) co_return false;
  bool whole = true;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] == 0 || watch.touched(i)) continue;
    if (c_.now() >= limit) co_return false;
    const ByteView bytes = ByteView(heads).subspan(i * head, head);
    const NodePointer piece = space.piece(chunk, i);
    const bool marked = blocks && load_le<std::uint64_t>(bytes.data()) == 0;
    Stands stands = Stands::kNo;
    if (!blocks) {
      stands = co_await linked(piece, bytes, limit);
    } else if (!marked) {
      stands = co_await named(load_le<Key>(bytes.data() + 8), piece, limit);
    }
    if (stands == Stands::kUnknown) whole = false;
    if (stands == Stands::kUnknown || watch.touched(i)) continue;
    if (stands == Stands::kYes) {
      space.place(piece);
    } else {
      ++(marked ? c_.counters.collected : c_.counters.reclaimed);
      space.give_back(piece);
    }
  }
  co_return whole;
}

Task<bool> Client::examine_all(bool only_doubtful, Time limit) {
  struct One {
    std::pair<std::uint32_t, std::uint64_t> name;
    Space& space;
    const Space::Chunk& chunk;
  };
  std::vector<One> all;  // in the order of their names
  for (const auto& [start, chunk] : space_.chunks()) all.push_back({{0, start}, space_, chunk});
  for (auto& [bytes, space] : values_.spaces()) {
    for (const auto& [start, chunk] : space.chunks()) all.push_back({{bytes, start}, space, chunk});
  }
  const bool limited = limit != Time::never();
  const auto first = limited ? std::ranges::upper_bound(all, examined_, {}, &One::name) : all.begin();
  const auto skipped = static_cast<std::size_t>(first - all.begin());
  bool whole = true;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (c_.now() >= limit) co_return false;
    const One& one = all[(skipped + i) % all.size()];
    const std::uint64_t before = gained();
    const bool known = co_await examine(one.space, one.chunk, one.name.first != 0, only_doubtful, limit);
    whole = whole && known;
    if (!limited) continue;
    if (c_.now() >= limit && i != 0)
      co_return false;  // the rest of it is the next one's; of the first one, that would be for ever
    examined_ = one.name;
    in_vain_ = gained() != before ? 0 : in_vain_ + 1;
  }
  co_return whole;
}

Task<Outcome> Client::audit() { return audit_until(Time::never()); }

Task<Outcome> Client::audit_until(Time limit) {
  co_await values_.send_marks();
  bool whole = true;
  some_left_behind_ = false;
  for (std::uint32_t node = 0; node < c_.map.nodes(); ++node) {
    // Some of what others have left, for there is room in it. Its own, too: a claim of unknown outcome.
    const bool known = co_await take_over_chunks(node, kNobody, limit);
    whole = whole && known;
  }
  const bool known = co_await examine_all(false, limit);
  co_return (whole && known) ? Outcome::kOk : Outcome::kUnavailable;
}

Task<bool> Client::audit_for_space(Time deadline) {
  if (auditing_) {
    while (auditing_ && c_.now() < deadline) co_await c_.wait_for_another(c_.config.backoff_most);
    co_return !auditing_;
  }
  if (c_.now() >= deadline || (audited_ && c_.now() - *audited_ < c_.config.timeout)) co_return false;
  auditing_ = true;
  const std::uint64_t before = gained();
  // The rest is for who wants the space.
  const Outcome known = co_await audit_until(c_.now() + (deadline - c_.now()) / 2);
  // There may be more of what others have left, or further on.
  std::size_t chunks = space_.chunks().size();
  for (const auto& [bytes, space] : values_.spaces()) chunks += space.chunks().size();
  if (gained() == before && !some_left_behind_ && (known == Outcome::kOk || in_vain_ >= chunks)) {
    audited_ = c_.now();
    in_vain_ = 0;
  } else {
    audited_.reset();
  }
  auditing_ = false;
  co_return true;
}

// ------------------------------------------------------------------------------------------------------- recovery

Task<Outcome> Client::recover(std::uint32_t dead) {
  SLUICE_CHECK(dead != c_.client);
  co_await c_.outlive();
  bool whole = true;
  for (std::uint32_t node = 0; node < c_.map.nodes(); ++node) {
    const bool freed = co_await free_locks(node, dead);
    const bool taken = co_await take_over_chunks(node, dead, Time::never());
    whole = whole && freed && taken;
  }
  const bool known = co_await examine_all(true, Time::never());
  co_return (whole && known) ? Outcome::kOk : Outcome::kUnavailable;
}

Task<bool> Client::read_words(remote::RemoteAddress from, std::uint32_t count, Time limit,
                              std::vector<std::uint8_t>& into) {
  constexpr std::uint32_t kAtOnce = 512;  // words
  const Time deadline = patience_until(limit);
  into.resize(std::size_t{8} * count);
  Duration backoff{};
  for (std::uint32_t first = 0; first < count;) {
    if (c_.now() >= deadline) co_return false;
    const auto some =
        MutableBytes(into).subspan(std::size_t{8} * first, std::size_t{8} * std::min(kAtOnce, count - first));
    const Status status = co_await c_.read(from + std::uint64_t{8} * first, some);
    if (status == Status::kOk) {
      first += kAtOnce;
    } else {
      ++c_.counters.failures;
      co_await c_.back_off(backoff);
    }
  }
  co_return true;
}

Task<bool> Client::free_locks(std::uint32_t node, std::uint32_t dead) {
  std::vector<std::uint8_t> words;
  const bool read = co_await read_words(c_.map.lock_word(node, 0), c_.geometry.locks, Time::never(), words);
  if (!read) co_return false;
  bool whole = true;
  for (std::uint32_t lock = 0; lock < c_.geometry.locks; ++lock) {
    const LockWord word{load_le<std::uint64_t>(words.data() + std::size_t{8} * lock)};
    // Who recovers it already, or has died doing so, has a lease.
    if (word.raw == 0 || word.client() != dead || word.in_recovery()) continue;
    const bool freed = co_await locks_.free_of_dead(node, lock, word);
    whole = whole && freed;
  }
  co_return whole;
}

Task<bool> Client::take_over_chunks(std::uint32_t node, std::uint32_t owner, Time limit) {
  std::vector<std::uint8_t> words;
  const std::uint32_t chunks = c_.map.chunks(node);
  const bool read = co_await read_words(c_.map.owner_of_chunk(node, 0), chunks, limit, words);
  bool whole = read;
  std::size_t most = chunks;
  if (read && owner == kNobody) {
    std::size_t left = 0;
    for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
      const ChunkOwner was{load_le<std::uint64_t>(words.data() + std::size_t{8} * chunk)};
      left += was.raw != 0 && was.client() == kNobody;
    }
    most = (left + kShares - 1) / kShares;
    some_left_behind_ = some_left_behind_ || most < left;
  }
  for (std::uint32_t chunk = 0; read && chunk < chunks; ++chunk) {
    const ChunkOwner was{load_le<std::uint64_t>(words.data() + std::size_t{8} * chunk)};
    if (was.raw == 0 || was.raw == kFounder.raw) continue;
    if (was.client() != owner && was.client() != c_.client) continue;
    Space* const space = was.block_bytes() == 0 ? &space_ : values_.space_of(was.block_bytes());
    if (space == nullptr) {  // no client has written that
      ++c_.counters.damaged;
      continue;
    }
    if (was.client() != c_.client) {
      if (most == 0) continue;
      const ChunkOwner mine = ChunkOwner::of(c_.client, was.block_bytes(), ++c_.claims);
      const auto swapped = co_await c_.swap(c_.map.owner_of_chunk(node, chunk), was.raw, mine.raw);
      if (swapped.status != Status::kOk) {
        // It may be this client's now: the next audit, or recovery, sees.
        ++c_.counters.failures;
        whole = false;
        continue;
      }
      // Another client has it; or this one has, by a recovery beside this one, and knows nothing of it.
      if (swapped.prior != was.raw && ChunkOwner{swapped.prior}.client() != c_.client) continue;
      if (swapped.prior == was.raw) {
        ++c_.counters.taken_over;
        --most;
      }
    }
    space->adopt(c_.map.start_of_chunk(node, chunk));
  }
  co_return whole;
}

// ------------------------------------------------------------------------------------------------------------- leaving

Task<Outcome> Client::leave() {
  while (adding_) co_await c_.wait_for_another(c_.config.backoff_most);
  co_await values_.send_marks();
  // As with the dead: what it has submitted has been executed after that.
  if (c_.counters.failures != 0) co_await c_.outlive();
  const Time limit = c_.now() + c_.patience();
  while (true) {
    const bool whole = co_await leave_chunks(limit);
    if (whole) co_return Outcome::kOk;
    // What was lost with a connection has been executed then, or never will be; and shows.
    co_await c_.outlive();
    if (c_.now() >= limit) co_return Outcome::kUnavailable;
  }
}

// False: of some it could not be seen.
Task<bool> Client::leave_chunks(Time limit) {
  bool whole = true;
  std::vector<remote::Operation> swaps;
  for (std::uint32_t node = 0; node < c_.map.nodes(); ++node) {
    std::vector<std::uint8_t> words;
    const std::uint32_t chunks = c_.map.chunks(node);
    const bool read = co_await read_words(c_.map.owner_of_chunk(node, 0), chunks, limit, words);
    whole = whole && read;
    for (std::uint32_t chunk = 0; read && chunk < chunks;) {
      swaps.clear();
      for (; chunk < chunks && swaps.size() < kLeftATime; ++chunk) {
        const ChunkOwner mine{load_le<std::uint64_t>(words.data() + std::size_t{8} * chunk)};
        if (mine.raw == 0 || mine.client() != c_.client) continue;
        const ChunkOwner nobodys = ChunkOwner::of(kNobody, mine.block_bytes(), c_.client);
        swaps.push_back(remote::swap_operation(c_.map.owner_of_chunk(node, chunk), mine.raw, nobodys.raw));
      }
      co_await c_.all(swaps);
      whole = whole && std::ranges::all_of(swaps, [](const auto& swap) { return swap.status == Status::kOk; });
    }
  }
  co_return whole;
}

}  // namespace sluice::sherman
