#!/usr/bin/env python3
"""A rack under load for long: nothing grows, nothing is left behind.

usage: switch_soak.py SLUICE

SLUICE is the program. A rack with SwordBox (steering and replaced atomics) is worked on in rounds: Clover's clients and clients of locks come, run and go;
in every third round some are killed. After each round nobody may have a connection any more, in the box or at a memory node, nothing may wait, and every
value, lock and ticket must have been right. At the end every slot of the store but one for each key must come free, and no daemon may have more memory, files or
threads than once it was warm.

SLUICE_SOAK_SECONDS (600) says how long, SLUICE_SOAK_PACKETS instead how many packets the switch must have received (1000000000 are a day of 11,600 a second);
SLUICE_SEED draws other rounds. Figures so far: docs/testing.md.
"""

import json
import os
import pathlib
import random
import statistics
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import live_rack  # noqa: E402
from live_rack import wait_until  # noqa: E402

SECONDS = float(os.environ.get("SLUICE_SOAK_SECONDS", "600"))
PACKETS = int(os.environ.get("SLUICE_SOAK_PACKETS", "0"))
SEED = int(os.environ.get("SLUICE_SEED", "1"))
ROUND = 12  # seconds that the clients of a round run
DAEMONS = ["switch", "memory1", "memory2", "metadata"]
MOST_GROWTH = 2 << 20  # bytes of resident memory, of a daemon, from the second quarter of the rounds to the last
EXPORTED = 256 << 20  # bytes, by each memory node
SLOT = 64  # bytes besides, of the metadata server, for each slot that a client has been given for the first time meanwhile; rounds differ in how many they need
QUIET = 60  # seconds in which all traces of a round must be gone: a client that was killed is missed by the directory first

# Of the box and of the daemons: nothing of this may outlive the clients.
EMPTY = ["box_held_packets", "box_open_links", "box_replaced_under_way"]


def resident(pid):
    """Bytes of a daemon's own: neither rings, which are shared, nor what a memory node exports, which is one large mapping and the clients' to touch."""
    total = size = 0
    with open(f"/proc/{pid}/smaps", encoding="ascii") as file:
        for line in file:
            field, _, value = line.partition(":")
            if field == "Size":
                size = int(value.split()[0]) << 10
            elif field in ("Private_Clean", "Private_Dirty") and size < EXPORTED:
                total += int(value.split()[0]) << 10
    return total


def held(pid):
    """Open files and threads."""
    return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


class SwitchSoak(live_rack.LiveRack):
    def metrics(self, daemon):
        return live_rack.metrics(f"{self.dir}/{'directory' if daemon == 'switch' else daemon + '.http'}.sock")

    def pid_of(self, daemon):
        return int(pathlib.Path(f"{self.dir}/{daemon}.pid").read_text().split()[0])

    def packets(self):
        """That the switch has received. A port's count goes with the port, so this is asked while the clients of a round are there."""
        return sum(value for name, value in self.metrics("switch").items() if name.startswith("sluice_port_receive_packets_total{"))

    def connections(self):
        return {daemon: self.metrics(daemon).get("sluice_connections") for daemon in DAEMONS[1:]}

    def leftovers(self):
        """What there is more of than before the first round; empty when nothing is."""
        switch = self.metrics("switch")
        if not switch:
            return ["the switch does not answer"]
        found = [f"{name} {switch[f'sluice_{name}']:.0f}" for name in EMPTY if switch[f"sluice_{name}"] != 0]
        waiting = sum(value for name, value in switch.items() if name.startswith("sluice_port_queue_bytes{"))
        if waiting != 0:
            found.append(f"port_queue_bytes {waiting:.0f}")
        ports = sum(1 for name, value in switch.items() if name.startswith("sluice_port_up{") and value == 1)
        leases = self.metrics("metadata")["sluice_clover_clients"]
        if leases != 0:
            found.append(f"{leases:.0f} clients of the store with leases")
        now = {"ports": ports, "box_connections": switch["sluice_box_connections"], **self.connections()}
        return found + [f"{what} {now[what]}, were {were}" for what, were in self.at_rest.items() if now[what] is None or now[what] > were]

    def remember_rest(self):
        switch = self.metrics("switch")
        self.at_rest = {"ports": sum(1 for name, value in switch.items() if name.startswith("sluice_port_up{") and value == 1),
                        "box_connections": switch["sluice_box_connections"], **self.connections()}

    def wait_for_quiet(self, turn):
        end = time.monotonic() + QUIET
        while left := self.leftovers():
            self.assertLess(time.monotonic(), end, f"what round {turn} has left after {QUIET} s: {left}")
            time.sleep(0.1)

    def slots_taken(self):
        """Slots of the store beside one for each key."""
        store = self.metrics("metadata")
        return store["sluice_clover_slots"] - store["sluice_clover_free_slots"] - store["sluice_clover_keys"]

    def tidy_up(self):
        """What clients had in hand when they went, others find out about while they work, so let some do nothing else: then no slot may be lost."""
        taken = self.slots_taken()
        self.sluice("bench", "clover", "--phase", "run", "--records", "1000", "--workload", "C", "--clients", "16", "--duration", "10s", code=0)
        wait_until(lambda: self.slots_taken() == 0, f"{taken:.0f} slots that are not a key's are free again", QUIET)
        print(f"    {taken:.0f} slots that were not a key's: all free again", file=sys.stderr)

    def judge(self, client, killed):
        out, err = client.communicate(timeout=120)
        if killed:
            return
        result = json.loads(out) if out else {}
        timeline = result.pop("timeline", [])  # is longer than all the rest
        pauses = sorted((b[0] - a[0], a) for a, b in zip(timeline, timeline[1:]))[-3:]
        self.assertEqual(client.returncode, 0, f"{client.args}\n{result}\nlongest between two looks at it: {pauses}\n{err[-2000:]}")
        if "clover" in client.args:
            self.assertEqual(result["run"]["values_wrong"], 0)
        else:
            self.assertTrue(result["sound"], out)

    def work(self, turn, chance):
        """One round; returns how many packets the switch received meanwhile."""
        duration = ["--duration", f"{ROUND}s", "--seed", str(chance.randrange(1 << 30))]
        clover = ["bench", "clover", "--json", "--phase", "run", "--records", "1000", "--workload", chance.choice(["A", "B", "C", "w50"]),
                  "--clients", str(chance.choice([16, 64, 128]))]
        locks = ["bench", "locks", "--json", "--clients", str(chance.choice([8, 32, 64])), "--locks", str(chance.choice([1, 64, 4096])),
                 "--turn", chance.choice(["lock", "ticket"])]
        before = self.packets()
        clients = [self.start(*clover, *duration), self.start(*locks, *duration)]
        killed = []
        time.sleep(ROUND - 2)
        counted = self.packets() - before
        if turn % 3 == 2:
            killed = [client for client in clients if chance.random() < 0.7]
            for client in killed:
                client.kill()
        for client in clients:
            self.judge(client, client in killed)
            self.children.remove(client)
        return counted

    def test_nothing_grows_and_nothing_is_left_behind(self):
        with open(self.folder + "/rack.toml", "w", encoding="utf-8") as file:
            file.write('[metadata]\nspace = "192MiB"\n')  # of each memory node; the rest is for locks
        self.sluice("rack", "up", "--box", "clover+words", "--memory-size", str(EXPORTED), "--value-size", "256", "--config", self.folder + "/rack.toml", code=0)
        self.sluice("bench", "clover", "--phase", "load", "--records", "1000", code=0)
        pids = {daemon: self.pid_of(daemon) for daemon in DAEMONS}
        self.remember_rest()
        chance = random.Random(SEED)
        grown = {daemon: [] for daemon in DAEMONS}
        holds = {daemon: [] for daemon in DAEMONS}
        slots = []  # of the store, ever used
        packets = turn = 0
        began = time.monotonic()
        while packets < PACKETS if PACKETS else time.monotonic() - began < SECONDS:
            packets += self.work(turn, chance)
            self.wait_for_quiet(turn)
            for daemon, pid in pids.items():
                self.assertEqual(self.pid_of(daemon), pid, "a daemon was started anew")
                grown[daemon].append(resident(pid))
                holds[daemon].append(held(pid))
            slots.append(self.metrics("metadata")["sluice_clover_touched_slots"])
            turn += 1
            if turn % 20 == 0:
                print(f"    {turn} rounds, {packets:.3g} packets, resident (MiB): "
                      + ", ".join(f"{d} {grown[d][-1] / (1 << 20):.1f}" for d in DAEMONS), file=sys.stderr, flush=True)
        self.tidy_up()
        self.report(grown, holds, slots, packets, turn, time.monotonic() - began)

    def report(self, grown, holds, slots, packets, turns, seconds):
        print(f"    {turns} rounds in {seconds:.0f} s, {packets:.4g} packets through the switch", file=sys.stderr)
        self.assertGreaterEqual(turns, 4, "too short to tell")
        faults = []
        print(f"    slots ever used: {slots[len(slots) // 4]:.0f}, {slots[-1]:.0f} at the end", file=sys.stderr)
        for daemon, sizes in grown.items():
            quarter = len(sizes) // 4
            warm, last = statistics.median(sizes[quarter:2 * quarter]), statistics.median(sizes[-quarter:])
            print(f"    {daemon}: {warm / (1 << 20):.2f} MiB once it was warm, {last / (1 << 20):.2f} at the end; "
                  f"{holds[daemon][quarter]} files and threads, then {holds[daemon][-1]}", file=sys.stderr)
            may = MOST_GROWTH + (SLOT * (slots[-1] - slots[quarter]) if daemon == "metadata" else 0)
            if last - warm > may:
                faults.append(f"{daemon} has grown by {(last - warm) / (1 << 20):.1f} MiB")
            if any(now > then for now, then in zip(holds[daemon][-1], holds[daemon][quarter])):
                faults.append(f"{daemon} holds {holds[daemon][-1]} files and threads, {holds[daemon][quarter]} before")
        self.assertEqual(faults, [])


if __name__ == "__main__":
    live_rack.SLUICE = sys.argv[1]
    unittest.main(argv=sys.argv[:1], verbosity=2)
