#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "fuzz/frame_sinks.h"
#include "fuzz/onerma_properties.h"
#include "fuzz/script.h"
#include "onerma/test_world.h"

namespace sluice::fuzz {
namespace {

using namespace onerma;

constexpr wire::MacAddress kNodeMac{{2, 0, 0, 0, 1, 1}};
constexpr wire::Ipv4Address kNodeIp{0x0A4D0101};
constexpr Boot kNodeBoot{1};
constexpr std::size_t kGuard = 64;
constexpr std::size_t kQueue = 16;
constexpr std::size_t kNackBytes = 2048;
constexpr std::size_t kRemembered = 3;
constexpr Duration kPullTimeout = Duration::microseconds(25);
// The programs' memory: all rights, only to be read, only to be written.
constexpr std::array<std::size_t, 3> kSizes{8192, 512, 512};
constexpr std::array<memory::Access, 3> kAccess{memory::kAllAccess, memory::kRemoteRead,
                                                memory::kLocalWrite | memory::kRemoteWrite};
constexpr std::array<std::uint32_t, 12> kLengths{64, 1, 0, 8, 63, 200, 511, 512, 513, 4096, 4097, 0xFFFF'FFFF};

struct Area {
  RegionId id{};
  bool live = false;
  std::vector<Secret> keys;  // by generation, from 1
  std::size_t at = 0;        // in the memory
  std::size_t size = 0;
  memory::Access access{};
  std::uint64_t base = 0;

  std::uint32_t generation() const { return static_cast<std::uint32_t>(keys.size()); }
  bool current(Generation g) const { return live && g.value == generation(); }
  bool knows(Generation g) const { return current(g) || (live && g.value != 0 && g.value + 1 == generation()); }
};

std::size_t wire_bytes(std::size_t body) { return FrameWriter::frame_size(body); }

// What a believed request asks for, or an answer that waits to be sent.
struct Job {
  Header header{};  // of the answer
  Peer to{};
  OpKind op{};
  std::uint64_t address = 0;
  std::uint32_t length = 0;
  std::array<std::uint8_t, kRefusalBody> echo{};
  bool again = false;  // a copy of one that came before

  bool same_request(const Header& h) const {
    return header.op == h.op && header.initiator == h.initiator && header.region == h.region &&
           header.generation == h.generation && header.rights == h.rights && header.plain == h.plain;
  }
  std::size_t body() const {
    return header.kind == Kind::kReadResponse ? length : header.kind == Kind::kRefusal ? kRefusalBody : 0;
  }
};

// Data that have been asked for.
struct Pull {
  Job job{};
  Time expires;
  int number = 0;     // which pull it is, so that a queued answer finds it
  bool sent = false;  // then place and counter are known
  std::uint16_t place = 0;
  std::uint64_t counter = 0;
};

class TargetWorld {
 public:
  explicit TargetWorld(Script& script) : script_(script) {
    const std::uint8_t options = script.next();
    allow_plain_ = (options & 1) != 0;
    // Few and little, or so much that an operation's is left free for whoever holds nothing.
    const bool has_spare = (options & 2) != 0;
    is_silent_ = (options & 4) != 0;
    places_ = has_spare ? 8 : 4;
    spare_ = has_spare ? wire_bytes(kMaxOp) : 0;
    NodeConfig config{.mac = kNodeMac, .ip = kNodeIp, .boot = kNodeBoot, .allow_plain = allow_plain_};
    window_ = (has_spare ? 8 : 1) * wire_bytes(kMaxOp) + 300;
    config.window_bytes = static_cast<std::uint32_t>(window_);
    config.cached_keys = 2;
    config.target = {.nack_bytes = kNackBytes,
                     .pull_timeout = kPullTimeout,
                     .pulls = static_cast<std::uint16_t>(places_),
                     .queue = kQueue,
                     .remembered = kRemembered};
    node_ = std::make_unique<Node>(config);
    std::size_t at = kGuard;
    for (std::size_t i = 0; i < areas_.size(); ++i, at += kGuard) {
      areas_[i].at = at;
      areas_[i].size = kSizes[i];
      areas_[i].access = kAccess[i];
      areas_[i].base = 0x10000 * (i + 1);
      at += kSizes[i];
    }
    memory_.resize(at);
    for (std::size_t i = 0; i < at; ++i) memory_[i] = static_cast<std::uint8_t>(i * 7 + i / 256);
    due_memory_ = memory_;
    for (Area& area : areas_) add(area);
  }

  void run() {
    while (!script_.empty()) {
      const std::uint8_t what = script_.next();
      step(what);
      // The port is full for a while, now and then.
      if (what >= 0x80) is_full_ = what >= 0xC0;
      transmit(is_full_ ? static_cast<int>(what >> 4 & 1u) : 1000);
      check();
    }
    transmit(1000);
    for (int i = 0; i < 100 && (!pulls_.empty() || !waiting_.empty()); ++i) {
      wait(kPullTimeout);
      transmit(1000);
    }
    check();
    SLUICE_CHECK(node_->window().used() == 0 && node_->target().open_pulls() == 0);
    SLUICE_CHECK(node_->target().queued_bytes() == 0);
  }

 private:
  // What is sent to the target, and what it may know of it.
  struct Letter {
    Header header{};
    Peer from{};
    std::vector<std::uint8_t> body;  // in clear
    bool whole = false;              // under the key that it claims, or with a checksum that is right
    bool spoilt = false;
    std::vector<std::uint8_t> frame;
  };

  void step(std::uint8_t what) {
    switch (what % 16) {
      case 0: return wait(Duration::microseconds(script_.next() % 32));
      case 1: return rekey(areas_[script_.next() % areas_.size()]);
      case 2: return replace(areas_[script_.next() % areas_.size()]);
      case 3: return again();
      case 4: return damaged();
      case 5:
      case 6:
      case 7:
      case 8: return is_silent_ ? request() : data();
      case 9: return data();
      default: return request();
    }
  }

  // ------------------------------------------------------------------------------------------------------------ letters

  Peer sender(bool other) const {
    return {.mac = wire::MacAddress{{2, 0, 0, 0, 1, static_cast<std::uint8_t>(other ? 9 : 2)}},
            .ip = wire::Ipv4Address{0x0A4D0102}};
  }
  Area* area_of(RegionId id) {
    const auto found = std::ranges::find_if(areas_, [&](const Area& a) { return a.live && a.id == id; });
    return found == areas_.end() ? nullptr : &*found;
  }
  std::optional<Secret> key_of(const Header& h) {
    const Area* const area = area_of(h.region);
    if (area == nullptr || h.generation.value == 0 || h.generation.value > area->generation()) return std::nullopt;
    return RegionKey(area->keys[h.generation.value - 1]).derive(h.region, h.initiator, h.rights);
  }

  // Sealed as `as` may seal, whatever the header says.
  void seal(Letter& letter, const Header& as) {
    const std::size_t body = letter.body.size();
    letter.frame.resize(wire_bytes(body));
    FrameWriter(letter.from.mac, letter.from.ip, kUdpPort)
        .write(letter.frame.data(), node_->address(), letter.header, body);
    std::ranges::copy(letter.body, letter.frame.begin() + kBodyOffset);
    const auto key = key_of(as);
    letter.whole = letter.header.plain || (key && key == key_of(letter.header));
    if (letter.header.plain) {
      write_checksum(letter.frame.data(), body);
    } else {
      Sealer(key ? *key : test_key(77)).seal(letter.frame.data(), letter.header, body);
    }
  }
  // Wrong in one way, under a key that is right for what it then says, or under that of before.
  void send_wrong(Letter& letter, std::uint8_t fault) {
    const Header right = letter.header;
    Header& h = letter.header;
    switch (fault % 16) {
      case 1: h.rights = {static_cast<std::uint8_t>(script_.next() & Rights::kAll)}; break;
      case 2: h.initiator = InitiatorId(script_.next() % 4u); break;
      case 3: h.region = areas_[script_.next() % areas_.size()].id; break;
      case 4: h.generation = Generation(h.generation.value + 1); break;
      case 5: h.generation = Generation(h.generation.value - 1 - script_.next() % 2u); break;
      case 6: h.plain = !h.plain; break;
      case 7: h.op = OpId(h.op.value + 0x10000); break;
      case 8: h.place = static_cast<std::uint16_t>(h.kind == Kind::kData ? h.place + 1 + script_.next() % 4 : 0); break;
      case 9: h.counter += h.kind == Kind::kData ? script_.next() % 4u - 2u : 0; break;
      case 10: h.pull_boot = Boot(h.kind == Kind::kData ? script_.next() % 4u : 0); break;
      case 11:
        if (h.kind == Kind::kData) letter.body.resize(std::min<std::size_t>(script_.next() * 3u, kMaxOp), 0x77);
        break;
      case 12: letter.from = sender(true); break;
      default: break;
    }
    seal(letter, (fault & 0x10) != 0 ? right : h);
    if (fault % 16 == 13) spoil(letter);
    kept_.push_back(letter);
    if (kept_.size() > 8) kept_.pop_front();
    send(letter);
  }
  void spoil(Letter& letter) {
    if (std::exchange(letter.spoilt, true)) return;  // twice might make it whole again
    const std::size_t at = kNetworkSize + script_.next16() % (letter.frame.size() - kNetworkSize);
    letter.frame[at] ^= static_cast<std::uint8_t>(script_.next() | 1);
    letter.whole = false;
    const std::size_t body = letter.body.size();
    letter.body.assign(letter.frame.begin() + kBodyOffset,
                       letter.frame.begin() + static_cast<long>(kBodyOffset + body));
  }
  void send(const Letter& letter) {
    std::vector<std::uint8_t> frame = letter.frame;
    Message message;
    if (parse(frame, message) == Verdict::kOk) {
      ++taken_frames_;
      if (is_to_target(message.header.kind)) on_letter(letter, message);
    }
    node_->on_frame(now_, {frame.data(), static_cast<std::uint32_t>(frame.size())});
    SLUICE_CHECK(node_->frames(Verdict::kOk) == taken_frames_);
  }

  void request() {
    const std::uint8_t what = script_.next(), where = script_.next(), which = script_.next();
    const Area& area = areas_[where % areas_.size()];
    // Mostly the next number; else a gap, the same again, one before, or one at the edge of what is remembered.
    switch (which % 16) {
      case 11: number_ += 500; break;
      case 12:
      case 13:
      case 14:
      case 15: break;
      default: ++number_;
    }
    const std::uint64_t back = which % 16 == 14 ? script_.next() % 32u : which % 16 == 15 ? 900 + script_.next() : 0;
    Letter letter;
    letter.from = sender(false);
    letter.header = {.kind = static_cast<Kind>(1 + what % 8 % 3),
                     .plain = (what & 8) != 0,
                     .rights = {(where & 0xC0) != 0xC0 ? Rights::kAll : static_cast<std::uint8_t>(where / 4 % 8)},
                     .op = OpId((number_ - back) << 16),
                     .initiator = InitiatorId(1 + which / 16 % 2),
                     .region = area.id,
                     .generation = Generation(area.generation()),
                     .boot = Boot(2)};
    if (letter.header.kind != Kind::kRekeyRequest) {
      const std::uint32_t length = kLengths[script_.next() % kLengths.size()];
      // Near the beginning of the region, or so that it ends near the end.
      const std::uint8_t off = script_.next();
      const auto shift = static_cast<std::uint64_t>(static_cast<std::int8_t>(off << 1) / 2);
      const std::uint64_t address =
          area.base + (off < 0x80 ? area.size - length : 64u) + shift % 64u - (shift >> 63) * 64u;
      letter.body.resize(kRequestBody);
      RequestBody{address, length}.write(letter.body.data());
    }
    send_wrong(letter, (what & 0x60) == 0x60 ? script_.next() : 0);
  }

  // What a pull that has been sent asked for: mostly the newest one's.
  void data() {
    const std::uint8_t what = script_.next();
    const auto asked = std::ranges::count_if(pulls_, &Pull::sent);
    if (asked == 0) return;
    auto left = (what & 0x80) == 0 ? asked - 1 : what % asked;
    const Pull* pull = nullptr;
    for (const Pull& p : pulls_) {
      if (p.sent && left-- == 0) pull = &p;
    }
    Letter letter;
    letter.from = sender(false);
    letter.header = pull->job.header;
    letter.header.kind = Kind::kData;
    letter.header.boot = Boot(2);
    letter.header.place = pull->place;
    letter.header.counter = pull->counter;
    letter.header.pull_boot = kNodeBoot;
    const std::uint8_t value = script_.next();
    letter.body.resize(pull->job.length);
    for (std::size_t i = 0; i < letter.body.size(); ++i) letter.body[i] = static_cast<std::uint8_t>(value + i);
    send_wrong(letter, (what & 0x60) == 0x60 ? script_.next() : 0);
  }

  void again() {
    if (kept_.empty()) return;
    const Letter letter = kept_[script_.next() % kept_.size()];
    send(letter);
  }
  // Any byte behind the addresses changed, the network's too: the CRC and lengths there are the parser's matter.
  void damaged() {
    if (kept_.empty()) return;
    Letter letter = kept_[script_.next() % kept_.size()];
    spoil(letter);
    if (script_.next() % 4 == 0) letter.frame.resize(script_.next16() % (letter.frame.size() + 1));
    send(letter);
  }

  // ------------------------------------------------------------------------------------------------------------- program

  void add(Area& area) {
    const Secret key = test_key(++keys_made_);
    area.id =
        node_->regions().add(MutableBytes(memory_).subspan(area.at, area.size), area.base, area.access, key).value();
    area.keys = {key};
    area.live = true;
  }
  void replace(Area& area) {
    SLUICE_CHECK(node_->regions().remove(area.id));
    area.live = false;
    add(area);
  }
  void rekey(Area& area) {
    const Secret key = test_key(++keys_made_);
    SLUICE_CHECK(node_->regions().rekey(area.id, key));
    area.keys.push_back(key);
  }

  // ----------------------------------------------------------------------- the target once more, from its description

  // Those that wait to be pulled stand in lines by initiator.
  static std::uint32_t line_of(InitiatorId initiator) {
    return static_cast<std::uint32_t>(initiator.value * 0x9E37'79B9'7F4A'7C15u >> 59);
  }
  struct Line {
    std::size_t waiting = 0;
    std::size_t bytes = 0;
    std::size_t held = 0;  // of the window
  };
  Line line(std::uint32_t which) const {
    Line all;
    for (const Job& job : waiting_) {
      if (line_of(job.header.initiator) != which) continue;
      ++all.waiting;
      all.bytes += wire_bytes(job.length);
    }
    for (const Pull& pull : pulls_) {
      if (line_of(pull.job.header.initiator) == which) all.held += wire_bytes(pull.job.length);
    }
    return all;
  }
  bool is_crowded(const Header& h) const {
    if (h.kind == Kind::kReadRequest) return answers_.size() >= kQueue / 2 || queued_bytes() > kNackBytes;
    std::set<std::uint32_t> lines{line_of(h.initiator)};
    std::size_t bytes = 0;
    for (const Job& job : waiting_) {
      lines.insert(line_of(job.header.initiator));
      bytes += wire_bytes(job.length);
    }
    const Line own = line(line_of(h.initiator));
    return own.waiting >= kQueue - waiting_.size() || (bytes > kNackBytes && own.bytes * lines.size() > kNackBytes);
  }
  // The head of the line that has least under way; of those that have as little, from the one whose turn it is.
  std::deque<Job>::iterator next_waiting() {
    auto best = waiting_.end();
    std::pair<std::size_t, std::uint32_t> least;
    std::set<std::uint32_t> looked;
    for (auto job = waiting_.begin(); job != waiting_.end(); ++job) {
      const std::uint32_t which = line_of(job->header.initiator);
      if (!looked.insert(which).second) continue;
      const std::pair rank{line(which).held, (which - turn_) % 32u};
      if (best != waiting_.end() && least <= rank) continue;
      best = job;
      least = rank;
    }
    return best;
  }

  // Whether it is the first with its number, as far as is remembered.
  bool is_first(const Header& h) {
    if (h.plain) return true;
    const auto known = std::ranges::find_if(
        seen_, [&](const Seen& s) { return s.region == h.region && s.initiator == h.initiator && s.boot == h.boot; });
    Seen seen{.region = h.region, .initiator = h.initiator, .boot = h.boot};
    if (known != seen_.end()) {
      seen = *known;
      seen_.erase(known);
    } else if (seen_.size() == kRemembered) {
      seen_.pop_front();
    }
    const std::uint64_t number = h.op.value >> 16;
    const std::uint64_t newest = seen.numbers.empty() ? number : *seen.numbers.rbegin();
    const bool late = number < newest && newest / 64 - number / 64 >= 16;
    const bool first = !late && seen.numbers.insert(number).second;
    seen_.push_back(seen);
    return first;
  }

  std::size_t queued_bytes() const {
    std::size_t all = 0;
    for (const Due& due : answers_) all += wire_bytes(due.job.body());
    return all;
  }
  std::size_t solicited() const {
    std::size_t all = 0;
    for (const Pull& pull : pulls_) all += wire_bytes(pull.job.length);
    return all;
  }

  Job job_of(const Message& message, Kind kind) const {
    Header h = message.header;
    h.kind = kind;
    h.of_data = false;
    h.status = Status::kOk;
    h.place = 0;
    h.boot = kNodeBoot;
    h.pull_boot = Boot();
    h.counter = 0;
    return {.header = h, .to = message.from};
  }

  void on_letter(const Letter& letter, const Message& message) {
    const Header& h = message.header;
    if (h.plain && !allow_plain_) {
      ++due_.plain_refused;
      if (is_request(h.kind)) refuse(letter, message, Status::kBadKey);
    } else if (h.kind == Kind::kData) {
      on_data(letter, message);
    } else {
      on_request(letter, message);
    }
  }

  bool believed(const Letter& letter, const Header& h) {
    const Area* const area = area_of(h.region);
    return letter.whole && area != nullptr && area->knows(h.generation);
  }

  void on_request(const Letter& letter, const Message& message) {
    const Header& h = message.header;
    const bool read = h.kind == Kind::kReadRequest;
    if (is_crowded(h)) {
      ++due_.nacks;
      return refuse(letter, message, Status::kNack);
    }
    if (!believed(letter, h)) {
      ++due_.forged;
      return refuse(letter, message, Status::kBadKey);
    }
    Job job = job_of(message, read ? Kind::kReadResponse : Kind::kPull);
    job.op = read ? OpKind::kRead : h.kind == Kind::kWriteRequest ? OpKind::kWrite : OpKind::kRekey;
    job.length = Secret::kSize;
    if (job.op != OpKind::kRekey) {
      job.address = load_be<std::uint64_t>(letter.body.data());
      job.length = load_be<std::uint32_t>(letter.body.data() + 8);
    }
    const Area& area = *area_of(h.region);
    if (!area.current(h.generation)) {
      ++due_.old_key;
      return complete(job, Status::kBadKey, false);
    }
    if (const Status status = judge(area, job); status != Status::kOk) {
      ++(status == Status::kRightMissing ? due_.right_missing : due_.bad_bounds);
      return complete(job, status, false);
    }
    job.again = !is_first(h);
    Pull* const open = read ? nullptr : open_as(h);
    if (open != nullptr) return on_double(job, *open);
    if (job.again && (read || line(line_of(h.initiator)).waiting == 0)) {
      ++due_.requests_again;
      return;
    }
    if (read) return answer({.job = job});
    waiting_.push_back(job);
    start_pulls();
  }
  static Status judge(const Area& area, const Job& job) {
    const std::uint8_t bit = job.op == OpKind::kRead ? 1 : job.op == OpKind::kWrite ? 2 : 4;
    if ((job.header.rights.bits & bit) == 0) return Status::kRightMissing;
    if (job.op == OpKind::kRekey) return job.header.plain ? Status::kRightMissing : Status::kOk;
    if (job.length > kMaxOp) return Status::kBadBounds;
    const std::uint32_t needed = job.op == OpKind::kRead ? memory::Access::kRemoteRead : memory::Access::kRemoteWrite;
    if ((area.access.bits & needed) == 0) return Status::kRightMissing;
    const bool inside = job.address >= area.base && job.address <= area.base + area.size &&
                        job.length <= area.base + area.size - job.address;
    return inside ? Status::kOk : Status::kBadBounds;
  }

  void on_data(const Letter& letter, const Message& message) {
    const Header& h = message.header;
    if (!believed(letter, h)) {
      ++due_.forged;
      return;
    }
    const auto pull = std::ranges::find_if(pulls_, [&](const Pull& p) {
      return p.sent && p.place == h.place && p.counter == h.counter && p.expires > now_ && p.job.same_request(h) &&
             h.pull_boot == kNodeBoot;
    });
    if (pull == pulls_.end()) {
      ++due_.replays;
      return complete(job_of(message, Kind::kCompletion), Status::kReplay, true);
    }
    Job job = pull->job;
    job.to = message.from;
    pulls_.erase(pull);
    complete(job, execute(job, letter.body), true);
  }
  Status execute(const Job& job, const std::vector<std::uint8_t>& body) {
    Area& area = *area_of(job.header.region);
    if (!area.current(job.header.generation)) {
      ++due_.old_key;
      return Status::kBadKey;
    }
    if (body.size() != job.length) {
      ++due_.bad_bounds;
      return Status::kBadBounds;
    }
    if (job.op == OpKind::kRekey) {
      const Secret key{ByteView(body)};
      if (key == area.keys.back() || (area.keys.size() > 1 && key == area.keys[area.keys.size() - 2]))
        return Status::kBadKey;
      area.keys.push_back(key);
      ++due_.rekeys;
      return Status::kOk;
    }
    std::ranges::copy(body, due_memory_.begin() + static_cast<long>(area.at + (job.address - area.base)));
    ++due_.writes;
    return Status::kOk;
  }

  void refuse(const Letter& letter, const Message& message, Status status) {
    Job job = job_of(message, Kind::kRefusal);
    job.header.status = status;
    const std::size_t end = kOverhead + message.body_length;  // of the frame, without what is behind it
    std::copy_n(letter.frame.begin() + static_cast<long>(end - 8), 8, job.echo.begin());
    store_be(job.echo.data() + 8, checksum(letter.frame.data(), message.body_length + kTagSize - 8));
    answer({.job = job});
  }
  void complete(Job job, Status status, bool of_data) {
    job.header.kind = Kind::kCompletion;
    job.header.status = status;
    job.header.of_data = of_data;
    answer({.job = job});
  }

  struct Due {
    Job job{};
    int pull = 0;  // kPull: which
  };
  // Half of the queue takes answers to reads, three quarters refusals and pulls, too, all of it what ends writes.
  static std::size_t room_for(const Header& h) {
    if (h.kind == Kind::kReadResponse) return kQueue / 2;
    return h.kind == Kind::kCompletion && h.of_data ? kQueue : kQueue * 3 / 4;
  }
  void answer(const Due& due) {
    if (answers_.size() >= room_for(due.job.header)) {
      ++due_.dropped;
    } else {
      answers_.push_back(due);
    }
  }
  Pull* open_as(const Header& h) {
    const auto open = std::ranges::find_if(pulls_, [&](const Pull& p) { return p.job.same_request(h); });
    return open == pulls_.end() ? nullptr : &*open;
  }
  void on_double(const Job& job, const Pull& open) {
    ++due_.doubled;
    if (job.to.mac == open.job.to.mac) return;
    Job copy = open.job;
    copy.to = job.to;
    answer({.job = copy, .pull = open.number});
  }
  void start_pulls() {
    while (!waiting_.empty()) {
      const auto head = next_waiting();
      const Job job = *head;
      const Pull* const open = open_as(job.header);
      const bool spares = spare_ != 0 && line(line_of(job.header.initiator)).held != 0;
      const bool room = pulls_.size() + (spares ? 1 : 0) < places_ && answers_.size() < room_for(job.header) &&
                        solicited() + wire_bytes(job.length) + (spares ? spare_ : 0) <= window_;
      if (open == nullptr && !job.again && !room) return;
      waiting_.erase(head);
      turn_ = (line_of(job.header.initiator) + 1) % 32;
      if (open != nullptr) {
        on_double(job, *open);
        continue;
      }
      if (job.again) {
        ++due_.requests_again;
        continue;
      }
      pulls_.push_back({.job = job, .expires = now_ + kPullTimeout, .number = ++pull_number_});
      answer({.job = job, .pull = pull_number_});
      ++due_.pulls;
    }
  }
  Pull* pull_of(const Due& due) {
    const auto open = std::ranges::find(pulls_, due.pull, &Pull::number);
    return due.pull == 0 || open == pulls_.end() || open->expires <= now_ ? nullptr : &*open;
  }
  // What will never be sent: a pull that is over, or what there is no key for any more.
  bool drop_head() {
    if (answers_.empty()) return false;
    const Due due = answers_.front();
    const Header& h = due.job.header;
    const Area* const area = area_of(h.region);
    const bool known = area != nullptr && area->knows(h.generation);
    const bool over = h.kind == Kind::kPull && pull_of(due) == nullptr;
    const bool keyless = h.kind != Kind::kRefusal && !h.plain && !known;
    if (!over && !keyless) return false;
    answers_.pop_front();
    if (over) return true;
    ++due_.dropped;
    std::erase_if(pulls_, [&](const Pull& p) { return h.kind == Kind::kPull && p.number == due.pull; });
    return true;
  }

  // ---------------------------------------------------------------------------------------------------------------- out

  void transmit(int room) {
    for (;; --room) {
      for (start_pulls(); drop_head(); start_pulls()) {
      }
      sink_.full = room <= 0;
      const bool expected = !answers_.empty() && !sink_.full;
      const bool sent = node_->poll_transmit(now_, sink_);
      SLUICE_CHECK(sent == expected);
      if (!sent) return;
      const Due due = answers_.front();
      check_answer(due);
      answers_.pop_front();
    }
  }
  bool is_refused(const Job& job) {
    const Area* const area = area_of(job.header.region);
    return job.header.kind == Kind::kReadResponse && (area == nullptr || !area->current(job.header.generation));
  }

  void check_answer(const Due& due) {
    Header h = due.job.header;
    if (is_refused(due.job)) {
      h.kind = Kind::kCompletion;
      h.status = Status::kBadKey;
      ++due_.old_key;
    }
    Message message;
    std::vector<std::uint8_t>& frame = sink_.frame;
    SLUICE_CHECK(parse(frame, message) == Verdict::kOk);
    SLUICE_CHECK(frame.size() == wire_bytes(message.body_length));
    SLUICE_CHECK(message.from == node_->address() && message.to == due.job.to.ip);
    SLUICE_CHECK(std::equal(due.job.to.mac.bytes.begin(), due.job.to.mac.bytes.end(), frame.begin()));
    check_counter(due, message.header);
    h.counter = message.header.counter;
    if (h.kind == Kind::kPull) h.place = message.header.place;
    SLUICE_CHECK(message.header == h);
    const std::size_t body = message.body_length;
    if (h.plain || h.kind == Kind::kRefusal) {
      SLUICE_CHECK(checksum_is_right(frame.data(), body));
    } else {
      SLUICE_CHECK(Sealer(*key_of(h)).open(frame.data(), h, body));
    }
    const ByteView bytes = ByteView(frame).subspan(kBodyOffset, body);
    if (h.kind == Kind::kRefusal) SLUICE_CHECK(std::ranges::equal(bytes, due.job.echo));
    if (h.kind != Kind::kReadResponse) return;
    const Area& area = *area_of(h.region);
    const auto there = ByteView(due_memory_).subspan(area.at + (due.job.address - area.base), due.job.length);
    SLUICE_CHECK(std::ranges::equal(bytes, there));
    ++due_.reads;
  }
  // No counter comes twice, but that of a pull that goes to another MAC, too: it is the very same.
  void check_counter(const Due& due, const Header& h) {
    Pull* const pull = h.kind == Kind::kPull ? pull_of(due) : nullptr;
    if (pull == nullptr || !pull->sent) SLUICE_CHECK(h.counter != 0 && counters_.insert(h.counter).second);
    if (pull == nullptr) return;
    if (pull->sent) SLUICE_CHECK(pull->place == h.place && pull->counter == h.counter);
    for (const Pull& other : pulls_) SLUICE_CHECK(&other == pull || !other.sent || other.place != h.place);
    pull->sent = true;
    pull->place = h.place;
    pull->counter = h.counter;
  }

  void wait(Duration time) {
    now_ = now_ + time;
    due_.pull_timeouts += std::erase_if(pulls_, [&](const Pull& p) { return p.expires <= now_; });
    node_->on_deadline(now_);
  }

  void check() {
    SLUICE_CHECK(memory_ == due_memory_);
    const Target& target = node_->target();
    SLUICE_CHECK(target.open_pulls() == pulls_.size() && target.queued_bytes() == queued_bytes());
    SLUICE_CHECK(node_->window().used() == solicited() && node_->window().most_used() <= window_);
    Time next = Time::never();
    for (const Pull& pull : pulls_) next = std::min(next, pull.expires);
    SLUICE_CHECK(target.next_deadline() == next);
    std::vector<std::uint64_t> counted, due;
    target.counters().for_each([&](const char*, const char*, std::uint64_t n) { counted.push_back(n); });
    due_.for_each([&](const char*, const char*, std::uint64_t n) { due.push_back(n); });
    SLUICE_CHECK(counted == due);
    SLUICE_CHECK(node_->initiator().counters().completed == 0);
  }

  Script& script_;
  bool allow_plain_ = false;
  bool is_silent_ = false;  // most data are not given
  std::size_t window_ = 0;
  std::size_t places_ = 0;
  std::size_t spare_ = 0;  // bytes
  std::vector<std::uint8_t> memory_;
  std::vector<std::uint8_t> due_memory_;
  std::unique_ptr<Node> node_;
  std::array<Area, 3> areas_;
  std::uint64_t keys_made_ = 0;
  Time now_;
  LastFrame sink_;
  bool is_full_ = false;
  std::deque<Letter> kept_;  // the last
  std::uint64_t taken_frames_ = 0;
  std::deque<Job> waiting_;
  std::uint32_t turn_ = 0;
  struct Seen {
    RegionId region{};
    InitiatorId initiator{};
    Boot boot{};
    std::set<std::uint64_t> numbers{};
  };
  std::deque<Seen> seen_;  // the one that has been idle for longest first
  std::uint64_t number_ = 2000;
  std::deque<Due> answers_;
  std::vector<Pull> pulls_;
  int pull_number_ = 0;
  std::set<std::uint64_t> counters_;
  TargetCounters due_;
};

}  // namespace

void check_onerma_target(ByteView input) {
  Script script(input);
  TargetWorld(script).run();
}

}  // namespace sluice::fuzz
