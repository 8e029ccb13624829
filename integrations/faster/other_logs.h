// What the Cowbird device is measured beside: FASTER's log in local memory, and in remote memory that the store's threads reach with one-sided
// operations of their own.
//
// Use:     DiskWithLog<LocalDisk, LocalLog> and so on, as CowbirdDisk. Both are made for measuring: memory that is not given back, no errors but
//          exceptions.
// Threads: any; each thread has a queue, or a client of the rack, of its own, and completes what it has issued itself.
// Source:  Cowbird §8, its baselines.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "integrations/faster/cowbird_device.h"
#include "libsluice/sluice.h"

namespace sluice::faster {

// One for each thread that asks. Threads beyond kMost throw.
template <class T>
class PerThread {
 public:
  static constexpr std::size_t kMost = 64;
  T& mine() {
    const std::size_t number = number_of_this_thread();
    if (number >= kMost) throw std::runtime_error("more threads than a log has room for");
    if (!of_[number]) of_[number] = std::make_unique<T>();
    return *of_[number];
  }

 private:
  static std::size_t number_of_this_thread() {
    static std::atomic<std::size_t> threads{0};
    thread_local const std::size_t mine = threads++;
    return mine;
  }
  std::unique_ptr<T> of_[kMost];
};

// Purely local: the log's cold part lies in this process's memory ("an IDevice that utilizes only compute-local memory", §8). A read is a memcpy when
// it is completed.
class LocalLog : public LogInMemory {
 public:
  LocalLog() = default;
  explicit LocalLog(const std::string& config) : memory_(new std::uint8_t[CowbirdLogOptions::parse(config).capacity]) {}

  template <class GcState>
  void Truncate(std::uint64_t offset, const GcState& gc_state) {
    gc_state.IssueTruncateCallback(offset);
  }

  Status ReadAsync(std::uint64_t offset, void* to, std::uint32_t length, Callback callback, Context& context) const {
    return start({to, memory_.get() + offset, length, callback, nullptr}, context);
  }
  Status WriteAsync(const void* from, std::uint64_t offset, std::uint32_t length, Callback callback, Context& context) {
    return start({memory_.get() + offset, from, length, callback, nullptr}, context);
  }
  bool TryComplete() {
    std::vector<Operation>& mine = issued_.mine();
    if (mine.empty()) return false;
    std::vector<Operation> done;
    done.swap(mine);  // a callback may read again
    for (const Operation& o : done) {
      std::memcpy(o.to, o.from, o.length);
      o.callback(o.context, Status::Ok, o.length);
    }
    if (mine.empty()) {  // keeps its room
      done.clear();
      mine.swap(done);
    }
    return true;
  }

 private:
  struct Operation {
    void* to;
    const void* from;
    std::uint32_t length;
    Callback callback;
    Context* context;
  };
  Status start(Operation operation, Context& context) const {
    if (const Status copied = context.DeepCopy(operation.context); copied != Status::Ok) return copied;
    issued_.mine().push_back(operation);
    return Status::Ok;
  }

  std::unique_ptr<std::uint8_t[]> memory_;
  mutable PerThread<std::vector<Operation>> issued_;
};

// One-sided: each thread reads and writes the memory node itself. kWait: one after the other, the thread waits for each (§8's synchronous baseline);
// otherwise many are under way, and TryComplete takes what has come.
template <bool kWait>
class OneSidedLog : public LogInMemory {
 public:
  OneSidedLog() = default;
  explicit OneSidedLog(const std::string& config) : options_(CowbirdLogOptions::parse(config)) {}

  template <class GcState>
  void Truncate(std::uint64_t offset, const GcState& gc_state) {
    gc_state.IssueTruncateCallback(offset);
  }

  Status ReadAsync(std::uint64_t offset, void* to, std::uint32_t length, Callback callback, Context& context) const {
    return start(context, callback, length, [&](Client& c, Operation* o) {
      return kWait ? sluice_read(c.client.get(), c.node, options_.offset + offset, to, length)
                   : sluice_post_read(c.client.get(), c.node, options_.offset + offset, to, length, o);
    });
  }
  Status WriteAsync(const void* from, std::uint64_t offset, std::uint32_t length, Callback callback, Context& context) {
    return start(context, callback, length, [&](Client& c, Operation* o) {
      return kWait ? sluice_write(c.client.get(), c.node, options_.offset + offset, from, length)
                   : sluice_post_write(c.client.get(), c.node, options_.offset + offset, from, length, o);
    });
  }
  bool TryComplete() {
    Client& mine = client();
    sluice_completion_t come[64];
    const int n = kWait ? 0 : sluice_poll(mine.client.get(), come, 64, 0);
    for (int i = 0; i < n; ++i) end(mine, static_cast<Operation*>(come[i].context), come[i].status);
    std::vector<Ended> ended;
    ended.swap(mine.ended);
    for (const Ended& e : ended) e.callback(e.context, e.status, e.length);
    return !ended.empty();
  }

 private:
  struct Operation {
    Callback callback;
    Context* context;
    std::uint32_t length;
  };
  struct Ended {
    Callback callback;
    Context* context;
    Status status;
    std::uint32_t length;
  };
  struct Closer {
    void operator()(sluice_t* client) const { sluice_close(client); }
  };
  struct Client {
    std::unique_ptr<sluice_t, Closer> client;
    int node = 0;
    std::vector<std::unique_ptr<Operation>> idle;
    std::vector<Ended> ended;
  };

  Client& client() const {
    Client& c = clients_.mine();
    if (c.client) return c;
    c.client.reset(sluice_open(nullptr));
    if (c.client) c.node = sluice_node(c.client.get(), options_.memory_node.c_str());
    if (!c.client || c.node < 0) throw std::runtime_error(sluice_last_error());
    return c;
  }

  template <class Post>
  Status start(Context& context, Callback callback, std::uint32_t length, Post post) const {
    Client& mine = client();
    if (mine.idle.empty()) mine.idle.push_back(std::make_unique<Operation>());
    Operation* const o = mine.idle.back().release();
    mine.idle.pop_back();
    *o = {callback, nullptr, length};
    if (const Status copied = context.DeepCopy(o->context); copied != Status::Ok) {
      mine.idle.emplace_back(o);
      return copied;
    }
    const int status = post(mine, o);
    if (kWait || status != 0) end(mine, o, status);
    return Status::Ok;
  }
  static void end(Client& mine, Operation* o, int status) {
    mine.ended.push_back({o->callback, o->context, status == 0 ? Status::Ok : Status::IOError, o->length});
    mine.idle.emplace_back(o);
  }

  CowbirdLogOptions options_;
  mutable PerThread<Client> clients_;
};

}  // namespace sluice::faster
