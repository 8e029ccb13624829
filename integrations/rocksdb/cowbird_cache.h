// Cowbird cache: a RocksDB SecondaryCache whose blocks lie in remote memory. What the block cache evicts is written there, and what it misses is
// looked for there before the disk.
//
// Life:       NewCowbirdCache(options, &cache) -> LRUCacheOptions::secondary_cache = cache -> the database uses it; `sluice cowbird engine`
//             moves the bytes.
// Errors:     set-up: a Status that says what to do. Later it is a cache and nothing more: without an engine, without memory, with a memory node that has
//             died, with full rings or bytes that are not what was written, a look-up misses, an insertion is dropped, and the counters say so.
//             A memory node that has another key than before is asked for its region again, once a second until it gives it.
// Threads:    any. A look-up waits for its block, spinning first; MultiGet's wait together.
// Limits:     a block with its key: at most options.largest_block bytes. The index costs about 150 bytes of local memory a block.
// Source:     Cowbird (SIGCOMM 2023) §5; RocksDB 7.8 secondary_cache.h.
#pragma once

#include <rocksdb/secondary_cache.h>
#include <rocksdb/status.h>

#include <cstdint>
#include <memory>
#include <string>

namespace sluice {

struct CowbirdCacheOptions {
  std::string engine;                   // path of the engine's socket; empty: of the rack in its usual place
  std::string memory_node = "memory1";  // name on the rack
  std::uint64_t offset = 0;             // of the cache, in what the node exports
  std::uint64_t capacity = std::uint64_t{1} << 30;  // bytes, a multiple of 64
  std::uint32_t lanes = 4;                          // threads that can issue at the same time, 1 to 256
  std::uint32_t largest_block = 256 * 1024;         // bytes
  std::uint64_t patience_us = 20'000;               // a look-up that takes longer is a miss; at most an hour
};

struct CowbirdCacheCounters {
  std::uint64_t inserts = 0;
  std::uint64_t inserts_dropped = 0;  // too large, rings full, no engine, no memory, or the memory node refuses
  std::uint64_t inserts_failed = 0;   // on their way when the memory node refused them or did not answer
  std::uint64_t lookups = 0;
  std::uint64_t hits = 0;
  std::uint64_t refused = 0;  // in the index, not asked for: rings full, no engine, or the memory node refuses
  std::uint64_t late = 0;     // gave up after patience_us
  std::uint64_t failed = 0;   // the memory node refused, or did not answer
  std::uint64_t wrong =
      0;  // other bytes than were written: written over meanwhile, not there yet, or lost with their node
  std::uint64_t blocks = 0;  // in the index now
};

// The cache, and what it counts. Both fail alike when no engine answers or the memory node is not known.
rocksdb::Status NewCowbirdCache(const CowbirdCacheOptions& options, std::shared_ptr<rocksdb::SecondaryCache>* cache);
// REQUIRES: `cache` came from NewCowbirdCache.
CowbirdCacheCounters counters_of(const rocksdb::SecondaryCache& cache);

}  // namespace sluice
