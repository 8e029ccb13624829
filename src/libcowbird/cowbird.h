// libcowbird: remote memory without spending the application's CPU. C interface (C99); C++ may use it as it is.
//
// Life:      cowbird_open() -> cowbird_region_add() -> cowbird_thread() for each issuing thread -> cowbird_async_read/write() return request
//            ids -> cowbird_poll_wait() -> cowbird_close(). `sluice cowbird engine` moves the data; it may be restarted at any time.
// Cost:      issuing and completing are loads and stores in this process's memory; only cowbird_poll_wait() that finds nothing
//            yields and then sleeps.
// Order:     per thread, requests of one type complete in the order of issue, and a read sees every earlier write that it overlaps.
// Errors:    negative numbers, each with a sentence: cowbird_strerror(). cowbird_last_error() says more about the last failed call of
//            cowbird_open or cowbird_region_add in this thread, or of COWBIRD_ENGINE_ABSENT. COWBIRD_SYSTEM from any other: there was no memory.
// Threads:   a cowbird_thread belongs to one thread at a time. No thread calls anything while a region is added or removed. Of its
//            parent's instances, whose rings they share, a child of fork() may call cowbird_close() alone. Until it does or ends they are served.
// Limits:    64 regions; a request is at most as long as its data ring, and for the engine in the switch 1 MiB;
//            options->entries requests under way a thread, at most 65,536; 4 GiB of rings and 1,048,576 entries in all; 2^48 requests of a type
//            a thread, then its ring is full for ever.
// Source:    Cowbird (SIGCOMM 2023), Table 2.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define COWBIRD_API __attribute__((visibility("default")))

typedef struct cowbird_instance cowbird_t;
typedef struct cowbird_channel cowbird_thread_t;

/* Zero: the default. */
typedef struct {
  const char*
      engine; /* path of the engine's socket; NULL: cowbird.sock in SLUICE_DIR, or in the rack's usual directory */
  uint32_t threads;        /* issuing threads, 1 to 256 [1] */
  uint32_t entries;        /* requests under way a thread, a power of two up to 65,536 [1024] */
  uint32_t request_bytes;  /* data ring for writes, a multiple of 64 [256 KiB] */
  uint32_t response_bytes; /* data ring for reads, a multiple of 64 [256 KiB] */
} cowbird_options_t;

enum {
  COWBIRD_NO_REGION = -1,
  COWBIRD_OUT_OF_RANGE = -2,
  COWBIRD_BAD_LENGTH = -3,
  COWBIRD_READ_ONLY = -4,
  COWBIRD_METADATA_FULL = -5,
  COWBIRD_REQUEST_DATA_FULL = -6,
  COWBIRD_RESPONSE_DATA_FULL = -7,
  COWBIRD_NO_SUCH_REQUEST = -8,
  COWBIRD_NO_SUCH_GROUP = -9,
  COWBIRD_REGION_IN_USE = -10,
  COWBIRD_DENIED = -16,
  COWBIRD_UNREACHABLE = -17,
  COWBIRD_UNKNOWN = -18,
  COWBIRD_MALFORMED = -19,
  COWBIRD_FORGOTTEN = -20,
  COWBIRD_TOO_LONG = -21,
  COWBIRD_ENGINE_ABSENT = -32,
  COWBIRD_SYSTEM = -33 /* cowbird_last_error() says what */
};

/* What cowbird_async_read or cowbird_async_write has returned: a ring is full. Poll for completions, then try again. */
#define COWBIRD_IS_FULL(error) ((error) <= COWBIRD_METADATA_FULL && (error) >= COWBIRD_RESPONSE_DATA_FULL)

enum { COWBIRD_READ_ONLY_REGION = 1 };

typedef struct {
  int64_t request;
  int32_t status; /* 0, or why it failed (negative) */
  int32_t reserved;
} cowbird_completion_t;

/* Makes the rings and hands them to the engine. NULL: cowbird_last_error() says why. */
COWBIRD_API cowbird_t* cowbird_open(const cowbird_options_t* options);
/* Of requests that are not complete, some have been done and some never will be, and nobody says which: wait for those that matter before.
   No destination is touched afterwards. */
COWBIRD_API void cowbird_close(cowbird_t* cowbird);

/* Memory of a memory node, by its name on the rack, or of a region of the engine's tenant, by its name (`sluice region add`): `length` bytes
   from `offset` in what it exports. `flags`: 0, or COWBIRD_READ_ONLY_REGION. A region id, or negative. */
COWBIRD_API int cowbird_region_add(cowbird_t* cowbird, const char* memory_node, uint64_t offset, uint64_t length,
                                   int flags);
/* Gives the region's id back, for another one. 0; COWBIRD_NO_REGION; COWBIRD_REGION_IN_USE while a request of it, whichever thread's, is not
   complete. */
COWBIRD_API int cowbird_region_remove(cowbird_t* cowbird, uint16_t region);

/* The rings of issuing thread `index`; NULL: there is none. */
COWBIRD_API cowbird_thread_t* cowbird_thread(cowbird_t* cowbird, uint32_t index);

/* A request id, or negative. Two threads may have requests of the same id. `src` and `dest` on the remote side are offsets into the region.
   The source of a write may be used again at once; the destination of a read must stay until the request is complete. */
COWBIRD_API int64_t cowbird_async_read(cowbird_thread_t* thread, uint16_t region, uint64_t src, void* dest,
                                       uint32_t length);
COWBIRD_API int64_t cowbird_async_write(cowbird_thread_t* thread, uint16_t region, const void* src, uint64_t dest,
                                        uint32_t length);

/* Poll groups, as epoll's. A group belongs to its thread, and so does its id, which another one may have once it is destroyed. */
COWBIRD_API int cowbird_poll_create(cowbird_thread_t* thread);
COWBIRD_API int cowbird_poll_destroy(cowbird_thread_t* thread, int poll_id);
COWBIRD_API int cowbird_poll_add(cowbird_thread_t* thread, int poll_id, int64_t request);
COWBIRD_API int cowbird_poll_remove(cowbird_thread_t* thread, int poll_id, int64_t request);
/* Waits until `max_ret` requests of the group are complete or `timeout_us` has passed (negative: for ever), or nothing is left in the
   group, or no engine has been at work for a second. How many there are in `responses` (0 when max_ret is 0 or less); or
   COWBIRD_ENGINE_ABSENT, when there is none for want of an engine. A status may be COWBIRD_FORGOTTEN (see cowbird_is_complete), where
   other groups of the thread were waited for meanwhile. Like the calls below it looks for a new engine when it finds nothing, and does
   not wait for one. */
COWBIRD_API int cowbird_poll_wait(cowbird_thread_t* thread, int poll_id, cowbird_completion_t* responses, int max_ret,
                                  int64_t timeout_us);

/* Without groups: whatever has completed since the last call, at most max_ret, without waiting; or COWBIRD_ENGINE_ABSENT, when nothing
   has and no engine has been at work for a second. Of what cowbird_is_complete has found complete since then, the last options->entries
   are among it. Do not mix with groups in one thread. */
COWBIRD_API int cowbird_collect(cowbird_thread_t* thread, cowbird_completion_t* responses, int max_ret);
/* select-like: 0 when the request is not complete, 1 when it has been done; negative why it failed, or when there is no such request.
   COWBIRD_FORGOTTEN: too many others have failed since to say which. Failures that follow each other for one reason count as one, and
   1,024 are remembered. */
COWBIRD_API int cowbird_is_complete(cowbird_thread_t* thread, int64_t request);
/* For who uses cowbird_is_complete alone, which says 0 of a request that waits for an engine: COWBIRD_ENGINE_ABSENT, when none has been at
   work for a second; or 0. Looks for a new one. */
COWBIRD_API int cowbird_engine_absent(cowbird_thread_t* thread);

/* Of a negative number. What is positive, or 0, is "done". */
COWBIRD_API const char* cowbird_strerror(int error);
/* As it is until the thread's next call that fails. */
COWBIRD_API const char* cowbird_last_error(void);

#ifdef __cplusplus
}
#endif
