#include "libcowbird/cowbird.h"

#include <fmt/core.h>
#include <poll.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

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
using sluice::MutableBytes;
using sluice::Result;

constexpr std::int64_t kAnswerMs = 3000;       // the engine has so long to answer a message
constexpr std::int64_t kAbsentUs = 1'000'000;  // without a heartbeat: the engine is gone
constexpr std::int64_t kReattachUs = 100'000;  // between attempts to find a new one
constexpr int kSpins = 200;                    // looks before the first yield
constexpr std::int64_t kYieldUs = 2000;        // then sleep
constexpr long kNapNs = 50'000;
constexpr std::size_t kChunk = 64;

thread_local std::string last_error;

std::int64_t now_us() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000ll + t.tv_nsec / 1000;
}

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
};

struct cowbird_instance {
  // Hands the block to an engine; again after the last one is gone.
  Result<void> attach();
  Result<std::string> ask(const std::string& question, int descriptor = -1);
  // An engine may have been started anew: looks for it, at most every kReattachUs. From any thread.
  void reattach(std::int64_t now);

  std::string engine;
  InstanceLayout layout;
  ports::SharedBlock block;
  std::vector<cb::Region> regions;
  std::vector<std::unique_ptr<cowbird_channel>> threads;
  std::mutex mutex;  // of what follows
  ports::Descriptor socket;
  std::int64_t attached_at = 0;
};

cowbird_channel::cowbird_channel(cowbird_instance* instance, MutableBytes bytes, const cb::ChannelLayout& layout,
                                 const std::vector<cb::Region>& regions)
    : owner(instance), channel(bytes, layout, regions) {}

Result<std::string> cowbird_instance::ask(const std::string& question, int descriptor) {
  if (!ports::send_message(socket.get(), question, descriptor)) return fail("the engine has gone away");
  ports::Message answer;
  for (const std::int64_t deadline = now_us() + kAnswerMs * 1000; now_us() < deadline;) {
    pollfd poll_on{socket.get(), POLLIN, 0};
    ::poll(&poll_on, 1, 100);
    switch (ports::receive_message(socket.get(), answer)) {
      case ports::Arrival::kNothing: continue;
      case ports::Arrival::kGone: return fail("the engine has gone away");
      case ports::Arrival::kMessage: break;
    }
    if (auto why = cb::attach_error(answer.text)) return fail(*why);
    return answer.text;
  }
  return fail("the engine does not answer");
}

Result<void> cowbird_instance::attach() {
  auto connected = ports::connect_unix(engine, ports::UnixKind::kMessages);
  if (!connected) {
    const bool nobody = errno == ENOENT || errno == ECONNREFUSED;
    return fail(nobody ? fmt::format("no Cowbird engine at {}: start one with `sluice cowbird engine`", engine)
                       : fmt::format("no way to the Cowbird engine: {}", connected.error().message));
  }
  socket = std::move(*connected);
  auto answer = ask(cb::instance_message(block.bytes().size()), block.descriptor());
  if (!answer) return tl::unexpected(answer.error());
  return {};
}

void cowbird_instance::reattach(std::int64_t now) {
  const std::scoped_lock lock(mutex);
  if (now - attached_at < kReattachUs) return;
  attached_at = now;
  ports::Message ignored;
  if (ports::receive_message(socket.get(), ignored) != ports::Arrival::kGone) return;  // it lives, and is slow
  if (auto done = attach(); !done) last_error = done.error().message;
}

extern "C" {

cowbird_t* cowbird_open(const cowbird_options_t* options) {
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

void cowbird_close(cowbird_t* instance) { delete instance; }

int cowbird_region_add(cowbird_t* instance, const char* memory_node, uint64_t offset, uint64_t length, int flags) {
  if (instance->regions.size() >= cb::kMaxRegions) {
    return refuse(COWBIRD_SYSTEM, fmt::format("an instance has at most {} regions", cb::kMaxRegions));
  }
  const std::scoped_lock lock(instance->mutex);
  const bool writable = (flags & COWBIRD_READ_ONLY_REGION) == 0;
  auto answer = instance->ask(cb::region_message(memory_node, offset, length));
  if (!answer) return refuse(COWBIRD_SYSTEM, answer.error().message);
  auto region = cb::parse_region(*answer);
  if (!region) return refuse(COWBIRD_SYSTEM, region.error().message);
  region->writable = writable;
  const auto id = instance->regions.size();
  region->write(instance->block.bytes().data() + InstanceLayout::kRegions + id * cb::kRegionBytes);
  instance->regions.push_back(*region);
  for (const auto& thread : instance->threads) thread->channel.set_regions_generation(instance->regions.size());
  return static_cast<int>(id);
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
  thread->groups.push_back(std::make_unique<PollGroup>(thread->channel));
  return static_cast<int>(thread->groups.size() - 1);
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

// Nothing there: is an engine at work at all?
bool engine_is_absent(cowbird_thread_t* thread, std::int64_t now) {
  if (const auto beat = thread->channel.heartbeat(); beat != thread->heartbeat || thread->heartbeat_at == 0) {
    thread->heartbeat = beat;
    thread->heartbeat_at = now;
  }
  if (now - thread->heartbeat_at < kReattachUs) return false;
  thread->owner->reattach(now);
  return now - thread->heartbeat_at > kAbsentUs;
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
  return group == nullptr ? COWBIRD_NO_SUCH_GROUP : number(group->add(cb::RequestId(request)));
}

int cowbird_poll_remove(cowbird_thread_t* thread, int poll_id, int64_t request) {
  PollGroup* group = group_of(thread, poll_id);
  return group == nullptr ? COWBIRD_NO_SUCH_GROUP : number(group->remove(cb::RequestId(request)));
}

int cowbird_poll_wait(cowbird_thread_t* thread, int poll_id, cowbird_completion_t* responses, int max_ret,
                      int64_t timeout_us) {
  PollGroup* group = group_of(thread, poll_id);
  if (group == nullptr) return COWBIRD_NO_SUCH_GROUP;
  int count = take(*group, responses, max_ret);
  if (count == max_ret || timeout_us == 0 || group->size() == 0) return count;
  std::int64_t begun = 0;
  for (int looks = 1;; ++looks) {
    count += take(*group, responses + count, max_ret - count);
    if (count == max_ret || group->size() == 0) return count;
    if (looks % kSpins != 0) continue;
    const std::int64_t now = now_us();
    if (begun == 0) begun = now;
    const bool absent = engine_is_absent(thread, now);
    if (absent && count == 0) {
      return refuse(COWBIRD_ENGINE_ABSENT, fmt::format("no Cowbird engine at {}", thread->owner->engine));
    }
    if (timeout_us >= 0 && now - begun >= timeout_us) return count;
    if (now - begun < kYieldUs) {
      sched_yield();
    } else {
      const timespec nap{0, kNapNs};
      nanosleep(&nap, nullptr);
      looks = kSpins - 1;  // the clock after every look
    }
  }
}

int cowbird_collect(cowbird_thread_t* thread, cowbird_completion_t* responses, int max_ret) {
  return take(thread->channel, responses, max_ret);
}

int cowbird_is_complete(cowbird_thread_t* thread, int64_t request) {
  const cb::RequestId id(request);
  if (!thread->channel.is_issued(id)) return COWBIRD_NO_SUCH_REQUEST;
  thread->channel.advance();
  return thread->channel.is_complete(id) ? 1 : 0;
}

const char* cowbird_strerror(int error) {
  if (error == COWBIRD_SYSTEM) return "set-up failed; cowbird_last_error() says why";
  const auto text = cb::describe(static_cast<Status>(error < 0 ? -error : error));
  return text.data();  // a literal
}

const char* cowbird_last_error(void) { return last_error.c_str(); }

}  // extern "C"
