#include "onerma/keys.h"

#include <openssl/crypto.h>

#include <algorithm>

#include "base/check.h"

namespace sluice::onerma {
namespace {

enum class Way : int { kDecrypt = 0, kEncrypt = 1 };

int length_of(std::size_t n) { return static_cast<int>(n); }

// Associated data in, body through, where it stands.
bool pass(EVP_CIPHER_CTX* context, std::uint8_t* frame, const Header& header, std::size_t body, Way way) {
  const Nonce nonce = nonce_of(header);
  const auto associated = associated_data(frame);
  std::uint8_t* const bytes = frame + kBodyOffset;
  int done = 0;
  return EVP_CipherInit_ex(context, nullptr, nullptr, nullptr, nonce.data(), static_cast<int>(way)) == 1 &&
         EVP_CipherUpdate(context, nullptr, &done, associated.data(), length_of(associated.size())) == 1 &&
         (body == 0 || EVP_CipherUpdate(context, bytes, &done, bytes, length_of(body)) == 1);
}

}  // namespace

Secret::Secret(ByteView bytes) {
  SLUICE_CHECK(bytes.size() == kSize);
  std::copy(bytes.begin(), bytes.end(), bytes_.begin());
}

Secret::~Secret() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

bool operator==(const Secret& a, const Secret& b) {
  return CRYPTO_memcmp(a.bytes_.data(), b.bytes_.data(), Secret::kSize) == 0;
}

RegionKey::RegionKey(const Secret& key) : secret_(key), context_(EVP_CIPHER_CTX_new()) {
  SLUICE_CHECK(context_ != nullptr);
  SLUICE_CHECK(EVP_EncryptInit_ex(context_.get(), EVP_aes_128_ecb(), nullptr, key.bytes().data(), nullptr) == 1);
  EVP_CIPHER_CTX_set_padding(context_.get(), 0);
}

Secret RegionKey::derive(RegionId region, InitiatorId initiator, Rights rights) const {
  std::array<std::uint8_t, 16> block{};
  store_be(block.data(), initiator.value);
  store_be(block.data() + 8, region.value);
  block[12] = rights.bits;
  block[15] = 1;  // version of this form
  Secret derived;
  int done = 0;
  SLUICE_CHECK(EVP_EncryptUpdate(context_.get(), derived.mutable_bytes().data(), &done, block.data(), 16) == 1 &&
               done == 16);
  return derived;
}

Grant make_grant(const RegionKey& key, RegionId region, Generation generation, InitiatorId initiator, Rights rights) {
  return {region, generation, initiator, rights, key.derive(region, initiator, rights)};
}

Sealer::Sealer() : context_(EVP_CIPHER_CTX_new()) {
  SLUICE_CHECK(context_ != nullptr);
  SLUICE_CHECK(EVP_CipherInit_ex(context_.get(), EVP_aes_128_gcm(), nullptr, nullptr, nullptr, 1) == 1);
}

void Sealer::set_key(const Secret& key) {
  SLUICE_CHECK(EVP_CipherInit_ex(context_.get(), nullptr, nullptr, key.bytes().data(), nullptr, 1) == 1);
}

void Sealer::seal(std::uint8_t* frame, const Header& header, std::size_t body) {
  std::uint8_t* const tag = frame + kBodyOffset + body;
  int done = 0;
  SLUICE_CHECK(pass(context_.get(), frame, header, body, Way::kEncrypt));
  SLUICE_CHECK(EVP_CipherFinal_ex(context_.get(), tag, &done) == 1);
  SLUICE_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, length_of(kTagSize), tag) == 1);
}

bool Sealer::open(std::uint8_t* frame, const Header& header, std::size_t body) {
  std::uint8_t* const tag = frame + kBodyOffset + body;
  std::array<std::uint8_t, 16> rest;
  int done = 0;
  if (!pass(context_.get(), frame, header, body, Way::kDecrypt)) return false;
  if (EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, length_of(kTagSize), tag) != 1) return false;
  return EVP_CipherFinal_ex(context_.get(), rest.data(), &done) == 1;
}

}  // namespace sluice::onerma
