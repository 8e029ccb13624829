// A pool to compare with: memory in a process of its own, read through our verbs library over a shared-memory cable.
//
// Life:       VerbsPool() forks the pool and connects a queue pair to it -> post_read(), poll() -> the pool ends with this object.
// Errors:     aborts: it is a benchmark.
// Threads:    as verbs. Make it before other threads: it forks. One a process: the library opens its port once.
#pragma once

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::bench {

class VerbsPool {
 public:
  static constexpr std::uint32_t kDepth = 128;
  static constexpr std::size_t kBytes = 64 << 20;
  static constexpr std::uint8_t kFill = 0x5a;  // every byte of the pool

  VerbsPool();
  ~VerbsPool();
  VerbsPool(const VerbsPool&) = delete;
  VerbsPool& operator=(const VerbsPool&) = delete;

  // Where reads go; all of it is registered.
  std::uint8_t* local() { return memory_.data(); }
  // One signalled READ, posted by itself: what ibv_post_send costs.
  void post_read(std::uint64_t from, std::size_t to, std::uint32_t length) {
    ibv_sge sge{.addr = reinterpret_cast<std::uintptr_t>(memory_.data()) + to, .length = length, .lkey = mr_->lkey};
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_RDMA_READ;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.wr.rdma.remote_addr = remote_address_ + from;
    wr.wr.rdma.rkey = remote_key_;
    ibv_send_wr* bad = nullptr;
    if (ibv_post_send(pair_, &wr, &bad) != 0) die("ibv_post_send");
  }
  // How many have completed since.
  int poll() {
    ibv_wc done[32];
    const int n = ibv_poll_cq(completions_, 32, done);
    for (int i = 0; i < n; ++i) {
      if (done[i].status != IBV_WC_SUCCESS) die("a READ failed");
    }
    return n;
  }

 private:
  struct Address;
  [[noreturn]] static void die(const char* what);
  void open(const std::string& port, const char* ip);
  Address address(const char* ip) const;
  void connect(const Address& peer);
  [[noreturn]] void serve(int socket, const std::string& port);

  std::vector<std::uint8_t> memory_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_cq* completions_ = nullptr;
  ibv_qp* pair_ = nullptr;
  std::uint64_t remote_address_ = 0;
  std::uint32_t remote_key_ = 0;
  std::uint8_t reads_in_flight_ = 0;
  std::string folder_;
  int socket_ = -1;
  pid_t child_ = -1;
};

}  // namespace sluice::bench
