#include "verbs/transitions.h"

#include <fmt/core.h>

namespace sluice::verbs {
namespace {

enum class Kind : std::uint8_t { kRc, kUc, kUd };

struct Rule {
  ibv_qp_state from;
  ibv_qp_state to;
  int required[3];  // RC, UC, UD
  int optional[3];
};

constexpr int kAlternate = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
constexpr int kRcLate = IBV_QP_CUR_STATE | kAlternate | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER;
constexpr int kUcLate = IBV_QP_CUR_STATE | kAlternate | IBV_QP_ACCESS_FLAGS;
constexpr int kUdLate = IBV_QP_CUR_STATE | IBV_QP_QKEY;
constexpr int kConnectedInit = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kDatagramInit = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
constexpr int kUcPath = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
constexpr int kRcSends = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
constexpr int kMovedPath = IBV_QP_PORT | IBV_QP_AV | IBV_QP_PKEY_INDEX;

constexpr Rule kRules[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, {kConnectedInit, kConnectedInit, kDatagramInit}, {0, 0, 0}},
    {IBV_QPS_INIT, IBV_QPS_INIT, {0, 0, 0}, {kConnectedInit, kConnectedInit, kDatagramInit}},
    {IBV_QPS_INIT,
     IBV_QPS_RTR,
     {kUcPath | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, kUcPath, 0},
     {IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX,
      IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX, IBV_QP_PKEY_INDEX | IBV_QP_QKEY}},
    {IBV_QPS_RTR, IBV_QPS_RTS, {kRcSends, IBV_QP_SQ_PSN, IBV_QP_SQ_PSN}, {kRcLate, kUcLate, kUdLate}},
    {IBV_QPS_RTS, IBV_QPS_RTS, {0, 0, 0}, {kRcLate, kUcLate, kUdLate}},
    {IBV_QPS_RTS,
     IBV_QPS_SQD,
     {0, 0, 0},
     {IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_EN_SQD_ASYNC_NOTIFY}},
    {IBV_QPS_SQD, IBV_QPS_RTS, {0, 0, 0}, {kRcLate, kUcLate, kUdLate}},
    {IBV_QPS_SQD,
     IBV_QPS_SQD,
     {0, 0, 0},
     {kMovedPath | kRcLate | (kRcSends & ~IBV_QP_SQ_PSN) | IBV_QP_MAX_DEST_RD_ATOMIC, kMovedPath | kUcLate,
      IBV_QP_PKEY_INDEX | IBV_QP_QKEY}},
    {IBV_QPS_SQE, IBV_QPS_RTS, {0, 0, 0}, {0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS, kUdLate}},
};

Kind kind_of(ibv_qp_type type) {
  if (type == IBV_QPT_UD) return Kind::kUd;
  return type == IBV_QPT_UC ? Kind::kUc : Kind::kRc;
}

}  // namespace

Result<void> check_attributes(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, int mask) {
  mask &= ~IBV_QP_STATE;
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) {
    if (mask == 0) return {};
    return fail(fmt::format("modify queue pair: attributes {:#x} mean nothing on the way to RESET or ERR", mask));
  }
  const auto kind = static_cast<std::size_t>(kind_of(type));
  for (const Rule& rule : kRules) {
    if (rule.from != from || rule.to != to) continue;
    if (const int missing = rule.required[kind] & ~mask; missing != 0) {
      return fail(fmt::format("modify queue pair from state {} to {}: attributes {:#x} are missing",
                              static_cast<int>(from), static_cast<int>(to), missing));
    }
    if (const int odd = mask & ~(rule.required[kind] | rule.optional[kind]); odd != 0) {
      return fail(fmt::format("modify queue pair from state {} to {}: attributes {:#x} cannot be set there",
                              static_cast<int>(from), static_cast<int>(to), odd));
    }
    return {};
  }
  return fail(fmt::format("a queue pair cannot go from state {} to {}", static_cast<int>(from), static_cast<int>(to)));
}

}  // namespace sluice::verbs
