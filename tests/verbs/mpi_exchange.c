/* Two ranks of MPI: messages of many lengths there and back, then one-sided access to a window; every byte is checked.
 * Prints "all right" on rank 0, or where it went wrong, with exit code 1. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kLargest = 1 << 20, kWords = 4096, kRounds = 300 };

static int rank;

static void check(int fine, const char* what, long detail) {
  if (fine) return;
  printf("rank %d: wrong: %s (%ld)\n", rank, what, detail);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static uint8_t pattern(int i, int length, int from) { return (uint8_t)(i * 31 + length + 7 * from); }

/* Both sides at once, so that each length crosses itself. */
static void exchange(uint8_t* out, uint8_t* in, int length) {
  const int peer = 1 - rank;
  for (int i = 0; i < length; ++i) out[i] = pattern(i, length, rank);
  memset(in, 0, kLargest);
  MPI_Sendrecv(out, length, MPI_BYTE, peer, 1, in, length, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  for (int i = 0; i < length; ++i) check(in[i] == pattern(i, length, peer), "a byte of a message", length);
}

static void one_sided(void) {
  uint64_t* window_memory;
  MPI_Win window;
  MPI_Win_allocate(kWords * sizeof(uint64_t), sizeof(uint64_t), MPI_INFO_NULL, MPI_COMM_WORLD, &window_memory, &window);
  memset(window_memory, 0, kWords * sizeof(uint64_t));
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Win_lock_all(0, window);
  if (rank == 1) {
    uint64_t* mine = malloc(kWords * sizeof(uint64_t));
    for (long i = 1; i < kWords; ++i) mine[i] = (uint64_t)i * i;
    MPI_Put(mine + 1, kWords - 1, MPI_UINT64_T, 0, 1, kWords - 1, MPI_UINT64_T, window);
    MPI_Win_flush(0, window);
    memset(mine, 0, kWords * sizeof(uint64_t));
    MPI_Get(mine + 1, kWords - 1, MPI_UINT64_T, 0, 1, kWords - 1, MPI_UINT64_T, window);
    MPI_Win_flush(0, window);
    for (long i = 1; i < kWords; ++i) check(mine[i] == (uint64_t)i * i, "a word put and got back", i);
    free(mine);
  }
  /* Both count in the first word of rank 0: no value is seen twice, none is lost. */
  const uint64_t one = 1;
  uint64_t before = 0;
  uint64_t last = 0;
  for (int i = 0; i < kRounds; ++i) {
    MPI_Fetch_and_op(&one, &before, MPI_UINT64_T, 0, 0, MPI_SUM, window);
    MPI_Win_flush(0, window);
    check(i == 0 || before > last, "a counter that goes up", i);
    last = before;
  }
  MPI_Barrier(MPI_COMM_WORLD);
  uint64_t sum = 0;
  MPI_Fetch_and_op(NULL, &sum, MPI_UINT64_T, 0, 0, MPI_NO_OP, window);
  MPI_Win_flush(0, window);
  check(sum == 2 * kRounds, "the sum of both", (long)sum);
  MPI_Win_unlock_all(window);
  MPI_Win_free(&window);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  check(ranks == 2, "the number of ranks", ranks);
  uint8_t* out = malloc(kLargest);
  uint8_t* in = malloc(kLargest);
  for (int length = 1; length <= kLargest; length = length * 3 + 1) exchange(out, in, length);
  for (int i = 0; i < kRounds; ++i) exchange(out, in, 8);
  one_sided();
  free(out);
  free(in);
  if (rank == 0) printf("all right\n");
  MPI_Finalize();
  return 0;
}
