// libsluice: the memory of a rack's memory nodes, one-sided, from any program. C interface (C99); C++ may use it as it is.
//
// Life:      sluice_open() -> sluice_node() for each memory node that is used -> sluice_read/write/… that wait, or sluice_post_…() and
//            sluice_poll() -> sluice_close(). `sluice rack up` makes a rack.
// Cost:      each client is a NIC of its own on the rack. Operations go out, and answers are taken, in the calls of the program alone: while it
//            calls nothing, nothing moves.
// Order:     writes and atomics of one client on one memory node take effect in the order in which they were posted, and a read after those posted
//            before it. But a read may take effect at any time until it completes (a lost answer makes it be read again): await it before
//            posting what writes those bytes, or lets another write them, such as the release of a lock.
// Atomics:   on 8 bytes at offsets that are multiples of 8, little-endian; atomic with those of all other clients.
// Errors:    negative numbers, each with a sentence: sluice_strerror(). sluice_last_error() says more about this thread's last call that failed
//            itself (not about completions).
// Threads:   a client belongs to one thread at a time. A program may have many. After fork() the child must not use its parent's.
//            Two of its own keep each client on the rack: they take none of the program's signals. Nothing is ever written to the program's output.
// Limits:    2^30 bytes a read or write that is posted, any number in one that waits; options->entries operations under way a client; 256 memory nodes.
// Source:    InfiniBand Architecture vol. 1, RC: what goes over the wire are its WRITEs, READs and atomics.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SLUICE_API __attribute__((visibility("default")))

typedef struct sluice_client sluice_t;

/* Zero: the default. */
typedef struct {
  const char* directory; /* the rack's run directory; NULL: SLUICE_DIR, or the usual one */
  const char* name;      /* on the rack, used by nobody else; NULL: after this process */
  const char* port;      /* where frames go, such as "udp:10.0.0.1:7471"; NULL: the rack's switch */
  uint32_t entries;      /* operations under way, 1 to 65536 [1024] */
  uint32_t depth;        /* of them on the wire to one memory node, 1 to 4096 [128]; the others wait in line */
  uint32_t timeout_ms;   /* sluice_node(), and calls that wait, give up after this without a connection [5000] */
} sluice_options_t;

enum {
  SLUICE_OUT_OF_RANGE = -1, /* beyond the node's memory, or an atomic not on 8 bytes: nothing happened */
  SLUICE_DENIED = -2,       /* the memory node refuses: nothing happened */
  SLUICE_UNREACHABLE = -3,  /* no connection to the node now: nothing happened; each call goes on connecting */
  SLUICE_UNKNOWN = -4,      /* the connection was lost meanwhile: it may have happened or not */
  SLUICE_GONE = -5, /* the node has left or lost its memory, or the region was given back: ask sluice_node() again */
  SLUICE_BAD_LENGTH = -6,   /* 0, or too long to be posted */
  SLUICE_FULL = -7,         /* as many operations as there are entries are under way: poll, then try again */
  SLUICE_NO_SUCH_NODE = -8, /* sluice_last_error() says which there are */
  SLUICE_SYSTEM = -32       /* sluice_last_error() says what */
};

typedef struct {
  void* context;  /* what was given to sluice_post_… */
  int32_t status; /* 0, or why it failed (negative) */
  int32_t reserved;
} sluice_completion_t;

/* Joins the rack. NULL: sluice_last_error() says why. */
SLUICE_API sluice_t* sluice_open(const sluice_options_t* options);
/* Leaves it. What is under way ends; no buffer is touched afterwards. */
SLUICE_API void sluice_close(sluice_t* client);

/* A memory node that is connected, by its name on the rack, or a region of one's own, by its name (`sluice region add`, where the rack has tenants;
   SLUICE_TOKEN_FILE names the file with the token): its number for this client, or negative. Waits for its connection, and for a node that this client
   has used and that is away; one that it has never seen is SLUICE_NO_SUCH_NODE at once. A node's name stands for a tenant's region there, if it has one
   alone. The number stands for the node as it runs now, so for what is in its memory: once that is lost, operations end in SLUICE_GONE. Where the rack has
   begun anew (`sluice rack down`, `sluice rack up`) this takes a place on the new one. */
SLUICE_API int sluice_node(sluice_t* client, const char* name);
/* The name at `index`, for sluice_node(), of the memory nodes that are on the rack now (of a tenant's own regions), in alphabetical order; NULL: there are
   no more. Valid until the next call. */
SLUICE_API const char* sluice_node_name(sluice_t* client, uint32_t index);
/* Bytes of memory that it exports; offsets go from 0 to one less. 0: no such node. */
SLUICE_API uint64_t sluice_node_bytes(sluice_t* client, int node);

/* These wait, also for a connection that was lost: 0, or negative. Of long ones a part may have happened when they fail. `prior` may be NULL. */
SLUICE_API int sluice_read(sluice_t* client, int node, uint64_t offset, void* into, size_t bytes);
SLUICE_API int sluice_write(sluice_t* client, int node, uint64_t offset, const void* from, size_t bytes);
/* Swaps if it was `compare`; whether it has is told by `*prior`. */
SLUICE_API int sluice_compare_and_swap(sluice_t* client, int node, uint64_t offset, uint64_t compare, uint64_t swap,
                                       uint64_t* prior);
SLUICE_API int sluice_fetch_and_add(sluice_t* client, int node, uint64_t offset, uint64_t add, uint64_t* prior);

/* These do not: 0, and the operation will end in one completion with this context; or negative, and it will not. Buffers and `prior` stay the
   operation's until then. Without a connection it ends in SLUICE_UNREACHABLE; sluice_node() waits until there is one again. */
SLUICE_API int sluice_post_read(sluice_t* client, int node, uint64_t offset, void* into, size_t bytes, void* context);
SLUICE_API int sluice_post_write(sluice_t* client, int node, uint64_t offset, const void* from, size_t bytes,
                                 void* context);
SLUICE_API int sluice_post_compare_and_swap(sluice_t* client, int node, uint64_t offset, uint64_t compare,
                                            uint64_t swap, uint64_t* prior, void* context);
SLUICE_API int sluice_post_fetch_and_add(sluice_t* client, int node, uint64_t offset, uint64_t add, uint64_t* prior,
                                         void* context);
/* Takes at most `most` completions, in the order in which they came. When there is none it waits for the first, `timeout_us` at most (0: not at all, negative: for
   ever); with nothing under way it does not wait. How many. */
SLUICE_API int sluice_poll(sluice_t* client, sluice_completion_t* completions, int most, int64_t timeout_us);
/* Operations that have been posted and whose completion has not been taken. */
SLUICE_API uint32_t sluice_under_way(sluice_t* client);

SLUICE_API const char* sluice_strerror(int error);
/* Valid until this thread's next call that fails. */
SLUICE_API const char* sluice_last_error(void);

#ifdef __cplusplus
}
#endif
