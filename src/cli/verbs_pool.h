// A pool to compare with: memory in a process of its own, read with libibverbs calls through our verbs library over a shared-memory cable.
//
// Life:       start() loads the library, forks the pool and connects a queue pair to it -> post_read(), post_reads(), poll() -> the pool ends with
//             this object.
// Errors:     of set-up as a Result; afterwards failed() says that an operation did not do what it should.
// Threads:    as verbs. Start it before other threads: it forks. One a process: the library opens its port once.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/child.h"

namespace sluice::cli {

class VerbsPool {
 public:
  static constexpr std::uint32_t kDepth = 128;
  static constexpr std::uint8_t kFill = 0x5a;  // every byte of the pool

  // `library`: path of libsluice-verbs.so. `folder`: for the cable.
  static Result<std::unique_ptr<VerbsPool>> start(const std::string& library, const std::string& folder,
                                                  std::size_t bytes);
  ~VerbsPool();
  VerbsPool(const VerbsPool&) = delete;
  VerbsPool& operator=(const VerbsPool&) = delete;

  struct Read {
    std::uint64_t from = 0;
    std::size_t to = 0;
  };
  // Where reads go; all of it is registered.
  std::uint8_t* local() { return memory_.data(); }
  // One signalled READ, posted by itself: what ibv_post_send costs.
  void post_read(std::uint64_t from, std::size_t to, std::uint32_t length) {
    ibv_sge sge{};
    ibv_send_wr wr{};
    fill(wr, sge, {from, to}, length);
    ibv_send_wr* bad = nullptr;
    failed_ |= ibv_post_send(pair_, &wr, &bad) != 0;
  }
  // The same, as many as there are in one call; at most kDepth.
  void post_reads(std::span<const Read> reads, std::uint32_t length);
  // How many have completed since.
  std::size_t poll() {
    ibv_wc done[32];
    const int n = ibv_poll_cq(completions_, 32, done);
    for (int i = 0; i < n; ++i) failed_ |= done[i].status != IBV_WC_SUCCESS;
    failed_ |= n < 0;
    return n < 0 ? 0 : static_cast<std::size_t>(n);
  }
  bool failed() const { return failed_; }

 private:
  struct Api;
  struct Address;
  explicit VerbsPool(std::size_t bytes);
  Result<void> load(const std::string& library);
  Result<void> open(const std::string& port, const char* ip);
  Result<void> connect(const Address& peer);
  Address address(const char* ip) const;
  Result<void> serve(int socket, const std::string& port, const std::function<void()>& ready);
  void fill(ibv_send_wr& wr, ibv_sge& sge, const Read& read, std::uint32_t length) const {
    sge = {.addr = reinterpret_cast<std::uintptr_t>(memory_.data()) + read.to, .length = length, .lkey = mr_->lkey};
    wr.opcode = IBV_WR_RDMA_READ;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.wr.rdma.remote_addr = remote_address_ + read.from;
    wr.wr.rdma.rkey = remote_key_;
  }

  std::unique_ptr<Api> api_;
  std::vector<std::uint8_t> memory_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_cq* completions_ = nullptr;
  ibv_qp* pair_ = nullptr;
  std::uint64_t remote_address_ = 0;
  std::uint32_t remote_key_ = 0;
  std::uint8_t reads_in_flight_ = 0;
  bool failed_ = false;
  int socket_ = -1;
  Child pool_;
};

}  // namespace sluice::cli
