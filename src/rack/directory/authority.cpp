#include "rack/directory/authority.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "rack/settings/private_file.h"

namespace sluice::rack {
namespace {

namespace fs = std::filesystem;

template <class T, void (*Free)(T*)>
struct Freed {
  void operator()(T* p) const { Free(p); }
};
using Certificate = std::unique_ptr<X509, Freed<X509, X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY, EVP_PKEY_free>>;
using Memory = std::unique_ptr<BIO, Freed<BIO, BIO_free_all>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freed<X509_EXTENSION, X509_EXTENSION_free>>;

Error openssl_error(const std::string& what) {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  const char* const reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  return {fmt::format("{}: {}", what, reason != nullptr ? reason : "OpenSSL says no more")};
}

std::string text_of(BIO* memory) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory, &data);
  return {data, static_cast<std::size_t>(std::max(size, 0L))};
}

std::string pem_of(X509& certificate) {
  const Memory memory(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(memory.get(), &certificate);
  return text_of(memory.get());
}

std::string pem_of(EVP_PKEY& key) {
  const Memory memory(BIO_new(BIO_s_secmem()));
  PEM_write_bio_PrivateKey(memory.get(), &key, nullptr, nullptr, 0, nullptr, nullptr);
  return text_of(memory.get());
}

struct Extra {
  int nid;
  std::string value;
};

// A certificate for `subject`, signed by `issuer`, or by itself.
struct Order {
  std::string subject;
  int days = 0;
  std::vector<Extra> extensions;
};

Result<Issued> make(const Order& order, X509* issuer, EVP_PKEY* issuer_key) {
  const Key key(EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"));
  const Certificate certificate(X509_new());
  if (!key || !certificate) return tl::unexpected(openssl_error("cannot make a key"));
  X509* const c = certificate.get();
  // Never negative, never empty: 16 bytes by chance with the first bit clear.
  std::array<std::uint8_t, 16> serial{};
  if (RAND_bytes(serial.data(), serial.size()) != 1) return tl::unexpected(openssl_error("no chance to be had"));
  serial[0] = static_cast<std::uint8_t>((serial[0] & 0x7F) | 0x40);
  BIGNUM* const number = BN_bin2bn(serial.data(), serial.size(), nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(c));
  BN_free(number);
  X509_set_version(c, X509_VERSION_3);
  // A minute back: clocks of machines differ.
  X509_gmtime_adj(X509_getm_notBefore(c), -60);
  X509_time_adj_ex(X509_getm_notAfter(c), order.days, 0, nullptr);
  X509_set_pubkey(c, key.get());
  X509_NAME* const name = X509_get_subject_name(c);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, reinterpret_cast<const unsigned char*>(order.subject.c_str()),
                             -1, -1, 0);
  X509* const signer = issuer != nullptr ? issuer : c;
  X509_set_issuer_name(c, X509_get_subject_name(signer));
  X509V3_CTX context;
  X509V3_set_ctx(&context, signer, c, nullptr, nullptr, 0);
  for (const Extra& extra : order.extensions) {
    const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, extra.nid, extra.value.c_str()));
    if (!extension || X509_add_ext(c, extension.get(), -1) != 1)
      return tl::unexpected(openssl_error(fmt::format("cannot say '{}' in a certificate", extra.value)));
  }
  if (X509_sign(c, issuer_key != nullptr ? issuer_key : key.get(), EVP_sha256()) == 0)
    return tl::unexpected(openssl_error("cannot sign a certificate"));
  return Issued{pem_of(*c), pem_of(*key), telemetry::peer_of(*c).serial};
}

Result<Issued> issue(const Order& order, const std::string& authority, const std::string& authority_key) {
  const Memory certificate_text(BIO_new_mem_buf(authority.data(), static_cast<int>(authority.size())));
  const Memory key_text(BIO_new_mem_buf(authority_key.data(), static_cast<int>(authority_key.size())));
  const Certificate certificate(PEM_read_bio_X509(certificate_text.get(), nullptr, nullptr, nullptr));
  const Key key(PEM_read_bio_PrivateKey(key_text.get(), nullptr, nullptr, nullptr));
  if (!certificate || !key) return tl::unexpected(openssl_error("the authority's certificate or key is damaged"));
  return make(order, certificate.get(), key.get());
}

// "DNS:a,IP:10.0.0.1"
Result<std::string> alternative_names(const std::vector<std::string>& hosts) {
  std::string names;
  for (const std::string& host : hosts) {
    in_addr v4{};
    in6_addr v6{};
    const bool address = inet_pton(AF_INET, host.c_str(), &v4) == 1 || inet_pton(AF_INET6, host.c_str(), &v6) == 1;
    const bool name = !host.empty() && host.size() <= 253 && std::ranges::all_of(host, [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
    });
    // A number that is no address was meant as one.
    const bool meant_as_address = host.find_first_not_of("0123456789.") == std::string::npos;
    if (!address && (!name || meant_as_address)) return fail(fmt::format("'{}' is no host name and no address", host));
    names += fmt::format("{}{}:{}", names.empty() ? "" : ",", address ? "IP" : "DNS", host);
  }
  return names;
}

Result<void> check_machine(const std::string& name) {
  const bool sound = !name.empty() && name.size() <= 63 && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  }) && name.front() != '.';
  if (sound) return {};
  return fail(fmt::format("machine name '{}' must have 1 to 63 letters, digits, '-', '_' or '.'", name));
}

// "switch.example, 10.0.0.1"
std::string names_of(X509& certificate) {
  using Names = std::unique_ptr<GENERAL_NAMES, Freed<GENERAL_NAMES, GENERAL_NAMES_free>>;
  const Names names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::string text;
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    int type = 0;
    const auto* const value =
        static_cast<const ASN1_STRING*>(GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names.get(), i), &type));
    if (type != GEN_DNS && type != GEN_IPADD) continue;
    const unsigned char* const data = ASN1_STRING_get0_data(value);
    const int length = ASN1_STRING_length(value);
    std::array<char, INET6_ADDRSTRLEN> address{};
    if (type == GEN_IPADD) inet_ntop(length == 4 ? AF_INET : AF_INET6, data, address.data(), address.size());
    if (!text.empty()) text += ", ";
    text += type == GEN_IPADD ? std::string(address.data())
                              : std::string(reinterpret_cast<const char*>(data), static_cast<std::size_t>(length));
  }
  return text;
}

std::string revocation(const std::string& folder, const std::string& serial) { return folder + "/revoked/" + serial; }

// machines/NAME-SERIAL.pem
std::pair<std::string, std::string> machine_and_serial(const fs::path& path) {
  const std::string stem = path.stem().string();
  const std::size_t dash = stem.rfind('-');
  if (dash == std::string::npos) return {stem, ""};
  return {stem.substr(0, dash), stem.substr(dash + 1)};
}

}  // namespace

Result<void> Authority::create(const std::string& folder, const std::vector<std::string>& hosts) {
  if (is_there(folder)) {
    return fail(
        fmt::format("{} has an authority already; to begin anew, and shut out every machine that was invited, "
                    "remove that folder first",
                    folder));
  }
  if (hosts.empty()) return fail("say at least one name or address that other machines reach this one by");
  auto names = alternative_names(hosts);
  if (!names) return tl::unexpected(names.error());
  const auto root = make({"sluice rack authority",
                          kAuthorityDays,
                          {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                           {NID_key_usage, "critical,keyCertSign"},
                           {NID_subject_key_identifier, "hash"}}},
                         nullptr, nullptr);
  if (!root) return tl::unexpected(root.error());
  const auto server = issue({"sluice switch",
                             kAuthorityDays,
                             {{NID_basic_constraints, "critical,CA:FALSE"},
                              {NID_key_usage, "critical,digitalSignature"},
                              {NID_ext_key_usage, "serverAuth"},
                              {NID_subject_alt_name, *names}}},
                            root->certificate, root->key);
  if (!server) return tl::unexpected(server.error());
  for (const std::string& path : {folder, folder + "/machines", folder + "/revoked"}) {
    if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
      return fail(fmt::format("cannot make {}: {}", path, std::strerror(errno)));
  }
  // What makes is_there() true comes last.
  const std::array<std::pair<const char*, const std::string*>, 4> files{{{"/server.pem", &server->certificate},
                                                                         {"/server.key", &server->key},
                                                                         {"/authority.pem", &root->certificate},
                                                                         {"/authority.key", &root->key}}};
  for (const auto& [name, text] : files) {
    if (auto written = write_private_file(folder + name, *text); !written) return written;
  }
  return {};
}

bool Authority::is_there(const std::string& folder) { return access((folder + "/authority.key").c_str(), F_OK) == 0; }

Result<Authority> Authority::open(const std::string& folder) {
  if (!is_there(folder)) {
    return fail(
        fmt::format("{} has no authority; `sluice rack init ADDRESS` makes one, on the machine of the switch", folder));
  }
  auto certificate = read_whole_file(folder + "/authority.pem");
  auto key = read_whole_file(folder + "/authority.key");
  if (!certificate) return tl::unexpected(certificate.error());
  if (!key) return tl::unexpected(key.error());
  return Authority(folder, std::move(*certificate), std::move(*key));
}

telemetry::TlsFiles Authority::server_files(const std::string& folder) {
  return {folder + "/authority.pem", folder + "/server.pem", folder + "/server.key"};
}

Result<void> Authority::check_host(const std::string& folder, const std::string& host) {
  const std::string file = server_files(folder).certificate;
  const auto text = read_whole_file(file);
  if (!text) return tl::unexpected(text.error());
  const Memory memory(BIO_new_mem_buf(text->data(), static_cast<int>(text->size())));
  const Certificate certificate(PEM_read_bio_X509(memory.get(), nullptr, nullptr, nullptr));
  if (!certificate) return tl::unexpected(openssl_error(file + " is damaged"));
  if (X509_check_ip_asc(certificate.get(), host.c_str(), 0) == 1) return {};
  if (X509_check_host(certificate.get(), host.data(), host.size(), 0, nullptr) == 1) return {};
  return fail(
      fmt::format("machines cannot join at {}: the switch's certificate names {} only; to name others too, make the "
                  "authority anew (`sluice rack init`, in a folder where there is none yet)",
                  host, names_of(*certificate)));
}

Result<Issued> Authority::invite(const std::string& machine, int days) const {
  if (auto sound = check_machine(machine); !sound) return tl::unexpected(sound.error());
  if (days < 1 || days > kMostDays) return fail(fmt::format("{} days: must be 1 to {}", days, kMostDays));
  auto issued = issue({machine,
                       days,
                       {{NID_basic_constraints, "critical,CA:FALSE"},
                        {NID_key_usage, "critical,digitalSignature"},
                        {NID_ext_key_usage, "clientAuth"}}},
                      certificate_, key_);
  if (!issued) return issued;
  const auto kept =
      write_private_file(fmt::format("{}/machines/{}-{}.pem", folder_, machine, issued->serial), issued->certificate);
  if (!kept) return tl::unexpected(kept.error());
  return issued;
}

Result<int> Authority::revoke(const std::string& machine) const {
  if (auto sound = check_machine(machine); !sound) return tl::unexpected(sound.error());
  int known = 0;
  int revoked = 0;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(folder_ + "/machines", failed)) {
    const auto [name, serial] = machine_and_serial(entry.path());
    if (name != machine || serial.empty()) continue;
    ++known;
    if (access(revocation(folder_, serial).c_str(), F_OK) == 0) continue;
    if (auto written = write_private_file(revocation(folder_, serial), machine + "\n"); !written)
      return tl::unexpected(written.error());
    ++revoked;
  }
  if (failed) return fail(fmt::format("cannot look into {}/machines: {}", folder_, failed.message()));
  if (known == 0)
    return fail(fmt::format("no machine '{}' was invited; {}/machines has those that were", machine, folder_));
  return revoked;
}

bool Authority::is_revoked(const std::string& folder, const std::string& serial) {
  if (access(revocation(folder, serial).c_str(), F_OK) == 0) return true;
  return errno != ENOENT || access(revocation(folder, "").c_str(), R_OK | X_OK) != 0;
}

bool Authority::is_still(const std::string& folder, const std::string& certificate) {
  const auto now = read_whole_file(server_files(folder).authority);
  return now && *now == certificate;
}

}  // namespace sluice::rack
