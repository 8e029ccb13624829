// The libibverbs ABI as Debian's headers give it, with the macros taken away that stand before symbols which we define.
//
// Source:  infiniband/verbs.h (rdma-core); which calls are symbols and which struct members: docs/verbs.md.
#pragma once

#include <infiniband/verbs.h>

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

// What the shared library exports, unversioned: that satisfies every versioned reference of a program.
#define SLUICE_VERB extern "C" __attribute__((visibility("default")))
