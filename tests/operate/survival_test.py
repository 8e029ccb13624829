#!/usr/bin/env python3
"""Daemons of a rack die by kill -9 at random, under load, and everything is there again soon after they have been started anew.

usage: survival_test.py SLUICE [TEST...]

SLUICE is the program. A rack that is kept up (`sluice rack up --keep`) with two replicas of everything is written to and read from the whole time; the history
must be linearizable, so nothing that was acknowledged is lost. SLUICE_KILLS=200 kills so many instead of six, SLUICE_SEED chooses others. Printed: how
long after the new process had begun every key could be read again, by a client that was started then.
"""

import json
import os
import pathlib
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import live_rack  # noqa: E402
from live_rack import wait_until  # noqa: E402

KILLS = int(os.environ.get("SLUICE_KILLS", "6"))
SEED = int(os.environ.get("SLUICE_SEED", "1"))
KILLS_A_HISTORY = 12  # each history is judged whole
RECORDS = 100
PATIENCE = 120  # seconds, for a machine that is busy with other things


class SurvivalTest(live_rack.LiveRack):
    def keep_up(self, *flags):
        self.keeper = self.start("rack", "up", "--keep", *flags)
        wait_until(lambda: set(self.states().values()) == {"ready"} and len(self.states()) == 5, "the rack is up", PATIENCE)

    def states(self):
        """Of all nodes that the directory knows, by name."""
        done = live_rack.run("rack", "status", "--json", "--dir", self.dir)
        return {n["name"]: n["state"] for n in json.loads(done.stdout)["directory"].get("nodes", [])} if done.stdout.startswith("{") else {}

    def pid_of(self, daemon):
        """Of the pid file; 0 while there is none to be read."""
        try:
            return int(pathlib.Path(f"{self.dir}/{daemon}.pid").read_text().split()[0])
        except (OSError, IndexError, ValueError):
            return 0

    def metric(self, daemon, name):
        """None while the daemon does not say."""
        return live_rack.metrics(f"{self.dir}/{daemon}.http.sock").get(f"sluice_{name}")

    def whole(self):
        return self.metric("metadata", "clover_replicas_missing") == 0 and self.metric("metadata", "clover_replicas_joining") == 0

    def read_everything(self):
        """Every key is there, for a client that has just come."""
        done = live_rack.run("bench", "clover", "--json", "--phase", "run", "--workload", "C", "--distribution", "uniform", "--clients", "8",
                             "--records", str(RECORDS), "--operations", str(10 * RECORDS), "--dir", self.dir, timeout=PATIENCE)
        if done.returncode != 0:
            return None
        result = json.loads(done.stdout)
        self.assertEqual(result["run"]["values_wrong"], 0)
        return set(result["run"]["actions"]["read"]["outcomes"]) == {"ok"}

    def kill(self, daemon):
        """Returns how long after its successor had begun everything could be read again."""
        before = self.pid_of(daemon)
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: self.pid_of(daemon) not in (0, before), f"{daemon} is started anew", PATIENCE)
        began = time.monotonic()
        wait_until(self.read_everything, f"every key can be read after the death of {daemon}", PATIENCE)
        return time.monotonic() - began

    def check_directory(self):
        with sqlite3.connect(f"file:{self.dir}/directory.sqlite?mode=ro", uri=True) as database:
            self.assertEqual(database.execute("PRAGMA integrity_check").fetchall(), [("ok",)])
            names = {name for (name,) in database.execute("SELECT name FROM nodes")}
        database.close()
        self.assertLessEqual({"switch", "memory1", "memory2", "memory3", "metadata"}, names)

    def under_load(self):
        load = self.start("bench", "clover", "--json", "--check", "--workload", "A", "--clients", "8", "--caches", "4", "--records", str(RECORDS),
                          "--duration", "3600s")
        time.sleep(1.5)
        if load.poll() is not None:
            self.fail(f"the load has ended: {load.communicate()}")
        return load

    def judge(self, load):
        load.send_signal(signal.SIGINT)
        out, err = load.communicate(timeout=PATIENCE)
        result = json.loads(out)
        self.assertTrue(result["history"]["linearizable"], err)
        self.assertEqual(result["run"]["values_wrong"], 0)
        return result

    def test_any_daemon_may_be_killed_at_any_time_under_load(self):
        self.keep_up("--memory-nodes", "3", "--memory-size", "64MiB", "--value-size", "256", "--replication", "2")
        chance = random.Random(SEED)
        recovered = {}
        operations = failed = 0
        for first in range(0, KILLS, KILLS_A_HISTORY):
            load = self.under_load()
            for _ in range(first, min(first + KILLS_A_HISTORY, KILLS)):
                wait_until(self.whole, "every replica has everything", PATIENCE)
                time.sleep(chance.random() / 2)
                daemon = chance.choice(["switch", "memory1", "memory2", "memory3", "metadata"])
                seconds = self.kill(daemon)
                recovered.setdefault(daemon.rstrip("0123456789"), []).append(seconds)
                self.check_directory()
                if load.poll() is not None:
                    self.fail(f"the load has ended: {load.communicate()}")
            result = self.judge(load)
            operations += result["history"]["operations"]
            failed += result["failed"]
        wait_until(self.whole, "every replica has everything", PATIENCE)
        for daemon, times in sorted(recovered.items()):
            print(f"    {daemon}: {len(times)} kills, everything read after {statistics.median(times):.2f} s (median), "
                  f"{max(times):.2f} s (longest)", file=sys.stderr)
        print(f"    {operations} operations in histories, all linearizable; {failed} without an answer", file=sys.stderr)
        self.keeper.send_signal(signal.SIGINT)
        self.assertEqual(self.keeper.wait(timeout=PATIENCE), 0)

    def key_of_memory1(self):
        done = live_rack.run("rack", "status", "--json", "--dir", self.dir)
        nodes = {n["name"]: n for n in json.loads(done.stdout)["directory"].get("nodes", [])}
        node = nodes.get("memory1")
        return (node["state"], node["regions"][0]["key"], node["attributes"]["life"]) if node and node["regions"] else ("", 0, "")

    def test_a_switch_that_was_stopped_for_longer_than_all_leases_takes_nobody_for_gone(self):
        self.keep_up("--memory-nodes", "3", "--memory-size", "64MiB", "--value-size", "256", "--replication", "2")
        before = self.key_of_memory1()
        self.assertEqual(before[0], "ready")
        stopped = self.pid_of("switch")
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(5)
        os.kill(stopped, signal.SIGCONT)
        time.sleep(1)
        self.assertEqual(self.key_of_memory1(), before)
        self.assertNotIn("the lease was lost", (pathlib.Path(self.dir) / "memory1.log").read_text())

    def test_a_memory_node_that_was_stopped_for_longer_than_its_lease_is_fenced(self):
        self.keep_up("--memory-nodes", "3", "--memory-size", "64MiB", "--value-size", "256", "--replication", "2")

        key_of_memory1 = self.key_of_memory1
        state, key, life = key_of_memory1()
        self.assertEqual(state, "ready")
        load = self.under_load()
        stopped = self.pid_of("memory1")
        os.kill(stopped, signal.SIGSTOP)
        wait_until(lambda: key_of_memory1()[0] == "gone", "the directory gives memory1 up", PATIENCE)
        wait_until(lambda: self.metric("metadata", "clover_replicas_missing") == 2, "the store goes on without it", PATIENCE)
        os.kill(stopped, signal.SIGCONT)
        wait_until(lambda: key_of_memory1()[0] == "ready", "memory1 is back", PATIENCE)
        self.assertNotEqual(key_of_memory1()[1], key, "whoever still has the key of before must be refused")
        self.assertEqual(key_of_memory1()[2], life, "the memory is the same")
        wait_until(self.whole, "memory1 has everything again", PATIENCE)
        # What it has is what counts now: the others die.
        for name in ("memory2", "memory3"):
            self.kill(name)
            wait_until(self.whole, f"{name} has everything again", PATIENCE)
        self.judge(load)

    def test_a_memory_node_whose_name_another_has_taken_ends(self):
        self.sluice("rack", "up", "--no-metadata", "--memory-size", "16MiB", code=0)

        def record():
            done = live_rack.run("rack", "status", "--json", "--dir", self.dir)
            nodes = {n["name"]: n for n in json.loads(done.stdout)["directory"].get("nodes", [])}
            return nodes.get("spare", {"state": "", "incarnation": 0})

        first = self.start("memory", "--name", "spare", "--size", "16MiB")
        wait_until(lambda: record()["state"] == "ready", "it is there", PATIENCE)
        os.kill(first.pid, signal.SIGSTOP)
        wait_until(lambda: record()["state"] == "gone", "the directory gives it up", PATIENCE)
        self.start("memory", "--name", "spare", "--size", "16MiB")
        wait_until(lambda: record()["state"] == "ready" and record()["incarnation"] == 2, "another has its name", PATIENCE)
        os.kill(first.pid, signal.SIGCONT)
        _, said = first.communicate(timeout=PATIENCE)
        self.assertEqual(first.returncode, 1, said)
        self.assertIn("another process has taken the name", said)
        self.sluice("remote", "write", "spare", "0", "--text", "here", code=0)
        self.assertIn("here", self.sluice("remote", "read", "spare", "0", "4", code=0).stdout)


if __name__ == "__main__":
    live_rack.SLUICE = sys.argv[1]
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
