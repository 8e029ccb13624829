/* SwordBox's steering for Clover in the kernel: what src/swordbox does with Order::kPassing and nothing held, as an XDP program.
 *
 * Life:       a frame comes -> parse -> judge (under the lock) -> edit the address, patch the ICRC -> on its way, as configured.
 * Order:      one link a key at a time. It cannot wait, so whoever comes meanwhile goes where its client sent it.
 * Invariant:  nothing ever depends on a link that is not acknowledged, so losing all this state loses nothing.
 * Invariant:  only connections set up while the program runs are followed; of others it learns nothing, it only forgets.
 * Threads:    any CPU; one lock around the tables. No helper is called while it is held.
 * Limits:     steer_state.h.
 * Source:     SwordBox §4.4.2; docs/design/swordbox.md ("In the kernel").
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
/* These need the kernel's types. */
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "swordbox/verdict_table.h"
#include "xdp/steer_state.h"

enum verdict {
#define X(name, action, meaning) V_##name,
  SLUICE_BOX_VERDICTS(X)
#undef X
      VERDICTS
};
enum action { kForward, kDrop, kHold };
enum event {
#define X(name, meaning) E_##name,
  SLUICE_BOX_EVENTS(X)
#undef X
      EVENTS
};

#define INLINE static __always_inline

const volatile struct steer_config config;
const volatile __u32 effect[STEER_KINDS][8][256];
const volatile __u32 crc_of_byte[256];
/* By their numbers, which are the values of `regions`. */
const volatile struct steer_region_key region_names[STEER_REGIONS];

struct steer_wishes wishes;
__u64 events[EVENTS];
struct steer_connection connections[STEER_CONNECTIONS];
/* Of the history: most packets look for places and states alone, which stay in a core's second cache, and only store to the rest. */
__u64 node_places[STEER_HISTORY_SETS * STEER_HISTORY_WAYS] __attribute__((aligned(64)));
__u8 node_states[STEER_HISTORY_SETS * STEER_HISTORY_WAYS] __attribute__((aligned(64)));
struct steer_node history[STEER_HISTORY_SETS * STEER_HISTORY_WAYS] __attribute__((aligned(64)));
/* Of the keys in `keys`: those of a set are one line of memory. */
__u64 key_names[STEER_KEY_SETS * STEER_KEY_WAYS] __attribute__((aligned(64)));
struct steer_key keys[STEER_KEY_SETS * STEER_KEY_WAYS];
__u16 sketch[STEER_SKETCH_ROWS][STEER_SKETCH_WIDTH];
__u64 sketch_additions;
__u32 history_turn;
__u32 connections_hand;
__u32 connections_used; /* places, ever */
/* Those whose connection has ended or is closing, a ring, oldest first. */
__u16 resting[STEER_CONNECTIONS];
__u32 resting_first;
__u32 resting_count;
/* Where a name was found last, so that most packets look into no hash map, 20 ns each: believed only when the name that stands there is the one
 * that is looked for. Places of connections with their end, and numbers of regions; 0, with which all begin, is one like any other. */
__u16 recent_ends[STEER_RECENT_ENDS];
__u16 recent_regions[STEER_RECENT_REGIONS];
/* Always 0, which the verifier does not know: a place found in one way of a set is to it as any other, so that it looks at what follows
 * once and not once for every way. */
volatile __u32 veil;
struct steer_lock tables_lock __attribute__((aligned(64)));

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, VERDICTS);
  __type(key, __u32);
  __type(value, __u64);
} verdicts SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, STEER_CONNECTIONS * 2);
  __type(key, struct steer_end_key);
  __type(value, struct steer_end);
} ends SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, STEER_REGIONS);
  __type(key, struct steer_region_key);
  __type(value, __u32);
} regions SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, 1024);
  __type(key, struct steer_handshake_key);
  __type(value, struct steer_handshake);
} handshakes SEC(".maps");
/* Where what comes in at an interface goes, for STEER_ACROSS. */
struct {
  __uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
  __uint(max_entries, STEER_INTERFACES);
  __type(key, __u32);
  __type(value, __u32);
} across SEC(".maps");

enum {
  CLASS_OTHER,
  CLASS_WRITE, /* begins a message */
  CLASS_READ,
  CLASS_CAS,
  CLASS_OTHER_ATOMIC, /* FETCH_ADD, masked CAS */
  CLASS_ACK,
  CLASS_ATOMIC_ACK,
  CLASS_READ_RESPONSE,
};

/* What judge() is told about a packet of a reliable connection, and (shift) what it says. */
struct steer_packet {
  struct steer_end_key end;
  __u64 now;
  __u64 address;
  union {
    __u64 swap;      /* of a CAS */
    __u64 next_word; /* of a node that is written */
  };
  union {
    __u64 compare; /* or the prior value in an answer */
    __u64 key;
  };
  __s64 shift;
  __u32 rkey;
  __u32 length;
  __u32 payload;
  __u32 psn;
  __u8 class;
  __u8 is_request;
  __u8 has_node; /* next_word and key are there */
  __u8 syndrome;
  __u32 zero;
};

/* The kernel's lock for BPF shuts interrupts out as well, 10 ns a packet, which nothing here needs: no program is called from an interrupt, and none
 * by a packet while it judges another. Only a core that is not run meanwhile (a virtual one) keeps this longer than some 50 ns; or an order, on
 * kernels that let a packet come between. Hence a bound, of milliseconds. */
enum { LOCK_TRIES = 1 << 17 };
static long try_to_lock(__u32 i, void* got) {
  (void)i;
  if (tables_lock.held != 0 || __sync_val_compare_and_swap(&tables_lock.held, 0, 1) != 0) return 0;
  *(int*)got = 1;
  return 1;
}
/* 0: it cannot be had. */
INLINE int lock_tables(void) {
  if (__sync_val_compare_and_swap(&tables_lock.held, 0, 1) == 0) return 1;
  int got = 0;
  bpf_loop(LOCK_TRIES, try_to_lock, &got, 0);
  return got;
}
INLINE void unlock_tables(void) {
#ifdef __TARGET_ARCH_x86 /* no store there comes before a load or store that stands before it */
  asm volatile("" ::: "memory");
  tables_lock.held = 0;
#else
  __sync_lock_test_and_set(&tables_lock.held, 0);
#endif
}

INLINE __u64 mix(__u64 x) {
  x ^= x >> 32;
  x *= 0x9E3779B97F4A7C15ull;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9ull;
  return x ^ x >> 32;
}

/* As it stood at the last tick: the kernel makes one load of it. */
INLINE __u64 now_ns() { return bpf_jiffies64() * config.tick; }

/* Signed distance of 24-bit serial numbers. */
INLINE __s32 since(__u32 a, __u32 b) { return (__s32)((a - b) << 8) >> 8; }
INLINE __u32 psn_add(__u32 psn, __u32 n) { return (psn + n) & 0xFFFFFF; }
/* `then` may be later than `now`: another CPU read its clock after ours, and had the lock before us. */
INLINE int has_passed(__u64 now, __u64 then, __u64 duration) { return (__s64)(now - then) >= (__s64)duration; }

#define ADDRESS_BITS ((1ull << 48) - 1)
/* Without a branch: the verifier would look at what follows twice. */
INLINE __u32 least_of(__u32 a, __u32 b) {
  const __s64 difference = (__s64)a - (__s64)b;
  return (__u32)((__s64)b + (difference & difference >> 63));
}
INLINE __u64 place_of(__u32 region, __u64 address) { return (__u64)region << 48 | address; }
INLINE __u64 address_of(__u64 place) { return place & ADDRESS_BITS; }
INLINE __u32 region_of(__u64 place) { return (__u32)(place >> 48); }

#define NODES (STEER_HISTORY_SETS * STEER_HISTORY_WAYS)
#define KEYS (STEER_KEY_SETS * STEER_KEY_WAYS)
#define node_at(i) (&history[(i) & (NODES - 1)])
#define place_at(i) (&node_places[(i) & (NODES - 1)])
#define state_at(i) (&node_states[(i) & (NODES - 1)])
#define key_at(i) (&keys[(i) & (KEYS - 1)])
#define connection_at(i) (&connections[(i) & (STEER_CONNECTIONS - 1)])
#define resting_at(i) (&resting[(i) & (STEER_CONNECTIONS - 1)])
#define count_event(name) (++events[E_##name])

INLINE int is_free(__u64 w) { return (w & config.free_mask) == config.free_value; }
INLINE int is_pointer(__u64 w) { return (w & config.pointer_mask) == config.pointer_value && !is_free(w) && w != 0; }
INLINE __u64 pointed_to(__u64 w) {
  return config.address_base + (w >> (config.address_shift & 63) & config.address_mask) * config.address_stride;
}

/* ------------------------------------------------------------------------------------------------------------- tables */

/* The first place of a node's set. Neighbours in memory, which whoever allocates takes one after the other, are neighbours here: the core asks
 * for the next ones by itself, as long as several are in a page. Nodes of less than 64 B share sets. */
INLINE __u32 node_set(__u64 place) {
  return (__u32)((mix(place >> 12) + (place >> 6)) & config.history_sets_mask) * STEER_HISTORY_WAYS;
}
/* The set is bounded once: the compiler would bound the place of every way anew, 15 instructions each. */
INLINE __u32 find_node(__u64 place) {
  const __u64 set = node_set(place) & (NODES - STEER_HISTORY_WAYS);
  const __u64* const places = &node_places[set];
  const __u8* const states = &node_states[set];
#pragma unroll
  for (__u32 way = 0; way < STEER_HISTORY_WAYS; ++way) {
    if (places[way] == place && states[way] != STEER_EMPTY) return ((__u32)set + way) | veil;
  }
  return STEER_NONE;
}

INLINE __u32 worth_of(__u8 state) {
  switch (state) {
    case STEER_EMPTY: return 0;
    case STEER_PAST: return 1;
    case STEER_TRIED: return 2;
    case STEER_WRITTEN:
    case STEER_READY: return 3;
    default: return 4;
  }
}

INLINE __u32 claim_node(__u64 place) {
  const __u32 set = node_set(place);
  __u32 victim = STEER_NONE;
  __u32 least = 4;
  const __u32 turn = ++history_turn;
#pragma unroll
  for (__u32 k = 0; k < STEER_HISTORY_WAYS; ++k) {
    const __u32 i = set + ((k + turn) & (STEER_HISTORY_WAYS - 1));
    const __u32 worth = worth_of(*state_at(i)) | veil;
    if (worth < least) {
      least = worth;
      victim = i;
    }
  }
  if (victim == STEER_NONE) return STEER_NONE;
  victim |= veil;
  *place_at(victim) = place;
  *state_at(victim) = STEER_PAST;
  return victim;
}

INLINE void become_past(__u32 entry, __u64 now) {
  *state_at(entry) = STEER_PAST;
  node_at(entry)->past_since = now;
}

/* The pipeline in C++ keeps something else in its place once nobody needs it any more (HistoryEntry::note_key_place): what can be known of a
 * node is the same here. A node whose next word is just this is left alone for no need, and that is all. */
#define STEER_FORGOTTEN (~(__u64)0)
/* Every READ of a past node comes here, on any core: no store but the first. */
INLINE void forget_next_word(__u32 entry) {
  struct steer_node* n = node_at(entry);
  if (n->free_word != STEER_FORGOTTEN) n->free_word = STEER_FORGOTTEN;
}
INLINE int next_word_is_forgotten(__u32 entry) {
  return *state_at(entry) == STEER_PAST && node_at(entry)->free_word == STEER_FORGOTTEN;
}

INLINE __u32 find_key(__u64 name) {
  const __u64 set = (mix(name) & config.key_sets_mask) * STEER_KEY_WAYS & (KEYS - STEER_KEY_WAYS);
  const __u64* const names = &key_names[set];
  const struct steer_key* const of_set = &keys[set];
#pragma unroll
  for (__u32 way = 0; way < STEER_KEY_WAYS; ++way) {
    if (names[way] == name && of_set[way].used) return ((__u32)set + way) | veil;
  }
  return STEER_NONE;
}

#define SKETCH_AT(row, h) sketch[row][(h) >> (16 * (row)) & (STEER_SKETCH_WIDTH - 1)]

INLINE __u32 heat_of(__u64 name) {
  const __u64 h = mix(name);
  __u32 least = 0xFFFF;
#pragma unroll
  for (int row = 0; row < STEER_SKETCH_ROWS; ++row) {
    least = least_of(SKETCH_AT(row, h), least);
  }
  return least;
}

/* Counts it. Every addition halves a few counts, in turn, so that each is halved once in eight times the sketch's width. */
INLINE __u32 heat_more(__u64 name) {
  const __u64 h = mix(name);
  const __u64 turn = ++sketch_additions & (STEER_SKETCH_WIDTH * 8 - 1);
  __u32 least = 0xFFFF;
#pragma unroll
  for (int row = 0; row < STEER_SKETCH_ROWS; ++row) {
    if (turn < STEER_SKETCH_WIDTH) sketch[row][turn & (STEER_SKETCH_WIDTH - 1)] /= 2;
    __u16* count = &SKETCH_AT(row, h);
    if (*count != 0xFFFF) ++*count;
    least = least_of(*count, least);
  }
  return least;
}

/* The ring of a connection, by PSN. */
INLINE struct steer_operation* operation_at(struct steer_connection* c, __u32 psn) {
  return &c->ring[psn & config.ring_mask & (STEER_RING - 1)];
}
INLINE struct steer_operation* find_operation(struct steer_connection* c, __u32 end, __u32 psn) {
  struct steer_operation* op = operation_at(c, psn);
  const int is_ours = op->kind != STEER_UNUSED && op->generation == c->generation;
  return is_ours && op->psn == psn && op->end == end ? op : 0;
}
/* A fresh entry; none while the one in its place is not acknowledged. */
INLINE struct steer_operation* add_operation(struct steer_connection* c, __u32 end, __u32 psn) {
  struct steer_operation* op = operation_at(c, psn);
  if (op->kind != STEER_UNUSED && op->generation == c->generation) {
    const __u32 acknowledged = c->to[op->end & 1].acknowledged;
    if (since(op->psn, acknowledged) > 0 && (op->end != end || since(op->psn, psn) < 0)) return 0;
  }
  op->psn = psn;
  op->generation = c->generation;
  op->end = (__u8)end;
  op->shift = 0;
  op->span = 1;
  return op;
}

/* -------------------------------------------------------------------------------------------------------------- links */

INLINE void lose_tail(struct steer_key* k, __u64 now) {
  if (k->tail == 0) return;
  const int from_it = k->link.open && k->link.target_entry == k->tail_entry;
  if (*state_at(k->tail_entry) == STEER_TAIL && !from_it) become_past(k->tail_entry, now);
  k->tail = 0;
  k->tail_entry = STEER_NONE;
  count_event(tails_lost);
}

/* The link is over, and nobody knows more of its node than that it may have a place in a chain. */
INLINE void drop_link(struct steer_key* k, __u64 now) {
  k->link.open = 0;
  if (*state_at(k->link.entry) == STEER_OPEN) become_past(k->link.entry, now);
  const __u32 target = k->link.target_entry;
  if (target != STEER_NONE && *state_at(target) == STEER_TAIL) become_past(target, now);
  lose_tail(k, now);
}

INLINE void link_failed(struct steer_key* k, __u64 now) {
  count_event(links_failed);
  drop_link(k, now);
  if (k->link.node_ready) *state_at(k->link.entry) = STEER_READY;
}

/* `free_before`: until now nothing followed the target, so nothing can follow the node but what was seen to pass. */
INLINE void link_stands(struct steer_key* k, int free_before, __u64 now) {
  struct steer_link* link = &k->link;
  struct steer_connection* c = connection_at(link->connection);
  if (c->generation == link->generation) c->proven = link->region;
  link->open = 0;
  const __u32 target = link->target_entry;
  if (target != STEER_NONE && *state_at(target) == STEER_TAIL) {
    become_past(target, now);
    forget_next_word(target);
  }
  if (free_before && link->node_ready && !link->overtaken) {
    k->tail = link->node;
    k->tail_entry = link->entry;
    k->free_word = node_at(link->entry)->free_word;
    *state_at(link->entry) = STEER_TAIL;
    count_event(tails_learned);
  } else {
    k->tail = 0;
    k->tail_entry = STEER_NONE;
    become_past(link->entry, now);
    count_event(tails_lost);
  }
  count_event(links_committed);
}

/* A link without an answer is executed by now or never will be. */
INLINE void expire(struct steer_key* k, __u64 now) {
  if (!k->link.open || !has_passed(now, k->link.since, config.flight)) return;
  count_event(links_expired);
  drop_link(k, now);
}

INLINE int write_acknowledged(__u32 entry) {
  const __u8 state = *state_at(entry);
  if (state == STEER_READY) return 1;
  if (state != STEER_WRITTEN) return 0;
  const struct steer_node* n = node_at(entry);
  const struct steer_connection* c = connection_at(n->awaited.connection);
  return c->alive && c->generation == n->generation && since(c->to[n->end & 1].acknowledged, n->awaited.psn) >= 0;
}

/* An atomic that is not watched passes: what it may change is not believed any more. */
INLINE void disturb(__u64 at, __u64 compare, int only_if_free, __u64 now) {
  const __u32 entry = find_node(at);
  if (entry == STEER_NONE) return;
  const __u8 state = *state_at(entry);
  if (state != STEER_TAIL && state != STEER_OPEN) return;
  const struct steer_node* n = node_at(entry);
  if (only_if_free && compare != n->free_word) return; /* it will fail */
  const __u32 key = find_key(n->key);
  if (key == STEER_NONE) return;
  struct steer_key* k = key_at(key);
  expire(k, now);
  if (k->link.open && k->link.entry == entry) k->link.overtaken = 1;
  if (k->tail == at) lose_tail(k, now);
}

/* ----------------------------------------------------------------------------------------------------------- requests */

/* WRITE of a new content: whatever was believed of the address is over. Returns its place in the history. */
INLINE __u32 forget_address(__u64 place, __u64 now, int* is_open) {
  const __u32 entry = find_node(place);
  *is_open = 0;
  if (entry == STEER_NONE) return STEER_NONE;
  const __u8 state = *state_at(entry);
  if (state == STEER_TAIL || state == STEER_OPEN) {
    const __u32 key = find_key(node_at(entry)->key);
    if (key != STEER_NONE) {
      struct steer_key* k = key_at(key);
      if (k->tail == place) lose_tail(k, now);
      if (k->link.open && k->link.entry == entry) k->link.overtaken = 1;
    }
    if (state == STEER_OPEN) {
      *is_open = 1;
      return entry;
    }
  }
  become_past(entry, now);
  return entry;
}

/* `c`: none for a connection that is not followed: nothing is learned from it. */
INLINE int on_write(const struct steer_packet* p, __u32 index, const struct steer_connection* c, __u32 end,
                    __u32 region) {
  const __u64 place = place_of(region, p->address);
  int is_open = 0;
  __u32 entry = forget_address(place, p->now, &is_open);
  if (is_open) return V_Plain;
  const int is_node = c != 0 && p->has_node && p->length >= config.min_node_bytes &&
                      p->length <= config.max_node_bytes && p->length % 4 == 0 && is_free(p->next_word);
  if (!is_node) {
    if (entry != STEER_NONE) *state_at(entry) = STEER_EMPTY;
    return V_Plain;
  }
  if (entry == STEER_NONE) entry = claim_node(place);
  if (entry == STEER_NONE) return V_Plain;
  /* Most are one packet, and a division takes longer than all the rest here. */
  __u32 packets = 1;
  if (p->length > p->payload && p->payload != 0) packets = (p->length + p->payload - 1) / p->payload;
  struct steer_node* n = node_at(entry);
  n->key = p->key;
  n->free_word = p->next_word;
  n->words = (__u16)(p->length / 4);
  *state_at(entry) = STEER_WRITTEN;
  n->awaited.connection = index;
  n->generation = c->generation;
  n->end = (__u8)end;
  n->awaited.psn = psn_add(p->psn, packets - 1);
  return V_NodeWritten;
}

/* A place among the tracked keys, if need be that of a colder one. */
INLINE __u32 admit(__u64 name, __u32 heat, __u64 now) {
  const __u32 set = (__u32)(mix(name) & config.key_sets_mask) * STEER_KEY_WAYS;
  __u32 place = STEER_NONE;
  __u32 least = heat;
  for (__u32 way = 0; way < STEER_KEY_WAYS; ++way) {
    if (way >= config.key_ways) break;
    const struct steer_key* k = key_at(set + way);
    if (k->used && k->link.open) continue;
    /* Some way below, so that two keys of equal heat do not take turns; a free place is below all. */
    const __u32 other = heat_of(key_names[(set + way) & (KEYS - 1)]);
    const __u32 worth = k->used ? other + other / 4 + 2 : 0;
    if (worth > least) continue;
    least = (k->used ? other : 0) | veil;
    place = (set + way) | veil;
  }
  if (place == STEER_NONE) return STEER_NONE;
  struct steer_key* k = key_at(place);
  if (k->used) {
    lose_tail(k, now);
    count_event(keys_evicted);
  }
  ++k->generation;
  k->used = 1;
  key_names[place & (KEYS - 1)] = name;
  k->tail = 0;
  k->tail_entry = STEER_NONE;
  k->opened = 0;
  k->writes_steered = 0;
  k->reads_steered = 0;
  k->link.open = 0;
  count_event(keys_admitted);
  return place;
}

/* What is to be done with a CAS whose node is known. */
enum plan { PASS, PROBE, REAIM, LINK };

struct cas {
  __u64 at;    /* the node whose next word it is */
  __s64 shift; /* for the plan */
  __u32 entry; /* of the node that it wants to link */
  __u32 key;
  __u32 region;
  int verdict;
};

INLINE enum plan plan_cas(const struct steer_packet* p, struct cas* cas) {
  struct steer_node* n = node_at(cas->entry);
  __u32 key = find_key(n->key);
  const __u32 heat = heat_more(n->key);
  if (key == STEER_NONE && heat >= config.hot_from) key = admit(n->key, heat, p->now);
  cas->key = key;
  cas->verdict = V_CasCold;
  if (key == STEER_NONE) return PASS;
  struct steer_key* k = key_at(key);
  expire(k, p->now);
  const __u8 state = *state_at(cas->entry);
  const int fresh = state == STEER_WRITTEN || state == STEER_READY;
  const int at_tail = k->tail == cas->at;
  cas->verdict = V_CasAgain;
  if (state == STEER_OPEN) {
    const struct steer_link* link = &k->link;
    if (!link->open || link->entry != cas->entry || link->region != cas->region || link->swap != p->swap) return PASS;
    cas->shift = (__s64)(link->target - p->address);
    cas->verdict = V_CasReaimed;
    return REAIM;
  }
  if (!fresh && (!at_tail || next_word_is_forgotten(cas->entry))) return PASS;
  cas->verdict = V_CasBusy;
  if (k->link.open) return PASS;
  cas->verdict = V_CasLearning;
  if (k->tail == 0) return LINK;
  cas->verdict = V_CasElsewhere;
  if (!at_tail && region_of(k->tail) != cas->region) return PASS;
  cas->verdict = V_CasAgain;
  if (!at_tail && !wishes.steer_writes) return PASS;
  cas->shift = (__s64)(address_of(k->tail) - address_of(cas->at));
  cas->verdict = V_CasProbe;
  if (p->compare != k->free_word) return PROBE;
  cas->verdict = cas->shift == 0 ? V_CasAtTail : V_CasSteered;
  if (cas->shift != 0) ++k->writes_steered;
  return LINK;
}

INLINE void open_link(const struct steer_packet* p, const struct cas* cas, __u32 index,
                      const struct steer_connection* c) {
  const struct steer_node* n = node_at(cas->entry);
  __u8* const state = state_at(cas->entry);
  struct steer_key* k = key_at(cas->key);
  struct steer_link* link = &k->link;
  link->node = *place_at(cas->entry);
  link->target = p->address + (__u64)cas->shift;
  link->compare = p->compare;
  link->swap = p->swap;
  link->since = p->now;
  link->entry = cas->entry;
  link->target_entry = k->tail_entry;
  link->connection = index;
  link->generation = c->generation;
  link->region = (__u16)cas->region;
  link->open = 1;
  const int written_here = *state == STEER_WRITTEN && n->awaited.connection == index && n->generation == c->generation;
  link->node_ready = write_acknowledged(cas->entry) || written_here;
  link->overtaken = 0;
  link->tried_twice = 0;
  ++k->opened;
  *state = STEER_OPEN;
  count_event(links_opened);
}

/* `disturbs`: set when it goes where its client sent it. */
INLINE int on_cas(struct steer_packet* p, __u32 index, struct steer_connection* c, __u32 end, struct cas* cas,
                  int* disturbs) {
  *disturbs = 1;
  if (cas->entry == STEER_NONE) return V_CasUnknownNode;
  __u8* const state = state_at(cas->entry);
  if (c == 0) {
    if (*state == STEER_WRITTEN || *state == STEER_READY) become_past(cas->entry, p->now);
    return V_Unknown;
  }
  const enum plan plan = plan_cas(p, cas);
  const int fresh = *state == STEER_WRITTEN || *state == STEER_READY;
  const int ready = write_acknowledged(cas->entry);
  *disturbs = plan == PASS;
  if (plan == PASS && !fresh) return cas->verdict;
  struct steer_operation* op = plan != PASS || ready ? add_operation(c, end, p->psn) : 0;
  if (op == 0) {
    if (plan != PASS) return V_CasNoRoom;
    become_past(cas->entry, p->now);
    return cas->verdict;
  }
  struct steer_key* k = key_at(cas->key);
  op->compare = p->compare;
  op->subject = cas->entry;
  op->key = cas->key;
  op->key_generation = k->generation;
  op->shift = plan == PASS ? 0 : cas->shift;
  p->shift = op->shift;
  if (plan == LINK) {
    open_link(p, cas, index, c);
    op->kind = STEER_LINK;
  } else if (plan == REAIM) {
    k->link.tried_twice = 1;
    op->kind = STEER_LINK;
  } else {
    op->kind = plan == PASS ? STEER_TRY : STEER_PROBE;
    become_past(cas->entry, p->now);
    if (ready) {
      struct steer_node* n = node_at(cas->entry);
      *state = STEER_TRIED;
      n->awaited.connection = index;
      n->generation = c->generation;
      n->end = (__u8)end;
      n->awaited.psn = p->psn;
    }
  }
  op->number = k->opened;
  return cas->verdict;
}

INLINE int on_read(struct steer_packet* p, struct steer_connection* c, __u32 end, __u32 region, __u32 span) {
  if (!wishes.steer_reads || config.mirrored) return V_Plain;
  const __u64 place = place_of(region, p->address);
  const __u32 entry = find_node(place);
  if (entry == STEER_NONE) return V_Plain;
  struct steer_node* n = node_at(entry);
  const __u32 key = find_key(n->key);
  if (key == STEER_NONE) return V_ReadCold;
  const int is_past = *state_at(entry) == STEER_PAST;
  if (is_past) forget_next_word(entry);
  struct steer_key* k = key_at(key);
  const int expired = k->link.open && has_passed(p->now, k->link.since, config.flight);
  if (k->tail == place) return V_ReadAtTail;
  if (k->tail == 0 || expired) return V_ReadNoTail;
  if (is_past && has_passed(p->now, n->past_since, config.steer_reads_for)) return V_ReadTooOld;
  const int same_length = node_at(k->tail_entry)->words * 4u == p->length;
  if (region_of(k->tail) != region || !same_length || span > STEER_RING / 2) return V_ReadElsewhere;
  struct steer_operation* op = add_operation(c, end, p->psn);
  if (op == 0) return V_ReadElsewhere;
  op->kind = STEER_READ;
  op->span = (__u16)span;
  op->shift = (__s64)(address_of(k->tail) - p->address);
  p->shift = op->shift;
  ++k->reads_steered;
  return V_ReadSteered;
}

INLINE int on_repeated(struct steer_packet* p, struct steer_connection* c, __u32 end) {
  if (p->class != CLASS_CAS && p->class != CLASS_READ) return V_Repeated;
  /* Of a READ perhaps only the rest comes again. */
  const __u32 most = p->class == CLASS_READ ? STEER_RING / 2 : 1;
  for (__u32 back = 0; back < STEER_RING / 2; ++back) {
    if (back >= most) break;
    const struct steer_operation* op = find_operation(c, end, psn_add(p->psn, 0x1000000 - back));
    if (op == 0) continue;
    const int is_it = p->class == CLASS_CAS || (op->kind == STEER_READ && back < op->span);
    if (!is_it || op->shift == 0) return V_Repeated;
    p->shift = op->shift;
    return V_RepeatedSteered;
  }
  return V_Repeated;
}

/* The next request of a connection that is followed, or (no `c`) any of one that is not. */
INLINE int judge_next(struct steer_packet* p, __u32 index, struct steer_connection* c, __u32 end, __u32 region,
                      __u32 node_region, __u32 span) {
  if (region == STEER_NO_REGION || p->address > ADDRESS_BITS) return V_Plain;
  if (p->class == CLASS_WRITE) return on_write(p, index, c, end, region);
  if (p->class == CLASS_READ) return c != 0 ? on_read(p, c, end, region, span) : V_Unknown;
  if (p->class != CLASS_CAS && p->class != CLASS_OTHER_ATOMIC) return V_Plain;
  struct cas cas = {.at = place_of(region, p->address - config.next_offset),
                    .shift = 0,
                    .entry = STEER_NONE,
                    .key = STEER_NONE,
                    .region = region,
                    .verdict = V_Plain};
  int disturbs = 1;
  int verdict = V_Plain;
  if (p->class == CLASS_CAS) {
    if (config.mirrored) return V_Plain;
    const __u64 node = pointed_to(p->swap);
    if (is_pointer(p->swap) && node_region != STEER_NO_REGION && node <= ADDRESS_BITS)
      cas.entry = find_node(place_of(node_region, node));
    verdict = on_cas(p, index, c, end, &cas, &disturbs);
  }
  if (disturbs) disturb(cas.at, p->compare, p->class == CLASS_CAS, p->now);
  return verdict;
}

INLINE int judge_request(struct steer_packet* p, __u32 index, struct steer_connection* c, __u32 end, __u32 region,
                         __u32 node_region) {
  __u32 span = 1;
  if (c != 0) {
    const __s32 ahead = since(p->psn, c->to[end & 1].expected);
    const int is_atomic = p->class == CLASS_CAS || p->class == CLASS_OTHER_ATOMIC;
    if (ahead < 0) return on_repeated(p, c, end);
    if (ahead > 0) return is_atomic && wishes.on ? V_GapDropped : V_Gap;
    const __u32 mtu = c->mtu;
    if (p->class == CLASS_READ && mtu != 0 && p->length > mtu) span = (p->length + mtu - 1) / mtu;
    /* What these PSNs meant before they wrapped counts no more. */
    for (__u32 k = 0; k < STEER_RING; ++k) {
      if (k >= span) break;
      struct steer_operation* stale = find_operation(c, end, psn_add(p->psn, k));
      if (stale != 0) stale->kind = STEER_UNUSED;
    }
  }
  int verdict = wishes.on ? judge_next(p, index, c, end, region, node_region, span) : V_Off;
  if (c == 0) return V_Unknown;
  if (verdict != V_CasNoRoom) c->to[end & 1].expected = psn_add(p->psn, span);
  return verdict;
}

/* ------------------------------------------------------------------------------------------------------------ answers */

INLINE void settle_try(const struct steer_packet* p, const struct steer_operation* op, __u32 index,
                       const struct steer_connection* c) {
  const struct steer_node* n = node_at(op->subject);
  __u8* const state = state_at(op->subject);
  const int ours = *state == STEER_TRIED && n->awaited.connection == index && n->awaited.psn == op->psn &&
                   n->generation == c->generation;
  if (!ours) return;
  const int took_effect = p->compare == op->compare;
  const int is_there = is_pointer(p->compare) && pointed_to(p->compare) == address_of(*place_at(op->subject));
  if (took_effect || is_there) {
    become_past(op->subject, p->now);
  } else {
    *state = STEER_READY;
  }
  struct steer_key* k = key_at(op->key);
  if (took_effect && op->kind == STEER_PROBE && k->generation == op->key_generation) lose_tail(k, p->now);
}

/* The answer to an operation: a prior value, or a fatal NAK, after which the responder's queue pair will do nothing more. What it has not
 * done of what came behind that, is given up when its time has passed. */
INLINE void settle(const struct steer_packet* p, struct steer_operation* op, __u32 index, struct steer_connection* c,
                   int refused) {
  if (op->kind == STEER_TRY || op->kind == STEER_PROBE) {
    if (!refused) settle_try(p, op, index, c);
    return;
  }
  struct steer_key* k = key_at(op->key);
  const int open =
      op->kind == STEER_LINK && k->generation == op->key_generation && k->link.open && k->opened == op->number;
  if (!open || (refused && k->link.tried_twice)) return;
  op->kind = STEER_DONE;
  if (!refused && (p->compare == k->link.compare || p->compare == k->link.swap)) {
    link_stands(k, p->compare == k->link.compare, p->now);
  } else {
    link_failed(k, p->now);
  }
}

enum { NAK = 3, NAK_SEQUENCE = 0x60 };

INLINE int judge_response(struct steer_packet* p, __u32 index, struct steer_connection* c, __u32 end) {
  const __u32 server = 1 - (end & 1);
  struct steer_direction* requests = &c->to[server & 1];
  const int is_ack = p->class == CLASS_OTHER || (p->syndrome & 0x60) == 0;
  const int is_nak = p->class == CLASS_ACK && !is_ack;
  const __u32 done = is_nak ? psn_add(p->psn, 0xFFFFFF) : p->psn;
  if (since(done, requests->acknowledged) > 0) requests->acknowledged = done;
  if (since(done, requests->expected) >= 0) requests->expected = psn_add(done, 1);
  const int refused = is_nak && p->syndrome >> 5 == NAK && p->syndrome != NAK_SEQUENCE;
  if (refused || p->class == CLASS_ATOMIC_ACK) {
    struct steer_operation* op = find_operation(c, server, p->psn);
    if (op != 0) settle(p, op, index, c, refused);
  }
  return is_nak ? V_Nak : V_Response;
}

/* ------------------------------------------------------------------------------------------------------------- judging */

INLINE __u64 name_hash(const __u64* address, __u32 number) {
  const __u64 x = (address[0] ^ address[1] ^ (__u64)number << 32) * 0x9E3779B97F4A7C15ull;
  return x ^ x >> 32;
}

INLINE __u32 find_region(const __u64* server, __u32 rkey) {
  __u16* recent = &recent_regions[name_hash(server, rkey) & (STEER_RECENT_REGIONS - 1)];
  const __u32 number = *recent & (STEER_REGIONS - 1);
  const volatile struct steer_region_key* there = &region_names[number];
  if (there->server[1] == server[1] && there->rkey == rkey && there->server[0] == server[0]) return number;
  struct steer_region_key name = {.server = {server[0], server[1]}, .rkey = rkey, .zero = 0};
  const __u32* region = bpf_map_lookup_elem(&regions, &name);
  if (region == 0) return STEER_NO_REGION;
  *recent = (__u16)*region;
  return *region;
}

INLINE int is_same_end(const struct steer_end_key* a, const struct steer_end_key* b) {
  return ((a->source[0] ^ b->source[0]) | (a->source[1] ^ b->source[1]) | (a->destination[0] ^ b->destination[0]) |
          (a->destination[1] ^ b->destination[1]) | (a->qpn ^ b->qpn)) == 0;
}

/* Where a connection's end may be: its place doubled, and which end. What stands there is looked at under the lock. */
INLINE __u32 recent_end(const struct steer_end_key* name) {
  return recent_ends[name_hash(name->source, name->qpn) & (STEER_RECENT_ENDS - 1)];
}
INLINE __u32 find_end(const struct steer_end_key* name) {
  const struct steer_end* found = bpf_map_lookup_elem(&ends, name);
  if (found == 0) return STEER_NONE;
  const __u32 place = (found->connection & (STEER_CONNECTIONS - 1)) << 1 | (found->end & 1);
  recent_ends[name_hash(name->source, name->qpn) & (STEER_RECENT_ENDS - 1)] = (__u16)place;
  return place;
}
/* Under the lock. */
INLINE int stands_at(__u32 place, const struct steer_end_key* name) {
  const struct steer_connection* c = connection_at(place >> 1);
  return c->alive && is_same_end(&c->ends[place & 1], name);
}

/* One packet of a reliable connection. A function of its own, so that the verifier looks at it once. */
__attribute__((noinline)) int judge(struct steer_packet* p) {
  if (p == 0) return V_Malformed;
  __u32 region = STEER_NO_REGION;
  __u32 node_region = STEER_NO_REGION;
  if (p->is_request && p->class != CLASS_OTHER) {
    region = find_region(p->end.destination, p->rkey);
    node_region = region;
    if (config.volumes != 0) {
      const __u64 volume = p->swap >> (config.volume_shift & 63) & config.volume_mask;
      node_region =
          volume < config.volumes ? config.volume_regions[volume & (STEER_VOLUMES - 1)] : (__u32)STEER_NO_REGION;
    }
  }
  int verdict = V_Unknown;
  __u32 place = recent_end(&p->end);
  /* Most that stand elsewhere are told by their number alone, before the lock is taken. */
  const int may_be = connection_at(place >> 1)->ends[place & 1].qpn == p->end.qpn;
  if (!may_be) place = find_end(&p->end);
  if (place == STEER_NONE && !p->is_request) return V_Unknown;
  if (!lock_tables()) return V_TablesHeld;
  int is_known = place != STEER_NONE && stands_at(place, &p->end);
  if (!is_known && may_be) {
    unlock_tables();
    place = find_end(&p->end);
    if (!lock_tables()) return V_TablesHeld;
    is_known = place != STEER_NONE && stands_at(place, &p->end);
  }
  place |= veil;
  const __u32 index = place >> 1 & (STEER_CONNECTIONS - 1);
  const __u32 end = place & 1;
  struct steer_connection* c = is_known ? connection_at(index) : 0;
  if (c != 0) c->last_seen = p->now;
  if (p->is_request) {
    verdict = judge_request(p, index, c, end, region, node_region);
  } else if (c != 0) {
    verdict = judge_response(p, index, c, end);
  }
  unlock_tables();
  return verdict;
}

/* --------------------------------------------------------------------------------------------------------- connections */

/* `comm_ids`: what the end that is named calls it, and in the lower half what the other does: what has other names goes on. 0: whatever has this
 * end, at once. */
INLINE void end_connection(const struct steer_end_key* name, __u64 comm_ids, __u64 now) {
  const struct steer_end* found = bpf_map_lookup_elem(&ends, name);
  if (found == 0) return;
  const __u32 index = found->connection;
  const __u32 generation = found->generation;
  const __u64 from_first = found->end == 0 ? comm_ids : comm_ids << 32 | comm_ids >> 32;
  const __u32 names = (__u32)mix(from_first);
  if (!lock_tables()) return; /* it will be found silent */
  struct steer_connection* c = connection_at(index);
  const int is_it = comm_ids == 0 || c->origin == 0 || c->names == names;
  if (c->alive && c->generation == generation && is_it) {
    c->closing = 1;
    c->last_seen = now;
    if (comm_ids == 0) c->alive = 0;
    if (!c->resting) {
      c->resting = 1;
      *resting_at(resting_first + resting_count++) = (__u16)index;
    }
    count_event(connections_closed);
  }
  unlock_tables();
}

/* REQ and REP may both come again, late: then the connection is known, and has got on. What has the numbers of one that is closing, or its
 * numbers but not its names, is another. */
INLINE int is_again(const struct steer_order* order) {
  if (order->origin == 0) return 0;
  const struct steer_end* first = bpf_map_lookup_elem(&ends, &order->ends[0]);
  const struct steer_end* second = bpf_map_lookup_elem(&ends, &order->ends[1]);
  if (first == 0 || second == 0 || first->connection != second->connection) return 0;
  const __u32 index = first->connection;
  const __u32 generation = first->generation;
  if (!lock_tables()) return 1; /* what is known is left alone */
  const struct steer_connection* c = connection_at(index);
  const int known =
      c->alive && c->generation == generation && c->origin == order->origin && c->names == order->first && !c->closing;
  unlock_tables();
  return known;
}

/* For another connection: the place of one that has ended, a fresh one, or that of one that has long been silent. Under the lock. */
INLINE __u32 take_place(__u64 now) {
  __u32 index = STEER_NONE;
  for (int tries = 0; tries < STEER_TRIES; ++tries) {
    if (resting_count == 0) break;
    const __u32 i = *resting_at(resting_first++) | veil;
    struct steer_connection* c = connection_at(i);
    if (c->alive && !has_passed(now, c->last_seen, config.closing)) {
      *resting_at(resting_first + resting_count - 1) = (__u16)i;
      continue;
    }
    --resting_count;
    c->resting = 0;
    index = i | veil;
    break;
  }
  if (index == STEER_NONE && connections_used < config.connections) index = connections_used++ | veil;
  for (int tries = 0; tries < STEER_SILENT_TRIES; ++tries) {
    if (index != STEER_NONE) break;
    __u32 i = (connections_hand + 1) | veil;
    if (i >= config.connections) i = 0;
    connections_hand = i;
    const struct steer_connection* c = connection_at(i);
    if (!c->resting && has_passed(now, c->last_seen, config.idle)) index = i | veil;
  }
  return index;
}

/* An order's connection gets a place. */
__attribute__((noinline)) int announce(struct steer_order* order) {
  if (order == 0 || order->mtu == 0) return 0;
  if (is_again(order)) return 1;
  const __u64 now = now_ns();
  end_connection(&order->ends[0], 0, now);
  end_connection(&order->ends[1], 0, now);
  __u32 generation = 0;
  int was_known = 0;
  if (!lock_tables()) return 0;
  const __u32 index = take_place(now);
  if (index != STEER_NONE) {
    struct steer_connection* c = connection_at(index);
    was_known = c->known;
    c->former[0] = c->ends[0];
    c->former[1] = c->ends[1];
    generation = ++c->generation;
    for (int end = 0; end < 2; ++end) {
      c->ends[end] = order->ends[end];
      c->to[end].expected = order->psn[end] & 0xFFFFFF;
      c->to[end].acknowledged = psn_add(order->psn[end], 0xFFFFFF);
    }
    c->last_seen = now;
    c->mtu = (__u16)order->mtu;
    c->origin = order->origin;
    c->names = order->first;
    c->proven = STEER_NO_REGION;
    c->closing = 0;
    c->known = 1;
    c->alive = 1;
    count_event(connections_announced);
  }
  if (index == STEER_NONE) count_event(connections_refused);
  unlock_tables();
  if (index == STEER_NONE) return 0;
  /* What this place had is not in the index any more; the same ends may long have a connection in another place. */
  for (__u32 end = 0; was_known && end < 2; ++end) {
    const struct steer_end_key* former = &connection_at(index)->former[end & 1];
    const struct steer_end* old = bpf_map_lookup_elem(&ends, former);
    if (old != 0 && old->connection == index) bpf_map_delete_elem(&ends, former);
  }
  for (__u32 end = 0; end < 2; ++end) {
    struct steer_end value = {.connection = index, .generation = generation, .end = end};
    bpf_map_update_elem(&ends, &order->ends[end & 1], &value, BPF_ANY);
  }
  return 1;
}

enum {
  IPV4_BYTES = 20,
  IPV6_BYTES = 40,
  UDP_BYTES = 8,
  BTH = 12,
  DETH = 8,
  MAD_BYTES = 256,
  ICRC = 4,
  MAD_CM = 0x07,
  MAD_SEND = 0x03,
  CM_REQ = 0x10,
  CM_REP = 0x13,
  CM_DREQ = 0x15,
  MANAGEMENT_BYTES = UDP_BYTES + BTH + DETH + MAD_BYTES,
};
#define CM_QKEY 0x80010000u

INLINE __u32 be24(const __u8* p) { return (__u32)p[0] << 16 | (__u32)p[1] << 8 | p[2]; }
/* Words of a packet as they lie there: byte by byte, as the compiler does it by itself, they take some 10 ns a packet. Machines that can load no
 * words from odd addresses are told so by their verifier. */
INLINE __u32 be16(const __u8* p) { return bpf_ntohs(*(const __u16*)p); }
INLINE __u32 be32(const __u8* p) { return bpf_ntohl(*(const __u32*)p); }
INLINE __u64 be64(const __u8* p) { return bpf_be64_to_cpu(*(const __u64*)p); }
INLINE __u64 le64(const __u8* p) { return *(const __u64*)p; }

/* What a router may change counts as ones in the ICRC: bits of IP, UDP and BTH, over IPv4 and over IPv6. */
const __u8 icrc_ones[2][IPV6_BYTES + MANAGEMENT_BYTES] = {
    {[1] = 0xFF, [8] = 0xFF, [10] = 0xFF, [11] = 0xFF, [26] = 0xFF, [27] = 0xFF, [32] = 0xFF},
    {[0] = 0x0F, [1] = 0xFF, [2] = 0xFF, [3] = 0xFF, [7] = 0xFF, [46] = 0xFF, [47] = 0xFF, [52] = 0xFF},
};
/* The CRC of eight bytes of ones, which stand for the link header of InfiniBand. */
#define ICRC_START 0xDEBB20E3u

/* Of the management message whose IP header begins there. A function of its own, so that the verifier goes through its bytes once. */
__attribute__((noinline)) int icrc_is_right(struct xdp_md* context, __u32 ip_offset, __u32 is_ipv6) {
  const __u8* const data_end = (const __u8*)(long)context->data_end;
  const __u8* const ip = (const __u8*)(long)context->data + (ip_offset & 31);
  const __u8* const ones = icrc_ones[is_ipv6 != 0];
  const __u32 covered = (is_ipv6 ? IPV6_BYTES : IPV4_BYTES) + MANAGEMENT_BYTES;
  if (ip + covered + ICRC > data_end) return 0;
  __u32 crc = ICRC_START;
  for (__u32 i = 0; i < covered; ++i) crc = crc_of_byte[(crc ^ (ip[i] | ones[i])) & 0xFF] ^ crc >> 8;
  __u32 sum;
  __builtin_memcpy(&sum, ip + covered, 4);
  return sum == ~crc;
}

/* REQ, REP and DREQ as they pass. REQ and REP tell at which PSN their receivers begin to send. They are rare, and believed: so their ICRC
 * is checked, as no other packet's. `deth`: this and the MAD are there. */
INLINE void on_management(struct xdp_md* context, __u32 ip_offset, __u32 is_ipv6, const struct steer_end_key* route,
                          const __u8* deth) {
  const __u8* const mad = deth + DETH;
  if (be32(deth) != CM_QKEY || mad[0] != 1 || mad[1] != MAD_CM || mad[2] != 2 || mad[3] != MAD_SEND) return;
  const __u8* const message = mad + 24;
  const __u32 attribute = (__u32)mad[16] << 8 | mad[17];
  if (attribute != CM_REQ && attribute != CM_REP && attribute != CM_DREQ) return;
  if (!icrc_is_right(context, ip_offset, is_ipv6)) return;
  if (attribute == CM_REQ) {
    const __u32 code = message[50] >> 4;
    if ((message[43] >> 1 & 3) != 0 || code < 1 || code > 5) return; /* no reliable connection */
    struct steer_handshake_key name = {
        .initiator = {route->source[0], route->source[1]}, .comm_id = be32(message), .zero = 0};
    struct steer_handshake value = {.acceptor = {route->destination[0], route->destination[1]},
                                    .qpn = be24(message + 32),
                                    .psn = be24(message + 44),
                                    .mtu = 128u << code,
                                    .zero = 0};
    bpf_map_update_elem(&handshakes, &name, &value, BPF_ANY);
  } else if (attribute == CM_REP) {
    struct steer_handshake_key name = {
        .initiator = {route->destination[0], route->destination[1]}, .comm_id = be32(message + 4), .zero = 0};
    const struct steer_handshake* h = bpf_map_lookup_elem(&handshakes, &name);
    if (h == 0 || h->acceptor[0] != route->source[0] || h->acceptor[1] != route->source[1]) return;
    struct steer_order order = {.kind = STEER_ANNOUNCE,
                                .mtu = h->mtu,
                                .first = (__u32)mix((__u64)be32(message + 4) << 32 | be32(message)),
                                .psn = {h->psn, be24(message + 20)}};
    order.origin = (__u32)mix((__u64)order.psn[1] << 24 | order.psn[0]) | 1;
    /* End 0 is the initiator. */
    order.ends[0] = *route;
    order.ends[0].qpn = h->qpn;
    order.ends[1].source[0] = route->destination[0];
    order.ends[1].source[1] = route->destination[1];
    order.ends[1].destination[0] = route->source[0];
    order.ends[1].destination[1] = route->source[1];
    order.ends[1].qpn = be24(message + 12);
    if (bpf_map_delete_elem(&handshakes, &name) == 0) announce(&order);
  } else if (attribute == CM_DREQ) {
    struct steer_end_key name = *route;
    name.qpn = be24(message + 8);
    const __u64 comm_ids = (__u64)be32(message + 4) << 32 | be32(message);
    if (comm_ids != 0) end_connection(&name, comm_ids, now_ns());
  }
}

/* --------------------------------------------------------------------------------------------------------------- frames */

/* What every opcode is: its extended headers' bytes, whether a payload may follow, and its class here. */
enum { KNOWN = 0x80, PAYLOAD = 0x40, REQUEST = 0x20 };
const __u8 rc_extended[32] = {
    [0x03] = 4, [0x05] = 4, [0x06] = 16, [0x09] = 4,  [0x0A] = 16, [0x0B] = 20, [0x0C] = 16, [0x0D] = 4,  [0x0F] = 4,
    [0x10] = 4, [0x11] = 4, [0x12] = 12, [0x13] = 28, [0x14] = 28, [0x16] = 4,  [0x17] = 4,  [0x18] = 44,
};
const __u8 rc_traits[32] = {
    [0x00] = KNOWN | REQUEST | PAYLOAD,
    [0x01] = KNOWN | REQUEST | PAYLOAD,
    [0x02] = KNOWN | REQUEST | PAYLOAD,
    [0x03] = KNOWN | REQUEST | PAYLOAD,
    [0x04] = KNOWN | REQUEST | PAYLOAD,
    [0x05] = KNOWN | REQUEST | PAYLOAD,
    [0x06] = KNOWN | REQUEST | PAYLOAD | CLASS_WRITE,
    [0x07] = KNOWN | REQUEST | PAYLOAD,
    [0x08] = KNOWN | REQUEST | PAYLOAD,
    [0x09] = KNOWN | REQUEST | PAYLOAD,
    [0x0A] = KNOWN | REQUEST | PAYLOAD | CLASS_WRITE,
    [0x0B] = KNOWN | REQUEST | PAYLOAD | CLASS_WRITE,
    [0x0C] = KNOWN | REQUEST | CLASS_READ,
    [0x0D] = KNOWN | PAYLOAD | CLASS_READ_RESPONSE,
    [0x0E] = KNOWN | PAYLOAD,
    [0x0F] = KNOWN | PAYLOAD | CLASS_READ_RESPONSE,
    [0x10] = KNOWN | PAYLOAD | CLASS_READ_RESPONSE,
    [0x11] = KNOWN | CLASS_ACK,
    [0x12] = KNOWN | CLASS_ATOMIC_ACK,
    [0x13] = KNOWN | REQUEST | CLASS_CAS,
    [0x14] = KNOWN | REQUEST | CLASS_OTHER_ATOMIC,
    [0x16] = KNOWN | REQUEST | PAYLOAD,
    [0x17] = KNOWN | REQUEST | PAYLOAD,
    [0x18] = KNOWN | REQUEST | CLASS_OTHER_ATOMIC,
};

enum {
  ROCE_PORT = 4791,
  CM_QPN = 1,
  UD_SEND_ONLY = 0x64,
  UD_SEND_ONLY_IMMEDIATE = 0x65,
  CNP = 0x81,
  MAX_FRAME = 4352,
};

struct ip_part {
  __u32 transport; /* offset of UDP from the first byte of IP */
  __u32 length;    /* of all from IP on */
};

/* PARSED, or a verdict. Fills the addresses of `end`. */
enum { PARSED = -1 };
INLINE int parse_ipv4(const __u8* ip, const __u8* data_end, struct ip_part* part, struct steer_end_key* end) {
  if (ip + 20 > data_end) return V_Malformed;
  if (ip[0] != 0x45) return V_Malformed;
  __u64 sum = 0;
#pragma unroll
  for (int i = 0; i < 5; ++i) sum += ((const __u32*)ip)[i];
  sum = (sum & 0xFFFFFFFF) + (sum >> 32);
  sum = (sum & 0xFFFF) + (sum >> 16); /* up to 0x1FFFE */
  if (sum != 0xFFFF && sum != 0x1FFFE) return V_Malformed;
  if ((be16(ip + 6) & 0x3FFF) != 0) return V_Malformed; /* a fragment */
  part->length = be16(ip + 2);
  part->transport = 20;
  if (ip[9] != IPPROTO_UDP) return V_NotRoce;
  end->source[0] = end->destination[0] = 0;
  end->source[1] = 0xFFFF00000000ull | be32(ip + 12);
  end->destination[1] = 0xFFFF00000000ull | be32(ip + 16);
  return PARSED;
}

INLINE int parse_ipv6(const __u8* ip, const __u8* data_end, struct ip_part* part, struct steer_end_key* end) {
  if (ip + 40 > data_end || ip[0] >> 4 != 6) return V_Malformed;
  part->length = 40 + be16(ip + 4);
  part->transport = 40;
  if (ip[6] != IPPROTO_UDP) return V_NotRoce;
  end->source[0] = be64(ip + 8);
  end->source[1] = be64(ip + 16);
  end->destination[0] = be64(ip + 24);
  end->destination[1] = be64(ip + 32);
  /* An IPv4 address in mapped form can only be a forgery, and would be that of an IPv4 connection here. */
  const int mapped = (end->source[0] == 0 && end->source[1] >> 32 == 0xFFFF) ||
                     (end->destination[0] == 0 && end->destination[1] >> 32 == 0xFFFF);
  return mapped ? V_Malformed : PARSED;
}

INLINE int steer_frame(struct xdp_md* context) {
  __u8* const data = (__u8*)(long)context->data;
  const __u8* const data_end = (const __u8*)(long)context->data_end;
  if (data + 18 > data_end) return V_Malformed;
  __u32 ip_offset = 14;
  __u32 type = be16(data + 12);
  if (type == ETH_P_8021Q) {
    type = be16(data + 16);
    ip_offset = 18;
  }
  struct steer_packet p;
  p.end.zero = 0;
  struct ip_part part = {0, 0};
  int verdict = V_NotRoce;
  if (type == ETH_P_IP) verdict = parse_ipv4(data + ip_offset, data_end, &part, &p.end);
  if (type == ETH_P_IPV6) verdict = parse_ipv6(data + ip_offset, data_end, &part, &p.end);
  if (verdict != PARSED) return verdict;

  const __u32 whole = (__u32)(context->data_end - context->data);
  if (part.length < part.transport + 8 || ip_offset + part.length > whole) return V_Malformed;
  __u8* const udp = data + ip_offset + part.transport;
  __u8* const bth = udp + 8;
  if (bth > data_end) return V_Malformed;
  if (be16(udp + 2) != ROCE_PORT) return V_NotRoce;
  if (be16(udp + 4) != part.length - part.transport) return V_Malformed;
  const __u32 transport = part.length - part.transport - 8;
  if (transport < BTH + ICRC || bth + BTH + ICRC > data_end || ip_offset + part.length > MAX_FRAME) return V_Malformed;
  if ((bth[1] & 0xF) != 0) return V_Malformed;

  const __u8 opcode = bth[0];
  const __u32 pad = bth[1] >> 4 & 3;
  p.end.qpn = be32(bth + 4) & 0xFFFFFF;
  if (opcode >= sizeof rc_traits) {
    const int datagram = opcode == UD_SEND_ONLY || opcode == UD_SEND_ONLY_IMMEDIATE;
    if (!datagram) return (opcode >= 0x20 && opcode <= 0x2B) || opcode == CNP ? V_NotReliable : V_Malformed;
    if (p.end.qpn != CM_QPN) return V_NotReliable;
    if (opcode != UD_SEND_ONLY || pad != 0 || transport != BTH + DETH + MAD_BYTES + ICRC) return V_Management;
    const __u8* const deth = bth + BTH;
    if (deth + DETH + MAD_BYTES <= data_end) on_management(context, ip_offset, type == ETH_P_IPV6, &p.end, deth);
    return V_Management;
  }
  const __u8 traits = rc_traits[opcode & 31];
  const __u32 extended = rc_extended[opcode & 31];
  if (!(traits & KNOWN) || transport < BTH + extended + ICRC) return V_Malformed;
  const __u32 body = transport - BTH - extended - ICRC;
  if ((body != 0 && !(traits & PAYLOAD)) || body < pad || body % 4 != 0) return V_Malformed;

  p.address = p.swap = p.compare = 0;
  p.shift = 0;
  p.rkey = p.length = 0;
  p.has_node = p.syndrome = 0;
  p.zero = 0;
  p.psn = be32(bth + 8) & 0xFFFFFF;
  p.payload = body - pad;
  p.class = traits & 0x0F;
  p.is_request = (traits & REQUEST) != 0;
  p.now = now_ns();
  __u8* const header = bth + BTH;
  if (p.class == CLASS_WRITE || p.class == CLASS_READ) {
    if (header + 16 > data_end) return V_Malformed;
    p.address = be64(header);
    p.rkey = be32(header + 8);
    p.length = be32(header + 12);
    const __u8* const node = header + (opcode == 0x0B ? 20 : 16);
    const __u32 next = config.next_offset & 0xFF;
    const __u32 key = config.key_offset & 0xFF;
    const __u32 needed = (next > key ? next : key) + 8;
    if (p.class == CLASS_WRITE && p.payload >= needed && node + next + 8 <= data_end && node + key + 8 <= data_end) {
      p.next_word = le64(node + next);
      p.key = le64(node + key);
      p.has_node = 1;
    }
  } else if (p.class == CLASS_CAS || p.class == CLASS_OTHER_ATOMIC) {
    if (header + 28 > data_end) return V_Malformed;
    p.address = be64(header);
    p.rkey = be32(header + 8);
    p.swap = be64(header + 12);
    p.compare = be64(header + 20);
  } else if (p.class >= CLASS_ACK) {
    if (header + 4 > data_end) return V_Malformed;
    p.syndrome = header[0];
    if (p.class == CLASS_ATOMIC_ACK) {
      if (header + 12 > data_end) return V_Malformed;
      p.compare = be64(header + 4);
    }
  }
  verdict = judge(&p);
  if (p.shift == 0 || verdict < 0 || verdict >= VERDICTS) return verdict;

  /* The address is moved; the ICRC changes by what each changed byte contributes. */
  const __u64 before = p.address;
  const __u64 after = p.address + (__u64)p.shift;
  const int kind = p.class == CLASS_READ ? STEER_RETH : STEER_ATOMIC_ETH;
  const __u32 icrc_offset = p.class == CLASS_READ ? 16 : 28;
  __u8* const icrc = header + icrc_offset;
  if (icrc + ICRC > data_end) return verdict;
  const __u64 difference = before ^ after;
  __u32 change = 0;
  if (difference >> 32 != 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) change ^= effect[kind][i][difference >> (56 - 8 * i) & 0xFF];
  }
#pragma unroll
  for (int i = 4; i < 8; ++i) change ^= effect[kind][i][difference >> (56 - 8 * i) & 0xFF];
  *(__u64*)header = bpf_cpu_to_be64(after);
  *(__u32*)icrc ^= change;
  *(__u16*)(udp + 6) = 0; /* what NICs send; the ICRC does not cover it */
  return verdict;
}

INLINE int way_out(struct xdp_md* context) {
  if (config.forward == STEER_BACK) return XDP_TX;
  if (config.forward == STEER_ACROSS) return (int)bpf_redirect_map(&across, context->ingress_ifindex, XDP_PASS);
  return XDP_PASS;
}

const __u8 drops[VERDICTS] = {
#define X(name, action, meaning) [V_##name] = (action) != kForward,
    SLUICE_BOX_VERDICTS(X)
#undef X
};

SEC("xdp")
int sluice_steer(struct xdp_md* context) {
  __u32 verdict = (__u32)steer_frame(context);
  if (verdict >= VERDICTS) verdict = V_Malformed;
  __u64* count = bpf_map_lookup_elem(&verdicts, &verdict);
  if (count) ++*count;
  return drops[verdict] ? XDP_DROP : way_out(context);
}

/* A part of what is believed of addresses and tails: what passed while the program was switched off was not seen. */
INLINE int forget(__u32 first) {
  const __u64 now = now_ns();
  if (!lock_tables()) return 0;
  for (__u32 i = 0; i < STEER_FORGET_AT_ONCE; ++i) {
    __u8* const state = state_at(first + i);
    if (first + i < KEYS) lose_tail(key_at(first + i), now);
    if (*state != STEER_OPEN) *state = STEER_EMPTY;
  }
  unlock_tables();
  return 1;
}

/* An order from user space comes as the content of a packet that is never on any wire (BPF_PROG_TEST_RUN). */
SEC("xdp")
int sluice_order(struct xdp_md* context) {
  const __u8* const data = (const __u8*)(long)context->data;
  const __u8* const data_end = (const __u8*)(long)context->data_end;
  struct steer_order order;
  if (data + sizeof order > data_end) return XDP_ABORTED;
  __builtin_memcpy(&order, data, sizeof order);
  if (order.kind == STEER_ANNOUNCE) return announce(&order) ? XDP_PASS : XDP_DROP;
  if (order.kind == STEER_CLOSE) end_connection(&order.ends[0], 0, now_ns());
  if (order.kind == STEER_FORGET) return forget(order.first) ? XDP_PASS : XDP_DROP;
  return XDP_PASS;
}

char program_license[] SEC("license") = "Apache-2.0";
