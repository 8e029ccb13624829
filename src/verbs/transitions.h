// Which attributes ibv_modify_qp must and may be given on the way from one state to another.
//
// Source:  IBTA vol. 1 §11.2.4.2 table 91, as the Linux kernel's qp_state_table has it for RC, UC and UD.
#pragma once

#include <string>

#include "base/result.h"
#include "verbs/abi.h"

namespace sluice::verbs {

// `mask` as given to ibv_modify_qp. The error names what is missing or out of place.
Result<void> check_attributes(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, int mask);

}  // namespace sluice::verbs
