#include "telemetry/http_server.h"

#include <fmt/core.h>
#include <httplib.h>
#include <netdb.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "telemetry/patient_server.h"

namespace sluice::telemetry {
namespace {

using nlohmann::json;

static_assert(HttpServer::kMaxBody < PatientServer::kMostRead);

// A page that is served loads nothing from elsewhere, and runs no script but a file of ours, whatever its data made of it.
// Its own style stands in it, as does its icon, which is none.
const char* const kPolicy =
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

std::chrono::nanoseconds chrono_of(Duration d) { return std::chrono::nanoseconds(d.nanoseconds()); }

// "name:port" or "name" without its port; "[v6]:port" as it is.
std::string host_of(const std::string& authority) {
  // cpp-httplib's clients leave the brackets out; a name has one colon at most.
  if (authority.starts_with('[') || authority.find(':') != authority.rfind(':')) return authority;
  return authority.substr(0, authority.rfind(':'));
}

// An address cannot be pointed elsewhere; a name can.
bool is_address(const std::string& host) {
  return host.empty() || host == "localhost" || host.find(':') != std::string::npos ||
         std::ranges::all_of(host, [](unsigned char c) { return std::isdigit(c) != 0 || c == '.'; });
}

// cpp-httplib does not say that it has not got as far as binding.
Result<void> check_host(const std::string& host) {
  addrinfo wanted{};
  wanted.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.empty() ? nullptr : host.c_str(), "0", &wanted, &found);
  if (status != 0)
    return fail(fmt::format("'{}' is no address, and no name that is known: {}", host, gai_strerror(status)));
  freeaddrinfo(found);
  return {};
}

// The origin that a page has which this server itself has served.
bool is_own_origin(const httplib::Request& request) {
  const std::string origin = request.get_header_value("Origin");
  if (origin.empty()) return true;  // no browser, or no page
  const std::string host = request.get_header_value("Host");
  return origin == "http://" + host || origin == "https://" + host;
}

}  // namespace

Result<void> check_shape(const std::string& body) {
  int depth = 0;
  int values = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string && c == '\\') ++i;  // what follows does not end the string
    if (c == '"') in_string = !in_string;
    if (in_string) continue;
    if (c == ']' || c == '}') --depth;
    if ((c == '[' || c == '{' || c == ',') && ++values > HttpServer::kMaxValues)
      return fail(fmt::format("the body has more than {} values", HttpServer::kMaxValues));
    if ((c == '[' || c == '{') && ++depth > HttpServer::kMaxNesting)
      return fail(fmt::format("the body has more than {} arrays and objects in each other", HttpServer::kMaxNesting));
  }
  return {};
}

void answer_error(httplib::Response& response, int status, const std::string& message) {
  response.status = status;
  // What a message repeats of a request need not be UTF-8.
  response.set_content(json{{"error", message}}.dump(-1, ' ', false, json::error_handler_t::replace), kJson);
}

std::pair<std::string, int> HttpAddress::host_and_port() const {
  if (is_unix()) return {text, 80};  // the port is ignored
  const std::size_t bracket = text.starts_with('[') ? text.find(']') : std::string::npos;
  const std::size_t colon = text.find(':', bracket == std::string::npos ? text.find_last_of(':') : bracket);
  std::string host = bracket == std::string::npos ? text.substr(0, colon) : text.substr(1, bracket - 1);
  if (colon == std::string::npos) return {std::move(host), 80};
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, port);
  return {std::move(host), error == std::errc() && rest == end ? port : -1};
}

HttpServer::HttpServer(HttpAddress address, std::unique_ptr<PatientServer> server)
    : address_(std::move(address)), server_(std::move(server)) {}

httplib::Server& HttpServer::http() { return *server_; }
void HttpServer::hurry(const std::string& path) { server_->hurry(path); }
std::uint64_t HttpServer::handshakes_failed() const { return server_->handshakes_failed(); }

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpAddress& address,
                                                      const std::function<void(HttpServer&)>& add_routes,
                                                      std::size_t threads) {
  std::shared_ptr<TlsServerContext> tls;
  if (address.tls) {
    auto made = TlsServerContext::make(*address.tls);
    if (!made) return tl::unexpected(made.error());
    tls = std::move(*made);
  }
  std::unique_ptr<HttpServer> server(new HttpServer(address, std::make_unique<PatientServer>(threads, std::move(tls))));
  httplib::Server& http = *server->server_;
  http.set_payload_max_length(kMaxBody);
  // Not cpp-httplib's SO_REUSEPORT, by which two servers could share a port, each answering some.
  http.set_socket_options([](socket_t s) {
    const int yes = 1;
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  http.set_default_headers({{"X-Frame-Options", "DENY"},
                            {"Content-Security-Policy", kPolicy},
                            {"X-Content-Type-Options", "nosniff"},
                            {"Cross-Origin-Resource-Policy", "same-origin"}});
  server->guard();
  add_routes(*server);
  const auto [host, port] = address.host_and_port();
  if (port < 0)
    return fail(fmt::format("cannot listen at {}: must be HOST:PORT with a port from 0 to 65535", address.text));
  if (address.is_unix()) {
    struct stat status {};
    if (lstat(host.c_str(), &status) == 0 && !S_ISSOCK(status.st_mode))
      return fail(fmt::format("cannot listen at {}: it is there and is no socket to replace", address.text));
    unlink(host.c_str());
    http.set_address_family(AF_UNIX);
  } else if (auto known = check_host(host); !known) {
    return fail(fmt::format("cannot listen at {}: {}", address.text, known.error().message));
  }
  const mode_t before = umask(0077);
  const int bound =
      port != 0 || address.is_unix() ? (http.bind_to_port(host, port) ? port : -1) : http.bind_to_any_port(host);
  umask(before);
  if (bound < 0) {
    const char* const hint = address.is_unix()        ? "a UNIX socket's path may have 107 bytes"
                             : errno == EACCES        ? "ports below 1024 need root, or CAP_NET_BIND_SERVICE"
                             : errno == EADDRNOTAVAIL ? "this machine does not have that address, or not yet"
                                                      : "is the port taken?";
    return fail(fmt::format("cannot listen at {}: {}; {}", address.text, std::strerror(errno), hint));
  }
  if (address.is_unix()) server->socket_file_ = socket_at(host);
  const std::string shown = host.find(':') == std::string::npos ? host : "[" + host + "]";
  server->listening_at_ = address.is_unix() ? address.text : fmt::format("{}:{}", shown, bound);
  server->listener_ = std::thread([&patient = *server->server_] { patient.serve(); });
  return server;
}

HttpServer::~HttpServer() {
  stopping_ = true;
  server_->end();
  if (listener_.joinable()) listener_.join();
  if (socket_file_ && socket_at(address_.text) == socket_file_) unlink(address_.text.c_str());
}

// Nothing: there is none.
std::optional<HttpServer::FileId> HttpServer::socket_at(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) return std::nullopt;
  return FileId{status.st_dev, status.st_ino};
}

void HttpServer::guard() {
  server_->set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    using Outcome = httplib::Server::HandlerResponse;
    for (const Admit& admit : admit_) {
      if (const auto admitted = admit(request); !admitted) {
        answer_error(response, 403, admitted.error().message);
        return Outcome::Handled;
      }
    }
    const std::string host = host_of(request.get_header_value("Host"));
    if (!address_.is_unix() && !is_address(host) && host != address_.host_and_port().first) {
      answer_error(response, 403, fmt::format("this server does not answer to the name {}; ask for its address", host));
      return Outcome::Handled;
    }
    if (request.method == "GET" || request.method == "HEAD") return Outcome::Unhandled;
    if (!is_own_origin(request)) {
      answer_error(response, 403, "pages of other origins may not change anything here");
      return Outcome::Handled;
    }
    if (request.method == "POST" && !request.get_header_value("Content-Type").starts_with(kJson)) {
      answer_error(response, 415, fmt::format("the body must be {}", kJson));
      return Outcome::Handled;
    }
    // What it would come to is nowhere limited.
    if (request.has_header("Content-Encoding")) {
      answer_error(response, 415, "the body must not be compressed");
      return Outcome::Handled;
    }
    return Outcome::Unhandled;
  });
  server_->set_error_handler([](const httplib::Request& request, httplib::Response& response) {
    if (!response.body.empty()) return;
    const char* const what = response.status == 404   ? "there is nothing at this path"
                             : response.status == 413 ? "the body is too long"
                                                      : "the request cannot be understood";
    answer_error(response, response.status, fmt::format("{} {}: {}", request.method, request.path, what));
  });
}

void HttpServer::serve(const std::string& path, const std::string& content_type, std::function<std::string()> body) {
  serve_each(path, content_type, [body = std::move(body)](const httplib::Request&) { return body(); });
}

void HttpServer::serve_each(const std::string& path, const std::string& content_type, Answer body) {
  server_->Get(path,
               [content_type, body = std::move(body)](const httplib::Request& request, httplib::Response& response) {
                 response.set_header("Cache-Control", "no-store");
                 response.set_content(body(request), content_type);
               });
}

// Of a request that has been admitted once.
bool HttpServer::may_still_read(const httplib::Request& request) const {
  return std::ranges::all_of(admit_, [&request](const Admit& admit) { return admit(request).has_value(); });
}

bool HttpServer::may_still_change(const httplib::Request& request) const {
  return may_still_read(request) && (!admit_changes_ || admit_changes_(request).has_value());
}

// Whether the body of a POST may be read; what is answered if not.
bool HttpServer::take_body(const httplib::Request& request, httplib::Response& response) const {
  if (admit_changes_) {
    if (const auto admitted = admit_changes_(request); !admitted) {
      answer_error(response, 403, admitted.error().message);
      return false;
    }
  }
  if (request.body.size() > kMaxBody) {
    answer_error(response, 413, fmt::format("the body has more than {} bytes", kMaxBody));
    return false;
  }
  if (const auto sound = check_shape(request.body); !sound) {
    answer_error(response, 400, sound.error().message);
    return false;
  }
  return true;
}

void HttpServer::take(const std::string& path, std::function<Result<std::string>(const std::string&)> handle) {
  server_->Post(path, [this, handle = std::move(handle)](const httplib::Request& request, httplib::Response& response) {
    if (!take_body(request, response)) return;
    const auto answered = handle(request.body);
    if (!answered) return answer_error(response, 409, answered.error().message);
    response.set_content(*answered, kJson);
  });
}

namespace {

// What a pour has said and its reader has not taken yet.
class Pour {
 public:
  Pour(HttpServer::Source source, std::function<bool()> is_admitted)
      : source_(std::move(source)), is_admitted_(std::move(is_admitted)) {}

  // False: it is over. What is thrown here, cpp-httplib does not catch.
  bool go_on(httplib::DataSink& sink) {
    try {
      return pour_some(sink);
    } catch (const std::exception&) {
      return false;
    }
  }

 private:
  static constexpr std::chrono::nanoseconds kShortestNap = std::chrono::microseconds(50);
  static constexpr std::chrono::nanoseconds kLongestNap = std::chrono::milliseconds(5);

  bool pour_some(httplib::DataSink& sink) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= admit_at_) {
      if (!is_admitted_()) return false;
      admit_at_ = now + chrono_of(HttpServer::kAdmitAgain);
    }
    if (at_ == text_.size()) {
      at_ = 0;
      text_ = source_();
    }
    if (text_.empty() || !sink.is_writable()) {
      if (text_.empty()) taken_at_ = now;
      // A reader that is at work is soon ready again; one that pauses shall cost nothing.
      const auto pause = text_.empty()
                             ? kLongestNap
                             : std::clamp(std::chrono::nanoseconds(now - taken_at_) / 4, kShortestNap, kLongestNap);
      std::this_thread::sleep_for(pause);
      return now < taken_at_ + chrono_of(HttpServer::kLongestPause);
    }
    // So much a socket takes at once when it takes anything.
    constexpr std::size_t kPiece = std::size_t{16} << 10;
    const std::size_t size = std::min(kPiece, text_.size() - at_);
    if (!sink.write(text_.data() + at_, size)) return false;
    at_ += size;
    taken_at_ = now;
    return true;
  }

  HttpServer::Source source_;
  std::string text_;
  std::size_t at_ = 0;
  std::function<bool()> is_admitted_;
  std::chrono::steady_clock::time_point admit_at_ =
      std::chrono::steady_clock::now() + chrono_of(HttpServer::kAdmitAgain);
  std::chrono::steady_clock::time_point taken_at_ = std::chrono::steady_clock::now();
};

}  // namespace

void HttpServer::pour(const std::string& path, const std::string& content_type,
                      std::function<Result<Source>(const std::string& body)> begin) {
  server_->Post(path, [this, content_type, begin = std::move(begin)](const httplib::Request& request,
                                                                     httplib::Response& response) {
    if (!take_body(request, response)) return;
    // Given back by whoever is the last to have it.
    const std::shared_ptr<std::atomic<int>> place(&pours_, [](std::atomic<int>* count) { count->fetch_sub(1); });
    if (place->fetch_add(1) >= kMaxPours)
      return answer_error(response, 503, fmt::format("{} readers are there already; end one", kMaxPours));
    auto source = begin(request.body);
    if (!source) return answer_error(response, 409, source.error().message);
    response.set_header("Cache-Control", "no-store");
    response.set_chunked_content_provider(
        content_type,
        [this, place, pour = std::make_shared<Pour>(std::move(*source), [this, request] {
                        return may_still_change(request);
                      })](std::size_t, httplib::DataSink& sink) { return !stopping_ && pour->go_on(sink); });
  });
}

void HttpServer::stream(const std::string& path, Duration period, Answer body) {
  server_->Get(
      path, [this, period, body = std::move(body)](const httplib::Request& request, httplib::Response& response) {
        if (streams_.fetch_add(1) >= kMaxStreams) {
          streams_.fetch_sub(1);
          return answer_error(response, 503, fmt::format("{} pages are watching already; close one", kMaxStreams));
        }
        response.set_header("Cache-Control", "no-store");
        bool first = true;
        response.set_chunked_content_provider(
            "text/event-stream",
            [this, period, body, first, request](std::size_t, httplib::DataSink& sink) mutable {
              const auto next = std::chrono::steady_clock::now() + chrono_of(first ? Duration() : period);
              first = false;
              while (std::chrono::steady_clock::now() < next && !stopping_)
                std::this_thread::sleep_for(std::chrono::milliseconds(20));
              if (stopping_) {
                sink.done();
                return false;
              }
              // What is thrown here, cpp-httplib does not catch: the stream ends.
              try {
                if (!may_still_read(request)) return false;
                const std::string event = "data: " + body(request) + "\n\n";
                return sink.write(event.data(), event.size());
              } catch (const std::exception&) {
                return false;
              }
            },
            [this](bool) { streams_.fetch_sub(1); });
      });
}

}  // namespace sluice::telemetry
