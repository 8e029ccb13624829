#include "libcowbird/cowbird.h"

#include <fmt/core.h>
#include <poll.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/guarded.h"
#include "cowbird/attach.h"
#include "cowbird/channel.h"
#include "cowbird/poll_group.h"
#include "ports/run_path.h"
#include "ports/shared_block.h"
#include "ports/unix_socket.h"

namespace {

namespace cb = sluice::cowbird;
namespace ports = sluice::ports;
using cb::Channel;
using cb::InstanceLayout;
using cb::PollGroup;
using cb::Status;
using sluice::fail;
using sluice::guarded;
using sluice::MutableBytes;
using sluice::Result;

constexpr std::int64_t kAnswerUs = 3'000'000;  // the engine has so long to answer a message
constexpr std::int64_t kAbsentUs = 1'000'000;  // without a heartbeat: the engine is gone
constexpr std::int64_t kReattachUs = 100'000;  // between attempts to find a new one
constexpr int kSpins = 200;                    // looks before the first yield
constexpr std::int64_t kLookUs = 50'000;       // between looks for an engine of calls that do not wait
constexpr std::int64_t kYieldUs = 2000;        // then sleep
constexpr long kNapNs = 50'000;
constexpr std::size_t kChunk = 64;

thread_local std::string last_error;

std::int64_t time_us(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return t.tv_sec * 1'000'000ll + t.tv_nsec / 1000;
}

std::int64_t now_us() { return time_us(CLOCK_MONOTONIC); }

int refuse(int error, std::string why) {
  last_error = std::move(why);
  return error;
}

std::string default_engine() {
  const char* dir = std::getenv("SLUICE_DIR");
  return (dir != nullptr && *dir != 0 ? std::string(dir) : ports::default_run_directory()) + "/cowbird.sock";
}

}  // namespace

struct cowbird_channel {
  cowbird_channel(cowbird_instance* owner, MutableBytes block, const cb::ChannelLayout& layout,
                  const std::vector<cb::Region>& regions);

  cowbird_instance* owner;
  Channel channel;
  std::vector<std::unique_ptr<PollGroup>> groups;  // by id; null: destroyed
  std::uint64_t heartbeat = 0;
  std::int64_t heartbeat_at = 0;
  std::vector<cb::Completion> untold;  // of what cowbird_is_complete() took, the last `entries`, by number
  std::uint64_t told = 0;              // of them, by cowbird_collect()
  std::uint64_t taken = 0;             // by cowbird_is_complete()
  std::int64_t looked_at = 0;          // for an engine
  bool absent = false;                 // as of that look: none is at work
};

struct cowbird_instance {
  // Waits until an engine has the block.
  Result<void> attach();
  // Waits for the answer. After an error nothing that comes late is taken for the answer to another question: it is another connection.
  Result<std::string> ask(const std::string& question);
  // An engine may have been started anew: looks for it, at most every kReattachUs, and never waits. From any thread.
  void look_for_engine(std::int64_t now);

  // In the block too. REQUIRES: no request of region `id` is under way, and it is at most the next one.
  void set_region(std::size_t id, const cb::Region& region);

  std::string engine;
  InstanceLayout layout;
  ports::SharedBlock block;
  std::vector<cb::Region> regions;  // by id; without a length: given back
  std::uint64_t region_changes = 0;
  std::vector<std::unique_ptr<cowbird_channel>> threads;
  std::atomic<std::int64_t> found_at{0};  // when an engine was last handed the block
  std::mutex mutex;                       // of what follows
  ports::Descriptor socket;
  bool handing_over = false;  // the block, and the engine has not answered
  std::int64_t handed_at = 0;
  std::int64_t looked_at = 0;
  std::string refusal;  // of the engine that was found last: why it does not serve us; empty: it has not said

 private:
  Result<void> hand_over(std::int64_t now);
  Result<std::string> receive();
  ports::Arrival arrival(ports::Message& message);
  enum class Connection : std::uint8_t { kNone, kHandingOver, kGood };
  Connection look(std::int64_t now);
  // The engine's answer to the block. False: it refuses.
  bool accept(std::int64_t now, std::string_view answer);
  // Closes the connection: what is still on its way over it is nobody's.
  void hang_up();
};

cowbird_channel::cowbird_channel(cowbird_instance* instance, MutableBytes bytes, const cb::ChannelLayout& layout,
                                 const std::vector<cb::Region>& regions)
    : owner(instance), channel(bytes, layout, regions) {}

void cowbird_instance::hang_up() {
  socket.close();
  handing_over = false;
}

// Who hangs up with words of ours unread resets the connection: what he has said comes after that.
ports::Arrival cowbird_instance::arrival(ports::Message& message) {
  const auto first = ports::receive_message(socket.get(), message);
  return first == ports::Arrival::kGone ? ports::receive_message(socket.get(), message) : first;
}

Result<std::string> cowbird_instance::receive() {
  ports::Message answer;
  for (const std::int64_t deadline = now_us() + kAnswerUs; now_us() < deadline;) {
    pollfd poll_on{socket.get(), POLLIN, 0};
    ::poll(&poll_on, 1, 100);
    switch (arrival(answer)) {
      case ports::Arrival::kNothing: continue;
      case ports::Arrival::kGone: hang_up(); return fail("the engine has gone away");
      case ports::Arrival::kMessage: return answer.text;
    }
  }
  hang_up();
  return fail("the engine does not answer");
}

Result<std::string> cowbird_instance::ask(const std::string& question) {
  if (!ports::send_message(socket.get(), question)) {
    hang_up();
    return fail("the engine has gone away");
  }
  auto answer = receive();
  if (!answer) return answer;
  if (auto why = cb::attach_error(*answer)) return fail(*why);
  return answer;
}

Result<void> cowbird_instance::hand_over(std::int64_t now) {
  auto connected = ports::connect_unix(engine, ports::UnixKind::kMessages);
  if (!connected) {
    const bool nobody = errno == ENOENT || errno == ECONNREFUSED;
    refusal.clear();
    return fail(nobody ? fmt::format("no Cowbird engine at {}: start one with `sluice cowbird engine`", engine)
                       : fmt::format("no way to the Cowbird engine: {}", connected.error().message));
  }
  socket = std::move(*connected);
  handing_over = true;
  handed_at = now;
  if (!ports::send_message(socket.get(), cb::instance_message(block.bytes().size()), block.descriptor())) {
    look(now);  // it may have said why
    hang_up();
    return fail(refusal.empty() ? "the engine has gone away" : refusal);
  }
  if (refusal.empty()) found_at = now;  // one that refuses is no engine for us
  return {};
}

// What has become of the connection. Does not wait.
cowbird_instance::Connection cowbird_instance::look(std::int64_t now) {
  if (!socket) return Connection::kNone;
  ports::Message message;
  const auto come = arrival(message);
  if (come == ports::Arrival::kNothing && !handing_over) return Connection::kGood;
  if (come == ports::Arrival::kNothing && now - handed_at < kAnswerUs) return Connection::kHandingOver;
  if (come == ports::Arrival::kMessage && accept(now, message.text)) return Connection::kGood;
  hang_up();
  return Connection::kNone;
}

bool cowbird_instance::accept(std::int64_t now, std::string_view answer) {
  const auto why = cb::attach_error(answer);
  refusal = why.value_or("");
  if (why) return false;
  handing_over = false;
  found_at = now;
  return true;
}

Result<void> cowbird_instance::attach() {
  const std::int64_t now = now_us();
  if (look(now) == Connection::kGood) return {};
  if (!handing_over) {
    if (auto begun = hand_over(now); !begun) return begun;
  }
  auto answer = receive();
  if (!answer) return tl::unexpected(answer.error());
  if (accept(now_us(), *answer)) return {};
  hang_up();
  return fail(refusal);
}

void cowbird_instance::set_region(std::size_t id, const cb::Region& region) {
  region.write(block.bytes().data() + InstanceLayout::kRegions + id * cb::kRegionBytes);
  if (id == regions.size()) regions.emplace_back();
  regions[id] = region;
  ++region_changes;
  for (const auto& thread : threads) thread->channel.set_regions_generation(region_changes);
}

void cowbird_instance::look_for_engine(std::int64_t now) {
  const std::unique_lock lock(mutex, std::try_to_lock);
  if (!lock) return;  // another thread does
  if (look(now) != Connection::kNone || now - looked_at < kReattachUs) return;
  looked_at = now;
  static_cast<void>(hand_over(now));
}

namespace {

cowbird_t* open_instance(const cowbird_options_t* options) {
  const cowbird_options_t o = options == nullptr ? cowbird_options_t{} : *options;
  auto made = std::make_unique<cowbird_instance>();
  made->engine = o.engine == nullptr ? default_engine() : o.engine;
  const cb::Shape usual;
  made->layout = {.shape = {.entries = o.entries == 0 ? usual.entries : o.entries,
                            .request_bytes = o.request_bytes == 0 ? usual.request_bytes : o.request_bytes,
                            .response_bytes = o.response_bytes == 0 ? usual.response_bytes : o.response_bytes},
                  .channels = o.threads == 0 ? 1 : o.threads};
  if (auto good = made->layout.check(); !good) {
    refuse(0, good.error().message);
    return nullptr;
  }
  auto block = ports::SharedBlock::create(made->layout.bytes());
  if (!block) {
    refuse(0, block.error().message);
    return nullptr;
  }
  made->block = std::move(*block);
  made->layout.write(made->block.bytes().data());
  made->regions.reserve(cb::kMaxRegions);
  for (std::uint32_t i = 0; i < made->layout.channels; ++i) {
    made->threads.push_back(std::make_unique<cowbird_channel>(
        made.get(), made->block.bytes().subspan(made->layout.channel_at(i)), made->layout.channel(), made->regions));
  }
  if (auto attached = made->attach(); !attached) {
    refuse(0, attached.error().message);
    return nullptr;
  }
  return made.release();
}

int add_region(cowbird_t* instance, const char* memory_node, uint64_t offset, uint64_t length, int flags) {
  if (memory_node == nullptr) return refuse(COWBIRD_SYSTEM, "a memory node without a name (NULL)");
  // It is a word of the message to the engine.
  if (const std::string_view name = memory_node; name.empty() || name.size() > 255 || name.find(' ') != name.npos)
    return refuse(COWBIRD_SYSTEM,
                  fmt::format("\"{:.255}\" is no name of a memory node or region: one word of 1 to 255 bytes", name));
  if ((flags & ~COWBIRD_READ_ONLY_REGION) != 0)
    return refuse(COWBIRD_SYSTEM, fmt::format("flags of a region: 0 or COWBIRD_READ_ONLY_REGION, not {}", flags));
  const auto free = std::ranges::find(instance->regions, 0u, &cb::Region::length);
  const auto id = static_cast<std::size_t>(free - instance->regions.begin());
  if (id >= cb::kMaxRegions) {
    return refuse(COWBIRD_SYSTEM, fmt::format("an instance has at most {} regions; remove one (cowbird_region_remove)",
                                              cb::kMaxRegions));
  }
  const std::scoped_lock lock(instance->mutex);
  if (auto attached = instance->attach(); !attached) return refuse(COWBIRD_SYSTEM, attached.error().message);
  const bool writable = (flags & COWBIRD_READ_ONLY_REGION) == 0;
  auto answer = instance->ask(cb::region_message(memory_node, offset, length));
  if (!answer) return refuse(COWBIRD_SYSTEM, answer.error().message);
  auto region = cb::parse_region(*answer);
  if (!region) return refuse(COWBIRD_SYSTEM, region.error().message);
  region->writable = writable;
  instance->set_region(id, *region);
  return static_cast<int>(id);
}

}  // namespace

extern "C" {

cowbird_t* cowbird_open(const cowbird_options_t* options) {
  return guarded(
      last_error, [&] { return open_instance(options); }, nullptr);
}

void cowbird_close(cowbird_t* instance) { delete instance; }

int cowbird_region_add(cowbird_t* instance, const char* memory_node, uint64_t offset, uint64_t length, int flags) {
  return guarded(
      last_error, [&] { return add_region(instance, memory_node, offset, length, flags); }, COWBIRD_SYSTEM);
}

int cowbird_region_remove(cowbird_t* instance, uint16_t region) {
  if (region >= instance->regions.size() || instance->regions[region].length == 0) return COWBIRD_NO_REGION;
  const auto uses = [&](const auto& thread) { return thread->channel.is_in_use(region); };
  if (std::ranges::any_of(instance->threads, uses)) return COWBIRD_REGION_IN_USE;
  instance->set_region(region, {});
  return 0;
}

cowbird_thread_t* cowbird_thread(cowbird_t* instance, uint32_t index) {
  return index < instance->threads.size() ? instance->threads[index].get() : nullptr;
}

int64_t cowbird_async_read(cowbird_thread_t* thread, uint16_t region, uint64_t src, void* dest, uint32_t length) {
  return thread->channel.async_read(region, src, dest, length);
}

int64_t cowbird_async_write(cowbird_thread_t* thread, uint16_t region, const void* src, uint64_t dest,
                            uint32_t length) {
  return thread->channel.async_write(region, src, dest, length);
}

int cowbird_poll_create(cowbird_thread_t* thread) {
  return guarded(
      last_error,
      [&] {
        auto made = std::make_unique<PollGroup>(thread->channel);
        auto place = std::find(thread->groups.begin(), thread->groups.end(), nullptr);
        if (place == thread->groups.end()) place = thread->groups.insert(place, nullptr);
        *place = std::move(made);
        return static_cast<int>(place - thread->groups.begin());
      },
      COWBIRD_SYSTEM);
}

}  // extern "C"

namespace {

PollGroup* group_of(cowbird_thread_t* thread, int poll_id) {
  const auto index = static_cast<std::size_t>(poll_id);
  return poll_id >= 0 && index < thread->groups.size() ? thread->groups[index].get() : nullptr;
}

int number(Status status) { return -static_cast<int>(status); }

int give(std::span<const cb::Completion> from, cowbird_completion_t* to) {
  for (const auto& completion : from) *to++ = {completion.id.value(), number(completion.status), 0};
  return static_cast<int>(from.size());
}

// Takes up to max_ret completions from what can collect() them.
template <class Source>
int take(Source& source, cowbird_completion_t* responses, int max_ret) {
  cb::Completion found[kChunk];
  int count = 0;
  while (count < max_ret) {
    const auto want = std::min<std::size_t>(kChunk, static_cast<std::size_t>(max_ret - count));
    const auto n = source.collect(std::span(found, want));
    count += give(std::span(found, n), responses + count);
    if (n < want) break;
  }
  return count;
}

// What is complete, for cowbird_collect() to tell of.
void take_untold(cowbird_thread_t* thread) {
  cb::Completion found[kChunk];
  std::size_t n = 0;
  do {
    n = thread->channel.collect(found);
    if (n != 0 && thread->untold.empty()) thread->untold.resize(thread->owner->layout.shape.entries);
    for (std::size_t i = 0; i < n; ++i) thread->untold[thread->taken++ % thread->untold.size()] = found[i];
  } while (n == kChunk);
}

int tell_untold(cowbird_thread_t* thread, cowbird_completion_t* responses, int max_ret) {
  const std::uint64_t kept = thread->untold.size();
  thread->told = std::max(thread->told, thread->taken - std::min(thread->taken, kept));
  int count = 0;
  for (; count < max_ret && thread->told != thread->taken; ++thread->told) {
    count += give(std::span(&thread->untold[thread->told % kept], 1), responses + count);
  }
  return count;
}

// Nothing there: is an engine at work at all? Looks for a new one.
void look_for_engine(cowbird_thread_t* thread, std::int64_t now) {
  thread->looked_at = now;
  if (const auto beat = thread->channel.heartbeat(); beat != thread->heartbeat || thread->heartbeat_at == 0) {
    thread->heartbeat = beat;
    thread->heartbeat_at = now;
  }
  thread->absent = false;
  if (now - thread->heartbeat_at < kReattachUs) return;
  thread->owner->look_for_engine(now);
  thread->absent = now - std::max(thread->heartbeat_at, thread->owner->found_at.load()) > kAbsentUs;
}

// A call has found nothing: it looks for an engine, unless one was at work just now.
void found_nothing(cowbird_thread_t* thread) {
  const std::int64_t now = time_us(CLOCK_MONOTONIC_COARSE);
  if (thread->absent || now - thread->looked_at >= kLookUs) look_for_engine(thread, now);
}

int engine_absent(const cowbird_thread_t* thread) {
  cowbird_instance& owner = *thread->owner;
  const std::scoped_lock lock(owner.mutex);
  if (!owner.refusal.empty())
    return refuse(COWBIRD_ENGINE_ABSENT,
                  fmt::format("the Cowbird engine at {} refuses: {}", owner.engine, owner.refusal));
  if (!owner.socket) return refuse(COWBIRD_ENGINE_ABSENT, fmt::format("no Cowbird engine at {}", owner.engine));
  return refuse(COWBIRD_ENGINE_ABSENT,
                fmt::format("the Cowbird engine at {} is there, but nobody has looked at this thread's rings for a "
                            "second: is what it hands them to (the switch, a memory node) at work? Its log says so "
                            "where rings made no sense",
                            owner.engine));
}

int poll_wait(cowbird_thread_t* thread, int poll_id, cowbird_completion_t* responses, int max_ret, int64_t timeout_us) {
  PollGroup* group = group_of(thread, poll_id);
  if (group == nullptr) return COWBIRD_NO_SUCH_GROUP;
  if (max_ret <= 0) return 0;
  int count = take(*group, responses, max_ret);
  if (count == max_ret) return count;
  if (timeout_us == 0) {
    if (count == 0) found_nothing(thread);
    return count == 0 && thread->absent ? engine_absent(thread) : count;
  }
  std::int64_t begun = 0;
  for (int looks = group->size() == 0 ? kSpins : 1;; ++looks) {
    count += take(*group, responses + count, max_ret - count);
    if (count == max_ret || (group->size() == 0 && count != 0)) return count;
    if (looks % kSpins != 0) continue;
    const std::int64_t now = now_us();
    if (begun == 0) begun = now;
    look_for_engine(thread, now);
    if (thread->absent) return count != 0 ? count : engine_absent(thread);
    if (group->size() == 0 || (timeout_us >= 0 && now - begun >= timeout_us)) return count;
    if (now - begun < kYieldUs) {
      sched_yield();
    } else {
      const timespec nap{0, kNapNs};
      nanosleep(&nap, nullptr);
      looks = kSpins - 1;  // the clock after every look
    }
  }
}

int collect(cowbird_thread_t* thread, cowbird_completion_t* responses, int max_ret) {
  int count = thread->told == thread->taken ? 0 : tell_untold(thread, responses, max_ret);
  count += take(thread->channel, responses + count, max_ret - count);
  if (count == 0) found_nothing(thread);
  return count == 0 && thread->absent ? engine_absent(thread) : count;
}

int is_complete(cowbird_thread_t* thread, int64_t request) {
  const cb::RequestId id(request);
  if (!thread->channel.is_issued(id)) return COWBIRD_NO_SUCH_REQUEST;
  take_untold(thread);
  if (!thread->channel.is_complete(id)) {
    found_nothing(thread);
    return 0;
  }
  const Status status = thread->channel.status_of(id);
  return status == Status::kOk ? 1 : number(status);
}

}  // namespace

extern "C" {

int cowbird_poll_destroy(cowbird_thread_t* thread, int poll_id) {
  if (group_of(thread, poll_id) == nullptr) return COWBIRD_NO_SUCH_GROUP;
  thread->groups[static_cast<std::size_t>(poll_id)].reset();
  return 0;
}

int cowbird_poll_add(cowbird_thread_t* thread, int poll_id, int64_t request) {
  PollGroup* group = group_of(thread, poll_id);
  if (group == nullptr) return COWBIRD_NO_SUCH_GROUP;
  return guarded(
      last_error, [&] { return number(group->add(cb::RequestId(request))); }, COWBIRD_SYSTEM);
}

int cowbird_poll_remove(cowbird_thread_t* thread, int poll_id, int64_t request) {
  PollGroup* group = group_of(thread, poll_id);
  return group == nullptr ? COWBIRD_NO_SUCH_GROUP : number(group->remove(cb::RequestId(request)));
}

int cowbird_poll_wait(cowbird_thread_t* thread, int poll_id, cowbird_completion_t* responses, int max_ret,
                      int64_t timeout_us) {
  return guarded(
      last_error, [&] { return poll_wait(thread, poll_id, responses, max_ret, timeout_us); }, COWBIRD_SYSTEM);
}

int cowbird_collect(cowbird_thread_t* thread, cowbird_completion_t* responses, int max_ret) {
  return guarded(
      last_error, [&] { return collect(thread, responses, max_ret); }, COWBIRD_SYSTEM);
}

int cowbird_is_complete(cowbird_thread_t* thread, int64_t request) {
  return guarded(
      last_error, [&] { return is_complete(thread, request); }, COWBIRD_SYSTEM);
}

int cowbird_engine_absent(cowbird_thread_t* thread) {
  return guarded(
      last_error,
      [&] {
        look_for_engine(thread, now_us());
        return thread->absent ? engine_absent(thread) : 0;
      },
      COWBIRD_SYSTEM);
}

const char* cowbird_strerror(int error) {
  if (error == COWBIRD_SYSTEM) return "set-up failed; cowbird_last_error() says why";
  if (error > 0) error = 0;  // a request, or how many are complete
  constexpr int kLeast = -std::numeric_limits<std::underlying_type_t<Status>>::max();
  const auto text = cb::describe(static_cast<Status>(-std::max(error, kLeast)));
  return text.data();  // a literal
}

const char* cowbird_last_error(void) { return last_error.c_str(); }

}  // extern "C"
