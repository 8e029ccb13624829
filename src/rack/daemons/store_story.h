// Store story: a metadata server that finds its store again: what stands in the journal, and which memory the store lies in.
//
// Errors:   a journal of a store of another make, with what to do. A journal whose memory is all gone is no error: the store begins anew, and
//           the journal is kept under another name.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "clover/metadata.h"
#include "rack/daemons/journal_file.h"
#include "rack/directory/directory.h"
#include "rack/settings/config.h"

namespace sluice::rack {

// The memory of a memory node that is ready; `space` of it, 0: all. Nothing: it exports none.
std::optional<clover::Home> home_of(const NodeRecord& node, std::uint64_t space);

// Looks at the directory until what memory nodes there are is `enough`; false: it never was for so long.
Result<bool> watch_memory(Directory& directory, Duration patience, const std::function<bool(const Snapshot&)>& enough);

class StoreStory {
 public:
  explicit StoreStory(std::string path) : journal_(path), path_(std::move(path)) {}

  // The server as it was when it died, if it was, and its memory is still there, or comes back within `patience`: it is not waited for where
  // its nodes have started anew. Not yet restarted: see begin().
  Result<std::unique_ptr<clover::MetadataServer>> recall(const MetadataSettings& settings, Directory& directory,
                                                         Duration patience);
  // One for a store that begins. A journal whose memory recall() has not found goes to lost(), in place of one that is there.
  Result<std::unique_ptr<clover::MetadataServer>> make(const MetadataSettings& settings,
                                                       const std::vector<clover::Home>& homes);
  // From now on all that `server` does is written down. REQUIRES: recall() or make() has made it.
  Result<void> begin(Time now, clover::MetadataServer& server);
  // To be called now and then: keeps the journal short, and begins it again after a failure. For so long as that takes nobody is served. Where it fails (a full disk, say) it is tried again after kPause, or kPauses times what it took, if that is longer.
  void keep(Time now, clover::MetadataServer& server);
  const JournalFile& journal() const { return journal_; }
  static constexpr Duration kPause = Duration::seconds(30);
  static constexpr int kPauses = 20;
  static std::string lost(const std::string& path) { return path + ".lost"; }

 private:
  Result<std::unique_ptr<clover::MetadataServer>> build(const MetadataSettings& settings,
                                                        const std::vector<clover::Home>& homes, std::uint32_t number);
  Result<void> write_anew(Time now, clover::MetadataServer& server);

  JournalFile journal_;
  std::string path_;
  std::string store_;     // the journal's first record
  Time next_try_;         // of keep()
  bool failed_ = false;   // the journal, when keep() last looked
  bool told_ = false;     // that it could not be begun again
  bool is_lost_ = false;  // the memory that the journal tells of
};

}  // namespace sluice::rack
