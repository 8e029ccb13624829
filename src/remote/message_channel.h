// MessageChannel: two-sided request and response, for what is off the data path (Clover's metadata server).
//
// Life:       client: `const MessageResult r = co_await channel.call(request, response_buffer);`
//             server: a MessageService's handle() is called once a request and returns the length of its answer.
// Units:      bytes; a message is at most kMaxMessage.
// Errors:     a Status, as with RemoteMemory; kUnknown when the connection was lost before the answer came.
// Threads:    one owner.
// Source:     docs/design/clover.md: RPC over SEND and RECV.
#pragma once

#include <cstddef>

#include "remote/remote_memory.h"

namespace sluice::remote {

inline constexpr std::size_t kMaxMessage = 4096;

struct MessageResult {
  Status status = Status::kOk;
  std::size_t length = 0;  // of the response
};

struct Call {
  ByteView request{};
  MutableBytes response{};  // at least as long as the longest answer the caller expects
  MessageResult result{};   // valid once completed
  void (*on_complete)(Call&) = nullptr;
  void* context = nullptr;
};

class MessageChannel {
 public:
  explicit MessageChannel(Scheduler& scheduler) : scheduler_(scheduler) {}
  virtual ~MessageChannel() = default;
  // Takes the call; completes it later through on_complete. The call and its buffers live until then.
  virtual void submit(Call& call) = 0;

  Scheduler& scheduler() const { return scheduler_; }

  class [[nodiscard]] Awaitable {
   public:
    Awaitable(MessageChannel& channel, ByteView request, MutableBytes response) : channel_(channel) {
      call_.request = request;
      call_.response = response;
    }
    bool await_ready() const { return false; }
    void await_suspend(std::coroutine_handle<> handle) {
      waiter_ = handle;
      call_.context = this;
      call_.on_complete = [](Call& call) {
        auto& self = *static_cast<Awaitable*>(call.context);
        self.channel_.scheduler().post(self.waiter_);
      };
      channel_.submit(call_);
    }
    MessageResult await_resume() const { return call_.result; }

   private:
    MessageChannel& channel_;
    Call call_;
    std::coroutine_handle<> waiter_;
  };
  Awaitable call(ByteView request, MutableBytes response) { return {*this, request, response}; }

 private:
  Scheduler& scheduler_;
};

// The serving side.
class MessageService {
 public:
  virtual ~MessageService() = default;
  // Writes the answer to `request` into `response` (kMaxMessage bytes long) and returns its length.
  virtual std::size_t handle(Time now, ByteView request, MutableBytes response) = 0;
};

}  // namespace sluice::remote
