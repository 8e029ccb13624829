// What the box in the switch can be told: part of [switch], and what may be changed while it runs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "rack/settings/schema.h"

namespace sluice::rack {

struct BoxSettings {
  std::string box = "off";
  std::uint64_t cores = 1;
  std::string order = "pipelined";
  bool steer_writes = true;
  bool steer_reads = true;
  Duration steer_reads_for = Duration::milliseconds(500);
  std::uint64_t keys = 1024;
  std::uint64_t keys_at_start = 1024;
  // That `keys` may be raised to while the switch runs, if it is started with so many.
  static std::uint64_t most_keys(std::uint64_t at_start) { return std::max<std::uint64_t>(at_start * 4, 4096); }
  std::uint64_t most_keys() const { return most_keys(keys_at_start); }
  std::uint64_t history = 1u << 16;
  std::uint64_t connections = 4096;
  static constexpr std::uint64_t kLeastHeldFrames = 16;  // with fewer, connections break on what is dropped
  std::uint64_t held_frames = 4096;
  std::uint64_t ring = 256;
  std::uint64_t words = 65'536;
  std::vector<std::string> servers;  // IP addresses
  Duration flight = Duration::seconds(1);
  Duration repair_after = Duration::milliseconds(10);
  Duration fence = Duration::seconds(5);
  bool verify_icrc = false;

  bool wanted() const { return box != "off"; }
  bool steers() const { return box == "clover" || box == "clover+words"; }
  bool shares() const { return box == "words" || box == "clover+words"; }
  void declare(Schema& schema);
  // Of what cannot be checked one by one.
  Result<void> check() const;
};

}  // namespace sluice::rack
