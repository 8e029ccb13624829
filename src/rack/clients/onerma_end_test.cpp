// What becomes of a Rekey whose tries end in each of the ways.
#include "rack/clients/onerma_end.h"

#include <gtest/gtest.h>

namespace sluice::rack {
namespace {

using onerma::Status;

TEST(OnermaRekey, IsTriedAgainWhenNobodyKnowsWhetherItHappened) {
  for (const Status status : {Status::kNack, Status::kDispatchTimeout, Status::kTimeout, Status::kReplay}) {
    EXPECT_EQ(judge_rekey(status, {.tries = 1}), RekeyTry::kAgain) << to_string(status);
    EXPECT_EQ(judge_rekey(status, {.tries = 1, .in_use = true}), RekeyTry::kDone) << to_string(status);
  }
}

TEST(OnermaRekey, IsNotTriedForEver) {
  for (const Status status : {Status::kNack, Status::kDispatchTimeout, Status::kTimeout, Status::kReplay}) {
    EXPECT_EQ(judge_rekey(status, {.tries = 9, .time_is_over = true}), RekeyTry::kFailed) << to_string(status);
  }
}

TEST(OnermaRekey, ThatIsRefusedAfterATryWithoutAnAnswerHasHappened) {
  EXPECT_EQ(judge_rekey(Status::kBadKey, {.tries = 2}), RekeyTry::kDone);
  EXPECT_EQ(judge_rekey(Status::kBadKey, {.tries = 1}), RekeyTry::kFailed);
  EXPECT_EQ(judge_rekey(Status::kRightMissing, {.tries = 1}), RekeyTry::kFailed);
  EXPECT_EQ(judge_rekey(Status::kOk, {.tries = 1, .time_is_over = true}), RekeyTry::kDone);
}

}  // namespace
}  // namespace sluice::rack
