#!/usr/bin/env python3
"""Sherman trees and FUSEE stores on racks of real processes: used, hurt, found again, and not taken for one another.

usage: stores_test.py SLUICE [TEST...]

SLUICE is the program. Every test has a rack of its own in a temporary run directory, and must leave no process behind.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import live_rack  # noqa: E402
from live_rack import wait_until  # noqa: E402


class StoresTest(live_rack.RackOfDaemons):
    def counted_by(self, bench):
        """How many operations were done when it says so the next time; None: it has ended."""
        asked = time.monotonic()
        for line in bench.stderr:
            said = re.search(r"running: (\d+) operations", line)
            if said and time.monotonic() - asked > 0.2:
                return int(said[1])
        return None

    def until_it_says(self, bench, words):
        """What it said up to then, or to its end."""
        said = ""
        while bench.poll() is None and words not in said:
            said += bench.stderr.readline()
        return said

    # --- sherman ---

    def tree(self, *flags, code=0):
        return json.loads(self.sluice("bench", "sherman", "--json", *flags, code=code).stdout)

    def test_a_tree_does_all_of_ycsb_and_is_linearizable(self):
        self.up("--no-metadata")
        for workload in "ABCDEF":
            records = "900" if workload == "E" else "500"  # D has inserted some behind the 500th
            result = self.tree("--workload", workload, "--clients", "16", "--operations", "2000", "--records", records, "--threads", "2", "--caches", "2")
            self.assertEqual((result["store"], result["run"]["operations"], result["failed"]), ("sherman", 2000, 0))
            self.assertEqual((result["value_bytes"], result["run"]["values_wrong"]), (64, 0))
        checked = self.tree("--workload", "A", "--clients", "32", "--caches", "8", "--operations", "5000", "--records", "100", "--check")
        self.assertTrue(checked["history"]["linearizable"])
        self.assertIn("in use by another", self.sluice("bench", "fusee", code=1).stderr)
        self.assertIn("in use by another, a Sherman tree; `sluice rack down`", self.sluice("bench", "locks", code=1).stderr)

    def test_a_tree_outlives_a_client_that_is_killed_with_locks_in_its_hands(self):
        self.up("--no-metadata")
        child = self.start("bench", "sherman", "--workload", "w100", "--clients", "64", "--caches", "16", "--records", "200", "--duration", "60s")
        wait_until(lambda: f"sherman-{child.pid}-0" in self.node_states(), "the bench has joined")
        time.sleep(2)
        child.kill()
        child.wait()
        after = self.tree("--workload", "A", "--records", "200", "--operations", "5000", "--check")
        self.assertEqual(after["failed"], 0)
        self.assertTrue(after["history"]["linearizable"])

    def test_memory_nodes_of_a_tree_that_were_stopped_for_longer_than_their_lease_are_used_on(self):
        self.up("--no-metadata", "--memory-nodes", "2")
        self.assertEqual(self.tree("--phase", "load", "--records", "500")["failed"], 0)
        child = self.start("bench", "sherman", "--json", "--phase", "run", "--workload", "A", "--clients", "8", "--caches", "2", "--records", "500", "--duration", "20s")
        wait_until(lambda: f"sherman-{child.pid}-0" in self.node_states(), "the bench has joined")
        stopped = self.daemon("memory1")["pid"]
        self.gone("memory1", signal.SIGSTOP)
        os.kill(stopped, signal.SIGCONT)
        wait_until(lambda: self.node_states()["memory1"] == "ready", "it is back")
        time.sleep(3)
        done = self.counted_by(child)
        out, err = child.communicate(timeout=60)
        self.assertIsNotNone(done, err)
        run = json.loads(out)["run"]
        self.assertGreater(run["operations"], done + 1000, "nothing gets on")
        self.assertEqual(run["values_wrong"], 0)
        self.assertEqual(self.tree("--phase", "run", "--workload", "A", "--records", "500", "--operations", "2000")["failed"], 0)

    def test_a_tree_whose_memory_could_not_be_given_back_says_so(self):
        self.up("--no-metadata", "--memory-nodes", "1")
        child = self.start("bench", "sherman", "--json", "--records", "500", "--duration", "5s")
        wait_until(lambda: f"sherman-{child.pid}-0" in self.node_states(), "the bench has joined")
        time.sleep(2)
        os.kill(self.daemon("memory1")["pid"], signal.SIGKILL)
        _, err = child.communicate(timeout=60)
        self.assertEqual(err.count("not all memory of the tree was given back"), 1, err)

    def test_a_tree_needs_a_rack_without_a_store(self):
        self.up()
        self.assertIn("--no-metadata", self.sluice("bench", "sherman", code=1).stderr)

    # --- fusee ---

    def fusee(self, *flags, code=0):
        return json.loads(self.sluice("bench", "fusee", "--json", *flags, code=code).stdout)

    def test_fusee_does_ycsb_and_is_linearizable_also_after_a_client_was_killed(self):
        self.up("--no-metadata")
        for workload in "ABCDF":
            result = self.fusee("--workload", workload, "--clients", "16", "--operations", "2000", "--records", "500", "--threads", "2", "--caches", "2")
            self.assertEqual((result["store"], result["run"]["operations"], result["failed"]), ("fusee", 2000, 0))
            self.assertEqual((result["value_bytes"], result["run"]["values_wrong"]), (64, 0))
        child = self.start("bench", "fusee", "--workload", "w100", "--clients", "64", "--caches", "16", "--records", "200", "--duration", "60s")
        wait_until(lambda: f"fusee-{child.pid}-0" in self.node_states(), "the bench has joined")
        time.sleep(2)
        child.kill()
        child.wait()
        # What the dead had half done may still win over whoever writes there next, and no history knows of it: let everybody be written once.
        self.assertEqual(self.fusee("--phase", "load", "--records", "200")["failed"], 0)
        checked = self.fusee("--workload", "A", "--clients", "32", "--caches", "8", "--operations", "5000", "--records", "100", "--check")
        self.assertEqual(checked["failed"], 0)
        self.assertTrue(checked["history"]["linearizable"])
        self.assertIn("in use by another", self.sluice("bench", "sherman", code=1).stderr)
        self.assertIn("in use by another, a FUSEE store", self.sluice("bench", "locks", "--locks", "1024", code=1).stderr)

    def test_no_clover_store_is_made_over_another_store(self):
        for store, words in (("fusee", "a part of a FUSEE store"), ("sherman", "a part of a Sherman tree")):
            with self.subTest(store):
                self.up("--no-metadata")
                self.sluice("bench", store, "--phase", "load", "--records", "200", code=0)
                refused = self.sluice("rack", "up", code=1).stderr
                self.assertRegex(refused, rf"memory[12] holds {words}; `sluice rack down`, then")
                self.assertIn(words, self.sluice("rack", "drain", "memory2", code=1).stderr)
                self.gone("memory2", signal.SIGSTOP)
                self.assertIn("is not known: its lease has ended", self.sluice("rack", "drain", "memory2", code=1).stderr)
                os.kill(self.daemon("memory2")["pid"], signal.SIGCONT)
                wait_until(lambda: self.node_states()["memory2"] == "ready", "it goes on")
                read = json.loads(self.sluice("bench", store, "--json", "--phase", "run", "--workload", "C", "--records", "200", "--operations", "1000", code=0).stdout)
                self.assertEqual(read["run"]["actions"]["read"]["outcomes"], {"ok": 1000})
                self.assertEqual(read["run"]["values_wrong"], 0)
                self.sluice("rack", "down", code=0)
        self.up()
        self.bench("--operations", "1000", "--records", "100")

    def test_no_store_is_made_over_a_clover_store_whose_metadata_server_is_dead(self):
        self.up()
        self.bench("--phase", "load", "--records", "200")
        os.kill(self.daemon("metadata")["pid"], signal.SIGKILL)
        wait_until(lambda: self.node_states().get("metadata") == "gone", "the directory gives the metadata server up")
        for store in ("fusee", "sherman"):
            refused = self.sluice("bench", store, "--phase", "load", "--records", "200", code=1).stderr
            self.assertIn("the memory holds a Clover store whose metadata server is gone; `sluice rack up`", refused)
        self.assertIn("all memory belongs to a Clover store", self.sluice("bench", "locks", code=1).stderr)
        self.up()
        read = self.bench("--phase", "run", "--workload", "C", "--records", "200", "--operations", "1000")
        self.assertEqual((read["failed"], read["run"]["values_wrong"]), (0, 0))

    def test_no_clover_store_is_made_over_another(self):
        self.up()
        self.bench("--phase", "load", "--records", "200")
        self.assertIn("metadata is the rack's metadata server", self.sluice("metadata", "--name", "other", code=1).stderr)
        os.kill(self.daemon("metadata")["pid"], signal.SIGKILL)
        wait_until(lambda: self.node_states().get("metadata") == "gone", "the directory gives the metadata server up")
        left = "the memory holds the Clover store of metadata, and its journal is not here"
        self.assertIn(left, self.sluice("metadata", "--name", "other", code=1).stderr)
        journal = pathlib.Path(self.dir, "metadata.journal")
        journal.rename(journal.with_suffix(".kept"))
        for _ in range(2):
            self.assertIn(left, self.sluice("metadata", code=1).stderr)
        journal.with_suffix(".kept").rename(journal)
        self.up()
        read = self.bench("--phase", "run", "--workload", "C", "--records", "200", "--operations", "1000")
        self.assertEqual((read["failed"], read["run"]["values_wrong"]), (0, 0))

    def test_memory_in_which_another_store_was_made_is_not_taken_back(self):
        self.up("--no-metadata", "--memory-nodes", "1")
        self.sluice("bench", "fusee", "--phase", "load", "--records", "10", code=0)
        read_mark = (live_rack.SLUICE, "remote", "read", "memory1", "64KiB", "64", "--raw", "--dir", self.dir)
        mark = subprocess.run(read_mark, capture_output=True, timeout=60, check=True).stdout
        self.sluice("rack", "down", code=0)
        self.up("--replication", "2")
        self.bench("--phase", "load", "--records", "200")
        for name in ("metadata", "memory1"):
            os.kill(self.daemon(name)["pid"], signal.SIGKILL)
        self.up("--no-metadata")
        self.sluice("remote", "write", "memory1", "64KiB", "--hex", mark.hex(), code=0)
        self.up("--replication", "2")
        log = pathlib.Path(self.dir, "metadata.log")
        wait_until(lambda: "memory1 holds a part of a FUSEE store and is not used" in log.read_text(), "the metadata server looks at it")
        read = self.bench("--phase", "run", "--workload", "A", "--records", "200", "--operations", "1000")
        self.assertEqual((read["failed"], read["run"]["values_wrong"]), (0, 0))
        self.assertEqual(subprocess.run(read_mark, capture_output=True, timeout=60, check=True).stdout, mark)
        os.kill(self.daemon("memory1")["pid"], signal.SIGKILL)
        self.up("--replication", "2")

        def lacking():
            said = live_rack.metrics(f"{self.dir}/metadata.http.sock")
            return said.get("sluice_clover_replicas_missing"), said.get("sluice_clover_replicas_joining")

        wait_until(lambda: lacking() == (0, 0), "memory that is blank is taken back")

    def test_locks_leave_the_memory_as_it_was(self):
        self.up("--no-metadata")
        for _ in range(2):
            told = self.sluice("bench", "locks", "--locks", "1024", "--clients", "8", "--duration", "300ms", "--csv", code=0).stdout
            names, values = (line.split(",") for line in told.splitlines())
            row = dict(zip(names, values, strict=True))
            self.assertEqual((row["clients"], row["locks"], row["turn"], row["sound"]), ("8", "1024", "lock", "true"))
            self.assertEqual(row["turns"], row["counted"])
        self.assertEqual(self.tree("--workload", "A", "--records", "200", "--operations", "1000")["failed"], 0)

    def test_fusee_goes_on_when_a_memory_node_dies_and_is_found_by_those_who_come_later(self):
        self.up("--no-metadata", "--memory-nodes", "3")
        child = self.start("bench", "fusee", "--json", "--workload", "A", "--clients", "32", "--caches", "4", "--records", "500", "--duration", "10s", "--check")
        # A key whose load the death interrupts may rightly be not found.
        self.until_it_says(child, "running:")
        os.kill(self.daemon("memory1")["pid"], signal.SIGKILL)
        out, err = child.communicate(timeout=90)
        result = json.loads(out)
        self.assertTrue(result["history"]["linearizable"], err)
        self.assertEqual(result["run"]["values_wrong"], 0)
        wait_until(lambda: self.node_states()["memory1"] == "gone", "the directory notices")
        after = self.fusee("--phase", "run", "--workload", "C", "--records", "500", "--operations", "5000")
        self.assertEqual(after["run"]["actions"]["read"]["outcomes"], {"ok": 5000})
        again = self.fusee("--workload", "A", "--records", "500", "--clients", "16", "--operations", "5000", "--check")
        self.assertEqual(again["failed"], 0)
        self.assertTrue(again["history"]["linearizable"])

    def test_a_memory_node_of_a_fusee_store_that_is_started_anew_is_used_again(self):
        self.up("--no-metadata", "--memory-nodes", "3")
        child = self.start("bench", "fusee", "--json", "--workload", "A", "--clients", "16", "--caches", "4", "--records", "500", "--duration", "90s", "--check")
        # A key whose load the death interrupts may rightly be not found.
        said = self.until_it_says(child, "running:")
        # One that comes to the rack meanwhile does not take its place.
        self.up("--no-metadata", "--memory-nodes", "4")
        os.kill(self.daemon("memory1")["pid"], signal.SIGKILL)
        wait_until(lambda: not self.daemon("memory1")["running"], "it is dead")
        self.up("--no-metadata", "--memory-nodes", "4")
        said += self.until_it_says(child, "memory1: is back, and given its replicas again")
        time.sleep(1)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=120)
        err = said + err
        result = json.loads(out)
        self.assertTrue(result["history"]["linearizable"], err)
        self.assertEqual(result["run"]["values_wrong"], 0)
        self.assertEqual(list(result["run"]["actions"]["read"]["outcomes"]), ["ok"], err)
        self.assertIn("memory1: is back, and given its replicas again", err)
        # Two of three would be too few, had the first not come back.
        os.kill(self.daemon("memory2")["pid"], signal.SIGKILL)
        wait_until(lambda: self.node_states()["memory2"] == "gone", "the directory notices")
        after = self.fusee("--phase", "run", "--workload", "A", "--records", "500", "--operations", "5000")
        self.assertEqual(after["failed"], 0)
        self.assertEqual(after["run"]["values_wrong"], 0)

    def test_memory_nodes_of_a_fusee_store_that_were_stopped_for_longer_than_their_lease_are_used_on(self):
        # More of them than the store can do without.
        for nodes, stopped in (("3", ("memory1", "memory2")), ("2", ("memory1",))):
            self.up("--no-metadata", "--memory-nodes", nodes)
            self.assertEqual(self.fusee("--phase", "load", "--records", "500")["failed"], 0)
            child = self.start("bench", "fusee", "--json", "--phase", "run", "--workload", "w100", "--clients", "8", "--caches", "2", "--records", "500", "--duration", "20s")
            wait_until(lambda child=child: f"fusee-{child.pid}-0" in self.node_states(), "the bench has joined")
            pids = [self.daemon(name)["pid"] for name in stopped]
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            try:
                wait_until(lambda stopped=stopped: all(self.node_states()[name] == "gone" for name in stopped), "their leases are over")
            finally:
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
            wait_until(lambda stopped=stopped: all(self.node_states()[name] == "ready" for name in stopped), "they are back")
            time.sleep(3)
            done = self.counted_by(child)
            out, err = child.communicate(timeout=60)
            self.assertIsNotNone(done, err)
            result = json.loads(out)
            self.assertLess(result["failed"], done, "operations fail to the end")
            self.assertGreater(result["run"]["actions"]["update"]["outcomes"]["ok"], 500)
            self.sluice("rack", "down", code=0)

    def test_the_index_of_a_fusee_store_grows_under_three_processes_of_which_one_is_killed(self):
        self.up("--no-metadata", "--memory-nodes", "3")
        small = ("--index-slots", "600", "--index-doublings", "6")
        flags = ("--phase", "load", "--records", "9000", "--clients", "16", *small)
        runs = [self.start("bench", "fusee", "--json", *flags, "--place", f"{i}/3") for i in range(3)]
        wait_until(lambda: f"fusee-{runs[2].pid}-0" in self.node_states(), "the last has joined")
        time.sleep(0.3)
        runs[2].kill()
        runs[2].wait()
        for child in runs[:2]:
            out, err = child.communicate(timeout=120)
            self.assertEqual(child.returncode, 0, err)
            self.assertEqual(json.loads(out)["failed"], 0, err)
        # What the dead one had half done may still win over whoever writes there next: let everybody be written once.
        self.assertEqual(self.fusee(*flags)["failed"], 0)
        checked = self.fusee("--workload", "A", "--records", "9000", "--clients", "32", "--caches", "4", "--operations", "20000", "--check")
        self.assertEqual((checked["failed"], checked["run"]["values_wrong"]), (0, 0))
        self.assertTrue(checked["history"]["linearizable"])

    def test_an_index_that_may_not_grow_says_that_there_is_no_space(self):
        self.up("--no-metadata")
        refused = self.sluice("bench", "fusee", "--records", "3000", "--index-slots", "600", "--index-doublings", "1", code=1)
        self.assertIn("no space for 3000 records", refused.stderr)
        self.assertIn("--index-slots", refused.stderr)

    # --- where a store lies ---

    def refused_by_store(self, store, *flags):
        return self.sluice("bench", store, *flags, code=1, timeout=60).stderr

    def test_a_tree_is_not_made_over_one_of_which_a_part_is_away_or_lost(self):
        self.up("--no-metadata", "--memory-nodes", "3")
        self.assertEqual(self.tree("--records", "1000", "--phase", "load")["failed"], 0)
        stopped = self.daemon("memory1")["pid"]
        self.gone("memory1", signal.SIGSTOP)
        try:
            self.assertIn("memory1 is away, and part of the tree lies there", self.refused_by_store("sherman", "--records", "10", "--phase", "load"))
        finally:
            os.kill(stopped, signal.SIGCONT)
        wait_until(lambda: self.node_states()["memory1"] == "ready", "it is back")
        after = self.tree("--records", "1000", "--phase", "run", "--workload", "C", "--operations", "2000")
        self.assertEqual(after["run"]["actions"]["read"]["outcomes"], {"ok": 2000})
        self.assertEqual((after["copies"], after["memory_nodes"]), (1, 3))
        for name in ("memory2", "memory1"):
            self.gone(name, signal.SIGKILL)
            self.up("--no-metadata", "--memory-nodes", "3")
            wait_until(lambda name=name: self.node_states()[name] == "ready", "it is there, blank")
            told = self.refused_by_store("sherman", "--records", "10", "--phase", "load")
            if name == "memory2":
                self.assertIn("memory2 was started anew, and the part of the tree that lay there is lost; `sluice rack down`", told)
            else:
                self.assertRegex(told, "(memory1 and memory2|memory2 and memory1) were started anew")

    def test_a_store_on_two_memory_nodes_is_used_on_them_when_a_third_comes_and_not_without_one(self):
        self.up("--no-metadata", "--memory-nodes", "2")
        for store in (self.fusee, self.tree):
            self.assertEqual(store("--records", "500", "--phase", "load")["failed"], 0)
            self.up("--no-metadata", "--memory-nodes", "3")
            wait_until(lambda: self.node_states().get("memory3") == "ready", "the third has come")
            after = store("--records", "500", "--phase", "run", "--workload", "C", "--operations", "2000")
            self.assertEqual(after["run"]["actions"]["read"]["outcomes"], {"ok": 2000})
            self.assertEqual(after["memory_nodes"], 2)
            self.gone("memory2", signal.SIGKILL)
            self.assertIn("of 1 of them nothing is to be seen; memory2 is away; memory3 is empty", self.refused_by_store(after["store"]))
            self.sluice("rack", "down", code=0)
            self.up("--no-metadata", "--memory-nodes", "2")

    def test_no_store_is_made_while_a_memory_node_is_away(self):
        self.up("--no-metadata", "--memory-nodes", "2")
        self.gone("memory1", signal.SIGKILL)
        for store in ("fusee", "sherman"):
            self.assertIn("there is none, and memory1 is away, where one may lie", self.refused_by_store(store))

    def test_a_store_in_regions_that_are_moved_is_found_where_they_are(self):
        self.up("--no-metadata", "--memory-nodes", "3", "--memory-size", "64MiB")
        for store in (self.fusee, self.tree):
            file = f"{self.folder}/{store.__name__}.token"
            self.sluice("tenant", "add", store.__name__, "--quota", "64MiB", "--out", file, code=0)
            token = ("--token-file", file)
            for node in (1, 2, 3):
                self.sluice("region", "add", f"r{node}", "8MiB", "--node", f"memory{node}", *token, code=0)
            self.assertEqual(store("--records", "500", "--phase", "load", *token)["failed"], 0)
            # To where the second is before it, too; then into an order that is no node's.
            for region, to in ((1, 3), (2, 1), (3, 2)):
                self.sluice("region", "move", f"r{region}", "--tenant", store.__name__, "--to", f"memory{to}", code=0)
                after = store("--records", "500", "--phase", "run", "--workload", "C", "--operations", "2000", *token)
                self.assertEqual(after["run"]["actions"]["read"]["outcomes"], {"ok": 2000}, (region, to))
                self.assertEqual(after["memory_nodes"], 3)

    def test_a_fusee_store_whose_regions_are_moved_is_used_on_meanwhile(self):
        self.up("--no-metadata", "--memory-nodes", "3", "--memory-size", "64MiB")
        file = f"{self.folder}/red.token"
        self.sluice("tenant", "add", "red", "--quota", "64MiB", "--out", file, code=0)
        token = ("--token-file", file)
        for node in (1, 2, 3):
            self.sluice("region", "add", f"r{node}", "8MiB", "--node", f"memory{node}", *token, code=0)
        self.assertEqual(self.fusee("--records", "500", "--phase", "load", *token)["failed"], 0)

        def at_work(change):
            child = self.start("bench", "fusee", "--json", "--phase", "run", "--workload", "w100", "--clients", "8", "--caches", "2", "--records", "500", "--duration", "20s", *token)
            wait_until(lambda: f"fusee-{child.pid}-0" in self.node_states(), "the bench has joined")
            time.sleep(1)
            change()
            out, err = child.communicate(timeout=60)
            samples = json.loads(out)["timeline"]
            late = [done for at, done in samples if at > samples[-1][0] - 4000]
            self.assertGreater(late[-1] - late[0], 500, err)
            told = re.findall("the store does without it|is back|all is well again", err)
            self.assertNotEqual(told[-1:], ["the store does without it"], err)

        def move_two():
            for region, to in ((1, 3), (2, 1)):
                self.sluice("region", "move", f"r{region}", "--tenant", "red", "--to", f"memory{to}", code=0)
                time.sleep(4)

        # Of memory3 it has two parts now.
        def stop_one():
            pid = self.daemon("memory3")["pid"]
            os.kill(pid, signal.SIGSTOP)
            try:
                wait_until(lambda: self.node_states()["memory3"] == "gone", "its lease is over")
            finally:
                os.kill(pid, signal.SIGCONT)

        at_work(move_two)
        at_work(stop_one)
        after = self.fusee("--records", "500", "--phase", "run", "--workload", "C", "--operations", "2000", *token)
        self.assertEqual(after["run"]["actions"]["read"]["outcomes"], {"ok": 2000})

    def test_what_killed_fusee_clients_had_is_room_for_those_who_come_later(self):
        # So many records are a third of what there is room for.
        load = ("--records", "15000", "--phase", "load")
        self.up("--no-metadata", "--memory-nodes", "3", "--memory-size", "8MiB")
        for _ in range(4):
            child = self.start("bench", "fusee", "--records", "15000", "--workload", "C", "--duration", "60s")
            said = self.until_it_says(child, "running:")
            self.assertIsNone(child.poll(), said)
            child.kill()
            child.wait()
        self.assertEqual(self.fusee(*load)["failed"], 0)
        self.assertEqual([name for name in os.listdir(self.dir) if name.endswith(".clients")], [])

    def test_a_fusee_bench_that_cannot_do_without_a_memory_node_ends_in_time(self):
        for nodes in ("1", "2"):
            self.up("--no-metadata", "--memory-nodes", nodes)
            child = self.start("bench", "fusee", "--json", "--records", "500", "--duration", "5s")
            wait_until(lambda: f"fusee-{child.pid}-0" in self.node_states(), "the bench has joined")
            time.sleep(2)
            os.kill(self.daemon("memory1")["pid"], signal.SIGKILL)
            try:
                out, err = child.communicate(timeout=45)  # an operation that is under way has 15 s
            finally:
                child.kill()
            self.assertEqual(child.returncode, 1, err)
            self.assertGreater(json.loads(out)["failed"], 0)
            self.sluice("rack", "down", code=0)

    def test_a_bench_that_is_interrupted_twice_ends_at_once(self):
        self.up("--no-metadata", "--memory-nodes", "2")
        stopped = self.daemon("memory1")["pid"]
        os.kill(stopped, signal.SIGSTOP)
        try:
            child = self.start("bench", "fusee")  # has ten seconds of patience
            time.sleep(1)
            child.send_signal(signal.SIGINT)
            self.assertEqual(child.stderr.readline(), "ending what is under way; who interrupts again ends it at once\n")
            self.assertIsNone(child.poll())
            child.send_signal(signal.SIGINT)
            child.communicate(timeout=2)
            self.assertEqual(child.returncode, -signal.SIGINT)
        finally:
            os.kill(stopped, signal.SIGCONT)

    def test_a_bench_of_locks_that_is_interrupted_tells_what_it_saw(self):
        self.up("--no-metadata", "--memory-nodes", "1", "--memory-size", "64MiB")
        child = self.start("bench", "locks", "--duration", "60s", "--json")
        time.sleep(1.5)
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=20)
        self.assertEqual(child.returncode, 130)
        self.assertTrue(json.loads(out)["sound"])

    def test_what_a_fusee_store_cannot_be_like_is_told(self):
        self.up("--no-metadata", "--memory-size", "16MiB")
        refused = self.refused_by_store("fusee", "--index-slots", "4000000000", "--index-doublings", "16")
        self.assertIn("the store cannot be used: the index is too large", refused)
        self.assertIn("smaller index", self.refused_by_store("fusee", "--index-slots", "100000000"))
        self.assertIn("from 0 to 16280", self.sluice("bench", "fusee", "--value-size", "16281", code=2).stderr)

    def test_a_store_without_room_ends_the_load_and_says_what_to_do(self):
        self.up("--no-metadata", "--memory-size", "1MiB")
        refused = self.sluice("bench", "sherman", "--value-size", "1000", code=1, timeout=60)
        self.assertIn("no space for 10000 records of 1000 bytes: fewer --records", refused.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    live_rack.SLUICE = sys.argv.pop(1)
    unittest.main(verbosity=2)
