#include "fuzz/onerma_properties.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "fuzz/script.h"
#include "onerma/test_world.h"

namespace sluice::fuzz {
namespace {

using namespace onerma;

constexpr std::uint64_t kBase = 0x1000;
constexpr std::size_t kCells = 16;  // each written whole, by one command at a time
constexpr std::size_t kCell = 64;

class Nodes {
 public:
  explicit Nodes(Script& script) : script_(script) {
    NodeConfig config;
    config.slots.slots = 8;
    config.target.pulls = 4;
    config.target.queue = 16;
    config.target.nack_bytes = 2048;
    config.cached_keys = 2;
    config.window_bytes = FrameWriter::frame_size(kMaxOp) + 300;
    config.allow_plain = (script.next() & 1) != 0;
    a_ = &world_.add_host(config);
    b_ = &world_.add_host(config);
    region_ = b_->node->regions().add(memory_, kBase, memory::kAllAccess, test_key(1)).value();
    grant_ = a_->node->initiator().add_grant(b_->node->address(), fresh_grant());
    world_.set_tap([this](MutableBytes frame) { return pass(frame); });
  }

  void run() {
    while (!script_.empty()) step();
    harm_ = false;
    world_.run_for(Duration::milliseconds(1));
    take_completions();
    SLUICE_CHECK(open_ == 0 && a_->node->initiator().slots().open() == 0);
    for (const World::Host* host : {a_, b_}) {
      SLUICE_CHECK(host->node->window().used() == 0 && host->node->window().most_used() <= host->config.window_bytes);
      SLUICE_CHECK(host->node->target().open_pulls() == 0 && host->node->target().queued_bytes() == 0);
    }
    for (std::size_t i = 0; i < kCells; ++i) {
      const auto cell = std::span(memory_).subspan(i * kCell, kCell);
      SLUICE_CHECK(std::ranges::count(cell, cell[0]) == kCell);
      SLUICE_CHECK(cell[0] == settled_[i] || (doubtful_[i] && doubt_[i][cell[0]]));
    }
  }

 private:
  Grant fresh_grant() { return *b_->node->regions().grant(region_, InitiatorId(++lives_), {Rights::kAll}); }

  // A frame at the hub: the script says what becomes of it.
  bool pass(MutableBytes frame) {
    if (!harm_) return true;
    const std::uint8_t fate = script_.next();
    if (kept_.size() < 32) kept_.emplace_back(frame.begin(), frame.end());
    if (fate >= 0xE0) return false;
    if (fate >= 0xC0) damage(frame);
    return true;
  }
  void damage(MutableBytes frame) {
    const std::size_t at = script_.next16() % frame.size();
    frame[at] = static_cast<std::uint8_t>(frame[at] ^ script_.next());
  }

  void step() {
    switch (script_.next() % 8) {
      case 0:
      case 1: return issue(OpKind::kWrite);
      case 2: return issue(OpKind::kRead);
      case 3: world_.run_for(Duration::microseconds(1 + script_.next() % 8)); break;
      case 4: world_.run_for(Duration::microseconds(script_.next())); break;
      case 5: return replay();
      case 6: return rekey();
      default: world_.round(); break;
    }
    take_completions();
  }

  void issue(OpKind op) {
    const std::uint8_t choice = script_.next();
    const std::size_t cell = choice % kCells;
    const std::size_t slot = next_buffer_;
    if (busy_[slot] || (op == OpKind::kWrite && writing_[cell])) return;
    const std::uint64_t address = choice >= 0xF0 ? kBase - 1 : kBase + cell * kCell;
    const std::uint8_t value = script_.next();
    buffers_[slot].fill(value);
    const bool issued = a_->node->initiator().issue(
        world_.now,
        {.op = op, .grant = grant_, .address = address, .local = buffers_[slot], .user = slot, .completions = &ring_});
    if (!issued) return;
    ++open_;
    busy_[slot] = true;
    next_buffer_ = (next_buffer_ + 1) % buffers_.size();
    jobs_[slot] = {op, cell, value, address < kBase};
    if (op == OpKind::kWrite && address >= kBase) writing_[cell] = true;
  }

  void take_completions() {
    while (!ring_.empty()) {
      const Completion c = ring_.pop();
      --open_;
      const auto& job = jobs_[c.user];
      SLUICE_CHECK(busy_[c.user]);
      busy_[c.user] = false;
      if (job.out_of_bounds) {
        SLUICE_CHECK(c.status != Status::kOk);
        continue;
      }
      if (job.op == OpKind::kWrite) end_write(job.cell, job.value, c.status);
      if (job.op == OpKind::kRead && c.status == Status::kOk) {
        const auto& bytes = buffers_[c.user];
        SLUICE_CHECK(std::ranges::count(bytes, bytes[0]) == kCell);
      }
    }
  }
  void end_write(std::size_t cell, std::uint8_t value, Status status) {
    writing_[cell] = false;
    if (status == Status::kOk) {
      settled_[cell] = value;
      doubtful_[cell] = false;
      doubt_[cell].fill(false);
    } else if (status == Status::kTimeout || status == Status::kReplay) {
      doubtful_[cell] = true;
      doubt_[cell][value] = true;
    }
  }

  void replay() {
    if (kept_.empty()) return;
    std::vector<std::uint8_t> frame = kept_[script_.next() % kept_.size()];
    for (std::uint8_t changes = script_.next() % 4; changes != 0; --changes) damage(frame);
    if (script_.next() % 4 == 0) frame.resize(script_.next16() % (frame.size() + 1));
    world_.inject(frame);
  }

  void rekey() {
    SLUICE_CHECK(b_->node->regions().rekey(region_, test_key(++keys_)));
    if (script_.next() % 2 == 0) a_->node->initiator().replace_grant(grant_, fresh_grant());
  }

  struct Job {
    OpKind op{};
    std::size_t cell = 0;
    std::uint8_t value = 0;
    bool out_of_bounds = false;
  };

  Script& script_;
  World world_{1, {}, 32};
  World::Host* a_ = nullptr;
  World::Host* b_ = nullptr;
  std::vector<std::uint8_t> memory_ = std::vector<std::uint8_t>(kCells * kCell);
  RegionId region_{};
  GrantId grant_{};
  std::uint64_t lives_ = 0;
  std::uint64_t keys_ = 1;
  CompletionRing ring_{16};
  std::array<std::array<std::uint8_t, kCell>, 16> buffers_{};
  std::array<bool, 16> busy_{};
  std::array<Job, 16> jobs_{};
  std::size_t next_buffer_ = 0;
  int open_ = 0;
  std::array<bool, kCells> writing_{};
  std::array<std::uint8_t, kCells> settled_{};
  std::array<bool, kCells> doubtful_{};
  std::array<std::array<bool, 256>, kCells> doubt_{};
  std::vector<std::vector<std::uint8_t>> kept_;
  bool harm_ = true;
};

}  // namespace

void check_onerma_frame(ByteView input) {
  const std::vector<std::uint8_t> exact(input.begin(), input.end());  // its own allocation: reading behind it is found
  Message message;
  if (parse(exact, message) != Verdict::kOk) return;
  const std::size_t size = FrameWriter::frame_size(message.body_length);
  SLUICE_CHECK(size <= exact.size());
  std::array<std::uint8_t, kHeaderSize> again;
  message.header.write(again.data());
  SLUICE_CHECK(std::equal(again.begin(), again.end(), exact.begin() + kNetworkSize));
  std::vector<std::uint8_t> copy = exact;
  write_checksum(copy.data(), message.body_length);
  SLUICE_CHECK(checksum_is_right(copy.data(), message.body_length));
}

void check_onerma_nodes(ByteView input) {
  Script script(input);
  Nodes(script).run();
}

}  // namespace sluice::fuzz
