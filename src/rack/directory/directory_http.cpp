#include "rack/directory/directory_http.h"

#include <fmt/core.h>
#include <httplib.h>
#include <netdb.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "rack/directory/directory_json.h"
#include "rack/settings/http_reason.h"
#include "rack/settings/json_number.h"
#include "rack/settings/private_file.h"

namespace sluice::rack {
namespace {

using nlohmann::json;

// What a change may take where its store is a cluster that has no leader just now.
constexpr Duration kStoreAnswers = Duration::seconds(20);

constexpr std::size_t kMostToken = 256;

// For which a question that tells of all nodes waits while its asker has as many as may be.
constexpr std::chrono::milliseconds kPlacePatience{1000};

using telemetry::kJson;
using telemetry::Places;

void answer_error(httplib::Response& response, const Error& error) {
  telemetry::answer_error(response, unknown_lease(error) ? 410 : 409, error.message);
}

// A certificate's name need not be UTF-8.
std::string text_of(const json& answer) { return answer.dump(-1, ' ', false, json::error_handler_t::replace); }

void answer(httplib::Response& response, const Result<json>& result) {
  if (!result) return answer_error(response, result.error());
  response.set_content(text_of(*result), kJson);
}

// The same where it may be long: it takes memory until it is written, and its place so long.
void answer_from(Places::Place place, httplib::Response& response, const Result<json>& result) {
  if (!result) return answer_error(response, result.error());
  const auto text = std::make_shared<const std::string>(text_of(*result));
  response.set_content_provider(
      text->size(), kJson,
      [text, place = std::move(place)](std::size_t from, std::size_t size, httplib::DataSink& sink) {
        return sink.write(text->data() + from, size);
      });
}

void refuse_for_now(httplib::Response& response) {
  telemetry::answer_error(response, 429, "this tenant asks what is on the rack too often at once; try again");
}

Result<json> empty_object(const Result<void>& result) {
  if (!result) return tl::unexpected(result.error());
  return json::object();
}

// A handler that gets the request's JSON object, and a 400 for everything else.
template <class Handle>
auto with_parsed(Handle handle) {
  return [handle](const httplib::Request& request, httplib::Response& response) {
    if (const auto sound = telemetry::check_shape(request.body); !sound)
      return telemetry::answer_error(response, 400, sound.error().message);
    try {
      handle(request, json::parse(request.body), response);
    } catch (const json::exception& e) {
      telemetry::answer_error(response, 400, fmt::format("malformed request: {}", e.what()));
    }
  };
}

// One that says what the answer is.
template <class Handle>
auto with_json(Handle handle) {
  return with_parsed([handle](const httplib::Request& request, const json& in, httplib::Response& response) {
    answer(response, handle(request, in));
  });
}

// What a node says of itself, and what its certificate says.
Result<NodeDescription> described_by(const httplib::Request& request, const json& in) {
  auto description = description_from_json(in.at("node"));
  const std::string machine = telemetry::peer_of(request.ssl).name;
  if (!description) return description;
  description->attributes.erase(kMachineAttribute);
  if (!machine.empty()) description->attributes[kMachineAttribute] = machine;
  return description;
}

// Whoever asks as the rack's owner may have a tenant's token in his environment and not know it.
std::string for_the_operator(const std::string& tenant) {
  return fmt::format(
      "is for the rack's operator, not for tenant '{}', whose token SLUICE_TOKEN_FILE or --token-file names: unset it, "
      "or name an operator's",
      tenant);
}

// What speaks of a lease, and must not wait until it has ended.
constexpr std::array<std::string_view, 3> kOfALease{"/v1/renew", "/v1/publish", "/v1/leave"};

bool is_read(const httplib::Request& request) { return request.method == "GET" || request.method == "HEAD"; }

LeaseId lease_of(const json& in) { return LeaseId(number_at<std::uint64_t>(in, "lease")); }

std::int64_t number_parameter(const httplib::Request& request, const char* name, std::int64_t otherwise) {
  return request.has_param(name) ? std::strtoll(request.get_param_value(name).c_str(), nullptr, 10) : otherwise;
}

}  // namespace

std::string_view token_of(const httplib::Request& request) {
  constexpr std::string_view kBearer = "Bearer ";
  const auto found = request.headers.find("Authorization");
  if (found == request.headers.end() || !found->second.starts_with(kBearer)) return {};
  return std::string_view(found->second).substr(kBearer.size());
}

Result<std::unique_ptr<DirectoryServer>> DirectoryServer::start(
    DirectoryStore& directory, HttpAddress address, const std::function<void(telemetry::HttpServer&)>& add_more) {
  if (address.is_unix() && DirectoryClient(address, Duration{}).nodes())
    return fail(fmt::format("a directory is already served at {}; is this rack up already?", address.text));
  std::unique_ptr<DirectoryServer> server(new DirectoryServer(directory));
  server->at_socket_ = address.is_unix();
  auto http = telemetry::HttpServer::start(address, [&](telemetry::HttpServer& h) {
    for (const std::string_view path : kOfALease) h.hurry(std::string(path));
    server->add_routes(h.http());
    server->add_tenant_routes(h.http());
    if (add_more) add_more(h);
    h.admit([s = server.get()](const httplib::Request& request) {
      return is_read(request) ? s->admit(request) : Result<void>{};
    });
    h.admit_changes([s = server.get()](const httplib::Request& request) { return s->admit(request); });
  });
  if (!http) return tl::unexpected(http.error());
  server->server_ = std::move(*http);
  server->expirer_ = std::thread([s = server.get()] {
    while (!s->stopping_) {
      s->directory_.expire();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
  return server;
}

DirectoryServer::~DirectoryServer() {
  stopping_ = true;
  directory_.stop_watches();
  server_.reset();
  if (expirer_.joinable()) expirer_.join();
}

Result<Tenants::Asker> DirectoryServer::asker(const httplib::Request& request) {
  return directory_.tenants().identify(token_of(request), at_socket_);
}

// What a request may ask for at all; what of it, the handlers decide.
Result<void> DirectoryServer::admit(const httplib::Request& request) {
  const std::string& path = request.path;
  // A lease is a secret of its own: what lives goes on while its token is being replaced.
  if (std::ranges::find(kOfALease, path) != kOfALease.end()) return {};
  const bool reads = is_read(request);
  const bool names_keys = path == "/v1/nodes" || path == "/v1/watch" || path == "/v1/tenants";
  if (reads && !names_keys && token_of(request).empty()) return {};
  const auto who = asker(request);
  if (!who) return tl::unexpected(who.error());
  const bool everybodys = (reads && path != "/v1/tenants") || path == "/v1/join" || path == "/v1/regions";
  if (who->is_rack || everybodys) return {};
  return directory_.tenants().refuse(Tenants::Refusal::kForbidden,
                                     fmt::format("{} {} {}", request.method, path, for_the_operator(who->tenant)));
}

void DirectoryServer::add_routes(httplib::Server& http) {
  using httplib::Request;
  http.Post("/v1/join", with_json([this](const Request& request, const json& in) -> Result<json> {
              const auto who = asker(request);
              if (!who) return tl::unexpected(who.error());
              auto description = described_by(request, in);
              if (description) description = directory_.tenants().admitted(std::move(*description), *who);
              if (!description) return tl::unexpected(description.error());
              // What is out of bounds stays so, without being more than a Duration holds.
              const auto lease_ms = std::clamp<std::int64_t>(in.at("lease_ms").get<std::int64_t>(), 0, 1'000'000'000);
              const remote::NodeId wish(in.contains("wish") ? number_at<std::uint32_t>(in, "wish") : 0);
              auto joined = directory_.join(*description, Duration::milliseconds(lease_ms), wish);
              if (!joined) return tl::unexpected(joined.error());
              // Whoever was shut out meanwhile was not among the nodes that were put out.
              if (auto still = directory_.tenants().still(*who); !still) {
                static_cast<void>(directory_.leave(joined->lease));
                return tl::unexpected(still.error());
              }
              return json{{"node", to_json(joined->node)}, {"lease", joined->lease.value}};
            }));
  http.Post("/v1/publish", with_json([this](const Request& request, const json& in) -> Result<json> {
              auto description = described_by(request, in);
              if (description) description = directory_.tenants().published(std::move(*description));
              if (!description) return tl::unexpected(description.error());
              return empty_object(directory_.publish(lease_of(in), *description));
            }));
  http.Post("/v1/renew", with_json([this](const Request&, const json& in) -> Result<json> {
              return empty_object(directory_.renew(lease_of(in)));
            }));
  http.Post("/v1/leave", with_json([this](const Request&, const json& in) -> Result<json> {
              return empty_object(directory_.leave(lease_of(in)));
            }));
  http.Get("/v1/nodes", [this](const Request& request, httplib::Response& response) {
    const auto who = asker(request);
    if (!who) return telemetry::answer_error(response, 403, who.error().message);
    auto place = place_of(*who);
    if (!place) return refuse_for_now(response);
    answer_from(std::move(place), response, look(request, 0, Duration()));
  });
  http.Get("/v1/watch", [this](const Request& request, httplib::Response& response) {
    const auto who = asker(request);
    if (!who) return telemetry::answer_error(response, 403, who.error().message);
    const auto seen = static_cast<std::uint64_t>(number_parameter(request, "seen", 0));
    const Places::Place may_wait = place_to_watch(*who);
    Places::Place place = may_wait ? may_wait : place_of(*who);
    if (!place) return refuse_for_now(response);
    const bool room = watches_.fetch_add(1) < kMaxWatches && may_wait;
    const std::int64_t timeout_ms =
        room ? std::clamp<std::int64_t>(number_parameter(request, "timeout_ms", 0), 0, 60'000) : 0;
    const auto seen_then = look(request, seen, Duration::milliseconds(timeout_ms));
    watches_.fetch_sub(1);
    answer_from(std::move(place), response, seen_then);
  });
}

Places::Place DirectoryServer::place_of(const Tenants::Asker& who) {
  return who.is_rack ? std::make_shared<int>() : directory_.tenants().snapshots().take(who.tenant, kPlacePatience);
}

Places::Place DirectoryServer::place_to_watch(const Tenants::Asker& who) {
  return who.is_rack ? std::make_shared<int>() : watching_.take(who.tenant, std::chrono::milliseconds(0));
}

// What this one asks for, and may see by the time there is something: his token may have been revoked meanwhile.
Result<json> DirectoryServer::look(const httplib::Request& request, std::uint64_t seen, Duration timeout) {
  const std::string text = request.get_param_value("kinds");
  const auto kinds = request.has_param("kinds") ? parse_node_kinds(text) : kAllKinds;
  if (!kinds) return fail(fmt::format("kinds={}: must be some of switch,memory,metadata,client", text));
  // Whether a tenant may see a metadata server hangs on the memory there is.
  const NodeKinds looked_at = kinds->contains(NodeKind::kMetadata) ? kinds->with(NodeKind::kMemory) : *kinds;
  auto snapshot = directory_.watch(seen, timeout, looked_at);
  if (!snapshot) return tl::unexpected(snapshot.error());
  const auto who = asker(request);
  if (!who) return tl::unexpected(who.error());
  snapshot = directory_.tenants().view(std::move(*snapshot), *who);
  if (!snapshot) return tl::unexpected(snapshot.error());
  snapshot->keep(*kinds);
  return to_json(*snapshot);
}

namespace {

Result<json> list_tenants(Tenants& tenants) {
  const auto all = tenants.list();
  if (!all) return tl::unexpected(all.error());
  json out = json::array();
  for (const Tenants::Standing& tenant : *all) {
    out.push_back({{"name", tenant.name},
                   {"quota_bytes", tenant.quota.bytes},
                   {"quota_regions", tenant.quota.regions},
                   {"used_bytes", tenant.used.bytes},
                   {"used_regions", tenant.used.regions},
                   {"operator", tenant.is_operator},
                   {"revoked", tenant.is_revoked}});
  }
  return json{{"tenants", std::move(out)}};
}

Result<json> change_tenant(Tenants& tenants, const json& in) {
  const auto what = in.at("do").get<std::string>();
  const auto name = in.at("name").get<std::string>();
  const auto quota = [&in] {
    return Tenants::Quota{number_at<std::uint64_t>(in, "bytes"), number_at<std::uint64_t>(in, "regions")};
  };
  const auto told = [](Result<std::string> token) -> Result<json> {
    if (!token) return tl::unexpected(token.error());
    return json{{"token", std::move(*token)}};
  };
  if (what == "add") return told(tenants.add(name, quota(), in.value("operator", false)));
  if (what == "rotate") return told(tenants.rotate(name));
  if (what == "revoke") return empty_object(tenants.revoke(name));
  if (what == "quota") {
    const auto number = [&in](const char* key) {
      return in.contains(key) ? std::optional(number_at<std::uint64_t>(in, key)) : std::nullopt;
    };
    const auto set = tenants.set_quota(name, {number("bytes"), number("regions")});
    if (!set) return tl::unexpected(set.error());
    return json{{"bytes", set->bytes}, {"regions", set->regions}};
  }
  if (what == "remove")
    return empty_object(
        tenants.remove(name, in.value("with_regions", false) ? Tenants::Regions::kRemove : Tenants::Regions::kKeep));
  return fail(fmt::format("\"do\": \"{}\": must be one of add, rotate, revoke, quota, remove", what));
}

// `by_rack`: no tenant asks, but the rack's operator.
Result<json> change_region(Tenants& tenants, const std::string& tenant, bool by_rack, const json& in) {
  const auto what = in.at("do").get<std::string>();
  const auto name = in.at("name").get<std::string>();
  if (what == "remove") return empty_object(tenants.remove_region(tenant, name));
  const auto made = [&]() -> Result<TenantRegion> {
    if (what == "add")
      return tenants.add_region(tenant, name, number_at<std::uint64_t>(in, "length"), in.value("node", ""));
    if (!by_rack) return tenants.refuse(Tenants::Refusal::kForbidden, "moving regions " + for_the_operator(tenant));
    if (what == "move") return tenants.begin_move(tenant, name, in.value("node", ""));
    if (what == "moved")
      return tenants.end_move(tenant, name, number_at<std::uint64_t>(in, "next_birth"),
                              number_at<std::uint64_t>(in, "incarnation"));
    if (what == "stay") return tenants.undo_move(tenant, name);
    return fail(fmt::format("\"do\": \"{}\": must be one of add, remove, move, moved, stay", what));
  }();
  if (!made) return tl::unexpected(made.error());
  return to_json(*made);
}

}  // namespace

void DirectoryServer::add_tenant_routes(httplib::Server& http) {
  using httplib::Request;
  Tenants& tenants = directory_.tenants();
  const auto if_admitted = [this](auto handle) {
    return [this, handle](const Request& request, httplib::Response& response) {
      if (const auto admitted = admit(request); !admitted)
        return telemetry::answer_error(response, 403, admitted.error().message);
      handle(request, response);
    };
  };
  http.Get("/v1/tenants",
           [&tenants](const Request&, httplib::Response& response) { answer(response, list_tenants(tenants)); });
  http.Post("/v1/tenants",
            if_admitted(with_json([&tenants](const Request&, const json& in) { return change_tenant(tenants, in); })));
  http.Post(
      "/v1/regions",
      if_admitted(with_parsed([this, &tenants](const Request& request, const json& in, httplib::Response& response) {
        const auto who = asker(request);
        if (!who) return answer_error(response, who.error());
        const auto named = in.value("tenant", "");
        const std::string tenant = who->is_rack || !named.empty() ? named : who->tenant;
        if (tenant.empty())
          return answer_error(response, {"whose region? Say --tenant NAME, or show the tenant's token with "
                                         "--token-file"});
        if (!who->is_rack && tenant != who->tenant) {
          const auto refused =
              tenants.refuse(Tenants::Refusal::kForbidden,
                             fmt::format("memory of tenant '{}' {}", tenant, for_the_operator(who->tenant)));
          return telemetry::answer_error(response, 403, refused.value().message);
        }
        answer(response, change_region(tenants, tenant, who->is_rack, in));
      })));
  http.Post("/v1/drain", if_admitted(with_json([&tenants](const Request&, const json& in) {
              return empty_object(tenants.drain(in.at("node").get<std::string>(), in.at("on").get<bool>()));
            })));
}

DirectoryClient::DirectoryClient(HttpAddress address, Duration patience)
    : address_(std::move(address)), patience_(patience) {}

namespace {

std::unique_ptr<httplib::ClientImpl> make_client(const HttpAddress& address) {
  const auto [host, port] = address.host_and_port();
  if (!address.tls) {
    auto client = std::make_unique<httplib::ClientImpl>(host, port);
    if (address.is_unix()) client->set_address_family(AF_UNIX);
    return client;
  }
  auto client = std::make_unique<httplib::SSLClient>(host, port, address.tls->certificate, address.tls->key);
  client->set_ca_cert_path(address.tls->authority);
  client->enable_server_certificate_verification(true);
  client->set_connection_timeout(std::chrono::seconds(5));
  return client;
}

// The file's first line. Who else could read it could do what we may.
Result<std::string> read_token(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0)
    return fail(
        fmt::format("token file {}: {}; --token-file or SLUICE_TOKEN_FILE names it", path, std::strerror(errno)));
  if ((status.st_mode & 0077) != 0)
    return fail(fmt::format("token file {}: others may read it; run chmod 600 on it", path));
  auto text = read_whole_file(path);
  if (!text) return fail("token file: " + text.error().message);
  text->resize(std::min(text->find_first_of("\r\n"), text->size()));
  const bool sound = !text->empty() && text->size() <= kMostToken &&
                     std::ranges::all_of(*text, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
  if (!sound)
    return fail(
        fmt::format("token file {}: its first line is no token, which is what `sluice tenant add` prints", path));
  return text;
}

bool is_known_name(const std::string& host) {
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.c_str(), nullptr, nullptr, &found);
  if (status == 0) freeaddrinfo(found);
  return status != EAI_NONAME;
}

// Why there was no answer, for people.
Error no_answer(const HttpAddress& address, httplib::Error error) {
  using enum httplib::Error;
  if (!address.tls)
    return {fmt::format(
        "no directory answers at {} ({}); is the rack up? `sluice rack status` tells, `sluice rack up` starts one",
        address.text, reason_of(error))};
  if (error == SSLServerVerification)
    return {
        fmt::format("whoever answers at {} cannot show that it is the switch of the rack that this machine was invited "
                    "to; was `sluice rack init` run anew there, or without this name or address? Ask for a new "
                    "invitation",
                    address.text)};
  if (error == Read || error == Write || error == SSLConnection)
    return {fmt::format(
        "{} ended the connection: it does not take this machine's certificate, or is no switch of a rack, or "
        "has too much to do; try again, or ask there for a new invitation (`sluice rack invite NAME`)",
        address.text)};
  const auto [host, port] = address.host_and_port();
  if (!address.text.ends_with(fmt::format(":{}", port)))
    return {fmt::format("{}: a switch is reached at HOST:PORT, and here is no port", address.text)};
  if (!is_known_name(host))
    return {fmt::format("{}: this machine knows no '{}'; does its name service, or /etc/hosts, say where that is?",
                        address.text, host)};
  return {fmt::format("no switch answers at {} ({}); is the rack up there, with `--serve {}`, and the way to it open?",
                      address.text, reason_of(error), address.text)};
}

}  // namespace

// Asks until there is an answer or patience ends. Only connecting, with its handshake, is repeated: a request that was sent may have been executed.
template <class Request>
Result<std::string> DirectoryClient::exchange(Duration timeout, Request&& request) {
  if (address_.tls) {
    if (const auto sound = telemetry::check_tls_files(*address_.tls); !sound)
      return fail(sound.error().message +
                  "; join the rack anew, with a new invitation (`sluice rack invite NAME` there)");
  }
  if (address_.is_unix() && access(address_.text.c_str(), W_OK) != 0 && errno == EACCES)
    return fail(fmt::format("{}: {}; ask as its owner", address_.text, std::strerror(EACCES)));
  std::string token;
  if (!address_.token_file.empty()) {
    auto read = read_token(address_.token_file);
    if (!read) return tl::unexpected(read.error());
    token = std::move(*read);
  }
  const telemetry::NoPipeSignal quiet;
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::nanoseconds(patience_.nanoseconds());
  for (;;) {
    const auto client = make_client(address_);
    client->set_read_timeout(std::chrono::milliseconds(timeout.milliseconds()));
    if (!token.empty()) client->set_default_headers({{"Authorization", "Bearer " + token}});
    const httplib::Result result = request(*client);
    if (result && result->status == 200) return result->body;
    if (result) {
      const json body = json::parse(result->body, nullptr, false);
      return fail(body.is_object() && body.value("error", json()).is_string()
                      ? body["error"].get<std::string>()
                      : fmt::format("the directory answered {}", result->status));
    }
    const bool sent = result.error() != httplib::Error::Connection && result.error() != httplib::Error::SSLConnection;
    if (sent || std::chrono::steady_clock::now() >= give_up) return tl::unexpected(no_answer(address_, result.error()));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

Result<std::string> DirectoryClient::post(const std::string& path, const json& body) {
  // Names of programs and the like may have bytes that are no UTF-8.
  const std::string text = text_of(body);
  return exchange(kStoreAnswers, [&](httplib::ClientImpl& client) { return client.Post(path, text, kJson); });
}

Result<void> DirectoryClient::pour(const std::string& path, const json& question, Duration timeout,
                                   const std::function<bool(std::string_view)>& take) {
  const std::string text = text_of(question);
  bool begun = false;
  bool enough = false;
  auto refused = exchange(timeout, [&](httplib::ClientImpl& client) {
    httplib::Request request;
    request.method = "POST";
    request.path = path;
    request.headers = {{"Content-Type", kJson}};
    request.body = text;
    std::string error;
    request.response_handler = [&begun](const httplib::Response& response) {
      begun = response.status == 200;
      return true;
    };
    request.content_receiver = [&](const char* bytes, std::size_t size, std::uint64_t, std::uint64_t) {
      if (begun) return !(enough = !take({bytes, size}));
      error.append(bytes, size);
      return true;
    };
    httplib::Result result = client.send(request);
    if (result && !begun) result->body = std::move(error);
    return result;
  });
  if (enough) return {};
  if (!begun) return tl::unexpected(refused.error());
  return fail("the switch has ended it, or is out of reach");
}

Result<std::string> DirectoryClient::get(const std::string& path, Duration timeout) {
  return exchange(timeout, [&](httplib::ClientImpl& client) { return client.Get(path); });
}

namespace {
Result<json> object_of(const Result<std::string>& body) {
  if (!body) return tl::unexpected(body.error());
  json answer = json::parse(*body, nullptr, false);
  if (!answer.is_object()) return fail("malformed answer of the directory");
  if (answer.value("error", json()).is_string()) return fail(answer["error"].get<std::string>() + "; try again");
  return answer;
}
}  // namespace

Result<json> DirectoryClient::ask(const std::string& path) { return object_of(get(path)); }

Result<json> DirectoryClient::ask(const std::string& path, const json& question) {
  return object_of(post(path, question));
}

Result<Registration> DirectoryClient::join(const NodeDescription& description, Duration lease, remote::NodeId wish) {
  json question{{"node", to_json(description)}, {"lease_ms", lease.milliseconds()}};
  if (wish.value != 0) question["wish"] = wish.value;
  const auto answer = ask("/v1/join", question);
  if (!answer) return tl::unexpected(answer.error());
  if (!answer->contains("node") || !answer->value("lease", json()).is_number_unsigned())
    return fail("malformed answer of the directory");
  auto node = node_from_json(answer->at("node"));
  if (!node) return tl::unexpected(node.error());
  return Registration{std::move(*node), LeaseId(answer->at("lease").get<std::uint64_t>())};
}

namespace {
Result<void> nothing_of(const Result<std::string>& body) {
  if (!body) return tl::unexpected(body.error());
  return {};
}
Result<Snapshot> snapshot_of(const Result<std::string>& body) {
  if (!body) return tl::unexpected(body.error());
  return snapshot_from_json(json::parse(*body, nullptr, false));
}
}  // namespace

Result<void> DirectoryClient::publish(LeaseId lease, const NodeDescription& description) {
  return nothing_of(post("/v1/publish", {{"lease", lease.value}, {"node", to_json(description)}}));
}

Result<void> DirectoryClient::renew(LeaseId lease) { return nothing_of(post("/v1/renew", {{"lease", lease.value}})); }

Result<void> DirectoryClient::leave(LeaseId lease) { return nothing_of(post("/v1/leave", {{"lease", lease.value}})); }

Result<Snapshot> DirectoryClient::nodes() { return snapshot_of(get("/v1/nodes")); }

Result<Snapshot> DirectoryClient::watch(std::uint64_t seen, Duration timeout, NodeKinds kinds) {
  std::string path = fmt::format("/v1/watch?seen={}&timeout_ms={}", seen, timeout.milliseconds());
  if (kinds != kAllKinds) path += "&kinds=" + to_string(kinds);
  return snapshot_of(exchange(timeout + Duration::seconds(5), [&](httplib::ClientImpl& client) {
    {
      const std::scoped_lock lock(watching_);
      watches_.push_back(&client);
    }
    auto result = client.Get(path);
    const std::scoped_lock lock(watching_);
    std::erase(watches_, &client);
    return result;
  }));
}

void DirectoryClient::cut_watches() {
  const std::scoped_lock lock(watching_);
  for (httplib::ClientImpl* const client : watches_) client->stop();
}

}  // namespace sluice::rack
