// A file for what passes ports, which is everybody's data and keys: for its owner alone.
//
// Errors:   null, and errno says why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace sluice::ports {

// Made with mode 0600, or emptied and given that mode. A pipe or a device stays as it is.
std::FILE* open_private_output(const std::string& path);

// Where the pieces of a file end, so that one whose disk is full ends with a whole one, and whoever reads it finds nothing wrong.
class WholePieces {
 public:
  // So many bytes more have been given to the stream.
  void add(std::size_t bytes) { ends_.push_back(ends_.back() + bytes); }
  // All of it has been written out.
  void written() { ends_ = {ends_.back()}; }
  // Writing has failed: what the stream still holds is dropped, and of a regular file what is no whole piece. errno stays.
  void cut(std::FILE* stream) const;

 private:
  std::vector<std::uint64_t> ends_{0};  // from the last that is known to be in the file
};

}  // namespace sluice::ports
