// Ranks: the processes of one MPI job, which send each other texts.
//
// Life:     start() once a process, before anything forks -> send() and receive() -> the destructor waits for the others to end, too.
// Errors:   start() says when this program was built without MPI, or runs alone. A rank that dies ends the job: that is MPI's way.
// Threads:  one.
// Source:   MPI 3.1 §3 (point to point), §5 (collective).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::cli {

struct RankMessage {
  int from = 0;
  std::string text;
};

class Ranks {
 public:
  static Result<std::unique_ptr<Ranks>> start();
  virtual ~Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Those on this machine, this one included.
  virtual int here() const = 0;
  // Between two ranks in order. Texts are small: it may wait until the other receives.
  virtual void send(int to, const std::string& text) = 0;
  // Nothing: nothing has come.
  virtual std::optional<RankMessage> receive() = 0;
  // All call it; each gets what all gave, by rank.
  virtual std::vector<std::string> exchange(const std::string& text) = 0;

 protected:
  Ranks() = default;
};

}  // namespace sluice::cli
