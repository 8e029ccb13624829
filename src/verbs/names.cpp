// Names of numbers, and rates: what libibverbs and librdmacm tell of their enumerations.
//
// Source:  infiniband/verbs.h and rdma/rdma_cma.h (the enumerations), IBTA vol. 1 §9.11 table 55 (rates).
#include <rdma/rdma_cma.h>

#include <array>
#include <cerrno>
#include <string_view>

#include "verbs/objects.h"

namespace {

template <std::size_t N>
const char* name_of(const std::array<const char*, N>& names, int number, const char* other) {
  if (number < 0 || static_cast<std::size_t>(number) >= N) return other;
  return names[static_cast<std::size_t>(number)];
}

constexpr std::array kStatuses{"success",
                               "local length error",
                               "local QP operation error",
                               "local EE context operation error",
                               "local protection error",
                               "Work Request Flushed Error",
                               "memory management operation error",
                               "bad response error",
                               "local access error",
                               "remote invalid request error",
                               "remote access error",
                               "remote operation error",
                               "transport retry counter exceeded",
                               "RNR retry counter exceeded",
                               "local RDD violation error",
                               "remote invalid RD request",
                               "aborted error",
                               "invalid EE context number",
                               "invalid EE context state",
                               "fatal error",
                               "response timeout error",
                               "general error",
                               "TM error",
                               "TM software rendezvous"};
constexpr std::array kEvents{"CQ error",
                             "local work queue catastrophic error",
                             "invalid request local work queue error",
                             "local access violation work queue error",
                             "communication established",
                             "send queue drained",
                             "path migrated",
                             "path migration request error",
                             "local catastrophic error",
                             "port active",
                             "port error",
                             "LID change",
                             "P_Key change",
                             "SM change",
                             "SRQ catastrophic error",
                             "SRQ limit reached",
                             "last WQE reached",
                             "client reregistration",
                             "GID table change",
                             "WQ fatal"};
constexpr std::array kPortStates{"no state change (NOP)", "down", "init", "armed", "active", "active defer"};
constexpr std::array kNodes{"unknown",           "InfiniBand channel adapter",
                            "InfiniBand switch", "InfiniBand router",
                            "iWARP NIC",         "usNIC",
                            "usNIC UDP",         "unspecified"};
constexpr std::array kConnectionEvents{
    "RDMA_CM_EVENT_ADDR_RESOLVED",  "RDMA_CM_EVENT_ADDR_ERROR",      "RDMA_CM_EVENT_ROUTE_RESOLVED",
    "RDMA_CM_EVENT_ROUTE_ERROR",    "RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
    "RDMA_CM_EVENT_CONNECT_ERROR",  "RDMA_CM_EVENT_UNREACHABLE",     "RDMA_CM_EVENT_REJECTED",
    "RDMA_CM_EVENT_ESTABLISHED",    "RDMA_CM_EVENT_DISCONNECTED",    "RDMA_CM_EVENT_DEVICE_REMOVAL",
    "RDMA_CM_EVENT_MULTICAST_JOIN", "RDMA_CM_EVENT_MULTICAST_ERROR", "RDMA_CM_EVENT_ADDR_CHANGE",
    "RDMA_CM_EVENT_TIMEWAIT_EXIT"};
static_assert(kStatuses.size() == IBV_WC_TM_RNDV_INCOMPLETE + 1);
static_assert(kEvents.size() == IBV_EVENT_WQ_FATAL + 1);
static_assert(kPortStates.size() == IBV_PORT_ACTIVE_DEFER + 1);
static_assert(kConnectionEvents.size() == RDMA_CM_EVENT_TIMEWAIT_EXIT + 1);

struct Rate {
  ibv_rate code;
  int multiple;  // of 2.5 Gb/s, rounded
  int mbps;
};
constexpr std::array kRates{
    Rate{IBV_RATE_2_5_GBPS, 1, 2500},     Rate{IBV_RATE_5_GBPS, 2, 5000},        Rate{IBV_RATE_10_GBPS, 4, 10000},
    Rate{IBV_RATE_20_GBPS, 8, 20000},     Rate{IBV_RATE_30_GBPS, 12, 30000},     Rate{IBV_RATE_40_GBPS, 16, 40000},
    Rate{IBV_RATE_60_GBPS, 24, 60000},    Rate{IBV_RATE_80_GBPS, 32, 80000},     Rate{IBV_RATE_120_GBPS, 48, 120000},
    Rate{IBV_RATE_14_GBPS, 6, 14062},     Rate{IBV_RATE_56_GBPS, 22, 56250},     Rate{IBV_RATE_112_GBPS, 45, 112500},
    Rate{IBV_RATE_168_GBPS, 67, 168750},  Rate{IBV_RATE_25_GBPS, 10, 25781},     Rate{IBV_RATE_100_GBPS, 40, 103125},
    Rate{IBV_RATE_200_GBPS, 80, 206250},  Rate{IBV_RATE_300_GBPS, 120, 309375},  Rate{IBV_RATE_28_GBPS, 11, 28125},
    Rate{IBV_RATE_50_GBPS, 20, 53125},    Rate{IBV_RATE_400_GBPS, 160, 425000},  Rate{IBV_RATE_600_GBPS, 240, 637500},
    Rate{IBV_RATE_800_GBPS, 320, 850000}, Rate{IBV_RATE_1200_GBPS, 480, 1275000}};

}  // namespace

SLUICE_VERB const char* ibv_wc_status_str(ibv_wc_status status) { return name_of(kStatuses, status, "unknown"); }
SLUICE_VERB const char* ibv_event_type_str(ibv_event_type event) { return name_of(kEvents, event, "unknown"); }
SLUICE_VERB const char* ibv_port_state_str(ibv_port_state state) {
  return name_of(kPortStates, state, "invalid state");
}
SLUICE_VERB const char* ibv_node_type_str(ibv_node_type type) { return name_of(kNodes, type, "unknown"); }
SLUICE_VERB const char* rdma_event_str(rdma_cm_event_type event) {
  return name_of(kConnectionEvents, event, "UNKNOWN EVENT");
}

SLUICE_VERB int ibv_rate_to_mult(ibv_rate rate) {
  for (const Rate& known : kRates) {
    if (known.code == rate) return known.multiple;
  }
  return -1;
}
SLUICE_VERB ibv_rate mult_to_ibv_rate(int multiple) {
  for (const Rate& known : kRates) {
    if (known.multiple == multiple) return known.code;
  }
  return IBV_RATE_MAX;
}
SLUICE_VERB int ibv_rate_to_mbps(ibv_rate rate) {
  for (const Rate& known : kRates) {
    if (known.code == rate) return known.mbps;
  }
  return -1;
}
SLUICE_VERB ibv_rate mbps_to_ibv_rate(int mbps) {
  for (const Rate& known : kRates) {
    if (known.mbps == mbps) return known.code;
  }
  return IBV_RATE_MAX;
}
