// Keys: a region's key, the keys derived from it, and AES-128-GCM under one of them.
//
// Life:       RegionKey (at the target, and at who controls the region) -> derive() -> DerivedKey (at one initiator) -> Sealer.
// Derivation: one AES-128 block under the region key, of initiator, region and rights. One block of fixed form: AES is the PRF itself.
// Invariant:  key bytes are wiped when their holder goes; OpenSSL wipes its contexts. Tags are compared in constant time, by OpenSSL.
// Errors:     OpenSSL without AES-128-GCM is a failed check at set-up; open() says whether the tag was right.
// Threads:    one owner each. seal() and open() do not allocate.
// Source:     NIST SP 800-38D (GCM); derivation ours: docs/design/onerma.md.
#pragma once

#include <openssl/evp.h>

#include <array>
#include <cstdint>
#include <memory>

#include "base/bytes.h"
#include "onerma/message.h"
#include "onerma/types.h"

namespace sluice::onerma {

// 16 secret bytes.
class Secret {
 public:
  static constexpr std::size_t kSize = 16;

  Secret() = default;
  // REQUIRES: kSize bytes.
  explicit Secret(ByteView bytes);
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();

  ByteView bytes() const { return bytes_; }
  MutableBytes mutable_bytes() { return bytes_; }
  // In constant time.
  friend bool operator==(const Secret& a, const Secret& b);

 private:
  std::array<std::uint8_t, kSize> bytes_{};
};

struct CipherFree {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};
using CipherContext = std::unique_ptr<EVP_CIPHER_CTX, CipherFree>;

// What one initiator gets for one region: enough to speak, nothing to derive others from.
struct Grant {
  RegionId region{};
  Generation generation{};
  InitiatorId initiator{};
  Rights rights{};
  Secret key{};
};

// A region's key, ready to derive from.
class RegionKey {
 public:
  explicit RegionKey(const Secret& key);

  Secret derive(RegionId region, InitiatorId initiator, Rights rights) const;
  const Secret& secret() const { return secret_; }

 private:
  Secret secret_;
  CipherContext context_;
};

// The grant that the holder of a region's key gives. REQUIRES: no other life of an initiator has this number.
Grant make_grant(const RegionKey& key, RegionId region, Generation generation, InitiatorId initiator, Rights rights);

// Seals and opens frames under one derived key.
class Sealer {
 public:
  Sealer();
  explicit Sealer(const Secret& key) : Sealer() { set_key(key); }

  void set_key(const Secret& key);
  // The frame's header and plain body are there; encrypts the body where it stands and writes the tag.
  // REQUIRES: the header's nonce has not been used under this key.
  void seal(std::uint8_t* frame, const Header& header, std::size_t body);
  // False: not sealed under this key, or changed since; the body is then worthless.
  bool open(std::uint8_t* frame, const Header& header, std::size_t body);

 private:
  CipherContext context_;
};

}  // namespace sluice::onerma
