/* The two ends of the measurement in xdp_veth.cpp: makes frames, reflects them, counts what comes back. */
#include "bench/xdp_veth.h"

#include <linux/bpf.h>
#include <linux/types.h>
/* These need the kernel's types. */
#include <bpf/bpf_helpers.h>

const volatile __u32 out_interface;
const volatile __u32 frames_in_use;
const volatile __u32 numbers_a_lap; /* PSNs */
/* What a changed byte of the PSN changes the ICRC by, for each kind of frame. */
const volatile __u32 effect[BENCH_KINDS][3][256];
__u64 made;
__u64 came_back;

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, BENCH_FRAMES);
  __type(key, __u32);
  __type(value, struct bench_frame);
} frames SEC(".maps");

/* The next prepared frame, with the number that it has in this lap. */
SEC("xdp")
int bench_make(struct xdp_md* context) {
  __u8* const data = (__u8*)(long)context->data;
  const __u8* const data_end = (const __u8*)(long)context->data_end;
  if (data + BENCH_BYTES > data_end || frames_in_use == 0) return XDP_ABORTED;
  const __u64 n = made++;
  const __u32 i = (__u32)(n % frames_in_use);
  const __u32 lap = (__u32)(n / frames_in_use);
  const struct bench_frame* frame = bpf_map_lookup_elem(&frames, &i);
  if (frame == 0) return XDP_ABORTED;
  __builtin_memcpy(data, frame->bytes, BENCH_BYTES);
  const __u32 before = frame->psn & 0xFFFFFF;
  const __u32 after = (before + lap * numbers_a_lap) & 0xFFFFFF;
  const __u32 difference = before ^ after;
  const __u32 kind = frame->kind & (BENCH_KINDS - 1);
  const __u32 sum = frame->icrc ^ effect[kind][0][difference >> 16 & 0xFF] ^ effect[kind][1][difference >> 8 & 0xFF] ^
                    effect[kind][2][difference & 0xFF];
  data[BENCH_PSN] = (__u8)(after >> 16);
  data[BENCH_PSN + 1] = (__u8)(after >> 8);
  data[BENCH_PSN + 2] = (__u8)after;
  const __u32 at = frame->icrc_offset & 0xFF;
  __u8* const icrc = data + at;
  if (at > BENCH_BYTES - 4 || icrc + 4 > data_end) return XDP_ABORTED;
  __builtin_memcpy(icrc, &sum, 4);
  return (int)bpf_redirect(out_interface, 0);
}

SEC("xdp")
int bench_reflect(struct xdp_md* context) {
  (void)context;
  return XDP_TX;
}

SEC("xdp")
int bench_sink(struct xdp_md* context) {
  (void)context;
  __sync_fetch_and_add(&came_back, 1);
  return XDP_DROP;
}

/* Lets all through, to a socket. */
SEC("xdp")
int bench_pass(struct xdp_md* context) {
  (void)context;
  return XDP_PASS;
}

char program_license[] SEC("license") = "Apache-2.0";
