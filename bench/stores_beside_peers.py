#!/usr/bin/env python3
"""YCSB over the stores on passive memory beside memcached and Redis, in turn, medians as a Markdown table.

What a user would pick instead: the same keys, values, skew, closed loops and client process; every value read is verified. Ours run on a
rack of their own (a switch, two memory nodes, for Clover a metadata server; shared-memory ports), each copy of a value counted: Clover and
Sherman keep one, FUSEE one in each memory node. memcached (one thread) and Redis (without persistence) serve a Unix socket, and TCP on
loopback, a connection a client. Needs `apt-get install memcached redis-server`; both are started here, and ended.

    bench/stores_beside_peers.py                          # three rounds, A, B and C, about five minutes; let nothing else run meanwhile
    bench/stores_beside_peers.py --workloads A --clients 16 --rounds 1
"""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# name: (words for `rack up`, store, words for its bench)
OURS = {
    "Clover": ([], "clover", []),
    "Clover, box": (["--box", "clover"], "clover", []),
    "Sherman": (["--no-metadata"], "sherman", []),
    "FUSEE, 2 copies": (["--no-metadata"], "fusee", []),
}
PEERS = {"memcached, unix": ("memcached", "unix"), "Redis, unix": ("redis", "unix"),
         "memcached, tcp": ("memcached", "tcp"), "Redis, tcp": ("redis", "tcp")}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def command(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"stores_beside_peers: {' '.join(map(str, words))}:\n{done.stdout}{done.stderr}")
    return done.stdout


@contextlib.contextmanager
def rack(options, up_words, value_size):
    folder = tempfile.mkdtemp(prefix="sluice-stores-")
    size = [] if "--no-metadata" in up_words else ["--value-size", value_size]
    try:
        command(options.sluice, "rack", "up", "--dir", folder, *size, *up_words)
        yield folder
    finally:
        command(options.sluice, "rack", "down", "--dir", folder)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def server(kind, way):
    folder = tempfile.mkdtemp(prefix="sluice-peers-")
    os.chmod(folder, 0o755)
    path, port = f"{folder}/socket", free_port()
    if kind == "memcached":
        where = ["-s", path, "-a", "777"] if way == "unix" else ["-l", "127.0.0.1", "-p", str(port)]
        words = ["memcached", "-t", "1", "-m", "1024", "-c", "4096", "-u", "root", *where]
    else:
        where = ["--port", "0", "--unixsocket", path] if way == "unix" else ["--bind", "127.0.0.1", "--port", str(port)]
        words = ["redis-server", "--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", folder, *where]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX if way == "unix" else socket.AF_INET) as s:
                s.connect(path if way == "unix" else ("127.0.0.1", port))
                break
            time.sleep(0.05)
        else:
            sys.exit(f"stores_beside_peers: {kind} does not answer; run by hand: {' '.join(words)}")
        yield f"unix:{path}" if way == "unix" else f"tcp:{port}"
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def figures(result):
    actions = result["actions"]
    out = {"rate": result["operations_per_second"]}
    for action in ("read", "update"):
        if action in actions:
            out[action] = actions[action]["latency_us"]["p99"]
            out[action + " p50"] = actions[action]["latency_us"]["p50"]
    return out


def ours(options, name, workload):
    up_words, store, words = OURS[name]
    with rack(options, up_words, options.value_size) as folder:
        out = command(options.sluice, "bench", store, "--dir", folder, "--workload", workload, "--records", options.records,
                      "--clients", options.clients, "--value-size", options.value_size, "--duration", f"{options.seconds}s", "--json", *words)
    result = json.loads(out)
    if result["failed"] != 0 or result["run"]["values_wrong"] != 0:
        sys.exit(f"stores_beside_peers: {name}: not all was right:\n{out}")
    return figures({"operations_per_second": result["ops_per_second"], **result["run"]})


def peer(options, name, workload):
    kind, way = PEERS[name]
    with server(kind, way) as address:
        out = command(options.peer, kind, address, "--workload", workload, "--records", options.records, "--clients", options.clients,
                      "--value-size", options.value_size, "--seconds", options.seconds)
    return figures(json.loads(out))


def table(found, options):
    lines = [f"| {options.clients} clients, {options.value_size} B | " +
             " | ".join(f"{w}: k operations/s | read p50, p99, us | update p50, p99, us" for w in options.workloads) + " |",
             "|---|" + "---:|" * (3 * len(options.workloads))]
    for name in [*OURS, *PEERS]:
        cells = []
        for workload in options.workloads:
            rounds = found[name, workload]
            median = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
            cells.append(f"{median['rate'] / 1000:.0f}")
            for action in ("read", "update"):
                cells.append(f"{median[action + ' p50']:.0f}, {median[action]:.0f}" if action in median else "–")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default=ROOT / "build/sluice", help="the program to measure [%(default)s]")
    parser.add_argument("--peer", default=ROOT / "build/bench/peer_stores", help="what drives the peers [%(default)s]")
    parser.add_argument("--workloads", nargs="+", default=["A", "B", "C"], help="of YCSB [A B C]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--value-size", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=3, help="of each run [%(default)s]")
    parser.add_argument("--json", metavar="FILE", help="every figure of every round")
    options = parser.parse_args()
    missing = [p for p in ("memcached", "redis-server") if shutil.which(p) is None]
    if missing:
        sys.exit(f"stores_beside_peers: install {' and '.join(missing)} first (apt-get install memcached redis-server)")
    found = {}
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        for workload in options.workloads:
            for name in OURS:
                found.setdefault((name, workload), []).append(ours(options, name, workload))
            for name in PEERS:
                found.setdefault((name, workload), []).append(peer(options, name, workload))
    print(table(found, options))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps([[*key, rounds] for key, rounds in found.items()], indent=1))


if __name__ == "__main__":
    main()
