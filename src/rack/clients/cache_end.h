// The key-value cache in real time, over 1RMA: a replica's process, and a client with its replicas.
//
// Life:       serve_cache() opens its port, writes a file of grants, and serves until it is told to end. CacheClient::open() takes a grant out of
//             each replica's file -> wait_for() operations, or spawn coroutines on cache() and run the loop. Grants that no frame has shown go back at the
//             end.
// Numbers:    a client's is what the first of its replicas, by address, gives it: its address and its versions follow from it. Each life of a replica
//             gives others, from chance, of some 32,000.
// Rights:     a client may read a table, and read and write its own mailbox: each is a region with a key of its own.
// Failover:   a lookup's reads end `patience` after they began, then another replica is asked.
// Threads:    one in each process.
// Source:     kvcache/README.md; docs/onerma.md.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "kvcache/client.h"
#include "nic/machine_poll.h"
#include "nic/nic.h"
#include "onerma/node.h"
#include "onerma/remote_onerma.h"
#include "rack/clients/onerma_end.h"
#include "rack/endpoint/onerma_grants.h"

namespace sluice::rack {

struct CacheReplicaEnd {
  std::string port;     // "shm:…", "cable:…", "udp:…", "packet:…,filter=all"
  bool listen = false;  // a listener whose first caller is the peer
  wire::Ipv4Address ip{};
  std::uint64_t memory = 64u << 20;  // of the table
  std::uint64_t entry_bytes = 256;   // about how long entries are: how many buckets there will be
  static constexpr std::uint64_t kMostValue = 1u << 20;
  std::uint64_t max_value = 64u << 10;  // bytes; a mailbox has room for it
  std::uint64_t clients = 16;           // grants in the file
  std::string grants;                   // the file
};

// Serves until the process is told to end. `ready` is called when the file is there and clients may come.
Result<void> serve_cache(const CacheReplicaEnd& end, const std::function<void()>& ready);

struct CacheClientEnd {
  std::string port;                 // from which all replicas can be reached
  std::vector<std::string> grants;  // a file of each replica
  static constexpr Duration kLeastPatience = Duration::milliseconds(20);
  Duration patience = Duration::milliseconds(50);
  std::uint64_t value_bytes = 0;  // of the longest value that will be set
};

class CacheClient {
 public:
  static Result<std::unique_ptr<CacheClient>> open(const CacheClientEnd& end);
  ~CacheClient();

  kvcache::Client& cache() { return *cache_; }
  // Bytes; as long as the replica that takes the longest lets it be.
  std::uint64_t max_value() const { return max_value_; }
  remote::Scheduler& scheduler() { return scheduler_; }
  nic::PollLoop& loop() { return loop_; }
  const onerma::RemoteOnerma::Counters& transfers() const { return remote_->counters(); }

  // Turns the loop until the task has ended; false: the loop was stopped first.
  bool wait_for(remote::Task<void> task);

 private:
  CacheClient() = default;
  Result<void> join(const std::string& port);
  void connect(const CacheClientEnd& end, onerma::RemoteOnerma::Parameters parameters,
               std::unique_ptr<port::Port> port);

  std::vector<TakenGrants> grants_;  // by the replicas' addresses
  nic::PollLoop loop_;
  std::unique_ptr<onerma::Node> node_;
  std::unique_ptr<nic::MachinePoll<onerma::Node>> shard_;
  onerma::Algorithm1 policy_{real_time_algorithm()};
  std::unique_ptr<onerma::RemoteOnerma> remote_;
  std::unique_ptr<nic::Pollable> remote_poll_;
  std::unique_ptr<nic::SchedulerPoll> scheduler_poll_;
  std::uint64_t max_value_ = 0;
  std::unique_ptr<kvcache::Client> cache_;
  remote::Scheduler scheduler_;  // ends first: what is under way in it looks at the client when it is ended
};

}  // namespace sluice::rack
