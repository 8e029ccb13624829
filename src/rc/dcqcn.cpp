#include "rc/dcqcn.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace sluice::rc {
namespace {

constexpr std::uint64_t kOne = std::uint64_t{1} << 32;  // alpha = 1
constexpr std::uint16_t kMostSteps = std::numeric_limits<std::uint16_t>::max();

// factor^n, where 2^32 stands for 1. REQUIRES: factor < 2^32.
std::uint64_t power(std::uint64_t factor, std::uint64_t n) {
  std::uint64_t result = kOne;
  for (; n != 0 && result != 0; n >>= 1) {
    if ((n & 1) != 0) result = (result * factor) >> 32;  // at most 2^32 * (2^32 - 1)
    factor = (factor * factor) >> 32;
  }
  return result;
}

std::uint16_t next_step(std::uint16_t step) { return step == kMostSteps ? step : static_cast<std::uint16_t>(step + 1); }

}  // namespace

ReactionPoint::ReactionPoint(const DcqcnParameters& parameters)
    : parameters_(&parameters), rate_(parameters.line_rate), target_(parameters.line_rate), alpha_(kOne) {
  SLUICE_CHECK(parameters.min_rate > 0 && parameters.min_rate <= parameters.line_rate);
  SLUICE_CHECK(parameters.line_rate < std::uint64_t{1} << 41 && parameters.additive_increase > 0);
  SLUICE_CHECK(parameters.increase_period > Duration() && parameters.alpha_period > Duration());
  SLUICE_CHECK(parameters.increase_bytes > 0 && parameters.gain_shift > 0 && parameters.gain_shift <= 32);
}

Time ReactionPoint::next_send(Time now) {
  if (!limited_) return now;
  catch_up(now);
  return limited_ ? std::max(now, free_at_) : now;
}

void ReactionPoint::on_sent(Time now, std::uint32_t bytes) {
  if (!limited_) return;
  catch_up(now);
  const std::uint64_t cost = (bytes * picoseconds_per_byte_) >> 16;
  free_at_ = std::max(now, free_at_) + Duration::picoseconds(static_cast<std::int64_t>(cost));
  std::uint64_t counted = bytes;
  while (limited_ && counted >= bytes_left_) {
    counted -= bytes_left_;
    bytes_left_ = parameters_->increase_bytes;
    byte_steps_ = next_step(byte_steps_);
    increase();
  }
  bytes_left_ -= std::min(counted, bytes_left_);
}

void ReactionPoint::on_cnp(Time now) {
  catch_up(now);
  if (limited_) {
    decay_alpha(now);
  } else {
    alpha_ = kOne;  // a flow that was free meets congestion for the first time again (ConnectX: initial_alpha_value)
    free_at_ = now;
  }
  alpha_at_ = now;
  target_ = rate_;
  set_rate(rate_ - ((rate_ >> 8) * (alpha_ >> 1) >> 24));  // rate (1 - alpha/2); rates below 2^41 keep it in 64 bits
  alpha_ = alpha_ - (alpha_ >> parameters_->gain_shift) + (kOne >> parameters_->gain_shift);
  limited_ = true;
  timer_steps_ = 0;
  byte_steps_ = 0;
  bytes_left_ = parameters_->increase_bytes;
  increase_at_ = now + parameters_->increase_period;
}

// Does what the timer would have done up to `now`.
void ReactionPoint::catch_up(Time now) {
  while (limited_ && increase_at_ <= now) {
    increase_at_ = increase_at_ + parameters_->increase_period;
    timer_steps_ = next_step(timer_steps_);
    increase();
  }
}

void ReactionPoint::increase() {
  const std::uint16_t f = parameters_->fast_recovery_steps;
  const std::uint16_t slower = std::min(timer_steps_, byte_steps_);
  const std::uint16_t faster = std::max(timer_steps_, byte_steps_);
  if (slower > f) {
    target_ += (slower - f) * parameters_->hyper_increase;
  } else if (faster > f) {
    target_ += parameters_->additive_increase;
  }
  target_ = std::min(target_, parameters_->line_rate);
  set_rate((rate_ + target_ + 1) / 2);
  if (rate_ == parameters_->line_rate) limited_ = false;
}

void ReactionPoint::decay_alpha(Time now) {
  const std::int64_t periods = std::max<std::int64_t>((now - alpha_at_) / parameters_->alpha_period, 0);
  const std::uint64_t kept = power(kOne - (kOne >> parameters_->gain_shift), static_cast<std::uint64_t>(periods));
  alpha_ = kept == kOne ? alpha_ : (alpha_ * kept) >> 32;
}

void ReactionPoint::set_rate(std::uint64_t rate) {
  rate_ = std::clamp(rate, parameters_->min_rate, parameters_->line_rate);
  constexpr std::uint64_t kBitPicoseconds = 8'000'000'000'000;  // of one byte at 1 bit a second
  picoseconds_per_byte_ = (kBitPicoseconds << 16) / rate_;
}

}  // namespace sluice::rc
