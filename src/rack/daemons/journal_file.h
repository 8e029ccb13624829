// Journal file: what a metadata server must find again when it is started anew after a death. Survives the process, not the machine: memory
// nodes do not survive that either.
//
// Bytes:      records, one after the other: u32 length, little-endian, or 2^32 - 1 and the length as u64 | bytes. The first is a text that says
//             which store it is.
// Life:       read() -> (replay) -> begin() with a server's state -> append() a record before each answer -> begin() again when it has grown.
// Errors:     read() and begin() say what is wrong. A journal that cannot be written on is removed and says so by failed(): a story with a gap
//             is worse than none. Another's that stands in the place of ours by now is left alone: who was stopped for longer than its lease has a
//             successor. What died in the middle of a record is read up to there: nobody has been answered for the rest.
// Threads:    one owner.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "clover/metadata.h"

namespace sluice::rack {

class JournalFile final : public clover::Journal {
 public:
  struct Story {
    std::string store;
    std::vector<std::vector<std::uint8_t>> records;
  };
  // Nothing: there is none.
  static Result<std::optional<Story>> read(const std::string& path);

  explicit JournalFile(std::string path) : path_(std::move(path)) {}
  JournalFile(const JournalFile&) = delete;
  JournalFile& operator=(const JournalFile&) = delete;
  ~JournalFile() override;

  // From now on the journal is this text, this record and what is appended.
  Result<void> begin(const std::string& store, ByteView state);
  void append(ByteView record) override;
  bool failed() const { return descriptor_ < 0; }
  // Much longer than when it was begun.
  bool wants_to_begin_again() const { return bytes_ > kLeast && bytes_ > 4 * begun_with_; }
  std::uint64_t bytes() const { return bytes_; }

  // What stands before a record.
  static void put_length(std::vector<std::uint8_t>& out, std::uint64_t length);
  // Takes it from the front; nothing: it is cut short.
  static std::optional<std::uint64_t> take_length(ByteView& in);

 private:
  static constexpr std::uint64_t kLeast = 32u << 20;

  bool is_anothers() const;

  std::string path_;
  bool has_begun_ = false;
  int descriptor_ = -1;
  std::uint64_t bytes_ = 0;
  std::uint64_t begun_with_ = 0;
  std::vector<std::uint8_t> record_;
};

}  // namespace sluice::rack
