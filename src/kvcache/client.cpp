#include "kvcache/client.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"

namespace sluice::kvcache {

using remote::Status;

namespace {

constexpr int kTries = 8;      // at entries that change while they are read
constexpr int kVersions = 16;  // proposed for one change
constexpr int kRanks = 3;

std::size_t units_of(std::size_t bytes) { return (bytes + kUnit - 1) / kUnit; }

}  // namespace

std::string_view to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk: return "ok";
    case Outcome::kMiss: return "not there";
    case Outcome::kPartial: return "not at all replicas";
    case Outcome::kUnavailable: return "unavailable";
    case Outcome::kTooLong: return "too long";
  }
  return "?";
}

Client::Client(remote::RemoteMemory& memory, std::vector<Replica> replicas, const ClientConfig& config)
    : memory_(memory),
      replicas_(std::move(replicas)),
      states_(replicas_.size()),
      config_(config),
      buffers_(std::make_shared<remote::Buffers>(units_of(kEntryHeader + kMaxKey + config.max_value) * kUnit)),
      request_(kRequestOffset + buffers_->size()) {
  SLUICE_CHECK(!replicas_.empty());
}

remote::Task<Outcome> Client::join() {
  bool any = false;
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    const bool there = co_await look_at(i);
    any = any || there;
    if (!there) failed(i);
  }
  co_return any ? Outcome::kOk : Outcome::kUnavailable;
}

// ------------------------------------------------------------------------------------------------------------- replicas

remote::Task<bool> Client::look_at(std::size_t replica) {
  remote::Buffer buffer(buffers_);
  const MutableBytes bytes = buffer.bytes().first(kTableHeader);
  const Status status = co_await memory_.read(replicas_[replica].table, bytes);
  const auto header = status == Status::kOk ? TableHeader::parse(bytes) : std::nullopt;
  State& state = states_[replica];
  if (!header) co_return false;
  if (state.known && header->life != state.header.life) {
    state.emptied = true;
    state.stale = false;
  }
  state.header = *header;
  state.known = state.up = true;
  state.failures = 0;
  co_return true;
}

void Client::failed(std::size_t replica) {
  State& state = states_[replica];
  ++state.failures;
  if (state.up && state.failures < config_.failures) return;
  counters_.left_out += state.up ? 1 : 0;
  state.up = false;
  if (std::exchange(state.looking, true)) return;
  memory_.scheduler().spawn(look_until_up(replica));
}

remote::Task<void> Client::look_until_up(std::size_t replica) {
  State& state = states_[replica];
  do {
    co_await memory_.scheduler().sleep_for(config_.look_after);
    co_await look_at(replica);
  } while (!state.up);  // it may have failed since it answered
  state.looking = false;
  ++counters_.came_back;
}

// -------------------------------------------------------------------------------------------------------------- lookups

int Client::rank(std::size_t replica) const {
  const State& state = states_[replica];
  if (!state.known) return kRanks;
  return state.up ? (state.stale ? 1 : 0) : 2;
}

// Of those with the lowest rank, if it is below `end`, the first in the key's order. None: there is nobody else to ask.
std::optional<std::size_t> Client::next_to_ask(std::size_t first, const std::vector<bool>& asked, int end) const {
  std::optional<std::size_t> next;
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    const std::size_t replica = (first + i) % replicas_.size();
    if (asked[replica] || rank(replica) >= end) continue;
    next = replica;
    end = rank(replica);
  }
  return next;
}

remote::Task<GetResult> Client::get(ByteView key, MutableBytes into) {
  GetResult result{.outcome = Outcome::kUnavailable};
  if (key.size() > kMaxKey) co_return GetResult{.outcome = Outcome::kTooLong};
  const std::size_t first = hash_of(key).value >> 32;
  bool failing = false;
  std::vector<bool> asked(replicas_.size());
  int end = kRanks;  // of the ranks that are asked
  // Ranks change meanwhile: who has come back is asked, too.
  while (const auto next = next_to_ask(first, asked, end)) {
    const std::size_t replica = *next;
    const int rank_now = rank(replica);
    asked[replica] = true;
    counters_.failovers += std::exchange(failing, false) ? 1u : 0u;
    const Found found = co_await find(replica, key, into, result);
    if (found != Found::kUnreachable) states_[replica].failures = 0;
    if (found == Found::kYes) co_return result;
    if (found == Found::kTooLong) co_return GetResult{.outcome = Outcome::kTooLong};
    if (found == Found::kUnreachable) {
      failed(replica);
      failing = true;
      continue;
    }
    result.outcome = Outcome::kMiss;
    // As far as we know it never began anew: who has missed changes, and who is left out, need not be asked. The others of its rank are, for
    // it may have before we came.
    if (!states_[replica].emptied) end = std::min(end, rank_now + 1);
  }
  co_return result;
}

remote::Task<Client::Found> Client::find(std::size_t replica, ByteView key, MutableBytes into, GetResult& result) {
  const Hash hash = hash_of(key);
  const remote::RemoteAddress bucket = replicas_[replica].table + states_[replica].header.geometry.bucket_offset(hash);
  for (int attempt = 0; attempt < kTries; ++attempt) {
    std::array<std::uint8_t, kBucketBytes> ways;
    ++counters_.reads;
    const Status status = co_await memory_.read(bucket, ways);
    if (status != Status::kOk) co_return Found::kUnreachable;
    bool changed = false;
    for (std::size_t i = 0; i < kWays; ++i) {
      const Word word = Word::of(load_le<std::uint64_t>(ways.data() + 8 * i));
      if (word.empty() || word.tag != tag_of(hash)) continue;
      const Found found = co_await read_entry(replica, word, key, into, result, changed);
      if (found != Found::kNo) co_return found;
    }
    if (!changed) co_return Found::kNo;
    ++counters_.again;
  }
  co_return Found::kNo;  // overtaken again and again: a cache may forget
}

// `changed`: something else came to stand there meanwhile.
remote::Task<Client::Found> Client::read_entry(std::size_t replica, Word word, ByteView key, MutableBytes into,
                                               GetResult& result, bool& changed) {
  const Geometry& geometry = states_[replica].header.geometry;
  const std::uint64_t offset = std::uint64_t{word.place} * kUnit;
  const std::size_t length = std::size_t{word.units} * kUnit;
  if (offset + length > geometry.log_bytes) co_return Found::kNo;
  remote::Buffer buffer(buffers_);
  // Of one that is too long only as much as says whose it is.
  const bool too_long = length > buffers_->size();
  const MutableBytes bytes = buffer.bytes().first(too_long ? units_of(kEntryHeader + kMaxKey) * kUnit : length);
  ++counters_.reads;
  const Status status = co_await memory_.read(replicas_[replica].table + (geometry.log_offset() + offset), bytes);
  if (status != Status::kOk) co_return Found::kUnreachable;
  if (too_long) co_return std::ranges::equal(Entry::key_of(bytes), key) ? Found::kTooLong : Found::kNo;
  const auto entry = Entry::parse(bytes, word.place);
  changed = changed || !entry || tag_of(entry->hash) != word.tag;
  if (!entry || !std::ranges::equal(entry->key, key)) co_return Found::kNo;
  learn(entry->version);
  if (entry->erased) {
    result = {.outcome = Outcome::kMiss, .length = 0, .version = entry->version};
    co_return Found::kYes;
  }
  if (entry->value.size() > into.size()) co_return Found::kTooLong;
  std::copy(entry->value.begin(), entry->value.end(), into.begin());
  result = {.outcome = Outcome::kOk, .length = entry->value.size(), .version = entry->version};
  co_return Found::kYes;
}

// -------------------------------------------------------------------------------------------------------------- changes

// Our next version is above this one.
void Client::learn(Version version) {
  if (newer(version, Version(counter_ << 16))) counter_ = version.value >> 16;
}

// One change at a time: there is one mailbox.
class Client::Turn {
 public:
  explicit Turn(Client& client) : client_(client) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    if (!held_) return;
    client_.changing_ = !client_.in_turn_.empty();
    if (!client_.changing_) return;
    client_.memory_.scheduler().post(client_.in_turn_.front());
    client_.in_turn_.pop_front();
  }
  bool await_ready() {
    if (client_.changing_) return false;
    client_.changing_ = true;
    held_ = true;
    return true;
  }
  void await_suspend(std::coroutine_handle<> handle) { client_.in_turn_.push_back(handle); }
  void await_resume() { held_ = true; }

 private:
  Client& client_;
  bool held_ = false;
};

struct Client::Asked {
  std::size_t open = 0;
  std::size_t taken = 0;
  std::size_t silent = 0;  // may have taken it
  std::size_t too_long = 0;
  std::optional<Version> newest;  // that stands in our way
  std::coroutine_handle<> waiter;

  bool await_ready() const { return open == 0; }
  void await_suspend(std::coroutine_handle<> handle) { waiter = handle; }
  void await_resume() const {}
};

remote::Task<Outcome> Client::change(ByteView key, ByteView value, bool erased) {
  if (key.size() > kMaxKey || value.size() > config_.max_value) co_return Outcome::kTooLong;
  Turn turn(*this);
  co_await turn;
  const Time deadline = memory_.scheduler().now() + config_.change_deadline;
  bool touched = false;  // some replica has it, or may have
  Outcome outcome = Outcome::kUnavailable;
  for (int attempt = 0; attempt < kVersions; ++attempt) {
    const Entry entry{.hash = hash_of(key),
                      .version = Version(++counter_ << 16 | config_.number),
                      .key = key,
                      .value = value,
                      .erased = erased};
    const std::size_t length = kRequestOffset + entry.bytes();
    std::fill_n(request_.begin(), kRequestOffset, std::uint8_t{0});
    store_le(request_.data(), ++sequence_);
    entry.write(request_.data() + kRequestOffset, sequence_);
    Asked asked;
    for (std::size_t i = 0; i < replicas_.size(); ++i) {
      const bool fits = kRequestOffset + length <= replicas_[i].mailbox_bytes;
      if (!states_[i].up || !fits) {
        states_[i].stale = true;
        asked.too_long += !fits && replicas_[i].mailbox_bytes != 0;
        continue;
      }
      ++asked.open;
      memory_.scheduler().spawn(ask(i, ByteView(request_).first(length), deadline, asked));
    }
    co_await asked;
    touched = touched || asked.taken != 0 || asked.silent != 0;
    outcome = asked.taken == replicas_.size() ? Outcome::kOk
              : touched                       ? Outcome::kPartial
              : asked.too_long != 0           ? Outcome::kTooLong
                                              : Outcome::kUnavailable;
    if (!asked.newest || memory_.scheduler().now() >= deadline) break;
    learn(*asked.newest);
  }
  co_return outcome;
}

// Writes the request to one replica and waits for its answer.
remote::Task<void> Client::ask(std::size_t replica, ByteView request, Time deadline, Asked& asked) {
  const Replica& r = replicas_[replica];
  const std::uint64_t sequence = sequence_;
  Status status = co_await memory_.write(r.mailbox + kRequestOffset, request);
  const bool arrived = status == Status::kOk || status == Status::kUnknown;
  std::optional<Answer> answer;
  while (status == Status::kOk && memory_.scheduler().now() < deadline) {
    std::array<std::uint8_t, kAnswerBytes> bytes;
    status = co_await memory_.read(r.mailbox, bytes);
    answer = status == Status::kOk ? Answer::parse(bytes) : std::nullopt;
    if (answer && answer->sequence == sequence) break;
    answer.reset();
    co_await memory_.scheduler().sleep_for(config_.answer_pause);
  }
  if (answer) states_[replica].failures = 0;
  if (!answer) {
    states_[replica].stale = true;
    failed(replica);
    asked.silent += arrived;
  } else if (answer->outcome == ChangeOutcome::kTaken) {
    ++asked.taken;
  } else if (answer->outcome == ChangeOutcome::kTooLong) {
    ++asked.too_long;
  } else if (!asked.newest || newer(answer->version, *asked.newest)) {
    asked.newest = answer->version;
  }
  if (--asked.open == 0 && asked.waiter) memory_.scheduler().post(asked.waiter);
}

}  // namespace sluice::kvcache
