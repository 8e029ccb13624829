// Reads captures for tests: all frames of a pcap file, in order.
//
// tests/golden/rxe holds Linux 6.1 Soft-RoCE traffic that was captured for this project. Captures of real NICs belong to
// others and lie outside the repository: reference_captures() is empty where SLUICE_REFERENCE_DIR is not there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace sluice::golden {

using FrameBytes = std::vector<std::uint8_t>;

// Throws std::runtime_error when the file is no Ethernet capture.
std::vector<FrameBytes> read_capture(const std::filesystem::path& file);

// Sorted by name.
std::vector<std::filesystem::path> rxe_captures();
std::vector<std::filesystem::path> reference_captures();

}  // namespace sluice::golden
