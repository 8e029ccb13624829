// RegionKeys: what a client has been granted for one region: the key that is in use, and those that it may have to go on with.
//
// Life:       the first grant -> announce() before a Rekey -> refused() turns to another key -> works() forgets what came before the one that does.
// Believes:   a key that works. A refusal may be forged (docs/design/onerma.md §5), so it turns to another key, the newest first, and forgets none.
// Limits:     kMost grants: beyond that the oldest goes of those that are neither in use nor the first, under which an operation has succeeded.
// Source:     ours; 1RMA §5.2 leaves to software how clients learn of new keys.
#pragma once

#include <cstddef>
#include <vector>

#include "onerma/keys.h"

namespace sluice::onerma {

class RegionKeys {
 public:
  static constexpr std::size_t kMost = 3;

  explicit RegionKeys(const Grant& grant) {
    grants_.reserve(kMost);
    grants_.push_back(grant);
  }

  const Grant& present() const { return grants_[present_]; }
  void announce(const Grant& grant);
  // Who hands out keys says that this is the one.
  void replace(const Grant& grant);
  // The present one has been refused. True: another is present now, each in turn, and at last this one for a second time. False: none is left to try.
  bool refused();
  // Each may be tried once more.
  void try_anew() { tries_ = 0; }
  // An operation has succeeded under the present one.
  void works();

 private:
  std::vector<Grant> grants_;  // in the order in which they came
  std::size_t present_ = 0;
  std::size_t tries_ = 0;  // refused since one worked, or there was news
};

}  // namespace sluice::onerma
