// rdma_cm's queue pairs, and its addresses from names.
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "verbs/connection_service.h"

namespace sluice::verbs {

ibv_pd* default_domain(ibv_context* context) {
  static std::mutex mutex;
  static ibv_pd* domain = nullptr;
  const std::lock_guard guard(mutex);
  if (domain == nullptr) domain = ibv_alloc_pd(context);
  return domain;
}

}  // namespace sluice::verbs

using namespace sluice;
using namespace sluice::verbs;

namespace {

bool make_completion_queue(rdma_cm_id* id, std::uint32_t entries, ibv_comp_channel*& channel, ibv_cq*& cq) {
  channel = ibv_create_comp_channel(id->verbs);
  if (channel == nullptr) return false;
  cq = ibv_create_cq(id->verbs, static_cast<int>(std::max(entries, 1u)), id, channel, 0);
  if (cq != nullptr) ibv_req_notify_cq(cq, 0);
  return cq != nullptr;
}

bool contradicts(const ibv_cq* given, const ibv_cq* of_id) {
  return given != nullptr && of_id != nullptr && given != of_id;
}

// Where neither the attributes nor the id, into which a program may have put its own, have one.
bool make_completion_queues(rdma_cm_id* id, ibv_qp_init_attr_ex& a) {
  if (contradicts(a.send_cq, id->send_cq) || contradicts(a.recv_cq, id->recv_cq)) {
    refuse(EINVAL, "rdma_cm: the queue pair shall have another completion queue than its id");
    return false;
  }
  if (a.send_cq == nullptr && id->send_cq == nullptr &&
      !make_completion_queue(id, a.cap.max_send_wr, id->send_cq_channel, id->send_cq)) {
    return false;
  }
  if (a.recv_cq == nullptr && id->recv_cq == nullptr &&
      !make_completion_queue(id, a.cap.max_recv_wr, id->recv_cq_channel, id->recv_cq)) {
    return false;
  }
  if (a.send_cq == nullptr) a.send_cq = id->send_cq;
  if (a.recv_cq == nullptr) a.recv_cq = id->recv_cq;
  return true;
}

// As librdmacm, also those that a program has put into the id, and also one for both.
void destroy_completion_queues(rdma_cm_id* id) {
  if (id->send_cq != nullptr && id->send_cq != id->recv_cq) ibv_destroy_cq(id->send_cq);
  if (id->recv_cq != nullptr) ibv_destroy_cq(id->recv_cq);
  if (id->send_cq_channel != nullptr && id->send_cq_channel != id->recv_cq_channel) {
    ibv_destroy_comp_channel(id->send_cq_channel);
  }
  if (id->recv_cq_channel != nullptr) ibv_destroy_comp_channel(id->recv_cq_channel);
  id->send_cq = id->recv_cq = nullptr;
  id->send_cq_channel = id->recv_cq_channel = nullptr;
}

// No queue pair came of it: id and attributes are again as they were.
void take_back(rdma_cm_id* id, const rdma_cm_id& before, ibv_qp_init_attr_ex& a, const ibv_qp_init_attr_ex& given) {
  rdma_cm_id made = *id;
  if (before.send_cq != nullptr) made.send_cq = nullptr;
  if (before.recv_cq != nullptr) made.recv_cq = nullptr;
  if (before.send_cq_channel == made.send_cq_channel) made.send_cq_channel = nullptr;
  if (before.recv_cq_channel == made.recv_cq_channel) made.recv_cq_channel = nullptr;
  destroy_completion_queues(&made);
  id->send_cq = before.send_cq;
  id->recv_cq = before.recv_cq;
  id->send_cq_channel = before.send_cq_channel;
  id->recv_cq_channel = before.recv_cq_channel;
  a = given;
}

// Connections take their queue pairs further; datagrams have nobody to wait for.
int make_ready(rdma_cm_id* id, ibv_qp* qp) {
  ibv_qp_attr a{};
  if (id->qp_type == IBV_QPT_UD) {
    for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
      int mask = 0;
      a.qp_state = state;
      if (rdma_init_qp_attr(id, &a, &mask) != 0 || ibv_modify_qp(qp, &a, mask) != 0) return -1;
    }
    return 0;
  }
  a.qp_state = IBV_QPS_INIT;
  a.port_num = 1;
  a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

sockaddr* copy_address(const sockaddr* from, socklen_t length) {
  auto* const copy = static_cast<sockaddr*>(std::calloc(1, sizeof(sockaddr_storage)));
  std::memcpy(copy, from, length);
  return copy;
}

}  // namespace

SLUICE_VERB int rdma_create_qp_ex(rdma_cm_id* id, ibv_qp_init_attr_ex* a) {
  if (id->verbs == nullptr || id->qp != nullptr || a->qp_type != id->qp_type) {
    refuse(EINVAL, "rdma_cm: one queue pair an id, RC or UD as its port space, once its address is resolved");
    return -1;
  }
  if ((a->comp_mask & IBV_QP_INIT_ATTR_PD) != 0 && a->pd != nullptr && a->pd->context != id->verbs) {
    refuse(EINVAL, "rdma_cm: the protection domain is of another context than the id's verbs");
    return -1;
  }
  const rdma_cm_id before = *id;
  const ibv_qp_init_attr_ex given = *a;
  if ((a->comp_mask & IBV_QP_INIT_ATTR_PD) == 0) {
    a->comp_mask |= IBV_QP_INIT_ATTR_PD;
    a->pd = id->pd != nullptr ? id->pd : default_domain(id->verbs);
  }
  if (a->srq == nullptr) a->srq = id->srq;
  const bool ready = a->pd != nullptr && make_completion_queues(id, *a);
  ibv_qp* const qp = ready ? ibv_create_qp_ex(id->verbs, a) : nullptr;
  if (qp == nullptr || make_ready(id, qp) != 0) {
    if (qp != nullptr) ibv_destroy_qp(qp);
    take_back(id, before, *a, given);
    return -1;
  }
  ConnectionId::of(id).owns_queues = true;
  id->pd = a->pd;
  id->qp = qp;
  return 0;
}

SLUICE_VERB int rdma_create_qp(rdma_cm_id* id, ibv_pd* pd, ibv_qp_init_attr* attributes) {
  ibv_qp_init_attr_ex a{};
  std::memcpy(&a, attributes, sizeof *attributes);
  a.comp_mask = pd == nullptr ? 0 : IBV_QP_INIT_ATTR_PD;
  a.pd = pd;
  const int made = rdma_create_qp_ex(id, &a);
  if (made == 0) std::memcpy(attributes, &a, sizeof *attributes);
  return made;
}

SLUICE_VERB void rdma_destroy_qp(rdma_cm_id* id) {
  if (id->qp != nullptr) ibv_destroy_qp(id->qp);
  id->qp = nullptr;
  if (ConnectionId::of(id).owns_queues) destroy_completion_queues(id);
}

SLUICE_VERB int rdma_create_srq(rdma_cm_id* id, ibv_pd* pd, ibv_srq_init_attr* attributes) {
  if (pd == nullptr) pd = id->pd;
  if (pd == nullptr) {
    refuse(EINVAL, "rdma_cm: resolve the address first, or give a protection domain");
    return -1;
  }
  id->srq = ibv_create_srq(pd, attributes);
  return id->srq == nullptr ? -1 : 0;
}

SLUICE_VERB void rdma_destroy_srq(rdma_cm_id* id) {
  if (id->srq != nullptr) ibv_destroy_srq(id->srq);
  id->srq = nullptr;
}

// Without names to look up the answer is what the program knows already: how libfabric asks.
static int answer_from_hints(const rdma_addrinfo& hints, rdma_addrinfo** out) {
  auto* const result = static_cast<rdma_addrinfo*>(std::calloc(1, sizeof(rdma_addrinfo)));
  result->ai_flags = hints.ai_flags;
  result->ai_family = hints.ai_family;
  const bool datagram = hints.ai_qp_type == IBV_QPT_UD || hints.ai_port_space == RDMA_PS_UDP;
  result->ai_qp_type = hints.ai_qp_type != 0 ? hints.ai_qp_type : int{datagram ? IBV_QPT_UD : IBV_QPT_RC};
  result->ai_port_space = hints.ai_port_space != 0 ? hints.ai_port_space : int{datagram ? RDMA_PS_UDP : RDMA_PS_TCP};
  if (hints.ai_src_len != 0) {
    result->ai_src_len = hints.ai_src_len;
    result->ai_src_addr = copy_address(hints.ai_src_addr, hints.ai_src_len);
  }
  if (hints.ai_dst_len != 0) {
    result->ai_dst_len = hints.ai_dst_len;
    result->ai_dst_addr = copy_address(hints.ai_dst_addr, hints.ai_dst_len);
  }
  *out = result;
  return 0;
}

SLUICE_VERB int rdma_getaddrinfo(const char* node, const char* port, const rdma_addrinfo* hints, rdma_addrinfo** out) {
  if (node == nullptr && port == nullptr) {
    if (hints != nullptr) return answer_from_hints(*hints, out);
    refuse(EINVAL, "rdma_getaddrinfo: neither a name nor hints");
    return -1;
  }
  addrinfo wanted{};
  addrinfo* found = nullptr;
  const int flags = hints == nullptr ? 0 : hints->ai_flags;
  if ((flags & RAI_PASSIVE) != 0) wanted.ai_flags |= AI_PASSIVE;
  if ((flags & RAI_NUMERICHOST) != 0) wanted.ai_flags |= AI_NUMERICHOST;
  if ((flags & RAI_FAMILY) != 0) wanted.ai_family = hints->ai_family;
  const bool datagram = hints != nullptr && (hints->ai_qp_type == IBV_QPT_UD || hints->ai_port_space == RDMA_PS_UDP);
  wanted.ai_socktype = datagram ? SOCK_DGRAM : SOCK_STREAM;
  if (const int error = getaddrinfo(node, port, &wanted, &found); error != 0) return error;
  // IPv4 first, if there is any: what the GID tables of a rack have in common.
  const addrinfo* best = found;
  for (const addrinfo* i = found; i != nullptr; i = i->ai_next) {
    if (i->ai_family == AF_INET && best->ai_family != AF_INET) best = i;
  }
  auto* const result = static_cast<rdma_addrinfo*>(std::calloc(1, sizeof(rdma_addrinfo)));
  result->ai_flags = flags;
  result->ai_family = best->ai_family;
  result->ai_qp_type = datagram ? IBV_QPT_UD : IBV_QPT_RC;
  result->ai_port_space = datagram ? RDMA_PS_UDP : RDMA_PS_TCP;
  if ((flags & RAI_PASSIVE) != 0) {
    result->ai_src_len = best->ai_addrlen;
    result->ai_src_addr = copy_address(best->ai_addr, best->ai_addrlen);
  } else {
    result->ai_dst_len = best->ai_addrlen;
    result->ai_dst_addr = copy_address(best->ai_addr, best->ai_addrlen);
    if (hints != nullptr && hints->ai_src_addr != nullptr) {
      result->ai_src_len = hints->ai_src_len;
      result->ai_src_addr = copy_address(hints->ai_src_addr, hints->ai_src_len);
    }
  }
  freeaddrinfo(found);
  *out = result;
  return 0;
}

SLUICE_VERB void rdma_freeaddrinfo(rdma_addrinfo* list) {
  while (list != nullptr) {
    rdma_addrinfo* const next = list->ai_next;
    std::free(list->ai_src_addr);
    std::free(list->ai_dst_addr);
    std::free(list);
    list = next;
  }
}

SLUICE_VERB int rdma_create_ep(rdma_cm_id** out, rdma_addrinfo* address, ibv_pd* pd, ibv_qp_init_attr* attributes) {
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(nullptr, &id, nullptr, static_cast<rdma_port_space>(address->ai_port_space)) != 0) return -1;
  const bool passive = (address->ai_flags & RAI_PASSIVE) != 0;
  int done = passive ? rdma_bind_addr(id, address->ai_src_addr)
                     : rdma_resolve_addr(id, address->ai_src_addr, address->ai_dst_addr, 2000);
  if (done == 0 && !passive) done = rdma_resolve_route(id, 2000);
  if (done == 0 && !passive && attributes != nullptr) {
    attributes->qp_type = static_cast<ibv_qp_type>(address->ai_qp_type);
    done = rdma_create_qp(id, pd, attributes);
  }
  if (done != 0) {
    rdma_destroy_id(id);
    return -1;
  }
  if (passive && attributes != nullptr) {
    ConnectionId::of(id).queue_pairs = *attributes;
    ConnectionId::of(id).queue_pairs->qp_type = static_cast<ibv_qp_type>(address->ai_qp_type);
  }
  if (pd != nullptr) id->pd = pd;
  *out = id;
  return 0;
}

SLUICE_VERB void rdma_destroy_ep(rdma_cm_id* id) {
  rdma_destroy_qp(id);
  rdma_destroy_srq(id);
  rdma_destroy_id(id);
}

SLUICE_VERB int rdma_join_multicast(rdma_cm_id*, sockaddr*, void*) {
  refuse(EOPNOTSUPP, "multicast is not supported");
  return -1;
}
SLUICE_VERB int rdma_join_multicast_ex(rdma_cm_id*, rdma_cm_join_mc_attr_ex*, void*) {
  refuse(EOPNOTSUPP, "multicast is not supported");
  return -1;
}
SLUICE_VERB int rdma_leave_multicast(rdma_cm_id*, sockaddr*) {
  refuse(EOPNOTSUPP, "multicast is not supported");
  return -1;
}
SLUICE_VERB int rdma_create_srq_ex(rdma_cm_id*, ibv_srq_init_attr_ex*) {
  refuse(EOPNOTSUPP, "rdma_cm: only basic shared receive queues are supported");
  return -1;
}
SLUICE_VERB int rdma_set_local_ece(rdma_cm_id*, ibv_ece*) { return 0; }
SLUICE_VERB int rdma_get_remote_ece(rdma_cm_id*, ibv_ece* ece) {
  *ece = {};
  return 0;
}
SLUICE_VERB int rdma_reject_ece(rdma_cm_id* id, const void* data, std::uint8_t length) {
  return rdma_reject(id, data, length);
}
