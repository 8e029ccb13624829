// Error log: what an engine has written of the requests that it reports as failed, as it stands in the application's memory (layout.h).
//
// Life:     bytes() are read from the block -> adopt() -> add() ... and entries(), then count() written back, before the progress line
//           that covers them.
// Order:    an application that sees the count sees what it counts.
// Final:    what the last engine has logged and not published stays so: the application may have read it. It is not executed again. It is logged
//           again unless it certainly stands there: the last engine may have died before it wrote the count.
// Limits:   kErrors that the application has not taken.
// Threads:  one owner.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "base/bytes.h"
#include "cowbird/layout.h"
#include "cowbird/request_id.h"
#include "cowbird/status.h"

namespace sluice::cowbird {

class ErrorLog {
 public:
  // Where they stand in the block, from its start.
  static constexpr std::size_t kCount = 0, kCountBytes = 8, kEntries = kErrorBytes;

  MutableBytes bytes() { return bytes_; }
  MutableBytes entries() { return bytes().subspan(kEntries); }
  MutableBytes count() { return bytes().first(kCountBytes); }
  // `published`: sequences of the last read and write that the engine before this one has published. What it has logged counts as taken
  // until the application says otherwise.
  void adopt(const std::uint64_t (&published)[2]) {
    logged_ = taken_ = load_le<std::uint64_t>(bytes_.data());
    for (std::size_t i = 0; i < kErrors; ++i) {
      const std::uint8_t* const slot = entries().data() + i * kErrorBytes;
      const RequestId id(static_cast<std::int64_t>(load_le<std::uint64_t>(slot)));
      const auto status = static_cast<Status>(load_le<std::uint64_t>(slot + 8));
      const std::uint64_t end = logged_ > i ? logged_ - (logged_ - 1 - i) % kErrors : 0;
      if (status != Status::kOk && id.sequence() > published[id.is_write()]) adopted_.push_back({id, status, i, end});
    }
  }
  void set_taken(std::uint64_t taken) { taken_ = taken; }

  // How the last engine said that the request has failed; kOk: it did not.
  Status adopted(const Entry& entry) const {
    const Adopted* const found = find(entry);
    return found == nullptr ? Status::kOk : found->status;
  }
  std::uint64_t logged() const { return logged_; }
  // `published`: sequences of the last read and write that are, the publication under way included.
  bool has_room_for(const Entry& entry, const std::uint64_t (&published)[2]) const {
    return stands(entry) || place_for(entry, published) - taken_ < kErrors;
  }
  // False: there is no room.
  bool add(const Entry& entry, Status status, const std::uint64_t (&published)[2]) {
    if (stands(entry)) return true;
    const std::uint64_t place = place_for(entry, published);
    if (place - taken_ >= kErrors) return false;
    for (Adopted& a : adopted_) {
      if (a.slot == kNowhere) continue;
      if ((a.slot - logged_) % kErrors < place - logged_) a.counted_to = logged_ + (a.slot - logged_) % kErrors + 1;
      if (a.slot == place % kErrors) a.slot = kNowhere;
    }
    std::uint8_t* const slot = entries().data() + kErrorBytes * (place % kErrors);
    store_le(slot, static_cast<std::uint64_t>(id_of(entry).value()));
    store_le(slot + 8, static_cast<std::uint64_t>(status));
    logged_ = place + 1;
    store_le(bytes_.data(), logged_);
    return true;
  }

 private:
  struct Adopted {
    RequestId id;
    Status status;
    std::size_t slot;  // kNowhere: another one has taken its place
    // The count when its place was last in it. Over what the application has taken another may have been stored since.
    std::uint64_t counted_to;
  };
  static constexpr std::size_t kNowhere = kErrors;

  // Where it is to be stored. Over what the last engine has logged and nobody has published only if there is nothing else: an engine after this one
  // would know nothing of it. It is passed over, and so counted once more.
  std::uint64_t place_for(const Entry& entry, const std::uint64_t (&published)[2]) const {
    const auto is_kept = [&](const Adopted& a) {
      return a.id != id_of(entry) && a.id.sequence() > published[a.id.is_write()];
    };
    for (std::uint64_t place = logged_; !adopted_.empty() && place != logged_ + kErrors; ++place) {
      if (std::none_of(adopted_.begin(), adopted_.end(),
                       [&](const Adopted& a) { return a.slot == place % kErrors && is_kept(a); }))
        return place;
    }
    return logged_;
  }
  const Adopted* find(const Entry& entry) const {
    const auto it =
        std::find_if(adopted_.begin(), adopted_.end(), [&](const Adopted& a) { return a.id == id_of(entry); });
    return it == adopted_.end() ? nullptr : &*it;
  }
  // It is in the log and has its place in the count, whatever the last engine did not live to do.
  bool stands(const Entry& entry) const {
    const Adopted* const found = find(entry);
    return found != nullptr && found->counted_to > taken_;
  }
  static RequestId id_of(const Entry& entry) { return {entry.type, entry.region, entry.sequence}; }

  std::array<std::uint8_t, kErrorBlock> bytes_{};
  std::vector<Adopted> adopted_;
  std::uint64_t logged_ = 0;
  std::uint64_t taken_ = 0;  // by the application, as last seen
};

}  // namespace sluice::cowbird
