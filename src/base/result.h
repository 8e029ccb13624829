// Result<T>: what set-up code and user-facing code return. The message says what was wrong and what to do.
//
// Not for the data path: there, refusals are verdicts and counters.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace sluice {

struct Error {
  std::string message;
};

template <class T>
using Result = tl::expected<T, Error>;

inline tl::unexpected<Error> fail(std::string message) { return tl::unexpected<Error>(Error{std::move(message)}); }

}  // namespace sluice
