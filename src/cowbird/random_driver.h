// For tests: random reads and writes of one channel against a model. What each read must return follows from the order of issue, so that
// this judges order within a type, read after write, and that nothing is lost or completed twice.
//
// `World`: channel() and pool(), a model's worth of the pool's bytes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "cowbird/channel.h"

namespace sluice::cowbird {

inline std::vector<std::uint8_t> pattern(std::size_t length, std::uint8_t first) {
  std::vector<std::uint8_t> bytes(length);
  for (std::size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::uint8_t>(first + i);
  return bytes;
}

template <class World>
class RandomDriver {
 public:
  // Few places by default, so that requests overlap.
  struct Options {
    std::uint64_t span = 96;  // offsets below it
    std::uint32_t longest = 48;
    std::uint16_t regions = 1;  // each one's model begins behind the other's, as the pool's bytes do
    std::uint64_t region_bytes = 1 << 16;
  };

  RandomDriver(World& world, std::uint64_t seed) : RandomDriver(world, seed, Options()) {}
  RandomDriver(World& world, std::uint64_t seed, const Options& options)
      : w_(world), options_(options), rng_(Rng(seed).fork("driver")), model_(options.region_bytes * options.regions) {}

  void issue_some() {
    for (std::uint64_t i = 0, n = rng_.below(4); i < n; ++i) rng_.below(2) == 0 ? issue_read() : issue_write();
  }
  void take() {
    Completion out[8];
    const auto n = w_.channel().collect(out);
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_EQ(out[i].status, Status::kOk);
      ++completed_;
      if (out[i].id.is_write()) continue;
      const auto read = reads_.find(out[i].id.sequence());
      ASSERT_NE(read, reads_.end()) << "completed twice or never issued";
      ASSERT_TRUE(read->second->into == read->second->expected)
          << "read " << out[i].id.sequence() << ": " << difference(*read->second);
      reads_.erase(read);
    }
  }
  std::uint64_t issued() const { return issued_; }
  std::uint64_t completed() const { return completed_; }
  bool model_is_pool() {
    for (std::uint16_t r = 0; r < options_.regions; ++r) {
      const auto begin = model_.begin() + static_cast<std::ptrdiff_t>(r * options_.region_bytes);
      if (!std::equal(begin, begin + static_cast<std::ptrdiff_t>(options_.region_bytes), w_.pool(r).begin()))
        return false;
    }
    return true;
  }

 private:
  struct Read {
    std::vector<std::uint8_t> into;
    std::vector<std::uint8_t> expected;
  };
  static std::string difference(const Read& read) {
    std::size_t first = read.into.size(), last = 0, wrong = 0;
    for (std::size_t i = 0; i < read.into.size(); ++i) {
      if (read.into[i] == read.expected[i]) continue;
      first = std::min(first, i);
      last = i;
      ++wrong;
    }
    return std::to_string(wrong) + " of " + std::to_string(read.into.size()) + " bytes wrong, between " +
           std::to_string(first) + " and " + std::to_string(last);
  }
  struct Place {
    std::uint16_t region;
    std::uint64_t offset;
    std::uint32_t length;
  };
  Place place() {
    const auto length = static_cast<std::uint32_t>(1 + rng_.below(options_.longest));
    const std::uint64_t offset = rng_.below(options_.span);
    return {options_.regions == 1 ? std::uint16_t{0} : static_cast<std::uint16_t>(rng_.below(options_.regions)), offset,
            length};
  }
  std::uint8_t* model(const Place& p) { return model_.data() + p.region * options_.region_bytes + p.offset; }
  void issue_read() {
    const Place p = place();
    auto read = std::make_unique<Read>();
    read->into.resize(p.length);
    read->expected.assign(model(p), model(p) + p.length);
    const auto id = w_.channel().async_read(p.region, p.offset, read->into.data(), p.length);
    if (id < 0) return;
    ++issued_;
    reads_[RequestId(id).sequence()] = std::move(read);
  }
  void issue_write() {
    const Place p = place();
    const auto bytes = pattern(p.length, static_cast<std::uint8_t>(rng_.next()));
    if (w_.channel().async_write(p.region, bytes.data(), p.offset, p.length) < 0) return;
    ++issued_;
    std::copy(bytes.begin(), bytes.end(), model(p));
  }

  World& w_;
  Options options_;
  Rng rng_;
  std::vector<std::uint8_t> model_;
  std::map<std::uint64_t, std::unique_ptr<Read>> reads_;
  std::uint64_t issued_ = 0;
  std::uint64_t completed_ = 0;
};

}  // namespace sluice::cowbird
