// Whole numbers out of JSON that others wrote. nlohmann::json's own get() cuts what does not fit: 70,000 would be port 4,464, and a quota of -1
// byte 16 EiB.
//
// Errors:     an exception of nlohmann::json's kind, as its at() and get() throw, for those who catch these anyway.
#pragma once

#include <fmt/core.h>

#include <concepts>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace sluice::rack {

class NoSuchNumber : public nlohmann::json::exception {
 public:
  explicit NoSuchNumber(const std::string& what) : nlohmann::json::exception(0, what.c_str()) {}
};

// object[name]: there, whole, and from 0 to the most that a T holds.
template <std::unsigned_integral T>
T number_at(const nlohmann::json& object, const char* name) {
  const nlohmann::json& value = object.at(name);
  const bool is_whole = value.is_number_unsigned() || (value.is_number_integer() && value.get<std::int64_t>() >= 0);
  if (is_whole && value.get<std::uint64_t>() <= std::numeric_limits<T>::max()) return value.get<T>();
  throw NoSuchNumber(fmt::format("\"{}\": {}: must be a whole number from 0 to {}", name, value.dump(),
                                 std::numeric_limits<T>::max()));
}

}  // namespace sluice::rack
