// Fills the table behind the names of a drop-in library (cmake/drop_in.py) when it is loaded: with what libsluice-verbs.so has, with
// librdmacm's own rsockets, and a refusal for the rest (the calls of kernel drivers' user parts, which find no device of theirs).
//
// Rsockets: streams over rdma_cm, whose functions librdmacm calls by name. Its library, unmodified, is beside us under another name
//           (`sluice run --drop-in` copies it); with libsluice-verbs.so in the global scope before it, those names are ours.
// Source:   dlopen(3): programs that ask dlvsym() for names and versions (NCCL) are not reached by preloading.
#include <dlfcn.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>

extern "C" {
extern void* sluice_drop_in_table[];
extern const char sluice_drop_in_names[];  // one after the other; an empty one ends them
}

namespace {

constexpr const char* kVerbs = "libsluice-verbs.so";
constexpr const char* kRsockets = "librdmacm-rsockets.so";

long refuse() {
  errno = EOPNOTSUPP;
  return EOPNOTSUPP;
}

long refuse_socket_call() {
  errno = EOPNOTSUPP;
  return -1;
}

// rsocket(), rpoll(), …; all others of librdmacm's begin with rdma_.
bool is_rsockets(const char* name) { return name[0] == 'r' && std::strncmp(name, "rdma_", 5) != 0; }

// Null: it is not there, or cannot be loaded (it needs libnl).
void* open_rsockets() {
  Dl_info self;
  if (dladdr(reinterpret_cast<void*>(refuse), &self) == 0 || self.dli_fname == nullptr) return nullptr;
  const char* const slash = std::strrchr(self.dli_fname, '/');
  if (slash == nullptr || dlopen(kVerbs, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL) == nullptr) return nullptr;
  char path[PATH_MAX];
  const int length =
      std::snprintf(path, sizeof path, "%.*s/%s", static_cast<int>(slash - self.dli_fname), self.dli_fname, kRsockets);
  return length < PATH_MAX ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
}

__attribute__((constructor)) void fill() {
  void* const verbs = dlopen(kVerbs, RTLD_NOW | RTLD_NOLOAD);
  void* rsockets = nullptr;
  bool looked = false;
  std::size_t place = 0;
  for (const char* name = sluice_drop_in_names; *name != '\0'; name += std::strlen(name) + 1, ++place) {
    void* found = verbs == nullptr ? nullptr : dlsym(verbs, name);
    long (*refusal)() = refuse;
    if (found == nullptr && is_rsockets(name)) {
      if (!looked) rsockets = open_rsockets();
      looked = true;
      found = rsockets == nullptr ? nullptr : dlsym(rsockets, name);
      refusal = refuse_socket_call;
    }
    sluice_drop_in_table[place] = found != nullptr ? found : reinterpret_cast<void*>(refusal);
  }
}

}  // namespace
