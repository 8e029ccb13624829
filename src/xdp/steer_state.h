// What the program in the kernel and its loader both know: tables, configuration, orders. C, for both compilers.
//
// Units:      lengths in bytes, times in nanoseconds, counted by the kernel's ticks: only their differences mean something.
// Limits:     the tables are fixed when the program is compiled; a loader may use less of them.
// Source:     docs/design/swordbox.md ("In the kernel"); src/swordbox has the same tables for the box that can hold packets.
#pragma once

#include <linux/types.h>

enum {
  STEER_CONNECTIONS = 4096,
  STEER_RING = 32,         /* operations remembered of a connection */
  STEER_TRIES = 8,         /* ended connections that a new one's place is looked for among */
  STEER_SILENT_TRIES = 64, /* and others, when all places are in use */
  STEER_HISTORY_SETS = 16384,
  STEER_HISTORY_WAYS = 4,
  STEER_KEY_SETS = 2048,
  STEER_KEY_WAYS = 8,
  STEER_SKETCH_ROWS = 4,
  STEER_SKETCH_WIDTH = 4096,
  STEER_VOLUMES = 256,
  STEER_REGIONS = 1024,
  STEER_RECENT_ENDS = 16384, /* places that remember where an end was found last */
  STEER_RECENT_REGIONS = 2048,
  STEER_INTERFACES = 64,
  STEER_NO_REGION = 0xFFFF,
};
#define STEER_NONE 0xFFFFFFFFu

/* One end of a connection as packets to it name it. IPv4 addresses in mapped form, as they stand on the wire. */
struct steer_end_key {
  __u64 source[2];
  __u64 destination[2];
  __u32 qpn;
  __u32 zero;
};
struct steer_end {
  __u32 connection;
  __u32 generation;
  __u32 end;
};

struct steer_direction {
  __u32 expected;     /* PSN of the next request to this end */
  __u32 acknowledged; /* newest request that this end has answered */
};

enum steer_operation_kind {
  STEER_UNUSED,
  STEER_LINK,
  STEER_TRY,   /* a CAS that may link a node, not watched */
  STEER_PROBE, /* the same, steered */
  STEER_READ,
  STEER_DONE, /* a link that failed: only its shift counts */
};
struct steer_operation {
  __u64 compare;
  __s64 shift; /* added to the address */
  __u32 psn;
  __u32 key;
  __u32 key_generation;
  __u32 number;     /* STEER_LINK: of the link */
  __u32 subject;    /* STEER_TRY, STEER_PROBE: the node's place in the history */
  __u32 generation; /* of the connection */
  __u16 span;       /* STEER_READ: packets of the answer */
  __u8 kind;
  __u8 end;
};

/* What most packets need is in its first two lines of memory. */
struct steer_connection {
  struct steer_direction to[2];
  __u64 last_seen;
  __u32 generation;
  __u16 mtu;
  __u16 proven; /* a region in which one of its links stands */
  __u8 alive;
  __u8 closing;
  __u8 known;   /* its ends stand in the index */
  __u8 resting; /* it waits among those that have ended */
  __u32 origin; /* of the PSNs that it began with, mixed; 0: not from a handshake */
  __u32 names;  /* of a handshake: what its ends call it, mixed */
  __u32 zero;
  struct steer_end_key ends[2];
  struct steer_end_key former[2]; /* of the connection that had this place before */
  struct steer_operation ring[STEER_RING];
} __attribute__((aligned(64)));

enum steer_node_state { STEER_EMPTY, STEER_WRITTEN, STEER_READY, STEER_TRIED, STEER_OPEN, STEER_TAIL, STEER_PAST };
/* What a node's state waits for: its WRITE's last packet, or its CAS. */
struct steer_awaited {
  __u32 connection;
  __u32 psn;
};
/* Where it is (region and address) and its state stand beside it, in tables of their own. */
struct steer_node {
  __u64 key;
  __u64 free_word;
  union {
    __u64 past_since; /* STEER_PAST */
    struct steer_awaited awaited;
  };
  __u32 generation; /* of the connection that is awaited */
  __u16 words;      /* of 4 bytes */
  __u8 end;
  __u8 zero;
};

/* A CAS under way that the program watches. In the kernel a key has at most one. */
struct steer_link {
  __u64 node;
  __u64 target; /* address of the next word that the CAS went to */
  __u64 compare;
  __u64 swap;
  __u64 since;
  __u32 entry;
  __u32 target_entry;
  __u32 connection;
  __u32 generation;
  __u16 region;
  __u8 open;
  __u8 node_ready;
  __u8 overtaken; /* a CAS of its node's next word has passed */
  __u8 tried_twice;
  __u8 zero[2];
};
struct steer_key {
  __u64 tail; /* place; 0: not known */
  __u64 free_word;
  __u32 tail_entry;
  __u32 generation;
  __u32 opened; /* number of the newest link */
  __u32 writes_steered;
  __u32 reads_steered;
  __u8 used;
  __u8 zero[3];
  struct steer_link link;
};

/* A line of memory of its own. */
struct steer_lock {
  volatile __u32 held; /* 1: somebody has the tables */
  __u32 zero[15];
};

struct steer_region_key {
  __u64 server[2];
  __u32 rkey;
  __u32 zero;
};

/* REQ seen, REP awaited. */
struct steer_handshake_key {
  __u64 initiator[2];
  __u32 comm_id;
  __u32 zero;
};
struct steer_handshake {
  __u64 acceptor[2];
  __u32 qpn;
  __u32 psn;
  __u32 mtu;
  __u32 zero;
};

enum steer_forward { STEER_TO_KERNEL, STEER_BACK, STEER_ACROSS };

/* Fixed when the program is loaded. */
struct steer_config {
  __u64 free_mask, free_value;
  __u64 pointer_mask, pointer_value;
  __u64 address_base, address_mask, address_stride;
  __u64 volume_mask;
  __u64 steer_reads_for;
  __u64 flight; /* a link without an answer is given up */
  __u64 idle;
  __u64 closing;
  __u64 tick;
  __u32 next_offset, key_offset;
  __u32 min_node_bytes, max_node_bytes;
  __u32 address_shift, volume_shift;
  __u32 volumes; /* 0: pointers lie in the region of their CAS */
  __u32 connections;
  __u32 ring_mask;
  __u32 history_sets_mask;
  __u32 key_sets_mask;
  __u32 key_ways;
  __u32 hot_from;
  __u8 mirrored, forward, zero[2];
  __u16 volume_regions[STEER_VOLUMES];
};

/* May change while the program runs. */
struct steer_wishes {
  __u32 on;
  __u32 steer_writes;
  __u32 steer_reads;
};

/* What the ICRC of a packet changes by when byte `i` of its remote address changes by `difference`:
 * effect[kind][i][difference], for RETH and AtomicETH without payload. */
enum { STEER_RETH, STEER_ATOMIC_ETH, STEER_KINDS };

/* The packet that the control program (steer_control) is run on: an order from user space. */
enum steer_order_kind { STEER_ANNOUNCE = 1, STEER_CLOSE, STEER_FORGET };
enum { STEER_FORGET_AT_ONCE = 16 };
struct steer_order {
  __u32 kind;
  __u32 mtu;
  __u32 first;  /* STEER_FORGET: the first of the entries to look at; STEER_ANNOUNCE: names, with an origin */
  __u32 origin; /* STEER_ANNOUNCE: of the connection; 0: it replaces what has its ends */
  struct steer_end_key ends[2]; /* STEER_CLOSE: ends[0] alone */
  __u32 psn[2];                 /* of the requests to each end */
};
