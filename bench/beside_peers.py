#!/usr/bin/env python3
"""Measures bare RDMA operations of Sluice beside UCX and libfabric, in turn, and prints medians as a Markdown table.

Every round runs each peer and each of our ways once, so that a machine that changes its speed does so for all.
Latencies are of a whole operation at depth 1, to its completion (a peer's ping-pong figure is half a round trip, and says so);
rates are at depth 64. Peers: `ucx_perftest` over tcp and over shared memory, `fi_pingpong` over tcp, all on loopback.

    bench/beside_peers.py                 # five rounds, about six minutes; let nothing else run meanwhile
    bench/beside_peers.py --rounds 1 --json out.json
"""
import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time

UCX_TESTS = {  # what is measured: the test of ucx_perftest and its arguments
    "write": {"latency": ["ucp_put_lat"], "rate": ["ucp_put_bw", "-O", "64"]},
    "read": {"latency": ["ucp_get"], "rate": ["ucp_get", "-O", "64"]},
    "cas": {"latency": ["ucp_cswap"], "rate": ["ucp_cswap", "-O", "64"]},
    "faa": {"latency": ["ucp_fadd"], "rate": ["ucp_fadd", "-O", "64"]},
}
UCX_TRANSPORTS = {"UCX tcp": {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}, "UCX shm": {"UCX_TLS": "posix,sysv,self"}}
OURS = {"Sluice cable (shm)": "cable", "Sluice udp": "udp", "Sluice switch (shm)": "switch"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def peer_pair(server, client, environment, wait=0.4):
    """Runs a server and its client; the client's output."""
    with subprocess.Popen(server, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        time.sleep(wait)
        try:
            return subprocess.run(client, env=environment, capture_output=True, text=True, timeout=120).stdout
        finally:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()


def ucx(arguments, size, iterations, transport):
    """(typical microseconds, messages a second): ucx_perftest's 50th percentile and overall message rate."""
    port = str(free_port())
    environment = {**os.environ, **UCX_TRANSPORTS[transport]}
    test, *rest = arguments
    out = peer_pair(["ucx_perftest", "-p", port],
                    ["ucx_perftest", "127.0.0.1", "-p", port, "-t", test, "-s", str(size), "-n", str(iterations), "-w",
                     "1000", "-f", *rest], environment)
    numbers = re.findall(r"[\d.]+", out.strip().splitlines()[-1])
    if len(numbers) != 8:
        sys.exit(f"beside_peers: cannot read what ucx_perftest -t {test} printed:\n{out}")
    return float(numbers[1]), float(numbers[7])


def fi_pingpong(size, iterations):
    port = str(free_port())
    common = ["-p", "tcp", "-e", "rdm", "-I", str(iterations), "-S", str(size)]
    out = peer_pair(["fi_pingpong", "-B", port, *common],
                    ["fi_pingpong", "-P", port, *common, "127.0.0.1"], dict(os.environ))
    fields = out.strip().splitlines()[-1].split()
    return float(fields[6])  # usec/xfer: half a round trip


def ours(sluice, through, ops, size, depth, duration):
    command = [sluice, "bench", "verbs", "--through", through, "--sizes", str(size), "--depths", str(depth), "--duration",
               duration, "--json", *(word for op in ops for word in ("--ops", op))]
    out = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    return {p["op"]: p for p in json.loads(out)["points"]}


def one_round(sluice, size, duration, note):
    for transport in UCX_TRANSPORTS:
        for op, tests in UCX_TESTS.items():
            # A get over tcp takes a millisecond at depth 1: fewer of them do.
            slow = transport == "UCX tcp" and op == "read"
            tcp = transport == "UCX tcp"
            note(op, "latency", transport, ucx(tests["latency"], size, 1000 if slow else 30000 if tcp else 1000000, transport)[0])
            note(op, "rate", transport, ucx(tests["rate"], size, 100000 if tcp else 2000000, transport)[1])
    note("write", "latency", "libfabric tcp", fi_pingpong(size, 20000))
    for name, through in OURS.items():
        ops = list(UCX_TESTS)
        for op, point in ours(sluice, through, ops, size, 1, duration).items():
            note(op, "latency", name, point["p50_us"])
        for op, point in ours(sluice, through, ops, size, 64, duration).items():
            note(op, "rate", name, point["ops_per_second"])


def table(found, what, unit, scale):
    columns = [*OURS, *UCX_TRANSPORTS, "libfabric tcp"]
    lines = [f"| {what}, {unit} | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for op in UCX_TESTS:
        cells = []
        for column in columns:
            values = found.get((op, what, column))
            cells.append(f"{statistics.median(values) / scale:.3g}" if values else "–")
        lines.append(f"| {op} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="build/sluice", help="the program to measure [%(default)s]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=8, help="bytes of a write or read [%(default)s]")
    parser.add_argument("--duration", default="500ms", help="of each of our points [%(default)s]")
    parser.add_argument("--json", metavar="FILE", help="every figure of every round")
    arguments = parser.parse_args()
    found = {}
    for number in range(arguments.rounds):
        print(f"round {number + 1} of {arguments.rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        one_round(arguments.sluice, arguments.size, arguments.duration,
                  lambda op, what, column, value: found.setdefault((op, what, column), []).append(value))
    print(f"{arguments.size} bytes, medians of {arguments.rounds} rounds\n")
    print(table(found, "latency", "us", 1) + "\n")
    print(table(found, "rate", "millions a second", 1e6))
    print("\nUCX's and libfabric's latency of a write is half of a ping-pong: one way. Everything else is to its completion.")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump([{"op": o, "what": w, "column": c, "values": v} for (o, w, c), v in found.items()], file, indent=1)


if __name__ == "__main__":
    main()
