// The directory over HTTP with JSON, on a UNIX socket or a loopback port: the server in the switch daemon, the client everywhere else.
//
//   POST /v1/join    {"node": …, "lease_ms": n}        -> {"node": …, "lease": n}
//   POST /v1/publish {"lease": n, "node": …}           POST /v1/renew {"lease": n}          POST /v1/leave {"lease": n}   -> {}
//   GET  /v1/nodes                                     GET  /v1/watch?seen=REVISION&timeout_ms=n                          -> {"revision": n, "nodes": […]}
//     both also &kinds=memory,metadata: of these alone
//   POST /v1/tenants {"do": …}, /v1/regions {"do": …}, /v1/drain {"node", "on"}    GET /v1/tenants     tenants.h; who asks is told by
//   "Authorization: Bearer TOKEN". Without a token: tenants.h, "Who asks"; a lease speaks for itself.
//   Errors: 4xx or 5xx with {"error": "…"}; 410 says that the lease has ended.
//   With TLS a node's attribute "machine" is the name in the certificate by which it came, whatever it says itself.
//
// Threads:  any; the server has its own.
// Limits:   kMaxWatches wait at once, half of them of one tenant, more are answered at once with the present state. Of a tenant Tenants::kMostSnapshots
//           answers that tell of all nodes are made and written at once, besides; as many wait a second, and others get a 429. What speaks of a
//           lease waits for none of this.
// Source:   rack/directory/directory.h; cpp-httplib.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "rack/directory/directory.h"
#include "rack/directory/directory_store.h"
#include "telemetry/http_server.h"
#include "telemetry/places.h"

namespace httplib {
class Client;
class ClientImpl;
struct Request;
}  // namespace httplib

namespace sluice::rack {

using telemetry::HttpAddress;

// What a request shows; empty: none.
std::string_view token_of(const httplib::Request& request);

class DirectoryServer {
 public:
  static constexpr int kMaxWatches = 24;

  // Serves at once, until destroyed. A socket file that nobody listens on is replaced. `add_more` may add paths: requests come as soon as the
  // server listens.
  static Result<std::unique_ptr<DirectoryServer>> start(
      DirectoryStore& directory, HttpAddress address, const std::function<void(telemetry::HttpServer&)>& add_more = {});
  ~DirectoryServer();

  // Where it listens, with the port that the system chose if it was asked to.
  const std::string& address() const { return server_->address(); }
  std::uint64_t handshakes_failed() const { return server_->handshakes_failed(); }

 private:
  explicit DirectoryServer(DirectoryStore& directory) : directory_(directory) {}
  void add_routes(httplib::Server& http);
  void add_tenant_routes(httplib::Server& http);
  Result<void> admit(const httplib::Request& request);
  Result<Tenants::Asker> asker(const httplib::Request& request);
  // For an answer that tells of all nodes, and for waiting for one; null: its asker has as many.
  telemetry::Places::Place place_of(const Tenants::Asker& who);
  telemetry::Places::Place place_to_watch(const Tenants::Asker& who);
  Result<nlohmann::json> look(const httplib::Request& request, std::uint64_t seen, Duration timeout);

  DirectoryStore& directory_;
  bool at_socket_ = false;
  std::unique_ptr<telemetry::HttpServer> server_;
  telemetry::Places watching_{kMaxWatches / 2};
  std::atomic<int> watches_{0};
  std::atomic<bool> stopping_{false};
  std::thread expirer_;
};

class DirectoryClient final : public Directory {
 public:
  // `patience`: for how long a directory that does not answer is asked again.
  explicit DirectoryClient(HttpAddress address, Duration patience = Duration::seconds(2));

  using Directory::join;
  Result<Registration> join(const NodeDescription& description, Duration lease, remote::NodeId wish) override;
  Result<void> publish(LeaseId lease, const NodeDescription& description) override;
  Result<void> renew(LeaseId lease) override;
  Result<void> leave(LeaseId lease) override;
  Result<Snapshot> nodes() override;
  Result<Snapshot> watch(std::uint64_t seen, Duration timeout, NodeKinds kinds) override;
  void cut_watches() override;

  // The body of any other GET.
  Result<std::string> get(const std::string& path, Duration timeout = Duration::seconds(5));
  // The object that answers any other GET, or POST of JSON. An error, too, when the switch had no time for it.
  Result<nlohmann::json> ask(const std::string& path);
  Result<nlohmann::json> ask(const std::string& path, const nlohmann::json& question);
  // What a POST is answered without an end: each piece goes to `take`, until that says false. An error, too, when the other side ends it, or says
  // nothing for `timeout`.
  Result<void> pour(const std::string& path, const nlohmann::json& question, Duration timeout,
                    const std::function<bool(std::string_view)>& take);

 private:
  Result<std::string> post(const std::string& path, const nlohmann::json& body);
  template <class Request>
  Result<std::string> exchange(Duration timeout, Request&& request);

  HttpAddress address_;
  Duration patience_;
  std::mutex watching_;
  std::vector<httplib::ClientImpl*> watches_;  // under way; guarded by watching_
};

}  // namespace sluice::rack
