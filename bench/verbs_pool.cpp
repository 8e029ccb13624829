#include "verbs_pool.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace sluice::bench {
namespace {

constexpr const char* kClientIp = "10.77.254.1";
constexpr const char* kPoolIp = "10.77.254.2";
constexpr std::uint8_t kGidIndex = 1;  // the IPv4 address
constexpr std::uint32_t kFirstPsn = 1;
constexpr int kRights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

}  // namespace

// What the two ends tell each other.
struct VerbsPool::Address {
  ibv_gid gid;
  std::uint64_t memory;
  std::uint32_t key;
  std::uint32_t pair;
};

void VerbsPool::die(const char* what) {
  std::fprintf(stderr, "verbs_pool: %s\n", what);
  std::abort();
}

VerbsPool::VerbsPool() : memory_(kBytes) {
  char pattern[] = "/tmp/sluice-verbs-pool-XXXXXX";
  if (mkdtemp(pattern) == nullptr) die("mkdtemp");
  folder_ = pattern;
  const std::string cable = folder_ + "/cable";
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) die("socketpair");
  child_ = fork();
  if (child_ < 0) die("fork");
  if (child_ == 0) {
    close(ends[0]);
    serve(ends[1], "cable:" + cable);
  }
  close(ends[1]);
  socket_ = ends[0];
  Address theirs{};
  if (read(socket_, &theirs, sizeof theirs) != sizeof theirs) die("the pool does not answer");
  open("shm:" + cable, kClientIp);
  const Address ours = address(kClientIp);
  if (write(socket_, &ours, sizeof ours) != sizeof ours) die("the pool has gone");
  connect(theirs);
  char ready = 0;
  if (read(socket_, &ready, 1) != 1) die("the pool did not connect");
}

VerbsPool::~VerbsPool() {
  close(socket_);
  waitpid(child_, nullptr, 0);
  ibv_destroy_qp(pair_);
  ibv_destroy_cq(completions_);
  ibv_dereg_mr(mr_);
  ibv_dealloc_pd(domain_);
  ibv_close_device(context_);
  std::filesystem::remove_all(folder_);
}

// The pool's process: its NIC's own thread answers, until the other end goes.
void VerbsPool::serve(int socket, const std::string& port) {
  std::memset(memory_.data(), kFill, memory_.size());
  open(port, kPoolIp);
  const Address ours = address(kPoolIp);
  Address theirs{};
  if (write(socket, &ours, sizeof ours) != sizeof ours || read(socket, &theirs, sizeof theirs) != sizeof theirs) {
    _exit(1);
  }
  connect(theirs);
  char byte = 1;
  if (write(socket, &byte, 1) == 1) {
    while (read(socket, &byte, 1) > 0) {
    }
  }
  _exit(0);
}

void VerbsPool::open(const std::string& port, const char* ip) {
  setenv("SLUICE_PORT", port.c_str(), 1);
  setenv("SLUICE_IP", ip, 1);
  ibv_device** const list = ibv_get_device_list(nullptr);
  if (list == nullptr || list[0] == nullptr) die("no device: is this linked with libsluice-verbs?");
  context_ = ibv_open_device(list[0]);
  ibv_free_device_list(list);
  if (context_ == nullptr) die("ibv_open_device");
  ibv_device_attr attributes{};
  if (ibv_query_device(context_, &attributes) != 0) die("ibv_query_device");
  reads_in_flight_ = static_cast<std::uint8_t>(attributes.max_qp_rd_atom);
  domain_ = ibv_alloc_pd(context_);
  mr_ = ibv_reg_mr(domain_, memory_.data(), memory_.size(), kRights);
  completions_ = ibv_create_cq(context_, static_cast<int>(2 * kDepth), nullptr, nullptr, 0);
  if (domain_ == nullptr || mr_ == nullptr || completions_ == nullptr) die("set-up");
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = completions_;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = kDepth;
  wanted.cap.max_recv_wr = 1;
  wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
  pair_ = ibv_create_qp(domain_, &wanted);
  if (pair_ == nullptr) die("ibv_create_qp");
}

VerbsPool::Address VerbsPool::address(const char* ip) const {
  Address a{};
  a.gid.raw[10] = a.gid.raw[11] = 0xff;
  inet_pton(AF_INET, ip, a.gid.raw + 12);
  a.memory = reinterpret_cast<std::uintptr_t>(memory_.data());
  a.key = mr_->rkey;
  a.pair = pair_->qp_num;
  return a;
}

void VerbsPool::connect(const Address& peer) {
  remote_address_ = peer.memory;
  remote_key_ = peer.key;
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_INIT;
  a.port_num = 1;
  a.qp_access_flags = kRights;
  if (ibv_modify_qp(pair_, &a, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS) != 0) die("INIT");
  a = {};
  a.qp_state = IBV_QPS_RTR;
  a.path_mtu = IBV_MTU_4096;
  a.dest_qp_num = peer.pair;
  a.rq_psn = kFirstPsn;
  a.max_dest_rd_atomic = reads_in_flight_;
  a.min_rnr_timer = 1;
  a.ah_attr.is_global = 1;
  a.ah_attr.port_num = 1;
  a.ah_attr.grh.sgid_index = kGidIndex;
  a.ah_attr.grh.dgid = peer.gid;
  if (ibv_modify_qp(pair_, &a,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) != 0) {
    die("RTR");
  }
  a = {};
  a.qp_state = IBV_QPS_RTS;
  a.sq_psn = kFirstPsn;
  a.timeout = 14;
  a.retry_cnt = a.rnr_retry = 7;
  a.max_rd_atomic = reads_in_flight_;
  if (ibv_modify_qp(pair_, &a,
                    IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                        IBV_QP_MAX_QP_RD_ATOMIC) != 0) {
    die("RTS");
  }
}

}  // namespace sluice::bench
