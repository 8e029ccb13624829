// Authority: certificates for the machines of a rack, made by the rack itself.
//
// Files:      <folder>/authority.pem, authority.key; server.pem, server.key (the switch's); machines/NAME-SERIAL.pem, one for each that was
//             invited; revoked/SERIAL, one for each that does not count any more. The folder is 0700, keys are 0600.
// Life:       create() once -> open() by each command that issues or revokes.
// Invariant:  a file is there whole or not at all; an authority that is there is never replaced.
// Errors:     Result, with what to do.
// Threads:    one owner.
// Source:     X.509 v3 (RFC 5280), P-256 with SHA-256, by OpenSSL 3.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "telemetry/tls.h"

namespace sluice::rack {

// A certificate and its private key, in PEM.
struct Issued {
  std::string certificate;
  std::string key;
  std::string serial;  // hexadecimal
};

class Authority {
 public:
  static constexpr int kAuthorityDays = 3650;
  static constexpr int kMostDays = kAuthorityDays;

  // `hosts`: names and addresses that machines will reach the switch by; at least one.
  static Result<void> create(const std::string& folder, const std::vector<std::string>& hosts);
  static Result<Authority> open(const std::string& folder);
  static bool is_there(const std::string& folder);

  // For a machine, from now on for so many days. A name: 1 to 63 letters, digits, '-', '_' or '.'.
  Result<Issued> invite(const std::string& machine, int days) const;
  // Every certificate of this machine; how many that were still counted.
  Result<int> revoke(const std::string& machine) const;
  // Also where nobody can tell, because the list cannot be looked into.
  static bool is_revoked(const std::string& folder, const std::string& serial);
  // Whether the certificate of the authority there is still this one, in PEM.
  static bool is_still(const std::string& folder, const std::string& certificate);

  // Whether the switch's certificate names this host, so that machines may reach the switch by it; the error says whom it names.
  static Result<void> check_host(const std::string& folder, const std::string& host);

  // In PEM.
  const std::string& certificate() const { return certificate_; }
  // What the switch shows.
  static telemetry::TlsFiles server_files(const std::string& folder);

 private:
  Authority(std::string folder, std::string certificate, std::string key)
      : folder_(std::move(folder)), certificate_(std::move(certificate)), key_(std::move(key)) {}

  std::string folder_;
  std::string certificate_;
  std::string key_;
};

}  // namespace sluice::rack
