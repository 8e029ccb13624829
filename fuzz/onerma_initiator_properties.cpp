#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <optional>
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
constexpr std::uint16_t kSlots = 8;
constexpr std::uint32_t kWindow = FrameWriter::frame_size(kMaxOp) + 300;
constexpr Duration kDispatch = Duration::microseconds(10);
constexpr Duration kTimeout = Duration::microseconds(25);
constexpr std::array<std::size_t, 8> kLengths{64, 8, 0, 1, 200, 512, 4096, 63};

enum class State : std::uint8_t { kWaiting, kSent, kPulled, kDataSent };

// An operation under way. Its address names it: requests are told by that.
struct Open {
  std::uint64_t user = 0;
  OpKind op{};
  std::size_t grant = 0;
  std::size_t ring = 0;
  State state = State::kWaiting;
  Time issued;
  Time deadline;
  Time pulled;
  Duration issue_delay{};
  Header request{};
  std::vector<std::uint8_t> echo{};
  Header pull{};
};

struct Held {
  Peer peer{};
  std::vector<Grant> grants;  // all there have been, the last is good
};

class InitiatorWorld {
 public:
  explicit InitiatorWorld(Script& script) : script_(script) {
    const std::uint8_t options = script.next();
    plain_ = (options & 1) != 0;
    NodeConfig config{.mac = kNodeMac,
                      .ip = kNodeIp,
                      .boot = Boot(1),
                      .protection = plain_ ? Protection::kPlain : Protection::kSealed,
                      .window_bytes = kWindow,
                      .slots = {.slots = kSlots, .dispatch_timeout = kDispatch, .timeout = kTimeout}};
    node_ = std::make_unique<Node>(config);
    for (std::size_t i = 0; i < held_.size(); ++i) {
      const auto number = static_cast<std::uint8_t>(2 + i);
      held_[i].peer = {.mac = wire::MacAddress{{2, 0, 0, 0, 1, number}}, .ip = wire::Ipv4Address{0x0A4D0100u + number}};
      held_[i].grants.push_back(fresh(i));
      ids_[i] = node_->initiator().add_grant(held_[i].peer, held_[i].grants[0]);
    }
    for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].assign(kMaxOp, static_cast<std::uint8_t>(i));
    due_buffers_ = buffers_;
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
    for (int i = 0; i < 6; ++i) {
      wait(kTimeout);
      transmit(1000);
      check();
    }
    SLUICE_CHECK(open_.empty() && node_->initiator().slots().open() == 0 && node_->window().used() == 0);
  }

 private:
  void step(std::uint8_t what) {
    switch (what % 16) {
      case 0: return wait(Duration::microseconds(script_.next() % 16));
      case 1: return replace(script_.next() % held_.size());
      case 2: return again();
      case 3:
      case 4:
      case 5:
      case 6: return issue();
      default: return answer();
    }
  }

  Grant fresh(std::size_t i) const {
    const auto generation = static_cast<std::uint32_t>(held_[i].grants.size() + 1);
    return make_grant(RegionKey(test_key(10 * i + 100 * generation)), RegionId(0x100u + static_cast<std::uint32_t>(i)),
                      Generation(generation), InitiatorId(0x11), {Rights::kAll});
  }
  void replace(std::size_t i) {
    held_[i].grants.push_back(fresh(i));
    node_->initiator().replace_grant(ids_[i], held_[i].grants.back());
  }
  // Of the present key and the one before.
  const Grant* grant_of(std::size_t held, Generation generation) const {
    const auto& grants = held_[held].grants;
    const std::size_t at = generation.value - 1;
    return generation.value != 0 && at < grants.size() && at + 2 >= grants.size() ? &grants[at] : nullptr;
  }

  // ----------------------------------------------------------------------------------------------------------- commands

  void issue() {
    const std::uint8_t what = script_.next();
    const std::size_t slot = user_ % buffers_.size();
    if (std::ranges::any_of(open_, [&](const Open& o) { return o.user % buffers_.size() == slot; })) return;
    Open o;
    o.user = user_;
    o.op = static_cast<OpKind>(what % 8 % 3);
    o.grant = what >> 3 & 1u;
    o.ring = what >> 4 & 1u;
    const std::size_t length = o.op == OpKind::kRekey ? Secret::kSize : kLengths[what >> 5];
    due_buffers_[slot] = buffers_[slot];
    const Command command{.op = o.op,
                          .grant = ids_[o.grant],
                          .address = address_of(o),
                          .local = MutableBytes(buffers_[slot]).first(length),
                          .user = o.user,
                          .completions = &rings_[o.ring]};
    lengths_[slot] = length;
    const bool issued = node_->initiator().issue(now_, command);
    SLUICE_CHECK(issued == (open_.size() + kept_from(o.ring) < kSlots));
    Waits& waits = waits_[o.ring];
    if (!issued) {
      if (waits.since == 0 || now_ >= waits.until) waits.since = ++refusals_;
      waits.until = now_ + kDispatch;
      return;
    }
    waits.since = 0;
    ++user_;
    o.issued = now_;
    o.deadline = now_ + kDispatch;
    open_.push_back(o);
  }
  // A slot is the other's where that one was refused of late, and has fewer, or as many and has waited for longer.
  std::size_t kept_from(std::size_t ring) const {
    const Waits &own = waits_[ring], &other = waits_[1 - ring];
    if (other.since == 0 || now_ >= other.until) return 0;
    const auto has = [&](std::size_t which) { return std::ranges::count(open_, which, &Open::ring); };
    const bool longer = own.since == 0 || other.since < own.since;
    return has(1 - ring) < has(ring) || (has(1 - ring) == has(ring) && longer) ? 1 : 0;
  }
  static std::uint64_t address_of(const Open& o) { return 0x1'0000'0000 + o.user * 0x10000; }
  std::size_t length_of(const Open& o) const { return lengths_[o.user % buffers_.size()]; }
  ByteView local_of(const Open& o) const {
    return ByteView(due_buffers_[o.user % buffers_.size()]).first(length_of(o));
  }
  std::uint32_t window_of(const Open& o) const {
    return o.op == OpKind::kRead ? static_cast<std::uint32_t>(FrameWriter::frame_size(length_of(o))) : 0;
  }
  std::uint32_t solicited() const {
    std::uint32_t all = 0;
    for (const Open& o : open_) all += o.state == State::kWaiting ? 0 : window_of(o);
    return all;
  }

  // ---------------------------------------------------------------------------------------------------------------- out

  void transmit(int room) {
    for (;; --room) {
      Open* const pulled = next_pulled();
      sink_.full = room <= 0;
      const bool sent = node_->poll_transmit(now_, sink_);
      take_completions();
      if (!sent) {
        SLUICE_CHECK(pulled == nullptr || sink_.full);
        if (!sink_.full) check_nothing_to_send();
        return;
      }
      SLUICE_CHECK(!sink_.full);
      Message message;
      SLUICE_CHECK(parse(sink_.frame, message) == Verdict::kOk && message.from == node_->address());
      if (pulled != nullptr) {
        on_data(*pulled, message);
        pulled_.pop_front();
      } else {
        on_request(message);
      }
    }
  }
  // The first that was asked for its data, and is still. Those ahead whose key has gone twice end.
  Open* next_pulled() {
    while (!pulled_.empty()) {
      const auto o = std::ranges::find(open_, pulled_.front(), &Open::user);
      if (o != open_.end() && o->state == State::kPulled) {
        if (grant_of(o->grant, o->request.generation) != nullptr) return &*o;
        end(*o, Status::kBadKey, {});
      }
      pulled_.pop_front();
    }
    return nullptr;
  }
  void check_nothing_to_send() const {
    for (const Open& o : open_) {
      if (o.state != State::kWaiting) continue;
      SLUICE_CHECK(o.op == OpKind::kRead && solicited() != 0);  // there is no room for its answer
    }
  }
  void open_frame(const Open& o, const Header& h, std::size_t body) {
    SLUICE_CHECK(h.plain == plain_);
    SLUICE_CHECK(sink_.frame.size() == FrameWriter::frame_size(body));
    SLUICE_CHECK(
        std::equal(held_[o.grant].peer.mac.bytes.begin(), held_[o.grant].peer.mac.bytes.end(), sink_.frame.begin()));
    if (plain_) {
      SLUICE_CHECK(checksum_is_right(sink_.frame.data(), body));
    } else {
      SLUICE_CHECK(Sealer(grant_of(o.grant, h.generation)->key).open(sink_.frame.data(), h, body));
    }
  }
  void on_request(const Message& message) {
    const Header& h = message.header;
    SLUICE_CHECK(is_request(h.kind));
    const std::size_t body = message.body_length;
    const std::vector<std::uint8_t> wire = sink_.frame;
    // Of each kind and ring, those that wait leave in the order of their issue.
    Open* found = nullptr;
    const std::size_t grant = h.region.value - 0x100;
    SLUICE_CHECK(grant < held_.size() && h.generation == held_[grant].grants.back().generation);
    std::uint64_t address = 0;
    std::uint32_t length = 0;
    if (h.kind != Kind::kRekeyRequest) {
      std::vector<std::uint8_t> clear = wire;
      if (!plain_) SLUICE_CHECK(Sealer(held_[grant].grants.back().key).open(clear.data(), h, body));
      address = load_be<std::uint64_t>(clear.data() + kBodyOffset);
      length = load_be<std::uint32_t>(clear.data() + kBodyOffset + 8);
    }
    const OpKind op = static_cast<OpKind>(static_cast<int>(h.kind) - 1);
    std::array<bool, 3> passed{};  // reads of each ring, writes and Rekeys
    for (Open& o : open_) {
      if (o.state != State::kWaiting) continue;
      bool& one_before = passed[o.op == OpKind::kRead ? o.ring : 2];
      const bool it = o.op == op && o.grant == grant && (op == OpKind::kRekey || address_of(o) == address);
      if (it && !one_before && found == nullptr) found = &o;
      one_before = true;
    }
    SLUICE_CHECK(found != nullptr && (op == OpKind::kRekey || length == length_of(*found)));
    open_frame(*found, h, body);
    SLUICE_CHECK(message.to == held_[grant].peer.ip && h.initiator == InitiatorId(0x11) && h.boot == Boot(1));
    SLUICE_CHECK(h.op.value >> 16 > number_);  // in the order in which they leave
    number_ = h.op.value >> 16;
    found->state = State::kSent;
    found->request = h;
    found->issue_delay = now_ - found->issued;
    found->deadline = found->issued + kTimeout;
    found->echo.resize(kRefusalBody);
    std::copy(wire.end() - 8, wire.end(), found->echo.begin());
    store_be(found->echo.data() + 8, checksum(wire.data(), body + kTagSize - 8));
    ++due_.requests;
    SLUICE_CHECK(solicited() <= kWindow);
  }
  void on_data(Open& o, const Message& message) {
    Header h = o.request;
    h.kind = Kind::kData;
    h.place = o.pull.place;
    h.counter = o.pull.counter;
    h.pull_boot = o.pull.boot;
    SLUICE_CHECK(message.header == h && message.to == held_[o.grant].peer.ip);
    open_frame(o, h, message.body_length);
    SLUICE_CHECK(std::ranges::equal(ByteView(sink_.frame).subspan(kBodyOffset, message.body_length), local_of(o)));
    o.state = State::kDataSent;
    o.issue_delay = o.issue_delay + (now_ - o.pulled);
    o.deadline = now_ + kTimeout;
    ++due_.data;
  }

  // ------------------------------------------------------------------------------------------------------------- answers

  struct Letter {
    Header header{};
    Peer from{};
    std::vector<std::uint8_t> body;
    bool whole = true;
    std::vector<std::uint8_t> frame;
  };

  void answer() {
    const std::uint8_t what = script_.next(), more = script_.next();
    if (known_.empty() && open_.empty()) return;
    // Mostly of an operation that is open, else of any there has been.
    std::vector<const Open*> sent;
    for (const Open& o : open_) {
      if (o.state != State::kWaiting) sent.push_back(&o);
    }
    const bool old = sent.empty() || what >= 0xF0;
    if (old && known_.empty()) return;
    const Open& o = old ? known_[more % known_.size()] : *sent[more % sent.size()];
    Letter letter;
    letter.from = held_[o.grant].peer;
    Header& h = letter.header;
    h = o.request;
    h.boot = Boot(5);
    h.counter = ++counter_;
    h.kind = fitting(o, what);
    if (h.kind == Kind::kReadResponse) {
      letter.body.resize(length_of(o));
      for (std::size_t i = 0; i < letter.body.size(); ++i) letter.body[i] = static_cast<std::uint8_t>(more + i);
    }
    if (h.kind == Kind::kCompletion) {
      h.of_data = (o.state == State::kDataSent) != ((what & 0x18) == 0x18);
      h.status = static_cast<Status>(script_.next() % kStatusCount);
    }
    if (h.kind == Kind::kRefusal) {
      h.status = static_cast<Status>((what & 8) != 0 ? 1 : (what & 16) != 0 ? 4 : 1 + script_.next() % 7);
      letter.body = o.echo;
    }
    if (h.kind == Kind::kPull) h.place = script_.next();
    make_wrong(letter, o, (what & 0x60) == 0x60 ? script_.next() : 0);
    kept_.push_back(letter);
    if (kept_.size() > 8) kept_.pop_front();
    send(letter);
  }
  // What a target would say next, or anything.
  static Kind fitting(const Open& o, std::uint8_t what) {
    if (what % 8 >= 5) return static_cast<Kind>(5 + what / 8 % 4);
    if (what % 8 == 4) return Kind::kRefusal;
    if (o.op == OpKind::kRead) return Kind::kReadResponse;
    return o.state == State::kSent ? Kind::kPull : Kind::kCompletion;
  }
  void make_wrong(Letter& letter, const Open& o, std::uint8_t fault) {
    Header& h = letter.header;
    switch (fault % 12) {
      case 1: h.op = OpId(h.op.value ^ std::uint64_t{script_.next()} << (script_.next() % 2 * 16)); break;
      case 2: h.region = RegionId(0x100u + script_.next() % 3u); break;
      case 3: h.generation = Generation(h.generation.value - 1 + script_.next() % 3u); break;
      case 4: h.initiator = InitiatorId(0x11 + script_.next() % 2u); break;
      case 5: h.plain = !h.plain; break;
      case 6: letter.from.ip = held_[1 - o.grant].peer.ip; break;
      case 7: letter.from.mac = held_[1 - o.grant].peer.mac; break;  // nothing says which it is
      case 8:
        if (h.kind == Kind::kReadResponse) letter.body.resize(letter.body.size() == 8 ? 7 : 8, 0x55);
        break;
      case 9:
        if (h.kind == Kind::kRefusal) letter.body[script_.next() % kRefusalBody] ^= 1;
        break;
      default: break;
    }
    const std::size_t body = letter.body.size();
    letter.frame.resize(FrameWriter::frame_size(body));
    FrameWriter(letter.from.mac, letter.from.ip, kUdpPort).write(letter.frame.data(), node_->address(), h, body);
    std::ranges::copy(letter.body, letter.frame.begin() + kBodyOffset);
    if (h.plain || h.kind == Kind::kRefusal) {
      write_checksum(letter.frame.data(), body);
      letter.whole = h.plain == plain_ || h.kind == Kind::kRefusal;
    } else {
      const auto& grants = held_[o.grant].grants;
      const std::size_t at = h.generation.value - 1;
      Sealer(at < grants.size() ? grants[at].key : test_key(7)).seal(letter.frame.data(), h, body);
    }
    if (fault % 12 < 10) return;
    const std::size_t at = kNetworkSize + script_.next16() % (letter.frame.size() - kNetworkSize);
    letter.frame[at] ^= static_cast<std::uint8_t>(script_.next() | 1);
    letter.whole = false;
  }
  void again() {
    if (kept_.empty()) return;
    const Letter letter = kept_[script_.next() % kept_.size()];
    send(letter);
  }

  void send(const Letter& letter) {
    std::vector<std::uint8_t> frame = letter.frame;
    Message message;
    if (parse(frame, message) == Verdict::kOk && !is_to_target(message.header.kind)) on_letter(letter, message);
    node_->on_frame(now_, {frame.data(), static_cast<std::uint32_t>(frame.size())});
    take_completions();
  }

  // What becomes of it: initiator.h in other words.
  void on_letter(const Letter& letter, const Message& message) {
    const Header& h = message.header;
    const auto found =
        std::ranges::find_if(open_, [&](const Open& o) { return o.state != State::kWaiting && o.request.op == h.op; });
    if (found == open_.end()) {
      ++due_.stray;
      due_.stray_pulls += h.kind == Kind::kPull ? 1 : 0;
      return;
    }
    Open& o = *found;
    const Grant* const grant = grant_of(o.grant, o.request.generation);
    if (grant == nullptr || message.from.ip != held_[o.grant].peer.ip || h.region != o.request.region ||
        h.generation != o.request.generation || h.initiator != o.request.initiator || h.plain != plain_) {
      ++due_.mismatched;
      return;
    }
    const bool echoed = h.kind != Kind::kRefusal || std::ranges::equal(letter.body, o.echo);
    if (!letter.whole || !echoed) {
      ++due_.unauthentic;
      return;
    }
    if (h.kind == Kind::kPull) return on_pull(o, h);
    bool fits = h.status != Status::kTimeout && h.status != Status::kDispatchTimeout;
    if (h.kind == Kind::kRefusal) {
      fits = o.state == State::kSent && (h.status == Status::kNack || h.status == Status::kBadKey);
      due_.refused_in_clear += fits ? 1 : 0;
    } else if (h.kind == Kind::kReadResponse) {
      fits = o.op == OpKind::kRead && letter.body.size() == length_of(o);
    } else {
      fits = fits && h.of_data == (o.state == State::kDataSent) && (h.of_data || h.status != Status::kOk);
    }
    if (!fits) {
      ++due_.mismatched;
      return;
    }
    ++due_.completed;
    end(o, h.status, letter.body);
  }
  void on_pull(Open& o, const Header& h) {
    if (o.op == OpKind::kRead) {
      ++due_.mismatched;
    } else if (o.state != State::kSent) {
      ++due_.stray;
      ++due_.stray_pulls;
    } else {
      o.state = State::kPulled;
      o.pull = h;
      o.pulled = now_;
      pulled_.push_back(o.user);
    }
  }

  // ------------------------------------------------------------------------------------------------------------- endings

  void end(Open& o, Status status, ByteView read) {
    if (o.op == OpKind::kRead && status == Status::kOk)
      std::ranges::copy(read, due_buffers_[o.user % buffers_.size()].begin());
    Completion c{.user = o.user,
                 .issue_delay = o.state == State::kWaiting ? now_ - o.issued : o.issue_delay,
                 .total_delay = now_ - o.issued,
                 .length = static_cast<std::uint16_t>(length_of(o)),
                 .op = o.op,
                 .status = status,
                 .data_left = o.state == State::kDataSent};
    ended_.emplace(o.user, std::make_pair(c, o.ring));
    if (o.state != State::kWaiting) {
      known_.push_back(o);
      if (known_.size() > 8) known_.erase(known_.begin());
    }
    std::erase_if(open_, [&, user = o.user](const Open& other) { return other.user == user; });
  }
  void take_completions() {
    for (std::size_t ring = 0; ring < rings_.size(); ++ring) {
      while (!rings_[ring].empty()) {
        const Completion c = rings_[ring].pop();
        const auto due = ended_.find(c.user);
        SLUICE_CHECK(due != ended_.end() && due->second.second == ring);
        const Completion& d = due->second.first;
        SLUICE_CHECK(c.status == d.status && c.op == d.op && c.length == d.length && c.data_left == d.data_left);
        SLUICE_CHECK(c.total_delay == d.total_delay && c.issue_delay == d.issue_delay);
        ended_.erase(due);
      }
    }
    SLUICE_CHECK(ended_.empty());
  }

  void wait(Duration time) {
    now_ = now_ + time;
    for (std::size_t i = 0; i < open_.size();) {
      Open& o = open_[i];
      if (o.deadline > now_) {
        ++i;
      } else {
        end(o, o.state == State::kWaiting ? Status::kDispatchTimeout : Status::kTimeout, {});
      }
    }
    node_->on_deadline(now_);
    take_completions();
  }

  void check() {
    SLUICE_CHECK(buffers_ == due_buffers_);
    SLUICE_CHECK(node_->initiator().slots().open() == open_.size() && node_->window().used() == solicited());
    Time next = Time::never();
    for (const Open& o : open_) next = std::min(next, o.deadline);
    SLUICE_CHECK(node_->next_deadline() == next);
    std::vector<std::uint64_t> counted, due;
    node_->initiator().counters().for_each([&](const char*, const char*, std::uint64_t n) { counted.push_back(n); });
    due_.for_each([&](const char*, const char*, std::uint64_t n) { due.push_back(n); });
    SLUICE_CHECK(counted == due);
  }

  Script& script_;
  bool plain_ = false;
  std::unique_ptr<Node> node_;
  std::array<Held, 2> held_;
  std::array<GrantId, 2> ids_{};
  std::array<CompletionRing, 2> rings_{CompletionRing{8}, CompletionRing{8}};
  std::array<std::vector<std::uint8_t>, 9> buffers_;
  std::array<std::vector<std::uint8_t>, 9> due_buffers_;
  std::array<std::size_t, 9> lengths_{};
  Time now_;
  LastFrame sink_;
  bool is_full_ = false;
  // For a slot.
  struct Waits {
    int since = 0;  // counts refusals
    Time until;
  };
  std::array<Waits, 2> waits_{};
  int refusals_ = 0;
  std::uint64_t user_ = 0;
  std::uint64_t number_ = 0;
  std::uint64_t counter_ = 0;
  std::vector<Open> open_;  // in the order of issue
  std::vector<Open> known_;
  std::deque<std::uint64_t> pulled_;
  std::deque<Letter> kept_;
  std::map<std::uint64_t, std::pair<Completion, std::size_t>> ended_;
  InitiatorCounters due_;
};

}  // namespace

void check_onerma_initiator(ByteView input) {
  Script script(input);
  InitiatorWorld(script).run();
}

}  // namespace sluice::fuzz
