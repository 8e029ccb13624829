#include "fuzz/clover_properties.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "clover/kept_journal.h"
#include "clover/metadata.h"

namespace sluice::fuzz {
namespace {

using namespace clover;  // the fuzzer speaks nothing else

constexpr Duration kLifetime = Duration::microseconds(50);
constexpr Duration kFlight = Duration::microseconds(30);
constexpr std::uint32_t kNodes = 3;
constexpr Key kKeys = 8;

ServerConfig small_store() {
  std::vector<Region> regions;
  for (std::uint32_t i = 0; i < kNodes; ++i) {
    regions.push_back({{remote::NodeId(i), remote::RegionKey(7 + i), 0x1000}, 64 * 40});
  }
  ServerConfig config{.volumes = *spread(regions, 2),
                      .value_bytes = 40,
                      .cursor_lifetime = kLifetime,
                      .max_flight = kFlight,
                      .grant_slots = 16};
  for (std::uint32_t i = 0; i < kNodes; ++i) config.homes.push_back({regions[i], i + 1});
  return config;
}

class Script {
 public:
  explicit Script(ByteView script) : in_(script) {}

  void run() {
    while (in_.left() > 0) {
      const std::vector<Volume> before(server_->volumes().begin(), server_->volumes().end());
      const auto view = server_->view_number();
      command();
      check_slots(*server_);
      check_reuse();
      check_volumes(before, view);
    }
    check_replay();
  }

 private:
  std::uint8_t byte() { return in_.take<std::uint8_t>(); }

  void command() {
    const std::uint8_t what = byte();
    switch (what % 21) {
      case 0: now_ = now_ + Duration::microseconds(byte()); break;
      case 1: simple(Request::kRegister); break;
      case 2: simple(Request::kRefresh); break;
      case 3: simple(Request::kLeave, std::size_t{what} / 128); break;
      case 4: allocate(); break;
      case 5: about_a_slot(Request::kCreate, 1); break;
      case 6: about_a_slot(Request::kReport, 2); break;
      case 7: about_a_slot(Request::kSealed, 1); break;
      case 8: list_of_slots(Request::kRelease); break;
      case 9: list_of_slots(Request::kOrphan); break;
      case 10: about_a_slot(Request::kChecked, 1); break;
      case 11: simple(Request::kWork, byte()); break;
      case 12: about_a_number(Request::kSuspect, std::uint32_t{byte()} % 4); break;
      case 13: raw(); break;
      case 14: see(); break;
      case 15: server_->lose(now_, remote::NodeId(byte() % kNodes)); break;
      case 16: copy(); break;
      case 17: about_a_number(Request::kSettled, some_view()); break;
      case 18: about_a_number(Request::kLetGo, some_view()); break;
      case 19: start_again(); break;
      default: server_->awake(now_); break;
    }
  }

  std::uint32_t client() { return byte() % 4; }
  std::uint32_t some_view() {
    const std::uint8_t choice = byte();
    return choice < 0xC0 ? server_->view_number() : std::uint32_t{choice} % 16;
  }

  void begin(Request type, std::size_t count, std::uint32_t sequence = 0) {
    out_ = MessageWriter(request_);
    put_header(out_, RequestHeader{type, static_cast<std::uint16_t>(count), client(), sequence});
  }

  AnswerHeader send() { return send(ByteView(request_).first(out_.length())); }
  AnswerHeader send(ByteView request) {
    answer_.fill(0xEE);
    length_ = server_->handle(now_, request, answer_);
    SLUICE_CHECK(length_ >= kAnswerHeader && length_ <= answer_.size());
    MessageReader in(ByteView(answer_).first(length_));
    const auto header = take_answer_header(in);
    SLUICE_CHECK(header.has_value());
    const auto type = static_cast<Request>(header->type & 0x7F);
    std::uint32_t registered = 0;
    if ((type == Request::kRegister || type == Request::kRefresh) && header->result == Answer::kOk) {
      const auto view = take_view(in, header->count);
      SLUICE_CHECK(view.has_value());
      registered = view->client;
    }
    MessageReader asked(request);
    if (const auto asker = take_request_header(asked))
      note(*asker, *header, type == Request::kRegister ? registered : asker->client);
    return *header;
  }

  // Until when clients may act under which view, by what they have been told and have told.
  void note(const RequestHeader& asked, const AnswerHeader& answer, std::uint32_t client) {
    if (answer.result == Answer::kMalformed || answer.result == Answer::kExpired) {
      SLUICE_CHECK(answer.lease_us == 0);
      return;
    }
    if (asked.type == Request::kLeave) {
      auto& lease = leases_[client];
      lease.until = asked.count == 1 ? Time() - Duration::seconds(1) : std::min(lease.until, now_);
      return;  // and does nothing more, whatever the answer says
    }
    if (asked.type == Request::kLetGo && answer.result == Answer::kOk) leases_.erase(client);
    if (answer.lease_us == 0) return;
    auto& lease = leases_[client];
    lease.view = answer.view;
    lease.until = std::max(lease.until, now_ + Duration::microseconds(answer.lease_us));
  }

  void simple(Request type, std::size_t count = 0) {
    begin(type, count);
    send();
  }

  void about_a_number(Request type, std::uint32_t number) {
    begin(type, 1);
    out_.put(number);
    send();
  }

  void allocate() {
    begin(Request::kAllocate, 1, byte());
    out_.put(std::uint64_t{byte()});
    const auto header = send();
    SLUICE_CHECK(length_ ==
                 kAnswerHeader + 8u * std::max<std::size_t>(header.count, header.result == Answer::kNoSpace ? 1 : 0));
    MessageReader in(ByteView(answer_).first(length_));
    take_answer_header(in);
    for (std::size_t i = 0; i < header.count; ++i) {
      const NodePointer slot{in.take64()};
      // A grant that is asked for again may have been used meanwhile.
      if (std::ranges::any_of(slots_, [&](const Granted& g) { return g.node == slot; })) continue;
      const auto* const found = server_->slots().find(slot);
      SLUICE_CHECK(found != nullptr && found->state == SlotState::kOwned);
      SLUICE_CHECK(server_->volumes()[slot.volume()].live != 0);
      slots_.push_back({.node = slot, .state = SlotState::kOwned});
    }
  }

  std::uint64_t some_slot() {
    const auto choice = byte();
    if (slots_.empty()) return choice;
    const std::uint64_t slot = slots_[(slots_.size() - 1 - choice % slots_.size())].node.word;
    return choice >= 0xE0 ? slot | std::uint64_t{1} << 62 : slot;  // as a tombstone
  }

  void about_a_slot(Request type, int numbers) {
    begin(type, 1);
    out_.put(std::uint64_t{byte()} % kKeys);
    out_.put(some_slot());
    if (numbers == 2) out_.put(std::uint64_t{byte()});
    send();
  }

  void list_of_slots(Request type) {
    const std::size_t count = byte() % 8;
    begin(type, count);
    for (std::size_t i = 0; i < count; ++i) out_.put(some_slot());
    send();
  }

  void raw() {
    std::size_t length = std::min<std::size_t>(byte(), in_.left());
    std::vector<std::uint8_t> bytes(length);
    for (auto& b : bytes) b = byte();
    send(bytes);
    // And as an answer to a client.
    MessageReader in(bytes);
    if (const auto header = take_answer_header(in)) take_view(in, header->count);
  }

  // A memory node is there: as it was, in another life, or under another key.
  void see() {
    Home& home = homes_[byte() % kNodes];
    const std::uint8_t how = byte();
    if (how % 4 == 0) home.life = ++lives_;
    if (how % 4 <= 1) home.region.base.key = remote::RegionKey(home.region.base.key.value + kNodes);
    if (server_->see(now_, home) != MetadataServer::Advice::kWipe || how < 0x40) return;
    const auto tasks = server_->wipes(home);
    for (const WipeTask& task : tasks) SLUICE_CHECK(task.at.node == home.region.base.node);
    server_->rejoin(now_, home, std::span(tasks).first(tasks.size() * (std::size_t{how} % 8) / 7));
  }

  void copy() {
    std::array<CopyTask, 3> tasks;
    Time until;
    const std::size_t count = server_->next_copies(now_, tasks, until);
    SLUICE_CHECK(count <= tasks.size() && (count == 0 || until <= now_ + kLifetime));
    for (const CopyTask& task : std::span(tasks).first(count)) {
      const Volume& volume = server_->volumes()[task.node.volume()];
      SLUICE_CHECK(volume.is_live(task.replica) && task.replica != volume.primary());
      SLUICE_CHECK(task.from == volume.locate(task.node, volume.primary()));
      SLUICE_CHECK(task.to == volume.locate(task.node, task.replica));
      switch (byte() % 3) {
        case 0: server_->copied(task); break;
        case 1: server_->not_there(task); break;
        default: break;
      }
    }
  }

  // Of what is retired some may have come free since the last record.
  static auto in_use(const MetadataServer& server) {
    const auto count = [&](SlotState state) { return server.slots().count(state); };
    return std::tuple(server.keys(), server.clients(), server.view_number(), count(SlotState::kOwned),
                      count(SlotState::kLive), count(SlotState::kOrphan), count(SlotState::kSetAside));
  }

  // Another process, from the journal or from all that is known; its clock goes on or begins anew.
  void start_again() {
    const std::uint8_t how = byte();
    if (how % 2 == 0) journal_.records = {server_->state(now_)};
    auto again = std::make_unique<MetadataServer>(small_store(), &journal_);
    const auto records = journal_.records;
    for (const auto& record : records) SLUICE_CHECK(again->replay(record));
    SLUICE_CHECK(in_use(*again) == in_use(*server_));
    const Duration gone = how / 2 % 2 == 0 ? now_.since_start() : Duration{};
    now_ = now_ - gone;
    for (auto& [client, lease] : leases_) lease.until = lease.until - gone;
    for (auto& slot : slots_) slot.retired = now_;
    again->restart(now_);
    server_ = std::move(again);
  }

  // Every slot is accounted for once, and every live one is a version of some key.
  static void check_slots(const MetadataServer& server) {
    std::uint64_t sum = 0;
    for (std::size_t state = 0; state < kSlotStates; ++state)
      sum += server.slots().count(static_cast<SlotState>(state));
    SLUICE_CHECK(sum == server.slots().capacity());
    SLUICE_CHECK(server.slots().count(SlotState::kLive) == server.live_versions());
    SLUICE_CHECK(server.live_versions() >= server.keys());
  }

  // What may be read comes free by being retired, and a grace after that.
  void check_reuse() {
    for (Granted& granted : slots_) {
      const Slot* const slot = server_->slots().find(granted.node);
      const auto state = slot == nullptr ? SlotState::kFree : slot->state;
      if (state == SlotState::kFree) {
        SLUICE_CHECK(granted.state != SlotState::kLive && granted.state != SlotState::kOrphan &&
                     granted.state != SlotState::kSetAside);
        if (granted.state == SlotState::kRetired) SLUICE_CHECK(now_ >= granted.retired + kLifetime + kFlight);
      } else if (state == SlotState::kRetired && granted.state != state) {
        granted.retired = now_;
      }
      granted.state = state;
    }
  }

  // A volume that is not lost has a primary; and a replica is left out when nobody can act on it any more.
  void check_volumes(const std::vector<Volume>& before, std::uint32_t view) {
    SLUICE_CHECK(server_->view_number() >= view);
    std::size_t live = 0, primaries = 0;
    for (std::size_t v = 0; v < before.size(); ++v) {
      const Volume& volume = server_->volumes()[v];
      SLUICE_CHECK(volume.is_lost() == (volume.live == 0));
      for (std::size_t j = 0; j < volume.count; ++j) live += static_cast<std::size_t>(volume.is_live(j));
      primaries += static_cast<std::size_t>(volume.live != 0);
      const bool leaves = (before[v].live & ~volume.live) != 0 && volume.live != 0;
      if (leaves || volume.live != before[v].live) SLUICE_CHECK(server_->view_number() > view);
      if (!leaves) continue;
      for (const auto& [client, lease] : leases_)
        SLUICE_CHECK(lease.view >= server_->view_number() || now_ >= lease.until + kFlight);
    }
    SLUICE_CHECK(server_->joining() <= live - primaries);
  }

  // A server that takes in the journal knows the same.
  void check_replay() {
    MetadataServer again(small_store());
    for (const auto& record : journal_.records) SLUICE_CHECK(again.replay(record));
    MetadataServer from_state(small_store());
    SLUICE_CHECK(from_state.replay(server_->state(now_)));
    again.restart(now_);
    from_state.restart(now_);
    server_->restart(now_);
    // Long enough for all that waits to have happened.
    const Time later = now_ + Duration::milliseconds(1);
    const auto known = knowledge(*server_, later);
    SLUICE_CHECK(knowledge(again, later) == known);
    SLUICE_CHECK(knowledge(from_state, later) == known);
  }

  // All that clients can ask a server for, and how it stands with each slot and each replica. Of work each piece once, in no order: that some was
  // handed out is not in the journal, but moves it to the end of its queue, or drops it where it is not wanted any more.
  std::vector<std::uint64_t> knowledge(MetadataServer& server, Time now) {
    std::vector<std::uint64_t> all;
    bool waits = false;
    MessageReader in{ByteView()};
    const auto ask = [&](Request type, std::uint32_t client, std::size_t count) {
      std::array<std::uint8_t, 256> request{};
      MessageWriter out(request);
      put_header(out, RequestHeader{type, static_cast<std::uint16_t>(count), client, 0});
      for (Key key = 0; type == Request::kLookup && key < count; ++key) out.put(key);
      const std::size_t length = server.handle(now, ByteView(request).first(out.length()), answer_);
      in = MessageReader(ByteView(answer_).first(length));
      const auto header = take_answer_header(in);
      SLUICE_CHECK(header.has_value());
      waits = header->work_waits;
      return *header;
    };
    const auto keep = [&all](const AnswerHeader& header) {
      all.insert(all.end(), {static_cast<std::uint64_t>(header.result), header.view, header.lease_us, header.clock,
                             std::uint64_t{header.view_ends}});
    };
    const auto registered = ask(Request::kRegister, 0, 0);
    keep(registered);
    const auto view = take_view(in, registered.count);
    SLUICE_CHECK(view.has_value());
    all.push_back(view->client);
    const auto found = ask(Request::kLookup, view->client, kKeys);
    keep(found);
    SLUICE_CHECK(found.count == kKeys);
    for (Key key = 0; key < kKeys; ++key) all.push_back(in.take64());
    std::set<std::array<std::uint64_t, 3>> work;
    for (bool waited = waits;; waited = waits) {
      const auto handed = ask(Request::kWork, view->client, 30);
      SLUICE_CHECK(waited || handed.count == 0);
      for (std::size_t i = 0; i < handed.count; ++i) {
        const auto kind = in.take64(), key = in.take64(), node = in.take64();
        work.insert({kind, key, node});
      }
      if (handed.count != 0) continue;
      keep(handed);
      SLUICE_CHECK(!waits && in.ok());
      break;
    }
    all.push_back(work.size());
    for (const auto& piece : work) all.insert(all.end(), piece.begin(), piece.end());
    check_slots(server);
    for (const auto& volume : server.volumes()) {
      all.insert(all.end(),
                 {volume.live, volume.live == 0 ? std::uint64_t{0} : volume.first, volume.dead, volume.base});
      for (std::size_t j = 0; j < volume.count; ++j) {
        const auto& at = volume.replicas[j];
        all.insert(all.end(), {at.node.value, at.key.value, at.address});
      }
    }
    for (const auto& granted : slots_) {
      const Slot* const slot = server.slots().find(granted.node);
      if (slot == nullptr) {
        all.push_back(~std::uint64_t{0});
        continue;
      }
      // What has been copied since is not in the journal: it would be copied again.
      all.insert(all.end(), {static_cast<std::uint64_t>(slot->state), slot->owner, slot->generation});
    }
    all.insert(all.end(), {server.view_number(), server.joining(), server.missing(), server.lost_volumes(),
                           server.keys(), server.clients(), server.free_slots(), server.touched_slots()});
    return all;
  }

  struct Granted {
    NodePointer node;
    SlotState state{};
    Time retired{};
  };
  struct Lease {
    std::uint32_t view = 0;
    Time until = Time() - Duration::seconds(1);
  };

  MessageReader in_;
  KeptJournal journal_;
  std::unique_ptr<MetadataServer> server_ = std::make_unique<MetadataServer>(small_store(), &journal_);
  Time now_;
  std::array<std::uint8_t, remote::kMaxMessage> request_{};
  std::array<std::uint8_t, remote::kMaxMessage> answer_{};
  MessageWriter out_{request_};
  std::size_t length_ = 0;
  std::vector<Granted> slots_;             // ever granted
  std::map<std::uint32_t, Lease> leases_;  // of clients
  std::vector<Home> homes_ = small_store().homes;
  std::uint64_t lives_ = kNodes;
};

}  // namespace

void check_metadata_server(ByteView script) { Script(script).run(); }

}  // namespace sluice::fuzz
