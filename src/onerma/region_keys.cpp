#include "onerma/region_keys.h"

namespace sluice::onerma {

void RegionKeys::announce(const Grant& grant) {
  tries_ = 0;
  if (grants_.size() == kMost) {
    const std::size_t oldest = present_ == 1 ? 2 : 1;
    grants_.erase(grants_.begin() + static_cast<std::ptrdiff_t>(oldest));
    present_ -= oldest < present_ ? 1 : 0;
  }
  grants_.push_back(grant);
}

void RegionKeys::replace(const Grant& grant) {
  tries_ = 0;
  grants_.erase(grants_.begin(), grants_.begin() + static_cast<std::ptrdiff_t>(present_ + 1));
  std::erase_if(grants_, [&](const Grant& one) { return one.generation.value <= grant.generation.value; });
  grants_.insert(grants_.begin(), grant);
  present_ = 0;
}

bool RegionKeys::refused() {
  if (grants_.size() == 1 || tries_ == grants_.size()) return false;
  ++tries_;
  present_ = (present_ == 0 ? grants_.size() : present_) - 1;
  return true;
}

void RegionKeys::works() {
  tries_ = 0;
  if (present_ == 0) return;
  grants_.erase(grants_.begin(), grants_.begin() + static_cast<std::ptrdiff_t>(present_));
  present_ = 0;
}

}  // namespace sluice::onerma
