/* What xdp_veth.cpp and its program in the kernel share. */
#ifndef SLUICE_BENCH_XDP_VETH_H
#define SLUICE_BENCH_XDP_VETH_H

#include <linux/types.h>

enum {
  BENCH_FRAMES = 16384,
  BENCH_BYTES = 160, /* of every frame; Ethernet padding behind what IP says */
  BENCH_KINDS = 8,
  BENCH_PSN = 14 + 20 + 8 + 9,
};
struct bench_frame {
  __u8 bytes[BENCH_BYTES];
  __u32 psn;
  __u32 icrc;
  __u32 icrc_offset;
  __u32 kind;
};

#endif
