#!/usr/bin/env python3
"""Measures what an 8-byte read costs the thread that wants it: with Cowbird, with our verbs library, and with UCX's get and put, in turn; prints medians as a Markdown table.

Cowbird and verbs: `sluice bench cowbird --parts cost`, issue and completion, not the wait between them. UCX: ucx_perftest, two processes on this machine,
as many under way at once; the time of one is all of its thread's, since UCX progresses where it is called: over tcp with the kernel's part, over shared
memory a plain copy out of the peer's mapped memory, with no request and nobody who serves it, which is the floor and no peer. A put over tcp counts as done
when it is buffered. CPU is what the client process used in all, a read.

    bench/cowbird_beside_peers.py            # five rounds, about a minute; let nothing else run meanwhile
    bench/cowbird_beside_peers.py --rounds 1 --json out.json
    bench/cowbird_beside_peers.py --realtime # as root: with real-time priority, so that a busy machine is nearly a quiet one

Without ucx_perftest (Debian's ucx-utils; scripts/install-packages has it) its lines say "not installed".
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time

DEPTH = 100
PREFIX = []
# way: (ucx_perftest's test, what it goes over, operations)
UCX = {
    "UCX get, tcp": ("ucp_get", {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}, 100_000),
    "UCX put, tcp": ("ucp_put_bw", {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}, 300_000),
    "UCX get, shared memory (a copy: the floor)": ("ucp_get", {"UCX_TLS": "posix,sysv,self"}, 10_000_000),
}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def ucx(test, transport, operations):
    """(nanoseconds of an operation, of the client's CPU)"""
    port = free_port()
    environment = {**os.environ, **transport}
    server = [*PREFIX, "ucx_perftest", "-p", port]
    client = [*PREFIX, "ucx_perftest", "127.0.0.1", "-p", port, "-t", test, "-s", "8", "-n", str(operations), "-w", "1000", "-O", str(DEPTH), "-f"]
    with subprocess.Popen(server, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as serving:
        try:
            time.sleep(0.5)
            with subprocess.Popen(client, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
                out = running.stdout.read()
                _, status, usage = os.wait4(running.pid, 0)
                running.returncode = os.waitstatus_to_exitcode(status)
        finally:
            try:
                serving.wait(5)
            except subprocess.TimeoutExpired:
                serving.kill()
    numbers = re.findall(r"[\d.]+", out.strip().splitlines()[-1])
    if running.returncode or len(numbers) != 8:
        sys.exit(f"cowbird_beside_peers: cannot read what ucx_perftest -t {test} printed:\n{out}")
    return 1e9 / float(numbers[7]), (usage.ru_utime + usage.ru_stime) / operations * 1e9


def ours(sluice, reads):
    command = [*PREFIX, sluice, "bench", "cowbird", "--parts", "cost", "--depth", str(DEPTH), "--reads", str(reads), "--json"]
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, timeout=300).stdout
    return {row["way"]: row["both_ns"] for row in json.loads(out)["cost"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default=str(pathlib.Path(__file__).resolve().parent.parent / "build" / "sluice"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reads", type=int, default=2_000_000, help="of Cowbird's a round")
    parser.add_argument("--json", help="write every figure of every round there")
    parser.add_argument("--realtime", action="store_true", help="run everything with real-time priority (chrt, round robin); needs root")
    arguments = parser.parse_args()
    if arguments.realtime:
        PREFIX.extend(["chrt", "--rr", "1"])
    present = shutil.which("ucx_perftest") is not None
    wall, cpu = {}, {}
    for number in range(arguments.rounds):
        for way, ns in ours(arguments.sluice, arguments.reads).items():
            wall.setdefault(way, []).append(ns)
        for way, (test, transport, operations) in UCX.items() if present else ():
            ns, cpu_ns = ucx(test, transport, operations)
            wall.setdefault(way, []).append(ns)
            cpu.setdefault(way, []).append(cpu_ns)
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)

    first = statistics.median(next(iter(wall.values())))
    print(f"\n| 8 bytes, {DEPTH} under way | ns of the thread | times Cowbird's | CPU, ns |\n|---|---|---|---|")
    for way, values in wall.items():
        median = statistics.median(values)
        used = f"{statistics.median(cpu[way]):.0f}" if way in cpu else "–"
        print(f"| {way} | {median:.1f} | {median / first:.1f} | {used} |")
    if not present:
        for way in UCX:
            print(f"| {way} | skipped: ucx_perftest is not installed (Debian's ucx-utils) | | |")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps({"ns": wall, "cpu_ns": cpu}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
