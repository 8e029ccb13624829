#!/usr/bin/env python3
"""Measures 1RMA, sealed and plain, beside RC over the same ports and beside libfabric's tcp, in turn; prints medians as Markdown.

Latencies are of a whole operation at depth 1 (libfabric's: of a message one way, half of fi_pingpong's round trip); rates are at depth 64. AES-GCM's share:
of the time that both ends spend on an operation, in one thread, what is saved where a CRC stands instead (build/bench/onerma_bench).

    bench/onerma_beside_peers.py                  # five rounds, some minutes; let nothing else run meanwhile
    bench/onerma_beside_peers.py --rounds 1 --through cable
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

from beside_peers import fi_pingpong

SIZES = (64, 4096)
TRANSPORTS = ("sealed", "plain", "rc")


def ours(sluice, through, duration):
    sizes = [word for size in SIZES for word in ("--sizes", str(size))]
    command = [sluice, "onerma", "bench", "--through", through, "--duration", duration, "--json", *sizes]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout)


def stack(program):
    """Nanoseconds an operation, both ends in one thread."""
    out = subprocess.run([program, "--benchmark_filter=whole_stack|rc_stack", "--benchmark_min_time=0.3", "--benchmark_format=json"],
                         capture_output=True, text=True, timeout=600, check=True).stdout
    return {b["name"]: 1e9 / b["items_per_second"] for b in json.loads(out)["benchmarks"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="build/sluice", help="the program to measure [%(default)s]")
    parser.add_argument("--bench", default="build/bench/onerma_bench", help="the benchmark of both ends in one thread [%(default)s]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--duration", default="300ms", help="of each of our points [%(default)s]")
    parser.add_argument("--through", action="append", choices=("cable", "udp", "switch"), help="ports (repeat) [cable and udp]")
    arguments = parser.parse_args()
    ports = arguments.through or ["cable", "udp"]
    points, peer, alone = {}, {}, {}
    for number in range(arguments.rounds):
        print(f"round {number + 1} of {arguments.rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        for port in ports:
            for p in ours(arguments.sluice, port, arguments.duration):
                what = p["p50_us"] if p["depth"] == 1 else p["ops_per_second"] / 1e3
                points.setdefault((port, p["op"], p["bytes"], p["depth"], p["transport"]), []).append(what)
        for size in SIZES:
            peer.setdefault(size, []).append(fi_pingpong(size, 20000))
        for name, ns in stack(arguments.bench).items():
            alone.setdefault(name, []).append(ns)

    print(f"Medians of {arguments.rounds} rounds.\n")
    print("| port, operation | " + " | ".join(f"{t}: us at depth 1, k/s at 64" for t in TRANSPORTS) + " |")
    print("|---" * (len(TRANSPORTS) + 1) + "|")
    for port in ports:
        for op in ("read", "write"):
            for size in SIZES:
                median = {(t, d): statistics.median(points[port, op, size, d, t]) for t in TRANSPORTS for d in (1, 64)}
                cells = [f"{median[t, 1]:.1f}, {median[t, 64]:.0f}" for t in TRANSPORTS]
                print(f"| {port}, {op} of {size} B | " + " | ".join(cells) + " |")
    for size in SIZES:
        print(f"\nfi_pingpong, tcp, {size} B: {statistics.median(peer[size]):.1f} us one way")
    print("\n| both ends in one thread, ns an operation | sealed | plain | GCM's share | RC |\n|---|---|---|---|---|")
    for op in ("read", "write"):
        for size in SIZES:
            sealed, plain = (statistics.median(alone[f"whole_stack/{op}_{kind}/{size}"]) for kind in ("sealed", "plain"))
            rc = statistics.median(alone[f"rc_stack/{op}/{size}"])
            print(f"| {op} of {size} B | {sealed:.0f} | {plain:.0f} | {1 - plain / sealed:.0%} | {rc:.0f} |")


if __name__ == "__main__":
    main()
