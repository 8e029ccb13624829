// Cowbird bench: the processes that `sluice bench cowbird` measures with: a passive pool, and a spot engine between it and the rings of the
// process that measures.
//
// Life:       the measuring process makes a CowbirdWorld, then forks: serve_cowbird_pool() in one process, serve_cowbird_engine() in another ->
//             open_channel() on the world's rings -> both processes are killed.
// The pool:   behind a queue pair on a port between the two; or in the engine's own process (`near`), for what costs the application alone.
// Threads:    one in each process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "cowbird/engine.h"
#include "cowbird/layout.h"
#include "ports/shared_block.h"
#include "rack/clients/verbs_bench.h"

namespace sluice::rack {

// The rings, and a board on which the processes tell each other what they must know; inherited by fork().
class CowbirdWorld {
 public:
  static constexpr std::uint8_t kFill = 0x5a;  // every byte of the pool

  // `instances` of one channel each: every one has an engine of its own. The pool has `pool_bytes`.
  static Result<std::unique_ptr<CowbirdWorld>> make(std::size_t instances, std::uint64_t pool_bytes);

  const cowbird::InstanceLayout& layout() const { return layout_; }
  MutableBytes block(std::size_t instance) const;
  MutableBytes channel(std::size_t instance) const { return block(instance).subspan(layout_.channel_at(0)); }
  std::uint64_t pool_bytes() const { return pool_bytes_; }
  // The pool as the engine reaches it, the only region of every instance; valid once the engine is ready.
  std::vector<cowbird::Region> regions() const;

  // Where the pool says what its memory is called. Address and key; key 0: not yet.
  void tell(std::uint64_t address, std::uint32_t key);
  bool told(std::uint64_t& address, std::uint32_t& key) const;

 private:
  CowbirdWorld() = default;
  cowbird::InstanceLayout layout_{};
  std::size_t instances_ = 0;
  std::uint64_t pool_bytes_ = 0;
  ports::SharedBlock shared_;
};

// Until the process is told to end. `ready`: the engine may come.
Result<void> serve_cowbird_pool(const VerbsEnd& end, CowbirdWorld& world, const std::function<void()>& ready);
// `configs`: of each instance's engine. `end` with an empty port: the pool is near. `ready`: requests may be issued.
Result<void> serve_cowbird_engine(const VerbsEnd& end, wire::Ipv4Address pool, CowbirdWorld& world,
                                  const std::vector<cowbird::EngineConfig>& configs,
                                  const std::function<void()>& ready);

}  // namespace sluice::rack
