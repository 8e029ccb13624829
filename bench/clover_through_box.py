#!/usr/bin/env python3
"""Clover through SwordBox on this machine's real packets: steering on against off, in one run; medians as Markdown tables.

A rack of its own (one switch, one memory node, the metadata server), 64 closed loops over 1,024 keys of 128 bytes, Zipf .99, once with one
cursor cache for all and once with one each. Each round steers and then does not, so that a machine that changes its speed does so for both.

    bench/clover_through_box.py build/sluice                       # both ports, both mixes, three rounds: about eight minutes
    bench/clover_through_box.py build/sluice --port udp --mix w100 --rounds 5 --cursor-lifetime 20s
"""
import argparse
import json
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile


class Rack:
    def __init__(self, sluice, folder, port, args):
        self.sluice, self.dir = sluice, f"{folder}/run-{port}"
        switch = f"[switch]\ncores = {args.cores}\n"
        config = f"[metadata]\ncursor-lifetime = \"{args.cursor_lifetime}\"\n"
        self.flags = []
        if port == "udp":
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
                s.bind(("127.0.0.1", 0))
                address = f"udp:127.0.0.1:{s.getsockname()[1]}"
            switch += f"listen = [\"{address}\"]\n"
            config += f"port = \"{address}\"\n[memory]\nport = \"{address}\"\n"
            self.flags = ["--port", address]
        path = pathlib.Path(folder, f"{port}.toml")
        path.write_text(config + switch)
        self.do("rack", "up", "--config", str(path), "--box", "clover", "--memory-nodes", str(args.memory_nodes), "--memory-size", "2GiB", "--value-size", "128")

    def do(self, *words):
        done = subprocess.run([self.sluice, *words, "--dir", self.dir], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(words)}: {done.stderr}")
        return done.stdout

    def bench(self, caches, mix, phase, *flags):
        return json.loads(self.do("bench", "clover", "--json", "--clients", "64", "--caches", str(caches), "--records", "1024",
                                  "--workload", mix, "--phase", phase, *self.flags, *flags))

    def counters(self):
        return json.loads(self.do("box", "top", "--json"))["counters"]


def measure(rack, caches, mix, seconds):
    before = rack.counters()
    result = rack.bench(caches, mix, "run", "--duration", f"{seconds}s")
    after = rack.counters()
    run, cost = result["run"], result["run"]["cost"]
    if run["values_wrong"] != 0:
        sys.exit(f"{run['values_wrong']} values were wrong")
    operations = run["operations"]
    changed = {name: after[name] - before.get(name, 0) for name in after}
    return {"rate": result["ops_per_second"], "first": 100 * (1 - cost["atomics_failed"] / cost["atomics"]),
            "trips": cost["round_trips"] / operations, "bytes": result["wire_bytes"] / operations, "p50": run["latency_us"]["p50"],
            "p99": run["latency_us"]["p99"], "cold": changed.get("CasCold", 0), "broken": changed.get("chains_broken", 0)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sluice")
    parser.add_argument("--port", choices=["shm", "udp"], action="append")
    parser.add_argument("--mix", action="append", help="share of writes, such as w50")
    parser.add_argument("--caches", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--cursor-lifetime", default="1s", help="of the metadata server; the box's limits stay as they are")
    parser.add_argument("--cores", type=int, default=1, help="threads of the box")
    parser.add_argument("--memory-nodes", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir="/tmp") as folder:
        print("| port | mix | caches | steering | first try | round trips/op | bytes/op | p50 ms | p99 ms | operations/s | ratio |")
        print("|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|")
        for port in args.port or ["shm", "udp"]:
            rack = Rack(args.sluice, folder, port, args)
            try:
                compare(rack, port, args)
            finally:
                rack.do("rack", "down")


def compare(rack, port, args):
    rack.bench(1, "w50", "load")
    for mix in args.mix or ["w50", "w100"]:
        for caches in args.caches or [1, 64]:
            rounds = {"on": [], "off": []}
            for _ in range(args.rounds):
                for state, results in rounds.items():
                    rack.do("box", state)
                    results.append(measure(rack, caches, mix, args.seconds))
            middle = {state: {name: statistics.median(r[name] for r in results) for name in results[0]} for state, results in rounds.items()}
            ratios = sorted(on["rate"] / off["rate"] for on, off in zip(rounds["on"], rounds["off"]))
            for state, m in middle.items():
                ratio = f"{statistics.median(ratios):.1f} ({ratios[0]:.1f}–{ratios[-1]:.1f})" if state == "on" else ""
                print(f"| {port} | {mix} | {caches} | {state} | {m['first']:.2f} % | {m['trips']:.2f} | {m['bytes']:.0f} | {m['p50'] / 1e3:.2f} "
                      f"| {m['p99'] / 1e3:.1f} | {m['rate']:.0f} | {ratio} |", flush=True)
            if any(r["broken"] for results in rounds.values() for r in results):
                sys.exit("a chain broke")


if __name__ == "__main__":
    main()
