// The instructions of x86-64 processors since 2013 (Haswell, Excavator), for code that is compiled for them alone.
//
// Use:        [[SLUICE_FOR_NEW_MACHINES]] void f(); called only if has_new_instructions().
#pragma once

namespace sluice {

#if defined(__x86_64__)
#define SLUICE_FOR_NEW_MACHINES gnu::target("avx2,bmi,bmi2,movbe,pclmul")
inline bool has_new_instructions() {
  static const bool kHas = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("bmi2") != 0 &&
                           __builtin_cpu_supports("pclmul") != 0;
  return kHas;
}
#else
#define SLUICE_FOR_NEW_MACHINES gnu::hot
inline bool has_new_instructions() { return true; }
#endif

}  // namespace sluice
