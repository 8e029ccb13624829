#include "fuzz/clover_properties.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "clover/metadata.h"

namespace sluice::fuzz {
namespace {

using namespace clover;  // the fuzzer speaks nothing else

ServerConfig small_store() {
  std::vector<Region> regions;
  for (std::uint32_t i = 0; i < 3; ++i) {
    regions.push_back({{remote::NodeId(i), remote::RegionKey(7 + i), 0x1000}, 64 * 40});
  }
  return {.volumes = *spread(regions, 2),
          .value_bytes = 40,
          .cursor_lifetime = Duration::microseconds(50),
          .max_flight = Duration::microseconds(30),
          .grant_slots = 16};
}

class KeptJournal : public Journal {
 public:
  void append(ByteView record) override { records.emplace_back(record.begin(), record.end()); }
  std::vector<std::vector<std::uint8_t>> records;
};

class Script {
 public:
  explicit Script(ByteView script) : in_(script) {}

  void run() {
    while (in_.left() > 0) {
      command();
      check_slots(server_);
    }
    check_replay();
  }

 private:
  std::uint8_t byte() { return in_.take<std::uint8_t>(); }

  void command() {
    switch (byte() % 14) {
      case 0: now_ = now_ + Duration::microseconds(byte()); break;
      case 1: simple(Request::kRegister); break;
      case 2: simple(Request::kRefresh); break;
      case 3: simple(Request::kLeave); break;
      case 4: allocate(); break;
      case 5: about_a_slot(Request::kCreate, 1); break;
      case 6: about_a_slot(Request::kReport, 2); break;
      case 7: about_a_slot(Request::kSealed, 1); break;
      case 8: list_of_slots(Request::kRelease); break;
      case 9: list_of_slots(Request::kOrphan); break;
      case 10: list_of_slots(Request::kChecked); break;
      case 11: simple(Request::kWork, byte()); break;
      case 12: suspect(); break;
      default: raw(); break;
    }
  }

  std::uint32_t client() { return byte() % 4; }

  void begin(Request type, std::size_t count, std::uint32_t sequence = 0) {
    out_ = MessageWriter(request_);
    put_header(out_, RequestHeader{type, static_cast<std::uint16_t>(count), client(), sequence});
  }

  AnswerHeader send() { return send(ByteView(request_).first(out_.length())); }
  AnswerHeader send(ByteView request) {
    answer_.fill(0xEE);
    length_ = server_.handle(now_, request, answer_);
    SLUICE_CHECK(length_ >= kAnswerHeader && length_ <= answer_.size());
    MessageReader in(ByteView(answer_).first(length_));
    const auto header = take_answer_header(in);
    SLUICE_CHECK(header.has_value());
    const auto type = static_cast<Request>(header->type & 0x7F);
    if ((type == Request::kRegister || type == Request::kRefresh) && header->result == Answer::kOk) {
      SLUICE_CHECK(take_view(in, header->count).has_value());
    }
    return *header;
  }

  void simple(Request type, std::size_t count = 0) {
    begin(type, count);
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
    for (std::size_t i = 0; i < header.count; ++i) slots_.push_back(in.take64());
  }

  std::uint64_t some_slot() {
    const auto choice = byte();
    if (slots_.empty()) return choice;
    const std::uint64_t slot = slots_[(slots_.size() - 1 - choice % slots_.size())];
    return choice >= 0xE0 ? slot | std::uint64_t{1} << 62 : slot;  // as a tombstone
  }

  void about_a_slot(Request type, int numbers) {
    begin(type, 1);
    out_.put(std::uint64_t{byte()} % 8);  // key
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

  void suspect() {
    begin(Request::kSuspect, 1);
    out_.put(std::uint32_t{byte()} % 4);
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

  // Every slot is accounted for once, and every live one is a version of some key.
  static void check_slots(const MetadataServer& server) {
    std::uint64_t sum = 0;
    for (std::size_t state = 0; state < kSlotStates; ++state)
      sum += server.slots().count(static_cast<SlotState>(state));
    SLUICE_CHECK(sum == server.slots().capacity());
    SLUICE_CHECK(server.slots().count(SlotState::kLive) == server.live_versions());
    SLUICE_CHECK(server.live_versions() >= server.keys());
  }

  // A server that takes in the journal knows the same.
  void check_replay() {
    MetadataServer again(small_store());
    for (const auto& record : journal_.records) SLUICE_CHECK(again.replay(record));
    MetadataServer from_state(small_store());
    SLUICE_CHECK(from_state.replay(server_.state(now_)));
    again.restart(now_);
    from_state.restart(now_);
    server_.restart(now_);
    std::uint8_t refresh[kRequestHeader];
    MessageWriter out(refresh);
    put_header(out, RequestHeader{Request::kRefresh, 0, 1, 0});
    // Long enough for all that waits to have happened.
    for (auto* const server : {&server_, &again, &from_state})
      server->handle(now_ + Duration::milliseconds(1), refresh, answer_);
    check_slots(again);
    SLUICE_CHECK(again.summary() == server_.summary());
    SLUICE_CHECK(from_state.summary() == server_.summary());
  }

  MessageReader in_;
  KeptJournal journal_;
  MetadataServer server_{small_store(), &journal_};
  Time now_;
  std::array<std::uint8_t, remote::kMaxMessage> request_{};
  std::array<std::uint8_t, remote::kMaxMessage> answer_{};
  MessageWriter out_{request_};
  std::size_t length_ = 0;
  std::vector<std::uint64_t> slots_;  // ever granted
};

}  // namespace

void check_metadata_server(ByteView script) { Script(script).run(); }

}  // namespace sluice::fuzz
