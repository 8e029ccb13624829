// For interfaces in C: no exception leaves a call.
#pragma once

#include <exception>
#include <new>
#include <string>

namespace sluice {

// What `call` returns; or `failed` when it throws, and `why` says what.
template <class Call>
auto guarded(std::string& why, Call call, decltype(call()) failed) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    why = "out of memory";
    return failed;
  } catch (const std::exception& error) {
    why = error.what();
    return failed;
  }
}

}  // namespace sluice
