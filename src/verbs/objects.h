// What stands behind the handles that programs hold: each begins with the struct of the ABI, whose layout their inlined code knows.
//
// Invariant:  a handle given out is the address of the ABI struct inside one of these; of() is the way back.
// Threads:    fields below "guarded" by the NIC's lock; the rest does not change after creation.
// Errors:     refuse() sets errno, and says why on stderr with SLUICE_VERBOSE.
// Source:     infiniband/verbs.h; which calls are struct members stands there.
#pragma once

#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "rc/adapter.h"
#include "verbs/abi.h"
#include "verbs/process_nic.h"

namespace sluice::verbs {

// Sets errno; returns it, too.
int refuse(int error, std::string_view why);
// This is a child of the process that opened the device, where its NIC has stayed.
bool is_forked();
// What calls for an event return there: to read its token would take it from the parent, whose thread then never wakes for it.
int refuse_child();
// Descriptors of events (eventfd, EFD_SEMAPHORE) hold a token for each event that nobody has fetched. REQUIRE: the lock, and that the
// event is put into its queue, or these have been taken out. In the child of a fork nothing happens: they are the parent's.
void add_token(int descriptor);
void take_tokens(int descriptor, std::size_t count);

struct Device {
  ibv_device abi{};
  // Provider libraries that a program links compare a field just behind ibv_device with their own: it must be there, and zero.
  std::uint8_t padding[256]{};

  static Device& of(ibv_device* device) { return *reinterpret_cast<Device*>(device); }
};

struct Context {
  verbs_context abi{};
  ProcessNic* nic = nullptr;
  // Guarded: async events that nobody has fetched; async_fd counts them.
  std::deque<ibv_async_event> events{};
  std::uint32_t queue_pairs = 0;  // guarded

  static Context& of(ibv_context* context) {
    return *reinterpret_cast<Context*>(reinterpret_cast<char*>(context) - offsetof(verbs_context, context));
  }
  ibv_context* handle() { return &abi.context; }
  void tell(const ibv_async_event& event);  // REQUIRES: the lock
  // Events that nobody has fetched. REQUIRES: the lock.
  template <class Condition>
  void forget(Condition condition) {
    take_tokens(abi.context.async_fd, std::erase_if(events, condition));
  }
};
static_assert(offsetof(Context, abi) == 0);

struct Domain {
  ibv_pd abi{};
  memory::PdId id{};
  std::uint32_t users = 0;  // guarded

  static Domain& of(ibv_pd* pd) { return *reinterpret_cast<Domain*>(pd); }
  ProcessNic& nic() { return *Context::of(abi.context).nic; }
};

// Memory of the NIC's own.
struct DeviceMemory {
  ibv_dm abi{};
  std::vector<std::uint8_t> bytes{};  // guarded
  std::uint32_t users = 0;            // guarded: regions

  static DeviceMemory& of(ibv_dm* dm) { return *reinterpret_cast<DeviceMemory*>(dm); }
};

struct Region {
  ibv_mr abi{};
  memory::Key key{};
  memory::RegionAttributes attributes{};
  unsigned access = 0;                    // as the program asked for it
  DeviceMemory* device_memory = nullptr;  // whose it is a part of, if any

  static Region& of(ibv_mr* mr) { return *reinterpret_cast<Region*>(mr); }
};

struct CompletionQueue;

struct Channel {
  ibv_comp_channel abi{};
  std::deque<CompletionQueue*> events{};  // guarded; abi.fd counts them

  static Channel& of(ibv_comp_channel* channel) { return *reinterpret_cast<Channel*>(channel); }
};

struct CompletionQueue {
  ibv_cq_ex abi{};
  rc::CompletionQueue* queue = nullptr;
  ibv_wc current{};    // of the extended interface
  SpinLock polling{};  // … held from a start_poll that found something to its end_poll
  // Guarded:
  std::uint32_t users = 0;
  std::uint32_t events_given = 0;  // fetched by the program, to be acknowledged before it is destroyed
  std::uint32_t events_acknowledged = 0;
  std::uint32_t async_given = 0;
  std::uint32_t async_acknowledged = 0;
  std::uint32_t empty_polls = 0;

  static CompletionQueue& of(ibv_cq* cq) { return *reinterpret_cast<CompletionQueue*>(cq); }
  static CompletionQueue& of(ibv_cq_ex* cq) { return *reinterpret_cast<CompletionQueue*>(cq); }
  ibv_cq* handle() { return reinterpret_cast<ibv_cq*>(&abi); }
  ProcessNic& nic() { return *Context::of(abi.context).nic; }
};

struct SharedReceiveQueue {
  ibv_srq abi{};
  rc::SharedReceiveQueue* queue = nullptr;
  std::uint32_t max_wr = 0;
  std::uint32_t max_sge = 0;
  // Guarded:
  std::uint32_t users = 0;
  std::uint32_t async_given = 0;
  std::uint32_t async_acknowledged = 0;

  static SharedReceiveQueue& of(ibv_srq* srq) { return *reinterpret_cast<SharedReceiveQueue*>(srq); }
  ProcessNic& nic() { return *Context::of(abi.context).nic; }
};

struct AddressHandle {
  ibv_ah abi{};
  rc::UdDestination destination{};

  static AddressHandle& of(ibv_ah* ah) { return *reinterpret_cast<AddressHandle*>(ah); }
};

// Work that is being put together between wr_start and wr_complete.
struct Assembly {
  struct Request {
    ibv_send_wr wr{};
    std::size_t first_sge = 0;
    std::size_t first_inline = 0;  // where its copied data begins
  };
  std::vector<Request> requests{};
  std::vector<ibv_sge> sges{};
  std::vector<std::uint8_t> inlined{};
  int error = 0;
};

struct QueuePair {
  ibv_qp_ex abi{};
  rc::QueuePair* pair = nullptr;
  bool extended = false;                 // created for the ibv_wr_* calls
  std::uint64_t allowed_operations = 0;  // ibv_qp_create_send_ops_flags
  ibv_qp_init_attr init{};               // as granted
  ibv_qp_attr attributes{};              // guarded: all that has been set
  SpinLock posting{};                    // held from wr_start to wr_complete or wr_abort
  Assembly assembly{};                   // guarded by that
  // Guarded:
  std::uint32_t async_given = 0;
  std::uint32_t async_acknowledged = 0;

  static QueuePair& of(ibv_qp* qp) { return *reinterpret_cast<QueuePair*>(qp); }
  static QueuePair& of(ibv_qp_ex* qp) { return *reinterpret_cast<QueuePair*>(qp); }
  ibv_qp& base() { return abi.qp_base; }
  ProcessNic& nic() { return *Context::of(base().context).nic; }
};

ibv_mtu mtu_code(std::uint32_t bytes);
// Members of structs of the ABI, set where contexts and queues are made.
int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
int post_receive(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);
int post_shared_receive(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad);
int poll_completions(ibv_cq* cq, int most, ibv_wc* out);
int request_notification(ibv_cq* cq, int solicited_only);
ibv_cq_ex* create_extended_completion_queue(ibv_context* context, ibv_cq_init_attr_ex* attributes);
ibv_qp* create_extended_queue_pair(ibv_context* context, ibv_qp_init_attr_ex* attributes);
ibv_srq* create_extended_shared_receive_queue(ibv_context* context, ibv_srq_init_attr_ex* attributes);
int query_device_extended(ibv_context* context, const ibv_query_device_ex_input* input, ibv_device_attr_ex* attributes,
                          std::size_t size);
int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* attributes, std::size_t size);
inline constexpr std::size_t kDeviceMemory = std::size_t{256} << 10;  // of a NIC: as a ConnectX-5 has
ibv_dm* allocate_device_memory(ibv_context* context, ibv_alloc_dm_attr* attributes);
int free_device_memory(ibv_dm* dm);
ibv_mr* register_device_memory(ibv_pd* pd, ibv_dm* dm, std::uint64_t offset, std::size_t length, unsigned access);
void set_extended_posting(QueuePair& pair);
// What the adapter tells of queue pairs and completion queues, to the context they belong to. REQUIRES: the lock.
void on_async_event(const rc::AsyncEvent& event);
// The connection, if any, of this queue pair, which is about to go, goes on without it: its end is still told. REQUIRES: the lock.
void forget_pair_of_connection(const ibv_qp* qp);
// One request. REQUIRES: the lock.
int post_one(QueuePair& pair, const ibv_send_wr& wr);
// What that would return. REQUIRES: the lock.
int check_one(QueuePair& pair, const ibv_send_wr& wr);
// Waits until the program has acknowledged all events it has fetched of an object that it destroys.
void await_acknowledged(ProcessNic& nic, const std::uint32_t& given, const std::uint32_t& acknowledged);

}  // namespace sluice::verbs
