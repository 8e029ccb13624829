/* What libsluice_test.py drives.

   app check             every call, right and wrong, on memory1; says what was not as it should be
   app count NODE N      N additions of 1 at offset 0, 32 under way, a read of it now and then between
   app lock NODE N       N times: takes a lock by compare-and-swap, adds 1 to a word without atomics, lets go
   app outlive NODE      writes a word, says "ready", waits for a line on stdin, and then says once a second how a read ends, until one says SLUICE_GONE; then
                         asks for the node anew and reads again
   app go-on NODE        says "ready", and adds to a word, asking for the node anew whenever that fails, until a line comes; then a last time
   app await NODE        says "ready", waits for a line, and asks for the node, which is away, until it is there again
   app seldom NODE       says "ready", waits for a line, reads, which fails, says "lost", waits for a line, and a while later reads once
   app poor NODE         opens clients with ever more descriptors allowed, until one works
   app signals NODE      takes a signal that its one thread has blocked by waiting for it
   app names NAME…       says which names there are, and then of each NAME, and of none, whether it is one, or why not
   app quiet NODE        says "before", goes on until the library says that the lease is not renewed, says "after" */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libsluice/sluice.h"

static int wrong = 0;

static void expect(int64_t is, int64_t should, const char* what) {
  if (is == should) return;
  fprintf(stderr, "%s: %" PRId64 " instead of %" PRId64 " (%s)\n", what, is, should, sluice_last_error());
  ++wrong;
}

static void nap(int ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
  nanosleep(&t, NULL);
}

static sluice_t* join(const char* node, int* number) {
  sluice_t* rack = sluice_open(NULL);
  *number = rack != NULL ? sluice_node(rack, node) : -1;
  if (*number >= 0) return rack;
  fprintf(stderr, "%s\n", sluice_last_error());
  exit(1);
}

static int check(void) {
  sluice_options_t options = {0};
  options.entries = 4;
  options.name = "checker";
  sluice_t* rack = sluice_open(&options);
  if (rack == NULL) return fprintf(stderr, "%s\n", sluice_last_error()), 1;
  expect(sluice_node(rack, "memory9"), SLUICE_NO_SUCH_NODE, "a node that is not there");
  expect(strstr(sluice_last_error(), "memory1") != NULL, 1, "the error names those that are");
  expect(strcmp(sluice_node_name(rack, 0), "memory1"), 0, "the first node's name");
  expect(sluice_node_name(rack, 99) == NULL, 1, "no more names");
  int m = sluice_node(rack, "memory1");
  expect(m, 0, "memory1");
  expect(sluice_node(rack, "memory1"), m, "asked twice");
  const uint64_t all = sluice_node_bytes(rack, m);
  expect(sluice_node_bytes(rack, 7), 0, "bytes of no node");

  static char sent[1 << 20], got[1 << 20];
  for (size_t i = 0; i < sizeof sent; ++i) sent[i] = (char)(i * 7 + i / 251);
  expect(sluice_write(rack, m, 4099, sent, sizeof sent), 0, "a long write");
  expect(sluice_read(rack, m, 4099, got, sizeof got), 0, "a long read");
  expect(memcmp(sent, got, sizeof got), 0, "what was read");
  expect(sluice_write(rack, m, all - 8, sent, 8), 0, "the last bytes");

  expect(sluice_read(rack, m, all - 7, got, 8), SLUICE_OUT_OF_RANGE, "a byte too far");
  expect(sluice_read(rack, m, UINT64_MAX - 3, got, 8), SLUICE_OUT_OF_RANGE, "around the end of all numbers");
  expect(sluice_read(rack, m, 0, got, 0), SLUICE_BAD_LENGTH, "nothing");
  expect(sluice_fetch_and_add(rack, m, 4, 1, NULL), SLUICE_OUT_OF_RANGE, "an atomic across words");
  expect(sluice_post_fetch_and_add(rack, m, 4, 1, NULL, NULL), SLUICE_OUT_OF_RANGE, "an atomic across words");
  expect(sluice_read(rack, 9, 0, got, 8), SLUICE_NO_SUCH_NODE, "no node");

  uint64_t prior = 1, zero = 0;
  expect(sluice_write(rack, m, 64, &zero, 8), 0, "a word");
  expect(sluice_compare_and_swap(rack, m, 64, 5, 6, &prior), 0, "a swap that does not fit");
  expect((int64_t)prior, 0, "its prior value");
  expect(sluice_compare_and_swap(rack, m, 64, 0, 6, NULL), 0, "a swap that fits");
  expect(sluice_fetch_and_add(rack, m, 64, 10, &prior), 0, "an addition");
  expect((int64_t)prior, 6, "its prior value");

  sluice_completion_t done[8];
  expect(sluice_poll(rack, done, 8, -1), 0, "nothing is under way: no waiting");
  uint64_t words[4];
  int contexts[4];
  for (int i = 0; i < 4; ++i) expect(sluice_post_fetch_and_add(rack, m, 64, 1, &words[i], &contexts[i]), 0, "a post");
  expect(sluice_post_read(rack, m, 0, got, 8, NULL), SLUICE_FULL, "one too many");
  expect(sluice_under_way(rack), 4, "under way");
  int n = 0;
  while (n < 4) {
    int more = sluice_poll(rack, done + n, 1, 5000000);
    expect(more, 1, "one at a time");
    if (more != 1) break;
    expect(done[n].status, 0, "its status");
    expect(done[n].context == &contexts[n], 1, "its context, in order");
    expect((int64_t)words[n], 16 + n, "its prior value");
    ++n;
  }
  expect(sluice_under_way(rack), 0, "none under way");
  expect(sluice_post_read(rack, m, 0, got, 8, NULL), 0, "a post");
  expect(sluice_poll(rack, done, 8, INT64_MAX), 1, "waiting as long as it takes");
  expect(sluice_post_read(rack, m, 0, got, (size_t)2 << 30, NULL),
         all < (uint64_t)2 << 30 ? SLUICE_OUT_OF_RANGE : SLUICE_BAD_LENGTH, "too long to post");
  expect(sluice_post_write(rack, m, 128, sent, 4096, NULL), 0, "a write that nobody waits for");
  sluice_close(rack); /* with something under way */

  options.entries = 1 << 20;
  expect(sluice_open(&options) == NULL, 1, "too many entries");
  expect(strstr(sluice_last_error(), "entries") != NULL, 1, "the error names them");
  options.entries = 0;
  options.directory = "/nonexistent";
  expect(sluice_open(&options) == NULL, 1, "no rack there");
  for (int e = -40; e < 1; ++e) expect(strlen(sluice_strerror(e)) > 3, 1, "a sentence for each error");
  printf("%d wrong\n", wrong);
  return wrong != 0;
}

static int count(const char* node, int times) {
  int m;
  sluice_t* rack = join(node, &m);
  for (int posted = 0, done = 0; done < times;) {
    while (posted < times && sluice_under_way(rack) < 32) {
      expect(sluice_post_fetch_and_add(rack, m, 0, 1, NULL, NULL), 0, "a post");
      ++posted;
    }
    uint64_t now;
    if (posted % 7 == 0) expect(sluice_read(rack, m, 0, &now, 8), 0, "a read between");
    sluice_completion_t ended[16];
    int n = sluice_poll(rack, ended, 16, 10000000);
    if (n == 0) expect(n, 1, "completions");
    if (wrong) break;
    for (int i = 0; i < n; ++i) expect(ended[i].status, 0, "an addition");
    done += n;
  }
  sluice_close(rack);
  return wrong != 0;
}

static int lock(const char* node, int times) {
  int m;
  sluice_t* rack = join(node, &m);
  for (int i = 0; i < times && !wrong; ++i) {
    uint64_t prior, word, zero = 0;
    do expect(sluice_compare_and_swap(rack, m, 8, 0, 1, &prior), 0, "the lock");
    while (prior != 0 && !wrong);
    expect(sluice_read(rack, m, 16, &word, 8), 0, "the word");
    ++word;
    expect(sluice_write(rack, m, 16, &word, 8), 0, "the word and one");
    expect(sluice_write(rack, m, 8, &zero, 8), 0, "letting go");
  }
  sluice_close(rack);
  return wrong != 0;
}

static int outlive(const char* node) {
  int m;
  sluice_t* rack = join(node, &m);
  uint64_t word = 4711, back = 0;
  expect(sluice_write(rack, m, 64, &word, 8), 0, "a word");
  puts("ready");
  fflush(stdout);
  if (getchar() == EOF) return 1;
  int error = 0;
  for (int i = 0; i < 300 && error != SLUICE_GONE; ++i) {
    error = sluice_read(rack, m, 64, &back, 8);
    if (error == 0) expect((int64_t)back, 4711, "what was written, as long as it is read at all");
    if (error != 0 && error != SLUICE_UNREACHABLE && error != SLUICE_UNKNOWN && error != SLUICE_GONE)
      expect(error, SLUICE_GONE, "the end of a read");
    nap(100);
  }
  expect(error, SLUICE_GONE, "the node is gone");
  puts(sluice_last_error());
  for (int i = 0; i < 300 && (m = sluice_node(rack, node)) < 0; ++i) nap(100);
  expect(sluice_read(rack, m, 64, &back, 8), 0, "a read of the new one");
  expect((int64_t)back, 0, "which is empty");
  sluice_close(rack);
  puts(wrong ? "wrong" : "right");
  return wrong != 0;
}

static int go_on(const char* node) {
  int m;
  sluice_t* rack = join(node, &m);
  struct pollfd line = {0, POLLIN, 0};
  puts("ready");
  fflush(stdout);
  int error = 0;
  for (int ends = 0; !ends; nap(20)) {
    ends = poll(&line, 1, 0) != 0;
    error = m < 0 ? m : sluice_fetch_and_add(rack, m, 128, 1, NULL);
    if (error != 0) m = sluice_node(rack, node);
  }
  expect(error, 0, "the last addition");
  sluice_close(rack);
  puts(wrong ? "wrong" : "right");
  return wrong != 0;
}

static int await(const char* node) {
  sluice_options_t options = {0};
  options.timeout_ms = 60000;
  sluice_t* rack = sluice_open(&options);
  int m = rack != NULL ? sluice_node(rack, node) : -1;
  if (m < 0) return fprintf(stderr, "%s\n", sluice_last_error()), 1;
  puts("ready");
  fflush(stdout);
  if (getchar() == EOF) return 1;
  uint64_t word = 1;
  expect(sluice_read(rack, m, 64, &word, 8), SLUICE_GONE, "a read of what is lost");
  expect(sluice_node(rack, "memory9"), SLUICE_NO_SUCH_NODE, "a node that never was here");
  m = sluice_node(rack, node);
  expect(m >= 0, 1, "the node that was away");
  expect(sluice_read(rack, m, 64, &word, 8), 0, "a read of the new one");
  expect((int64_t)word, 0, "which is empty");
  sluice_close(rack);
  puts(wrong ? "wrong" : "right");
  return wrong != 0;
}

static int seldom(const char* node) {
  int m;
  sluice_t* rack = join(node, &m);
  uint64_t word;
  puts("ready");
  fflush(stdout);
  if (getchar() == EOF) return 1;
  expect(sluice_read(rack, m, 64, &word, 8), SLUICE_UNKNOWN, "a read of a node that stands still");
  puts("lost");
  fflush(stdout);
  if (getchar() == EOF) return 1;
  nap(1000);
  expect(sluice_read(rack, m, 64, &word, 8), 0, "the first read after it goes on");
  sluice_close(rack);
  puts(wrong ? "wrong" : "right");
  return wrong != 0;
}

/* Each try in a process of its own: 0 when it works, 1 when it is told why not. */
static int poor(const char* node) {
  int refused = 0;
  for (rlim_t most = 3; most < 200; ++most) {
    pid_t child = fork();
    if (child == 0) {
      struct rlimit limit = {most, most};
      setrlimit(RLIMIT_NOFILE, &limit);
      sluice_t* rack = sluice_open(NULL);
      int m = rack != NULL ? sluice_node(rack, node) : -1;
      if (m < 0 && strlen(sluice_last_error()) == 0) _exit(2);
      if (m < 0 && rack == NULL && strstr(sluice_last_error(), "Too many open files") == NULL) _exit(3);
      uint64_t word;
      _exit(m < 0 || sluice_read(rack, m, 64, &word, 8) != 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
    expect(status, 1 << 8, "how it ends with so few descriptors");
    if (wrong) fprintf(stderr, "with %d\n", (int)most);
    ++refused;
  }
  expect(refused > 3 && refused < 100, 1, "tries that were refused");
  puts(wrong ? "wrong" : "right");
  return wrong != 0;
}

static int signals(const char* node) {
  int m;
  sluice_t* rack = join(node, &m);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, SIGUSR1);
  sigprocmask(SIG_BLOCK, &one, NULL);
  kill(getpid(), SIGUSR1);
  int got = 0;
  expect(sigwait(&one, &got), 0, "waiting for the signal");
  expect(got, SIGUSR1, "the signal");
  sluice_close(rack);
  puts("mine");
  return wrong != 0;
}

static int quiet(const char* node) {
  sluice_options_t options = {0};
  options.timeout_ms = 100;
  sluice_t* rack = sluice_open(&options);
  int m = rack != NULL ? sluice_node(rack, node) : -1;
  if (m < 0) return fprintf(stderr, "%s\n", sluice_last_error()), 1;
  puts("before");
  fflush(stdout);
  int known = 0;
  for (int i = 0; i < 600 && !known; ++i) {
    uint64_t word;
    int error = sluice_read(rack, m, 0, &word, 8); /* so that it notices that there is no connection */
    known = error != 0 && sluice_node(rack, node) < 0 && strstr(sluice_last_error(), "lease is not renewed") != NULL;
    nap(100);
  }
  expect(known, 1, "why there is no connection");
  sluice_close(rack);
  puts("after");
  return wrong != 0;
}

static int names(int many, char** wanted) {
  sluice_t* rack = sluice_open(NULL);
  if (rack == NULL) return fprintf(stderr, "%s\n", sluice_last_error()), 1;
  const char* name;
  for (uint32_t i = 0; (name = sluice_node_name(rack, i)) != NULL; ++i) puts(name);
  for (int i = 0; i <= many; ++i) { /* behind the last is NULL */
    const int node = sluice_node(rack, wanted[i]);
    printf("%s: %s\n", i < many ? wanted[i] : "NULL", node >= 0 ? "is one" : sluice_last_error());
  }
  sluice_close(rack);
  return 0;
}

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "check") == 0) return check();
  if (argc == 4 && strcmp(argv[1], "count") == 0) return count(argv[2], atoi(argv[3]));
  if (argc == 4 && strcmp(argv[1], "lock") == 0) return lock(argv[2], atoi(argv[3]));
  if (argc == 3 && strcmp(argv[1], "outlive") == 0) return outlive(argv[2]);
  if (argc == 3 && strcmp(argv[1], "go-on") == 0) return go_on(argv[2]);
  if (argc == 3 && strcmp(argv[1], "await") == 0) return await(argv[2]);
  if (argc == 3 && strcmp(argv[1], "seldom") == 0) return seldom(argv[2]);
  if (argc == 3 && strcmp(argv[1], "poor") == 0) return poor(argv[2]);
  if (argc == 3 && strcmp(argv[1], "signals") == 0) return signals(argv[2]);
  if (argc >= 2 && strcmp(argv[1], "names") == 0) return names(argc - 2, argv + 2);
  if (argc == 3 && strcmp(argv[1], "quiet") == 0) return quiet(argv[2]);
  fprintf(stderr,
          "app check | count NODE N | lock NODE N | outlive NODE | await NODE | seldom NODE | poor NODE | signals NODE "
          "| quiet NODE | names NAME...\n");
  return 2;
}
