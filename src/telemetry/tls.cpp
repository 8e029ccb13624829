#include "telemetry/tls.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>

#include <algorithm>
#include <array>

namespace sluice::telemetry {
namespace {

template <class T, void (*Free)(T*)>
struct Freed {
  void operator()(T* p) const { Free(p); }
};
using Certificate = std::unique_ptr<X509, Freed<X509, X509_free>>;

std::string why() {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  const char* const reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  return reason != nullptr ? reason : "unknown reason";
}

Result<Certificate> read_certificate(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return fail(fmt::format("cannot read the certificate {}", path));
  Certificate certificate(PEM_read_X509(file, nullptr, nullptr, nullptr));
  std::fclose(file);
  if (!certificate) return fail(fmt::format("{} is no certificate in PEM: {}", path, why()));
  return certificate;
}

std::string date_of(const ASN1_TIME* time) {
  tm broken_down{};
  if (ASN1_TIME_to_tm(time, &broken_down) != 1) return "?";
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d", &broken_down);
  return text.data();
}

Result<void> check_dates(const X509& certificate, const std::string& path) {
  if (X509_cmp_current_time(X509_get0_notAfter(&certificate)) < 0) {
    return fail(fmt::format("the certificate {} has expired on {}", path, date_of(X509_get0_notAfter(&certificate))));
  }
  if (X509_cmp_current_time(X509_get0_notBefore(&certificate)) > 0) {
    return fail(fmt::format("the certificate {} counts from {} on; is this machine's clock right?", path,
                            date_of(X509_get0_notBefore(&certificate))));
  }
  return {};
}

Result<void> load(SSL_CTX& context, const TlsFiles& files) {
  if (SSL_CTX_use_certificate_file(&context, files.certificate.c_str(), SSL_FILETYPE_PEM) != 1)
    return fail(fmt::format("cannot use the certificate {}: {}", files.certificate, why()));
  if (SSL_CTX_use_PrivateKey_file(&context, files.key.c_str(), SSL_FILETYPE_PEM) != 1)
    return fail(fmt::format("cannot use the private key {}: {}", files.key, why()));
  if (SSL_CTX_check_private_key(&context) != 1)
    return fail(fmt::format("the private key {} is not that of {}", files.key, files.certificate));
  if (SSL_CTX_load_verify_locations(&context, files.authority.c_str(), nullptr) != 1)
    return fail(fmt::format("cannot use the authority's certificate {}: {}", files.authority, why()));
  return {};
}

}  // namespace

Result<void> check_tls_files(const TlsFiles& files) {
  for (const std::string& path : {files.authority, files.certificate}) {
    const auto certificate = read_certificate(path);
    if (!certificate) return tl::unexpected(certificate.error());
    if (auto sound = check_dates(**certificate, path); !sound) return sound;
  }
  const std::unique_ptr<SSL_CTX, Freed<SSL_CTX, SSL_CTX_free>> context(SSL_CTX_new(TLS_client_method()));
  if (!context) return fail("no memory for TLS");
  return load(*context, files);
}

TlsPeer peer_of(const x509_st& certificate) {
  TlsPeer peer;
  std::array<char, 256> name{};
  if (X509_NAME_get_text_by_NID(X509_get_subject_name(&certificate), NID_commonName, name.data(), name.size()) > 0)
    peer.name = name.data();
  const ASN1_INTEGER* const serial = X509_get0_serialNumber(&certificate);
  for (int i = 0; i < ASN1_STRING_length(serial); ++i)
    peer.serial += fmt::format("{:02x}", ASN1_STRING_get0_data(serial)[i]);
  return peer;
}

TlsPeer peer_of(const ssl_st* connection) {
  if (connection == nullptr) return {};
  const X509* const certificate = SSL_get0_peer_certificate(connection);
  return certificate == nullptr ? TlsPeer{} : peer_of(*certificate);
}

Result<std::shared_ptr<TlsServerContext>> TlsServerContext::make(const TlsFiles& files) {
  if (auto sound = check_tls_files(files); !sound) return tl::unexpected(sound.error());
  std::shared_ptr<TlsServerContext> made(new TlsServerContext(SSL_CTX_new(TLS_server_method())));
  if (made->context_ == nullptr) return fail("no memory for TLS");
  SSL_CTX& context = *made->context_;
  if (auto loaded = load(context, files); !loaded) return tl::unexpected(loaded.error());
  SSL_CTX_set_min_proto_version(&context, TLS1_3_VERSION);
  SSL_CTX_set_num_tickets(&context, 0);
  SSL_CTX_set_session_cache_mode(&context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_verify(&context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_mode(&context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  return made;
}

TlsServerContext::~TlsServerContext() { SSL_CTX_free(context_); }

TlsConnection::TlsConnection(const TlsServerContext& context, int socket)
    : connection_(SSL_new(context.get())), socket_(socket) {
  // Waiting is ours, with a deadline.
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
  if (connection_ != nullptr) SSL_set_fd(connection_, socket);
}

TlsConnection::~TlsConnection() {
  if (connection_ != nullptr && SSL_is_init_finished(connection_) == 1) SSL_shutdown(connection_);
  SSL_free(connection_);
  ERR_clear_error();
}

bool TlsConnection::may_go_on(int result) {
  const int error = SSL_get_error(connection_, result);
  ERR_clear_error();
  wants_to_write_ = error == SSL_ERROR_WANT_WRITE;
  return error == SSL_ERROR_WANT_READ || wants_to_write_;
}

bool TlsConnection::wait_for(int result, Deadline until) {
  if (!may_go_on(result)) return false;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
  pollfd descriptor{socket_, static_cast<short>(wants_to_write_ ? POLLOUT : POLLIN), 0};
  return poll(&descriptor, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0))) == 1;
}

TlsConnection::Progress TlsConnection::accept_some() {
  if (connection_ == nullptr) return Progress::kFailed;
  const int result = SSL_accept(connection_);
  if (result == 1) return Progress::kDone;
  return may_go_on(result) ? Progress::kNone : Progress::kFailed;
}

long TlsConnection::read_some(char* to, std::size_t size) {
  const int result = SSL_read(connection_, to, static_cast<int>(size));
  if (result > 0) return result;
  if (SSL_get_error(connection_, result) == SSL_ERROR_ZERO_RETURN) return 0;
  return may_go_on(result) ? kNothingYet : -1;
}

long TlsConnection::read(char* to, std::size_t size, Deadline until) {
  for (;;) {
    const int result = SSL_read(connection_, to, static_cast<int>(size));
    if (result > 0) return result;
    if (SSL_get_error(connection_, result) == SSL_ERROR_ZERO_RETURN) return 0;
    if (!wait_for(result, until)) return -1;
  }
}

long TlsConnection::write(const char* from, std::size_t size, Deadline until) {
  for (;;) {
    const int result = SSL_write(connection_, from, static_cast<int>(size));
    if (result > 0) return result;
    if (!wait_for(result, until)) return -1;
  }
}

bool TlsConnection::pending() const { return SSL_pending(connection_) > 0; }

}  // namespace sluice::telemetry
