#!/usr/bin/env python3
"""SwordBox in the switch of a live rack: real processes, real packets.

usage: box_test.py SLUICE [TEST...]
"""

import json
import os
import pathlib
import signal
import struct
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import live_rack  # noqa: E402
from live_rack import run, wait_until  # noqa: E402

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden" / "rxe"
STORE = ("--memory-nodes", "1", "--memory-size", "1GiB", "--value-size", "128")


class BoxOnARack(live_rack.LiveRack):
    def sluice(self, *words, code=0, timeout=240):
        return super().sluice(*words, code=code, timeout=timeout).stdout

    def bench(self, *flags):
        return json.loads(self.sluice("bench", "clover", "--json", "--clients", "64", "--caches", "64", "--records", "200", *flags))

    def box(self):
        return json.loads(self.sluice("box", "top", "--json"))

    def counters(self):
        return self.box()["counters"]

    def lost_swaps(self, result):
        cost = result["run"]["cost"]
        return cost["atomics_failed"] / cost["atomics"]

    def test_nearly_every_swap_succeeds_and_histories_are_linearizable(self):
        self.sluice("rack", "up", "--box", "clover", *STORE)
        on = self.bench("--workload", "w50", "--operations", "8000", "--check")
        self.assertTrue(on["history"]["linearizable"])
        counters = self.counters()
        self.assertGreater(counters["CasSteered"], 500)
        self.assertNotIn("chains_broken", counters)
        self.assertEqual(self.box()["open_links"], 0)
        # Off, in the middle of everything: nothing is steered, nothing is lost.
        self.assertIn(", off,", self.sluice("box", "set", "--on=false"))
        off = self.bench("--workload", "w50", "--operations", "4000", "--check", "--phase", "all")
        self.assertTrue(off["history"]["linearizable"])
        self.assertEqual(self.counters()["CasSteered"], counters["CasSteered"])
        self.assertGreater(self.counters()["Off"], 4000)
        self.sluice("box", "set", "--on=true", "--order", "strict")
        strict = self.bench("--workload", "w50", "--operations", "4000", "--check")
        self.assertTrue(strict["history"]["linearizable"])
        print(f"    swaps lost: {self.lost_swaps(on):.1%} steered, {self.lost_swaps(off):.1%} not, {self.lost_swaps(strict):.1%} in strict order",
              file=sys.stderr)
        self.assertLess(self.lost_swaps(on), 0.1)  # keys are learned first
        self.assertLess(self.lost_swaps(on), self.lost_swaps(off) / 2)

    def test_it_is_controlled_while_clients_work(self):
        """On and off, rule by rule, limits up and down, in the midst of work: nobody notices, but for how much is steered."""
        self.sluice("rack", "up", "--box", "clover", *STORE)
        child = self.start("bench", "clover", "--json", "--clients", "32", "--caches", "32", "--records", "200", "--workload", "w50",
                           "--duration", "8s", "--check")
        wait_until(lambda: self.counters().get("CasSteered", 0) > 100, "something is steered")
        for _ in range(3):
            self.assertIn(", off,", self.sluice("box", "off"))
            time.sleep(0.1)
            before = self.counters()
            time.sleep(0.3)
            after = self.counters()
            for verdict in ("CasSteered", "ReadSteered", "links_opened"):
                self.assertEqual(before.get(verdict, 0), after.get(verdict, 0), verdict)
            self.assertGreater(after["Off"], before.get("Off", 0))
            self.assertIn(", on,", self.sluice("box", "on"))
            wait_until(lambda steered=after.get("CasSteered", 0): self.counters().get("CasSteered", 0) > steered, "it steers again")
        self.assertIn("clover-reads     off", self.sluice("box", "rules", "clover-reads=off"))
        time.sleep(0.1)
        reads = self.counters().get("ReadSteered", 0)
        writes = self.counters()["CasSteered"]
        time.sleep(0.3)
        self.assertEqual(self.counters().get("ReadSteered", 0), reads)
        wait_until(lambda: self.counters()["CasSteered"] > writes, "writes are steered all the same")
        self.sluice("box", "rules", "clover-reads=on", "clover-writes=off")
        wait_until(lambda: self.counters().get("ReadSteered", 0) > reads, "reads are steered again")
        self.sluice("box", "rules", "clover-writes=on")
        self.sluice("box", "set", "--keys", "5", "--held-frames", "64")
        wait_until(lambda: self.box()["tracked_keys"] <= 5, "only so many keys are tracked")
        self.sluice("box", "set", "--keys", "100", "--held-frames", "4096")
        wait_until(lambda: self.box()["tracked_keys"] > 5, "more keys are tracked")
        self.sluice("box", "set", "--keys", "1000000", code=1)
        self.sluice("box", "rules", "words=on", code=1)
        self.sluice("box", "rules", "clover-reads", code=2)
        out, err = child.communicate(timeout=120)
        result = json.loads(out)
        self.assertTrue(result["history"]["linearizable"], err)
        self.assertEqual(result["run"]["values_wrong"], 0)
        counters = self.counters()
        for lost in ("frames_stale", "outbox_full", "chains_broken"):
            self.assertNotIn(lost, counters)

    def test_what_the_box_does_can_be_seen(self):
        self.sluice("rack", "up", "--box", "clover", "--config", self.config("[switch]\nbox-keys = 16\n"), *STORE)
        child = self.start("bench", "clover", "--clients", "64", "--records", "200", "--duration", "60s")
        wait_until(lambda: self.box()["tracked_keys"] == 16 and len(self.box()["top_connections"]) >= 2, "keys are tracked")
        box = self.box()
        child.kill()
        child.wait()
        self.assertEqual(box["tracked_keys"], 16)
        self.assertEqual(len(box["top_keys"]), 16)
        self.assertGreaterEqual(len(box["top_connections"]), 2)
        self.assertIn("HOTTEST KEYS", self.sluice("box", "top", "--once"))
        self.assertIn("box: clover, on", self.sluice("rack", "status"))
        self.sluice("box", "set", "--order", "random", code=2)

    def config(self, text):
        path = self.folder + "/rack.toml"
        pathlib.Path(path).write_text(text)
        return path

    def test_a_store_with_replicas_is_left_alone(self):
        up = super().sluice("rack", "up", "--box", "clover", "--memory-nodes", "2", "--replication", "2", "--memory-size", "1GiB")
        self.assertIn("the box does not steer", up.stderr)
        self.bench("--workload", "A", "--operations", "2000")
        self.assertFalse(self.box()["steering"])
        self.assertNotIn("CasSteered", self.counters())

    def test_a_killed_box_comes_back_behind_a_fence(self):
        self.sluice("rack", "up", "--box", "clover", *STORE)
        child = self.start("bench", "clover", "--json", "--clients", "32", "--records", "200", "--workload", "w50", "--duration", "10s",
                           "--check")
        time.sleep(3)
        status = json.loads(self.sluice("rack", "status", "--json"))
        switch = next(d for d in status["daemons"] if d["name"] == "switch")
        os.kill(switch["pid"], signal.SIGKILL)
        time.sleep(0.3)
        self.sluice("rack", "up", "--box", "clover", *STORE)
        out, err = child.communicate(timeout=120)
        result = json.loads(out)
        self.assertTrue(result["history"]["linearizable"], err)
        self.assertEqual(result["run"]["values_wrong"], 0)
        self.assertIn("one before this was lost", pathlib.Path(self.dir + "/switch.log").read_text())
        after = self.bench("--workload", "A", "--operations", "3000", "--check")
        self.assertTrue(after["history"]["linearizable"])
        self.assertNotIn("chains_broken", self.counters())

    def locks(self, *flags):
        result = json.loads(self.sluice("bench", "locks", "--json", "--clients", "16", "--duration", "1500ms", *flags))
        self.assertTrue(result["sound"])
        self.assertGreater(result["turns"], 10)
        return result

    def test_locks_over_shared_connections_exclude_each_other(self):
        self.sluice("rack", "up", "--no-metadata", "--memory-nodes", "1", "--memory-size", "1GiB", "--box", "words")
        self.locks()
        self.locks("--release", "cas")
        self.locks("--locks", "64", "--release", "cas")
        counters = self.counters()
        self.assertGreater(counters["AtomicReplaced"], 100)
        self.assertGreater(counters["WriteMoved"], 10)
        self.assertNotIn("operations_abandoned", counters)
        self.sluice("box", "set", "--on=false")
        self.locks()
        self.assertEqual(self.counters()["AtomicReplaced"], counters["AtomicReplaced"])
        self.sluice("box", "set", "--on=true")
        # A box that is lost with its numbers: what was connected is shut out, what connects anew is served.
        status = json.loads(self.sluice("rack", "status", "--json"))
        os.kill(next(d for d in status["daemons"] if d["name"] == "switch")["pid"], signal.SIGKILL)
        time.sleep(0.3)
        self.sluice("rack", "up", "--no-metadata", "--memory-nodes", "1", "--memory-size", "1GiB", "--box", "words")
        self.locks()
        self.assertGreater(self.counters()["AtomicReplaced"], 10)

    def tree(self, *flags):
        result = json.loads(self.sluice("bench", "sherman", "--json", "--clients", "32", "--caches", "8", "--records", "300", "--operations", "6000",
                                        "--seed", "3", *flags))
        self.assertEqual(result["failed"], 0)
        self.assertEqual(result["run"]["values_wrong"], 0)
        return result

    def test_a_tree_whose_locks_are_replaced_by_the_box(self):
        self.sluice("rack", "up", "--no-metadata", "--memory-nodes", "2", "--memory-size", "1GiB", "--box", "words")
        self.assertTrue(self.tree("--workload", "A", "--check")["history"]["linearizable"])
        replaced = self.counters()["AtomicReplaced"]
        self.assertGreater(replaced, 1000)
        self.assertNotIn("operations_abandoned", self.counters())
        self.tree("--workload", "E")
        self.sluice("box", "set", "--on=false")
        before = self.counters()["AtomicReplaced"]
        self.tree("--workload", "w100", "--phase", "run")
        self.assertEqual(self.counters()["AtomicReplaced"], before)

    def test_a_killed_box_ends_what_it_had_translated_and_nothing_is_executed_twice(self):
        up = ("rack", "up", "--no-metadata", "--memory-nodes", "1", "--memory-size", "1GiB", "--box", "words")
        self.sluice(*up)
        child = self.start("bench", "locks", "--json", "--clients", "16", "--duration", "60s")
        wait_until(lambda: self.counters().get("AtomicReplaced", 0) > 1000, "atomics are replaced")
        status = json.loads(self.sluice("rack", "status", "--json"))
        os.kill(next(d for d in status["daemons"] if d["name"] == "switch")["pid"], signal.SIGKILL)
        self.sluice(*up)  # at once: the clients' retries last for half a second, and some of them must meet the new box
        # Its connections' numbers are lost: they must not reach the server, and fail when their retries are used up.
        out, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 1, out + err)
        self.assertIn("outcome unknown", err)
        self.assertNotIn("not its holder's", err)
        self.assertGreater(self.counters()["Fenced"], 0)
        self.assertNotIn("AtomicReplaced", self.counters())
        self.locks()
        self.assertGreater(self.counters()["AtomicReplaced"], 10)

    def kill_switch(self):
        status = json.loads(self.sluice("rack", "status", "--json"))
        os.kill(next(d for d in status["daemons"] if d["name"] == "switch")["pid"], signal.SIGKILL)

    def test_no_atomic_is_executed_twice_however_often_the_box_is_killed(self):
        """Every ticket is handed out once: through kills in mid-load, and what the clients' own retries make of them."""
        up = ("rack", "up", "--no-metadata", "--memory-nodes", "1", "--memory-size", "1GiB", "--box", "words")
        self.sluice(*up)
        child = self.start("bench", "locks", "--turn", "ticket", "--json", "--clients", "16", "--locks", "4", "--duration", "24s")
        for _ in range(3):
            wait_until(lambda: self.counters().get("AtomicReplaced", 0) > 1000, "atomics are replaced")
            self.kill_switch()
            time.sleep(0.2)
            self.sluice(*up)
        wait_until(lambda: self.counters().get("AtomicReplaced", 0) > 1000, "atomics are replaced again")
        out, err = child.communicate(timeout=120)
        self.assertEqual(child.returncode, 0, out + err)
        result = json.loads(out)
        self.assertTrue(result["sound"])
        self.assertGreater(result["unknown"], 0)  # else nothing was under way when it was killed
        self.assertGreater(result["turns"], 3000)
        print(f"    {result['turns']} tickets, {result['unknown']} unknown, {result['counted']} in memory, {result['reconnects']} reconnects",
              file=sys.stderr)

    def test_steering_and_shared_connections_stand_side_by_side(self):
        config = self.config("[metadata]\nspace = \"512MiB\"\n")
        self.sluice("rack", "up", "--box", "clover+words", "--config", config, *STORE)
        locks = self.start("bench", "locks", "--json", "--clients", "16", "--locks", "8", "--duration", "8s")
        store = self.bench("--workload", "w50", "--operations", "8000", "--check")
        self.assertTrue(store["history"]["linearizable"])
        out, err = locks.communicate(timeout=120)
        self.assertEqual(locks.returncode, 0, out + err)
        self.assertTrue(json.loads(out)["sound"])
        counters = self.counters()
        self.assertGreater(counters["CasSteered"], 500)
        self.assertGreater(counters["AtomicReplaced"], 100)
        self.assertNotIn("chains_broken", counters)
        rules = self.sluice("box", "rules")
        for rule in ("clover-writes", "clover-reads", "words"):
            self.assertRegex(rules, rule + r" +on")

    def test_the_box_works_on_several_cores(self):
        config = self.config("[switch]\ncores = 2\n[metadata]\nspace = \"512MiB\"\n")
        self.sluice("rack", "up", "--box", "clover+words", "--config", config, "--memory-nodes", "6", "--memory-size", "1GiB",
                    "--value-size", "128")
        locks = self.start("bench", "locks", "--json", "--clients", "16", "--locks", "8", "--duration", "8s")
        on = self.bench("--workload", "w50", "--operations", "8000", "--check")
        self.assertTrue(on["history"]["linearizable"])
        out, err = locks.communicate(timeout=120)
        self.assertEqual(locks.returncode, 0, out + err)
        self.assertTrue(json.loads(out)["sound"])
        box = self.box()
        self.assertEqual(len(box["shards"]), 2)
        for shard in box["shards"]:  # both have had keys to steer
            self.assertGreater(shard["frames"], 1000, box["shards"])
            self.assertGreater(shard["tracked_keys"], 10, box["shards"])
        self.assertGreater(box["counters"]["CasSteered"], 500)
        self.assertGreater(box["counters"]["AtomicReplaced"], 100)
        self.assertNotIn("chains_broken", box["counters"])
        self.sluice("box", "off")
        before = self.counters()["CasSteered"]
        off = self.bench("--workload", "w50", "--operations", "2000", "--check")
        self.assertTrue(off["history"]["linearizable"])
        self.assertEqual(self.counters()["CasSteered"], before)
        self.assertLess(self.lost_swaps(on), self.lost_swaps(off) / 2)

    def test_locks_need_a_rack_without_a_store(self):
        self.sluice("rack", "up", *STORE)
        self.assertIn("--no-metadata", run("bench", "locks", "--dir", self.dir).stderr)

    def test_without_a_box_the_command_says_so(self):
        self.sluice("rack", "up", "--memory-size", "1GiB")
        done = run("box", "top", "--once", "--dir", self.dir)
        self.assertEqual(done.returncode, 1)
        self.assertIn("has no box; `sluice rack down`, then `sluice rack up --box clover`", done.stderr)

    def test_a_box_that_refuses_says_why(self):
        self.sluice("rack", "up", "--box", "watch", *STORE)
        done = run("box", "rules", "clover-reads=on", "--dir", self.dir)
        self.assertEqual(done.returncode, 1)
        self.assertIn("this box has no such rule", done.stderr)
        self.assertNotIn("has no box", done.stderr)


class BoxOnCaptures(unittest.TestCase):
    def test_memory_is_that_of_a_box_as_the_switch_makes_it(self):
        def tables(*options):
            done = run("box", "memory", "--json", *options)
            self.assertEqual(done.returncode, 0, done.stderr)
            return {row["table"]: row for row in json.loads(done.stdout)}

        plain = tables()
        self.assertEqual(plain["words with their values"]["entries"], 65536)
        self.assertEqual(plain["packets that wait"]["entries"], 4096)
        self.assertEqual(plain["keys with their tails"]["entries"], 4096)  # `sluice box set --keys` may ask for so many
        ring = "operations by the client's PSN"
        self.assertEqual(plain[ring]["bytes"], tables("--ring", "256")[ring]["bytes"])
        self.assertEqual(2 * plain[ring]["bytes"], tables("--ring", "512")[ring]["bytes"])
        self.assertEqual(run("box", "memory", "--ring", "100").returncode, 2)

    def test_explain_says_what_becomes_of_every_packet(self):
        done = run("box", "explain", str(GOLDEN / "rping_cm.pcap"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("passes: Management", done.stdout)
        self.assertRegex(done.stdout, r"1 +connections_announced")
        self.assertNotIn("dropped:", done.stdout)
        atomics = run("box", "explain", "--summary", str(GOLDEN / "cas_lat.pcap"))
        self.assertRegex(atomics.stdout, r"8 +CasUnknownNode")

    def test_explain_does_not_judge_packets_that_the_capture_has_cut(self):
        whole = (GOLDEN / "cas_lat.pcap").read_bytes()
        seconds, fraction, size, length = struct.unpack("<4I", whole[24:40])
        with tempfile.NamedTemporaryFile(prefix="sluice-cut-", suffix=".pcap") as file:
            file.write(whole[:24] + struct.pack("<4I", seconds, fraction, 60, length) + whole[40:100] + whole[40 + size:])  # the first packet alone
            file.flush()
            done = run("box", "explain", file.name)
        self.assertEqual(done.returncode, 1)
        self.assertIn("     1 cut by the capture\n", done.stdout)
        self.assertNotIn("Malformed", done.stdout)
        self.assertRegex(done.stdout, r"7 +CasUnknownNode")
        self.assertIn("1 packets are cut by the capture", done.stderr)

    def test_explain_refuses_nonsense(self):
        self.assertEqual(run("box", "explain", "/dev/null").returncode, 1)
        done = run("box", "explain", "--region", "nowhere", str(GOLDEN / "cas_lat.pcap"))
        self.assertIn("must be IP:KEY", done.stderr)
        for region, code in (("10.77.0.2:0x1234", 0), ("[fd00::2]:0x1234", 0), ("fd00::2:0x1234", 2), ("[fd00::2]", 2), ("[fd00::2:0x1234", 2)):
            self.assertEqual(run("box", "explain", "--region", region, str(GOLDEN / "cas_lat.pcap")).returncode, code, region)
        for rule, why in (("words", "a capture has no answers to those"), ("nonsense", "must be clover or watch")):
            done = run("box", "explain", "--rule", rule, str(GOLDEN / "cas_lat.pcap"))
            self.assertEqual(done.returncode, 2)
            self.assertIn(why, done.stderr)
        self.assertEqual(run("box", "explain", "--rule", "watch", str(GOLDEN / "cas_lat.pcap")).returncode, 0)


if __name__ == "__main__":
    live_rack.SLUICE = sys.argv.pop(1)
    unittest.main(verbosity=2)
