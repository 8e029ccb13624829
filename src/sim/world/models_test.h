// The hardware models that tests run loads on, and what these came to.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "sim/edm/edm_testbed.h"
#include "sim/world/hardware.h"

namespace sluice::sim {

// experiments/hardware/NAME.toml.
inline Hardware model(const std::string& name) {
  return load_hardware(SLUICE_SOURCE_DIR "/experiments/hardware/" + name + ".toml").value();
}
inline Hardware connectx5() { return model("connectx5"); }
inline Hardware with_edm(Hardware hardware) {
  hardware.edm = std::make_shared<const EdmTestbedHardware>(
      load_edm_testbed_hardware(SLUICE_SOURCE_DIR "/experiments/hardware/edm_rack.toml").value());
  return hardware;
}

template <class Result>
double metric(const Result& result, std::string_view name) {
  for (const auto& [key, value] : result.metrics) {
    if (key == name) return value;
  }
  ADD_FAILURE() << "no metric " << name;
  return std::nan("");
}

}  // namespace sluice::sim
