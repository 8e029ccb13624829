// Fills the table behind the names of a drop-in library (cmake/drop_in.py) when it is loaded: with what libsluice-verbs.so has, and a
// refusal for the rest (the calls of kernel drivers' user parts, which find no device of theirs).
//
// Source:  dlopen(3): programs that ask dlvsym() for names and versions (NCCL) are not reached by preloading.
#include <dlfcn.h>

#include <cerrno>
#include <cstring>

extern "C" {
extern void* sluice_drop_in_table[];
extern const char sluice_drop_in_names[];  // one after the other; an empty one ends them
}

namespace {

long refuse() {
  errno = EOPNOTSUPP;
  return EOPNOTSUPP;
}

__attribute__((constructor)) void fill() {
  void* const library = dlopen("libsluice-verbs.so", RTLD_NOW | RTLD_NOLOAD);
  std::size_t place = 0;
  for (const char* name = sluice_drop_in_names; *name != '\0'; name += std::strlen(name) + 1, ++place) {
    void* const found = library == nullptr ? nullptr : dlsym(library, name);
    sluice_drop_in_table[place] = found != nullptr ? found : reinterpret_cast<void*>(refuse);
  }
}

}  // namespace
