// A counter in remote memory that any number of these programs share. Needs `sluice rack up --no-metadata`: without, that memory is a store's.
#include <inttypes.h>
#include <sluice.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  int times = argc > 1 ? atoi(argv[1]) : 1;
  sluice_t* rack = sluice_open(NULL);
  int memory = rack != NULL ? sluice_node(rack, "memory1") : -1;
  if (memory < 0) {
    fprintf(stderr, "%s\n", sluice_last_error());
    return 1;
  }
  for (int done = 0; done < times;) { /* 64 under way, as they come back */
    while (done + (int)sluice_under_way(rack) < times && sluice_under_way(rack) < 64) {
      int error = sluice_post_fetch_and_add(rack, memory, 64, 1, NULL, NULL);
      if (error == SLUICE_FULL) break; /* there is room again after a poll */
      if (error != 0) {
        fprintf(stderr, "%s\n", sluice_last_error());
        return 1;
      }
    }
    sluice_completion_t ended[64];
    int n = sluice_poll(rack, ended, 64, 1000000);
    for (int i = 0; i < n; ++i) {
      if (ended[i].status != 0) {
        fprintf(stderr, "%s\n", sluice_strerror(ended[i].status));
        return 1;
      }
    }
    done += n;
  }
  uint64_t now = 0;
  int error = sluice_read(rack, memory, 64, &now, sizeof now);
  if (error != 0) fprintf(stderr, "%s\n", sluice_last_error());
  printf("%" PRIu64 "\n", now);
  sluice_close(rack);
  return error != 0;
}
