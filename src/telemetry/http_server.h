// HTTP server: what a daemon answers to programs and people.
//
// Life:       start() binds and serves at once -> destroyed: every request ends.
// Paths:      serve() for GET, take() for POST of JSON, stream() for server-sent events, pour() for bytes without an end, http() for whatever else
//             cpp-httplib can.
// Errors:     of start(), with what to do. Requests are answered 4xx or 5xx with {"error": "…"}; what of a request is no UTF-8 is replaced there.
//             What a stream's body() throws ends that stream, what is thrown outside of handlers that connection.
// Safety:     a POST that a web page of another origin makes a browser send is refused (403), one that is not application/json, or is compressed, too (415).
//             A request whose Host is a name (and not an address or localhost) is refused, unless it is the name that was listened at:
//             so no foreign name that was pointed here (DNS rebinding) becomes our origin.
//             No page may frame what is served: what somebody clicks there (clickjacking) would come from our origin.
// Threads:    any; handlers run in the server's own threads, several at once.
// Limits:     `threads` requests at once, kMaxStreams of them streams, kMaxPours of them pours; a body has at most kMaxBody bytes, kMaxValues values and kMaxNesting arrays
//             and objects in each other; patient_server.h for those who connect and say nothing.
// Source:     cpp-httplib.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "telemetry/tls.h"

namespace httplib {
class Server;
struct Request;
struct Response;
}  // namespace httplib

namespace sluice::telemetry {

class PatientServer;

inline constexpr const char* kJson = "application/json";

// Where a server is: a path is a UNIX socket, "host:port" is TCP; with files, TLS on it.
struct HttpAddress {
  std::string text;
  std::optional<TlsFiles> tls{};
  std::string token_file{};  // of a client: it shows the token in there, read anew with each request; empty: none

  bool is_unix() const { return text.find('/') != std::string::npos; }
  // For cpp-httplib: the path and any port, or host and port; port 0 lets the system choose, -1: it is no number of a port. An IPv6 address, which
  // stands in brackets, comes without them.
  std::pair<std::string, int> host_and_port() const;
};

class HttpServer {
 public:
  // 24 for who watches the directory, 8 for requests that are not whole, those of streams and pours, and 14 for what is soon answered.
  static constexpr std::size_t kThreads = 64;
  static constexpr int kMaxStreams = 12;
  static constexpr int kMaxPours = 6;
  static constexpr Duration kAdmitAgain = Duration::milliseconds(500);
  static constexpr Duration kLongestPause = Duration::seconds(300);  // that a reader of a pour may make
  static constexpr std::size_t kMaxBody = std::size_t{1} << 20;  // patient_server.h counts what comes without a length
  static constexpr int kMaxNesting = 64;
  static constexpr int kMaxValues = 1 << 16;  // parsed, each takes many times its bytes

  // Replaces a socket file that is there, and leaves one alone at its end that has replaced its own; TCP ports that are taken are an error.
  // `add_routes` is called before the first request can come.
  static Result<std::unique_ptr<HttpServer>> start(const HttpAddress& address,
                                                   const std::function<void(HttpServer&)>& add_routes,
                                                   std::size_t threads = kThreads);
  ~HttpServer();

  // --- REQUIRES of these: called from add_routes ---
  // What GET `path` answers.
  void serve(const std::string& path, const std::string& content_type, std::function<std::string()> body);
  // The same where it depends on who asks.
  using Answer = std::function<std::string(const httplib::Request&)>;
  void serve_each(const std::string& path, const std::string& content_type, Answer body);
  // What POST `path` does with its body, JSON, and answers in JSON.
  void take(const std::string& path, std::function<Result<std::string>(const std::string&)> handle);
  // GET `path`: what `body` says, one line of JSON, as an event at once and once every `period` from then on, until the client or we go, or the
  // client is admitted no more, which is asked each time.
  void stream(const std::string& path, Duration period, Answer body);
  // POST `path`: `begin` makes of the body what then says, piece by piece, what the answer is, "" for nothing yet; until the client or we go, or it
  // throws, or the client is admitted no more, which is asked every kAdmitAgain. Whoever reads slowly is waited for, up to kLongestPause.
  using Source = std::function<std::string()>;
  void pour(const std::string& path, const std::string& content_type,
            std::function<Result<Source>(const std::string& body)> begin);
  // Who may go on to what a request asks for; an error is answered 403. Asked before everything else, several in the order in which they were given.
  using Admit = std::function<Result<void>(const httplib::Request&)>;
  void admit(Admit admit) { admit_.push_back(std::move(admit)); }
  // Who may go on to take() and pour(): asked once the body has come, because one who is still sending it would not hear why.
  void admit_changes(Admit admit) { admit_changes_ = std::move(admit); }
  // Requests to `path` are soon done, and wait for no others: patient_server.h.
  void hurry(const std::string& path);
  httplib::Server& http();

  // Where it listens: as told, with the port that the system chose.
  const std::string& address() const { return listening_at_; }
  bool is_at_socket() const { return address_.is_unix(); }
  // Connections that ended in the handshake of TLS.
  std::uint64_t handshakes_failed() const;

 private:
  // A file, whatever it is called.
  struct FileId {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    friend bool operator==(const FileId&, const FileId&) = default;
  };

  HttpServer(HttpAddress address, std::unique_ptr<PatientServer> server);
  static std::optional<FileId> socket_at(const std::string& path);
  void guard();
  bool may_still_read(const httplib::Request& request) const;
  bool may_still_change(const httplib::Request& request) const;
  bool take_body(const httplib::Request& request, httplib::Response& response) const;

  HttpAddress address_;
  std::string listening_at_;
  std::unique_ptr<PatientServer> server_;
  std::vector<Admit> admit_;
  Admit admit_changes_;
  std::atomic<int> streams_{0};
  std::atomic<int> pours_{0};
  std::atomic<bool> stopping_{false};
  std::optional<FileId> socket_file_;  // that we have made
  std::thread listener_;
};

// An error for JSON that is nested deeper than kMaxNesting: copying or printing what it means would take that much stack; and for more than
// kMaxValues. Whether it is JSON at all its reader finds out.
Result<void> check_shape(const std::string& body);
// {"error": "…"} with this status.
void answer_error(httplib::Response& response, int status, const std::string& message);

}  // namespace sluice::telemetry
