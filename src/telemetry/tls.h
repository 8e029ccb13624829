// TLS: who is at the other end of a connection, by certificates of one authority. Both ends show one.
//
// Errors:   of files, with their names and what to do; of handshakes, in accept()'s answer.
// Threads:  a context may be used by any number of threads.
// Limits:   TLS 1.3 alone; no session tickets, so that every connection shows its certificate.
// Source:   OpenSSL 3; RFC 8446.
#pragma once

#include <signal.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"

struct ssl_ctx_st;
struct ssl_st;
struct x509_st;

namespace sluice::telemetry {

// Files in PEM: the authority's certificate, one's own, one's private key.
struct TlsFiles {
  std::string authority;
  std::string certificate;
  std::string key;
};

// Whether these files can be read, belong together, and count today. Who asks another end first knows what to tell its user.
Result<void> check_tls_files(const TlsFiles& files);

// What a certificate says of its owner.
struct TlsPeer {
  std::string name;    // common name; empty: no certificate
  std::string serial;  // hexadecimal
};
TlsPeer peer_of(const ssl_st* connection);
TlsPeer peer_of(const x509_st& certificate);

// OpenSSL writes to sockets whose other end may be gone; in this thread, for as long as this lasts, no signal comes of it.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoPipeSignal() {
    const timespec now{};
    if (sigismember(&before_, SIGPIPE) == 0) sigtimedwait(&pipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

class TlsServerContext {
 public:
  static Result<std::shared_ptr<TlsServerContext>> make(const TlsFiles& files);
  ~TlsServerContext();
  ssl_ctx_st* get() const { return context_; }

 private:
  explicit TlsServerContext(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* context_;
};

// A server's end of one connection. The socket stays the caller's.
class TlsConnection {
 public:
  TlsConnection(const TlsServerContext& context, int socket);
  ~TlsConnection();
  TlsConnection(const TlsConnection&) = delete;
  TlsConnection& operator=(const TlsConnection&) = delete;

  using Deadline = std::chrono::steady_clock::time_point;
  // The handshake, as far as it goes without waiting. kFailed: there is no peer that may be talked to.
  enum class Progress : std::uint8_t { kDone, kNone, kFailed };
  Progress accept_some();
  // As recv() of a socket that does not wait.
  static constexpr long kNothingYet = -2;
  long read_some(char* to, std::size_t size);
  // What these two have to wait for.
  bool wants_to_write() const { return wants_to_write_; }
  // As recv() and send(), whole or -1.
  long read(char* to, std::size_t size, Deadline until);
  long write(const char* from, std::size_t size, Deadline until);
  // Whether a read would find something without asking the socket.
  bool pending() const;
  const ssl_st* get() const { return connection_; }

 private:
  // What to do with an answer of OpenSSL's: true: wait has been done, try again.
  bool wait_for(int result, Deadline until);
  // Whether it may come to something later.
  bool may_go_on(int result);

  ssl_st* connection_;
  int socket_;
  bool wants_to_write_ = false;
};

}  // namespace sluice::telemetry
