#!/usr/bin/env python3
"""Measures unmodified perftest on Sluice's NIC beside ucx_perftest over tcp and over shared memory, in turn; prints medians as Markdown tables.

Two processes each, on one machine; Sluice's over a shared-memory cable. Every round runs each once, so that a machine that changes its speed does so
for all. CPU is what the client process used in all (its start-up too, which is why the runs are long), a message.

    bench/programs_beside_peers.py            # five rounds, about five minutes; let nothing else run meanwhile
    bench/programs_beside_peers.py --rounds 1 --json out.json
    bench/programs_beside_peers.py --realtime # as root: bandwidths and rates with real-time priority, so that a busy machine is nearly a quiet one

Latencies are never measured with real-time priority: a program that spins on its memory would keep its NIC's thread from its core.
"""
import argparse
import json
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

SIZES = [8, 4096, 65536, 1048576]
ITERATIONS = {8: 1_000_000, 4096: 200_000, 65536: 30_000, 1048576: 2_000}
LATENCY_ITERATIONS = 20_000
PATIENCE = 120  # seconds for one measurement; the longest takes ten
PREFIX = []  # of the commands that may have real-time priority
UCX_TRANSPORTS = {"UCX tcp": {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}, "UCX shm": {"UCX_TLS": "posix,sysv,self"}}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def pair(server, client, environments, wait=0.5):
    """Runs a server and its client; what the client printed, and its CPU seconds."""
    if not server[0].endswith("_lat") and not any(word.endswith(("_lat", "_get")) for word in client):
        server, client = PREFIX + server, PREFIX + client
    with subprocess.Popen(server, env=environments[0], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        time.sleep(wait)
        try:
            with subprocess.Popen(client, env=environments[1], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
                patience = threading.Timer(PATIENCE, running.kill)
                patience.start()
                out = running.stdout.read()
                _, status, usage = os.wait4(running.pid, 0)
                running.returncode = os.waitstatus_to_exitcode(status)
                stuck = not patience.is_alive()
                patience.cancel()
            if stuck:
                hint = "; with --realtime the kernel's own threads may never run: try without" if PREFIX else ""
                sys.exit(f"programs_beside_peers: {' '.join(client)} did not end within {PATIENCE} s{hint}")
            if running.returncode:
                sys.exit(f"programs_beside_peers: {' '.join(client)} ended with {running.returncode}:\n{out}")
            return out, usage.ru_utime + usage.ru_stime
        finally:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()


def perftest(library, program, size, iterations, *more):
    """The numbers of perftest's line for this size, and the client's CPU seconds."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        common = dict(os.environ, LD_PRELOAD=library)
        environments = [dict(common, SLUICE_PORT=f"{kind}:{folder}/cable", SLUICE_IP=ip) for kind, ip in (("cable", "10.77.0.1"), ("shm", "10.77.0.2"))]
        command = [program, "-F", "-x", "1", "-u", "18", "-s", str(size), "-n", str(iterations), "-p", port, *more]
        out, cpu = pair(command, [*command, "127.0.0.1"], environments)
    line = re.search(rf"^ {size} .*$", out, re.MULTILINE)
    if not line:
        sys.exit(f"programs_beside_peers: cannot read what {program} printed:\n{out}")
    return [float(number) for number in line[0].split()], cpu


def ucx(transport, test, size, iterations):
    """(typical microseconds, MB a second, messages a second)"""
    port = free_port()
    environment = {**os.environ, **UCX_TRANSPORTS[transport]}
    command = ["ucx_perftest", "127.0.0.1", "-p", port, "-t", test, "-s", str(size), "-n", str(iterations), "-w", "1000", "-f"]
    out, _ = pair(["ucx_perftest", "-p", port], command, [environment, environment])
    numbers = re.findall(r"[\d.]+", out.strip().splitlines()[-1])
    if len(numbers) != 8:
        sys.exit(f"programs_beside_peers: cannot read what ucx_perftest -t {test} printed:\n{out}")
    return float(numbers[1]), float(numbers[5]) * 1.048576, float(numbers[7])


def one_round(library, note):
    for size in SIZES:
        numbers, cpu = perftest(library, "ib_write_bw", size, ITERATIONS[size])
        note("bandwidth", size, "Sluice", numbers[3] * 1.048576)
        if size == 8:
            note("8-byte writes", "million a second", "Sluice", numbers[4])
            note("8-byte writes", "client's CPU, ns", "Sluice", cpu / ITERATIONS[size] * 1e9)
        for transport in UCX_TRANSPORTS:
            iterations = ITERATIONS[size] // (10 if transport == "UCX tcp" else 1)
            _, bandwidth, rate = ucx(transport, "ucp_put_bw", size, iterations)
            note("bandwidth", size, transport, bandwidth)
            if size == 8:
                note("8-byte writes", "million a second", transport, rate / 1e6)
    for name, program in (("write", "ib_write_lat"), ("read", "ib_read_lat")):
        numbers, _ = perftest(library, program, 8, LATENCY_ITERATIONS)
        note("latency", name, "Sluice", numbers[4])
    for transport in UCX_TRANSPORTS:
        note("latency", "write", transport, ucx(transport, "ucp_put_lat", 8, LATENCY_ITERATIONS)[0])
        # UCX's get over tcp waits for a timer of a millisecond.
        note("latency", "read", transport, ucx(transport, "ucp_get", 8, LATENCY_ITERATIONS // (20 if transport == "UCX tcp" else 1))[0])
    numbers, _ = perftest(library, "ib_atomic_bw", 8, 300_000, "-A", "FETCH_AND_ADD")
    note("8-byte atomics", "million a second", "Sluice", numbers[4])
    for transport in UCX_TRANSPORTS:
        _, _, rate = ucx(transport, "ucp_fadd", 8, LATENCY_ITERATIONS)
        note("8-byte atomics", "million a second", transport, rate / 1e6)


def table(title, rows, results):
    ways = ["Sluice", *UCX_TRANSPORTS]
    print(f"\n| {title} | " + " | ".join(ways) + " |\n|---|" + "---|" * len(ways))
    for key, name in rows:
        cells = [results.get((*key, way)) for way in ways]
        print(f"| {name} | " + " | ".join("–" if cell is None else f"{statistics.median(cell):.3g}" for cell in cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=str(pathlib.Path(__file__).resolve().parent.parent / "build" / "libsluice-verbs.so"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="write every figure of every round there")
    parser.add_argument("--realtime", action="store_true", help="run what streams with real-time priority (chrt); needs root")
    arguments = parser.parse_args()
    if arguments.realtime:
        PREFIX.extend(["chrt", "--fifo", "5"])
    results = {}

    def note(*key_and_value):
        results.setdefault(key_and_value[:-1], []).append(key_and_value[-1])

    for number in range(arguments.rounds):
        one_round(arguments.library, note)
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    table("bandwidth of writes, MB/s", [(("bandwidth", size), f"{size} bytes") for size in SIZES], results)
    table("latency of 8 bytes, us", [(("latency", "write"), "write, one way"), (("latency", "read"), "read")], results)
    table("8 bytes", [(("8-byte writes", "million a second"), "writes, millions a second"),
                      (("8-byte writes", "client's CPU, ns"), "a write's `ibv_post_send` and `ibv_poll_cq`, CPU ns"),
                      (("8-byte atomics", "million a second"), "fetch-and-add, millions a second")], results)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps([[*map(str, key), values] for key, values in results.items()], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
