/* A libsluice that takes no operation, as where the memory node has just been started anew. */
#include "libsluice/sluice.h"

sluice_t* sluice_open(const sluice_options_t* options) { return (sluice_t*)(options != NULL ? NULL : "a rack"); }
void sluice_close(sluice_t* client) { (void)client; }
int sluice_node(sluice_t* client, const char* name) { return client == NULL || name == NULL ? SLUICE_NO_SUCH_NODE : 0; }
int sluice_post_fetch_and_add(sluice_t* client, int node, uint64_t offset, uint64_t add, uint64_t* prior,
                              void* context) {
  (void)client, (void)node, (void)offset, (void)add, (void)prior, (void)context;
  return SLUICE_GONE;
}
int sluice_poll(sluice_t* client, sluice_completion_t* completions, int most, int64_t timeout_us) {
  (void)client, (void)completions, (void)most, (void)timeout_us;
  return 0;
}
uint32_t sluice_under_way(sluice_t* client) {
  (void)client;
  return 0;
}
int sluice_read(sluice_t* client, int node, uint64_t offset, void* into, size_t bytes) {
  (void)client, (void)node, (void)offset, (void)into, (void)bytes;
  return SLUICE_GONE;
}
const char* sluice_strerror(int error) { return error == 0 ? "done" : "not done"; }
const char* sluice_last_error(void) { return "memory1 was started anew"; }
