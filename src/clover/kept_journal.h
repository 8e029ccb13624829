// A journal in memory, for tests: what a metadata server that starts again is told.
#pragma once

#include <cstdint>
#include <vector>

#include "clover/metadata.h"

namespace sluice::clover {

class KeptJournal final : public Journal {
 public:
  void append(ByteView record) override { records.emplace_back(record.begin(), record.end()); }
  std::vector<std::vector<std::uint8_t>> records;
};

}  // namespace sluice::clover
