/* An application of libcowbird, in C: random reads and writes of a region, each read checked against a model.
 *
 *   app SOCKET NODE OPERATIONS SEED      SIGTERM: no more than are under way; exit 0: every operation done and right; 3: some failed, with the sentence printed
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcowbird/cowbird.h"

enum { kRegion = 1 << 20, kSlots = 256, kMost = 512 };

struct slot {
  int64_t id;
  int busy, is_read;
  uint32_t length;
  uint8_t into[kMost];
  uint8_t expected[kMost];
};

static uint8_t model[kRegion];
static struct slot slots[kSlots];
static uint64_t state;

static uint32_t draw(uint32_t below) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (uint32_t)((state >> 16) % below);
}

static struct slot* free_slot(void) {
  for (int i = 0; i < kSlots; ++i) {
    if (!slots[i].busy) return &slots[i];
  }
  return NULL;
}

/* 1: issued; 0: a ring is full. */
static int issue(cowbird_thread_t* thread, int group) {
  struct slot* slot = free_slot();
  if (slot == NULL) return 0;
  const uint32_t length = 1 + draw(kMost), offset = draw(4096);
  slot->is_read = (int)draw(2);
  slot->length = length;
  uint8_t bytes[kMost];
  memset(bytes, (int)draw(256), length);
  slot->id = slot->is_read ? cowbird_async_read(thread, 0, offset, slot->into, length)
                           : cowbird_async_write(thread, 0, bytes, offset, length);
  if (slot->id < 0) {
    if (COWBIRD_IS_FULL(slot->id)) return 0;
    fprintf(stderr, "app: issuing: %s\n", cowbird_strerror((int)slot->id));
    exit(1);
  }
  if (slot->is_read) memcpy(slot->expected, model + offset, length);
  if (!slot->is_read) memcpy(model + offset, bytes, length);
  slot->busy = 1;
  if (cowbird_poll_add(thread, group, slot->id) != 0) abort();
  return 1;
}

static int wrong, failed;
static volatile sig_atomic_t is_enough;
static void enough(int signal) {
  (void)signal;
  is_enough = 1;
}

static void complete(const cowbird_completion_t* done) {
  for (int i = 0; i < kSlots; ++i) {
    struct slot* slot = &slots[i];
    if (!slot->busy || slot->id != done->request) continue;
    slot->busy = 0;
    if (done->status != 0) {
      if (failed++ == 0) printf("request failed: %s\n", cowbird_strerror(done->status));
      fflush(stdout);
    } else if (slot->is_read && memcmp(slot->into, slot->expected, slot->length) != 0) {
      ++wrong;
    }
    return;
  }
  fprintf(stderr, "app: %" PRId64 " completed twice, or never issued\n", done->request);
  exit(1);
}

int main(int argc, char** argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: app SOCKET NODE OPERATIONS SEED\n");
    return 2;
  }
  long operations = atol(argv[3]);
  signal(SIGTERM, enough);
  state = strtoull(argv[4], NULL, 10) * 0x9e3779b97f4a7c15u + 1;
  cowbird_options_t options = {0};
  options.engine = argv[1];
  options.entries = 128;
  options.request_bytes = 16384;
  options.response_bytes = 16384;
  cowbird_t* cowbird = cowbird_open(&options);
  if (cowbird == NULL || cowbird_region_add(cowbird, argv[2], 0, kRegion, 0) != 0) {
    fprintf(stderr, "app: %s\n", cowbird_last_error());
    return 1;
  }
  cowbird_thread_t* thread = cowbird_thread(cowbird, 0);
  const int group = cowbird_poll_create(thread);
  /* The region is as somebody left it: what the model says must be there first. */
  for (uint32_t at = 0; at < 8192;) {
    if (cowbird_async_write(thread, 0, model + at, at, kMost) > 0) {
      at += kMost;
    } else {
      cowbird_completion_t ignored[16];
      cowbird_collect(thread, ignored, 16);
    }
  }
  printf("ready\n");
  fflush(stdout);
  int absent = 0;
  for (long issued = 0, done = 0; done < operations;) {
    if (is_enough) operations = issued;
    while (issued < operations && issue(thread, group)) ++issued;
    cowbird_completion_t responses[32];
    const int n = cowbird_poll_wait(thread, group, responses, 32, 1000);
    if (n == COWBIRD_ENGINE_ABSENT) absent = 1;
    for (int i = 0; i < n; ++i) complete(&responses[i]);
    if (n > 0) done += n;
  }
  printf("%ld operations, %d wrong, %d failed, engine was absent: %s\n", operations, wrong, failed,
         absent ? "yes" : "no");
  cowbird_close(cowbird);
  return wrong != 0 ? 1 : failed != 0 ? 3 : 0;
}
