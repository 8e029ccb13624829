// The peer that no one here wrote: an endpoint over libibverbs, run in a guest on Linux Soft-RoCE.
//
//   rxe_peer TCP_PORT

#include <arpa/inet.h>
#include <endian.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "peer.h"

namespace sluice::interop {
namespace {

[[noreturn]] void fail(const std::string& what) { throw PeerError(what + ": " + std::strerror(errno)); }

void check(int result, const std::string& what) {
  if (result != 0) {
    if (result > 0) errno = result;
    fail(what);
  }
}

template <class T>
T* made(T* object, const char* what) {
  if (object == nullptr) fail(what);
  return object;
}

template <auto kDestroy>
struct Destroyer {
  template <class T>
  void operator()(T* object) const {
    kDestroy(object);
  }
};
template <class T, auto kDestroy>
using Owned = std::unique_ptr<T, Destroyer<kDestroy>>;

ibv_mtu mtu_code(std::uint64_t bytes) {
  for (const auto code : {IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096}) {
    if (bytes == std::uint64_t{128} << code) return code;
  }
  throw PeerError("no such MTU");
}

ibv_wr_opcode opcode_of(Op op) {
  switch (op) {
    case Op::kSend: return IBV_WR_SEND;
    case Op::kSendWithImmediate: return IBV_WR_SEND_WITH_IMM;
    case Op::kWrite: return IBV_WR_RDMA_WRITE;
    case Op::kWriteWithImmediate: return IBV_WR_RDMA_WRITE_WITH_IMM;
    case Op::kRead: return IBV_WR_RDMA_READ;
    case Op::kCompareAndSwap: return IBV_WR_ATOMIC_CMP_AND_SWP;
    case Op::kFetchAndAdd: return IBV_WR_ATOMIC_FETCH_AND_ADD;
  }
  throw PeerError("no such operation");
}

class VerbsEndpoint final : public Endpoint {
 public:
  VerbsEndpoint() {
    int count = 0;
    ibv_device** devices = ibv_get_device_list(&count);
    if (devices == nullptr || count == 0) throw PeerError("no RDMA device");
    context_.reset(made(ibv_open_device(devices[0]), "ibv_open_device"));
    ibv_free_device_list(devices);
    find_gid();
    channel_.reset(made(rdma_create_event_channel(), "rdma_create_event_channel"));
  }

  ~VerbsEndpoint() override { forget_connection(); }

  std::string open(const Arguments& a) override {
    forget_connection();
    prepare(context_.get(), a);
    auto init = queue_pair_attributes(a);
    own_pair_.reset(made(ibv_create_qp(domain_.get(), &init), "ibv_create_qp"));
    pair_ = own_pair_.get();
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = static_cast<unsigned>(a.number("pair_access", 15));
    check(ibv_modify_qp(pair_, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
          "to INIT");
    psn_ = static_cast<std::uint32_t>(a.number("psn", 0));
    char text[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET6, &gid_, text, sizeof text);
    return "qpn=" + std::to_string(pair_->qp_num) + " psn=" + std::to_string(psn_) + " gid=" + text + " " +
           region_facts();
  }

  void connect(const Arguments& a) override {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = mtu_code(a.number("mtu"));
    attributes.dest_qp_num = static_cast<std::uint32_t>(a.number("qpn"));
    attributes.rq_psn = static_cast<std::uint32_t>(a.number("psn"));
    attributes.max_dest_rd_atomic = 16;
    attributes.min_rnr_timer = static_cast<std::uint8_t>(a.number("min_rnr", 12));
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = 1;
    attributes.ah_attr.grh.hop_limit = 64;
    attributes.ah_attr.grh.sgid_index = gid_index_;
    if (inet_pton(AF_INET6, a.text("gid").c_str(), &attributes.ah_attr.grh.dgid) != 1) throw PeerError("bad gid");
    check(ibv_modify_qp(pair_, &attributes,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
          "to RTR");
    attributes.qp_state = IBV_QPS_RTS;
    attributes.sq_psn = psn_;
    attributes.timeout = static_cast<std::uint8_t>(a.number("timeout", 14));
    attributes.retry_cnt = static_cast<std::uint8_t>(a.number("retry", 7));
    attributes.rnr_retry = static_cast<std::uint8_t>(a.number("rnr_retry", 7));
    attributes.max_rd_atomic = 16;
    check(ibv_modify_qp(pair_, &attributes,
                        IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                            IBV_QP_MAX_QP_RD_ATOMIC),
          "to RTS");
  }

  void post(const Work& work) override {
    ibv_sge sge = piece(work.offset, work.length);
    ibv_send_wr request{};
    request.wr_id = work.id;
    request.sg_list = &sge;
    request.num_sge = 1;
    request.opcode = opcode_of(work.op);
    request.imm_data = htobe32(work.immediate);
    if (work.op == Op::kCompareAndSwap || work.op == Op::kFetchAndAdd) {
      request.wr.atomic.remote_addr = work.remote;
      request.wr.atomic.rkey = work.rkey;
      request.wr.atomic.compare_add = work.op == Op::kFetchAndAdd ? work.value : work.compare;
      request.wr.atomic.swap = work.value;
    } else {
      request.wr.rdma.remote_addr = work.remote;
      request.wr.rdma.rkey = work.rkey;
    }
    ibv_send_wr* bad = nullptr;
    check(ibv_post_send(pair_, &request, &bad), "ibv_post_send");
  }

  void post_receive(std::uint64_t id, std::uint64_t offset, std::uint32_t length) override {
    ibv_sge sge = piece(offset, length);
    ibv_recv_wr request{};
    request.wr_id = id;
    request.sg_list = &sge;
    request.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    check(ibv_post_recv(pair_, &request, &bad), "ibv_post_recv");
  }

  std::optional<Done> poll() override {
    ibv_wc completion{};
    const int n = ibv_poll_cq(completions_.get(), 1, &completion);
    if (n < 0) fail("ibv_poll_cq");
    if (n == 0) return std::nullopt;
    Done done{.id = completion.wr_id, .status = completion.status};
    if (completion.status == IBV_WC_SUCCESS) {
      done.received = (completion.opcode & IBV_WC_RECV) != 0;
      done.length = completion.byte_len;
      if ((completion.wc_flags & IBV_WC_WITH_IMM) != 0) done.immediate = be32toh(completion.imm_data);
    }
    return done;
  }

  std::span<std::uint8_t> memory() override { return buffer_; }
  int turn() override { return 1000; }

  void cm_listen(std::uint16_t service) override {
    listener_.reset(new_id());
    auto any = socket_address("0.0.0.0", service);
    check(rdma_bind_addr(listener_.get(), reinterpret_cast<sockaddr*>(&any)), "rdma_bind_addr");
    check(rdma_listen(listener_.get(), 8), "rdma_listen");
  }

  std::string cm_connect(const Arguments& a) override {
    const Patience patience(a);
    forget_connection();
    id_.reset(new_id());
    auto to = socket_address(a.text("to"), static_cast<std::uint16_t>(a.number("service")));
    check(rdma_resolve_addr(id_.get(), nullptr, reinterpret_cast<sockaddr*>(&to), 2000), "rdma_resolve_addr");
    expect(RDMA_CM_EVENT_ADDR_RESOLVED, patience);
    check(rdma_resolve_route(id_.get(), 2000), "rdma_resolve_route");
    expect(RDMA_CM_EVENT_ROUTE_RESOLVED, patience);
    make_pair_of_id(a);
    const auto data = a.number("data");
    auto parameters = connection_parameters(data);
    check(rdma_connect(id_.get(), &parameters), "rdma_connect");
    return region_facts() + " data=" + std::to_string(expect(RDMA_CM_EVENT_ESTABLISHED, patience).data);
  }

  std::string cm_accept(const Arguments& a) override {
    const Patience patience(a);
    forget_connection();
    const auto request = expect(RDMA_CM_EVENT_CONNECT_REQUEST, patience);
    id_.reset(request.id);
    make_pair_of_id(a);
    const auto data = a.number("data");
    auto parameters = connection_parameters(data);
    check(rdma_accept(id_.get(), &parameters), "rdma_accept");
    expect(RDMA_CM_EVENT_ESTABLISHED, patience);
    return region_facts() + " data=" + std::to_string(request.data);
  }

  void cm_reject(const Arguments& a) override {
    const Patience patience(a);
    const auto request = expect(RDMA_CM_EVENT_CONNECT_REQUEST, patience);
    const auto data = a.number("data");
    check(rdma_reject(request.id, &data, sizeof data), "rdma_reject");
    rdma_destroy_id(request.id);
  }

  void cm_disconnect() override {
    if (!id_) throw PeerError("not connected");
    check(rdma_disconnect(id_.get()), "rdma_disconnect");
  }

  void cm_wait_until_disconnected(const Arguments& a) override {
    expect(RDMA_CM_EVENT_DISCONNECTED, Patience(a));
    rdma_disconnect(id_.get());  // when the other side has begun it, this is what answers
  }

 private:
  struct Event {
    rdma_cm_id* id = nullptr;
    std::uint64_t data = 0;  // private
  };

  // The region and the completion queue, on this context.
  void prepare(ibv_context* context, const Arguments& a) {
    own_pair_.reset();
    region_.reset();
    completions_.reset();
    domain_.reset(made(ibv_alloc_pd(context), "ibv_alloc_pd"));
    buffer_.assign(a.number("size"), 0);
    region_.reset(
        made((ibv_reg_mr)(domain_.get(), buffer_.data(), buffer_.size(), static_cast<int>(a.number("access", 15))),
             "ibv_reg_mr"));
    const auto depth = static_cast<int>(a.number("depth", 128));
    completions_.reset(made(ibv_create_cq(context, 2 * depth, nullptr, nullptr, 0), "ibv_create_cq"));
  }

  ibv_qp_init_attr queue_pair_attributes(const Arguments& a) {
    const auto depth = static_cast<std::uint32_t>(a.number("depth", 128));
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = completions_.get();
    init.cap = {.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
    init.qp_type = IBV_QPT_RC;
    init.sq_sig_all = 1;
    return init;
  }

  std::string region_facts() const {
    return "rkey=" + std::to_string(region_->rkey) +
           " address=" + std::to_string(reinterpret_cast<std::uintptr_t>(buffer_.data()));
  }

  rdma_cm_id* new_id() {
    rdma_cm_id* id = nullptr;
    check(rdma_create_id(channel_.get(), &id, nullptr, RDMA_PS_TCP), "rdma_create_id");
    return id;
  }

  static sockaddr_in socket_address(const std::string& address, std::uint16_t port) {
    sockaddr_in result{};
    result.sin_family = AF_INET;
    result.sin_port = htons(port);
    if (inet_pton(AF_INET, address.c_str(), &result.sin_addr) != 1) throw PeerError("bad address");
    return result;
  }

  static rdma_conn_param connection_parameters(const std::uint64_t& data) {
    rdma_conn_param parameters{};
    parameters.private_data = &data;
    parameters.private_data_len = sizeof data;
    parameters.responder_resources = 16;
    parameters.initiator_depth = 16;
    parameters.retry_count = 7;
    parameters.rnr_retry_count = 7;
    return parameters;
  }

  void make_pair_of_id(const Arguments& a) {
    prepare(id_->verbs, a);
    auto init = queue_pair_attributes(a);
    check(rdma_create_qp(id_.get(), domain_.get(), &init), "rdma_create_qp");
    pair_ = id_->qp;
  }

  // The next event, which must be of this kind.
  Event expect(rdma_cm_event_type kind, const Patience& patience) {
    pollfd ready{channel_->fd, POLLIN, 0};
    while (::poll(&ready, 1, 10) <= 0) {
      if (patience.over()) throw PeerError(std::string("no ") + rdma_event_str(kind) + " in the time given");
    }
    rdma_cm_event* event = nullptr;
    check(rdma_get_cm_event(channel_.get(), &event), "rdma_get_cm_event");
    const auto got = event->event;
    const int status = event->status;
    Event result{.id = event->id};
    if (event->param.conn.private_data != nullptr && event->param.conn.private_data_len >= sizeof result.data) {
      std::memcpy(&result.data, event->param.conn.private_data, sizeof result.data);
    }
    rdma_ack_cm_event(event);
    if (got == RDMA_CM_EVENT_REJECTED) {
      throw PeerError("rejected reason=" + std::to_string(status) + " data=" + std::to_string(result.data));
    }
    if (got != kind) {
      throw PeerError(std::string(rdma_event_str(got)) + " status " + std::to_string(status) + " instead of " +
                      rdma_event_str(kind));
    }
    return result;
  }

  void forget_connection() {
    pair_ = nullptr;
    if (id_ && id_->qp != nullptr) rdma_destroy_qp(id_.get());
    id_.reset();
  }

  ibv_sge piece(std::uint64_t offset, std::uint32_t length) {
    return {.addr = reinterpret_cast<std::uintptr_t>(buffer_.data()) + offset, .length = length, .lkey = region_->lkey};
  }

  // The first GID that is an IPv4 address.
  void find_gid() {
    ibv_port_attr port{};
    check(ibv_query_port(context_.get(), 1, &port), "ibv_query_port");
    for (int i = 0; i < port.gid_tbl_len; ++i) {
      in6_addr address{};
      if (ibv_query_gid(context_.get(), 1, i, &gid_) != 0) continue;
      std::memcpy(&address, gid_.raw, sizeof address);
      if (IN6_IS_ADDR_V4MAPPED(&address)) {
        gid_index_ = static_cast<std::uint8_t>(i);
        return;
      }
    }
    throw PeerError("the device has no IPv4 GID");
  }

  Owned<ibv_context, ibv_close_device> context_;
  Owned<rdma_event_channel, rdma_destroy_event_channel> channel_;
  Owned<rdma_cm_id, rdma_destroy_id> listener_;
  Owned<rdma_cm_id, rdma_destroy_id> id_;
  Owned<ibv_pd, ibv_dealloc_pd> domain_;
  std::vector<std::uint8_t> buffer_;
  Owned<ibv_mr, ibv_dereg_mr> region_;
  Owned<ibv_cq, ibv_destroy_cq> completions_;
  Owned<ibv_qp, ibv_destroy_qp> own_pair_;
  ibv_qp* pair_ = nullptr;  // own_pair_, or that of id_
  ibv_gid gid_{};
  std::uint8_t gid_index_ = 0;
  std::uint32_t psn_ = 0;
};

}  // namespace
}  // namespace sluice::interop

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: rxe_peer TCP_PORT\n");
    return 2;
  }
  try {
    sluice::interop::VerbsEndpoint endpoint;
    return sluice::interop::serve(endpoint, static_cast<std::uint16_t>(std::atoi(argv[1])));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rxe_peer: %s\n", error.what());
    return 1;
  }
}
