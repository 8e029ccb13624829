#!/usr/bin/env python3
"""RocksDB with its secondary cache in remote memory: right values, hits, and a database that does not care when engine or memory node die."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

from engine_test import PATIENCE, Rack

BENCH = sys.argv[2]


def bench(rack, *arguments):
    """The benchmark on a database of its own: 20 MB of data, of which a tenth fits into the block cache."""
    return subprocess.Popen(
        [BENCH, "--db", f"{rack.dir}/db", "--engine", rack.socket, "--records", "40000", "--buffered", "--json", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class RocksDb(unittest.TestCase):
    def wait_for(self, process, line):
        for said in process.stderr:
            if said.strip() == line:
                return
        self.fail(f"the benchmark ended before it said: {line}")

    def outcomes(self, process):
        out, err = process.communicate(timeout=3 * PATIENCE)
        self.assertEqual(process.returncode, 0, out + err)
        return {o["cache"]: o for o in map(json.loads, out.splitlines())}

    def test_blocks_come_back_from_remote_memory_and_every_value_is_right(self):
        with Rack() as rack:
            rack.start_engine()
            found = self.outcomes(bench(rack, "--reads", "8000", "--threads", "2", "--caches", "none,cowbird"))
            self.assertEqual(found["none"]["in_secondary"], 0)
            remote = found["cowbird"]
            self.assertEqual(remote["wrong"], 0)
            self.assertGreater(remote["in_secondary"], remote["on_disk"] // 4)
            self.assertEqual(remote["cowbird"]["failed"], 0)

    def test_a_killed_engine_costs_hits_and_nothing_else_and_a_new_one_is_found(self):
        with Rack() as rack:
            engine = rack.start_engine()
            process = bench(rack, "--reads", "8000", "--caches", "cowbird")
            self.wait_for(process, "cowbird: warming up")
            engine.send_signal(signal.SIGKILL)
            engine.wait(PATIENCE)
            rack.start_engine("--name", "engine2")
            out, err = process.communicate(timeout=3 * PATIENCE)
            self.assertEqual(process.returncode, 0, out + err)
            self.assertEqual(json.loads(out)["wrong"], 0)

    def test_a_killed_memory_node_costs_hits_and_nothing_else(self):
        with Rack() as rack:
            rack.start_engine("--patience", "200ms")
            process = bench(rack, "--reads", "8000", "--caches", "cowbird")
            self.wait_for(process, "cowbird: warming up")
            os.kill(rack.pid_of("memory1"), signal.SIGKILL)
            out, err = process.communicate(timeout=3 * PATIENCE)
            self.assertEqual(process.returncode, 0, out + err)
            self.assertEqual(json.loads(out)["wrong"], 0)

    def wait_for_text(self, file, text):
        for _ in range(PATIENCE * 10):
            if text in pathlib.Path(file).read_text():
                return
            time.sleep(0.1)
        self.fail(f"{file} never said: {text}")

    def outcome_after(self, rack, losing):
        """`losing()`: the memory node gets another key, while the benchmark stands still."""
        rack.start_engine("--patience", "200ms")
        process = bench(rack, "--reads", "10000", "--caches", "cowbird")
        self.addCleanup(process.kill)
        self.wait_for(process, "cowbird: warming up")
        time.sleep(0.5)
        process.send_signal(signal.SIGSTOP)
        losing()
        time.sleep(2)  # the engine connects to it again
        process.send_signal(signal.SIGCONT)
        outcome = self.outcomes(process)["cowbird"]
        self.assertEqual(outcome["wrong"], 0)
        return outcome

    def test_a_memory_node_that_has_lost_its_lease_is_used_again(self):
        with Rack() as rack:
            def losing():
                node = rack.pid_of("memory1")
                os.kill(node, signal.SIGSTOP)
                time.sleep(4)  # the lease has 3 s
                os.kill(node, signal.SIGCONT)
                self.wait_for_text(f"{rack.dir}/memory1.log", "the lease was lost")
            found = self.outcome_after(rack, losing)
            self.assertGreater(found["in_secondary"], found["on_disk"] // 4)

    def test_a_memory_node_that_was_started_anew_is_used_again(self):
        with Rack() as rack:
            def losing():
                rack.replace_memory("memory1")
                self.wait_for_text(f"{rack.dir}/memory1-again.log", "ready")
            found = self.outcome_after(rack, losing)
            self.assertGreater(found["in_secondary"], found["on_disk"] // 4)

    def test_says_what_is_missing(self):
        with Rack() as rack:
            process = bench(rack, "--reads", "10", "--caches", "cowbird")
            _, err = process.communicate(timeout=PATIENCE)
            self.assertEqual(process.returncode, 1)
            self.assertIn("start one with `sluice cowbird engine`", err)
            again = bench(rack, "--reads", "10", "--caches", "none")
            _, err = again.communicate(timeout=PATIENCE)
            self.assertEqual(again.returncode, 1)
            self.assertIn("name a folder that is empty", err)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
