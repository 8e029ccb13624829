#!/usr/bin/env python3
"""Measures the box between DPDK devices (dpdk_bench) beside `dpdk-testpmd` in io and macswap mode, in turn; medians as a Markdown table.

Every round runs each once, so that a machine that changes its speed does so for all. Each is given one core (highest priority when
run as root) and counts packets received a second of that core's time; buffers of 512 bytes for both.

    bench/beside_testpmd.py build/bench/dpdk_bench            # five rounds, about eleven minutes; let nothing else run meanwhile
    bench/beside_testpmd.py build/bench/dpdk_bench --rounds 1 --filter 'RingReplace.*/64/1024/0'
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

TICKS = os.sysconf("SC_CLK_TCK")
FORWARDING_CORE = 1
WORKER_NAMES = (f"lcore-worker-{FORWARDING_CORE}", f"rte-worker-{FORWARDING_CORE}")


def priority():
    if os.geteuid() == 0:
        os.nice(-15)


def seconds_of_thread(pid, thread):
    fields = pathlib.Path(f"/proc/{pid}/task/{thread}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def testpmd(mode, devices, seconds):
    """Packets received and forwarded between two devices, a second of the forwarding thread's time; None when it got hardly any."""
    words = ["dpdk-testpmd", "-l", f"0,{FORWARDING_CORE}", "--no-huge", "-m", "512", "--no-pci", "--no-telemetry", "--no-shconf",
             *[f"--vdev={device}" for device in devices], "--", f"--forward-mode={mode}", "--mbuf-size=512",
             "--total-num-mbufs=8192", "--nb-cores=1", "--interactive", "--no-mlockall"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          preexec_fn=priority) as process:  # pylint: disable=subprocess-popen-preexec-fn
        def say(text):
            process.stdin.write(text + "\n")
            process.stdin.flush()

        say("start tx_first 16" if "ring" in devices[0] else "start")
        workers = []
        for _ in range(100):  # its start takes a while
            time.sleep(0.2)
            tasks = pathlib.Path(f"/proc/{process.pid}/task").iterdir()
            workers = [task.name for task in tasks if (task / "comm").read_text().strip() in WORKER_NAMES]
            if workers and seconds_of_thread(process.pid, workers[0]) > 0.1:
                break
        if len(workers) != 1:
            process.kill()
            sys.exit(f"beside_testpmd: no forwarding thread in:\n{process.communicate()[0]}")
        say("clear port stats all")
        before = seconds_of_thread(process.pid, workers[0])
        time.sleep(seconds)
        say("show port stats all")
        time.sleep(0.05)
        spent = seconds_of_thread(process.pid, workers[0]) - before
        out, _ = process.communicate("stop\nquit\n", timeout=30)
    received = [int(n) for n in re.findall(r"RX-packets:\s*(\d+)", out)]
    # Before "clear" and after "stop" testpmd prints other totals; the first one per device is what was asked for.
    if spent < seconds / 5:
        return None
    if len(received) < 2:
        sys.exit(f"beside_testpmd: cannot read what testpmd {mode} printed:\n{out}")
    return sum(received[:2]) / spent


def ours(program, pattern):
    out = subprocess.run([program, "--benchmark_format=json", "--benchmark_min_time=0.5", f"--benchmark_filter={pattern}"],
                         capture_output=True, text=True, check=True, preexec_fn=priority)  # pylint: disable=subprocess-run-check
    rows = json.loads(out.stdout)["benchmarks"]
    for row in rows:
        if row.get("verified", 1) < 1e-9:
            sys.exit(f"beside_testpmd: nothing came through in {row['name']}")
    return {row["name"].removesuffix("/manual_time"): row["items_per_second"] for row in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="dpdk_bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each testpmd run")
    parser.add_argument("--filter", default=".", help="which of our benchmarks")
    arguments = parser.parse_args()
    results = {}
    for turn in range(arguments.rounds):
        print(f"round {turn + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
        for mode in ("io", "macswap"):
            for kind in ("null", "ring"):
                devices = [f"net_{kind}{i}" + (",size=64" if kind == "null" else "") for i in (0, 1)]
                rate = next(filter(None, (testpmd(mode, devices, arguments.seconds) for _ in range(5))), None)
                if rate is None:
                    sys.exit("beside_testpmd: other programs leave testpmd no processor")
                results.setdefault(f"testpmd {mode}, {kind}", []).append(rate)
        for name, rate in ours(arguments.program, arguments.filter).items():
            results.setdefault(name, []).append(rate)
    print("| | M packets/s | least and most | ns a packet |\n|---|---:|---:|---:|")
    for name, rates in results.items():
        middle = statistics.median(rates)
        print(f"| {name} | {middle / 1e6:.1f} | {min(rates) / 1e6:.1f}–{max(rates) / 1e6:.1f} | {1e9 / middle:.1f} |")


if __name__ == "__main__":
    main()
