#!/usr/bin/env python3
"""Programs on libsluice against a rack of real processes.

usage: libsluice_test.py SLUICE APP [unittest arguments]

SLUICE is the program, APP tests/libsluice/app.c.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import live_rack  # noqa: E402
from live_rack import wait_until  # noqa: E402

PATIENCE_S = 120
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
APP = ""


class LibsluiceTest(live_rack.LiveRack):
    def setUp(self):
        super().setUp()
        self.sluice("rack", "up", "--no-metadata", "--memory-size", "16MiB", code=0)

    def app(self, *words):
        child = subprocess.Popen([APP, *words], env={**os.environ, "SLUICE_DIR": self.dir}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        self.children.append(child)
        return child

    def finish(self, child):
        out, err = child.communicate(timeout=PATIENCE_S)
        self.assertEqual(child.returncode, 0, out + err)
        return out

    def node_state(self, name):
        nodes = json.loads(self.sluice("rack", "status", "--json").stdout)["directory"].get("nodes", [])
        return next((node["state"] for node in nodes if node["name"] == name), None)

    def word(self, node, offset):
        return int(self.sluice("remote", "read", node, str(offset), "8", "--word", code=0).stdout)

    def test_every_call(self):
        self.assertIn("0 wrong", self.finish(self.app("check")))

    def test_several_programs_count_and_lose_nothing(self):
        apps = [self.app("count", "memory2", "20000") for _ in range(3)]
        for child in apps:
            self.finish(child)
        self.assertEqual(self.word("memory2", 0), 60000)

    def test_a_lock_excludes(self):
        apps = [self.app("lock", "memory1", "300") for _ in range(3)]
        for child in apps:
            self.finish(child)
        self.assertEqual(self.word("memory1", 16), 900)
        self.assertEqual(self.word("memory1", 8), 0)

    def test_memory_that_came_back_empty_is_never_taken_for_what_was_there(self):
        child = self.app("outlive", "memory1")
        self.assertEqual(child.stdout.readline(), "ready\n")
        os.kill(int(pathlib.Path(self.dir, "memory1.pid").read_text().split()[0]), signal.SIGKILL)
        child.stdin.write("go\n")
        child.stdin.flush()
        self.sluice("rack", "up", "--no-metadata", "--memory-size", "16MiB", code=0)
        out = self.finish(child)
        self.assertIn("memory1 has left the rack, or was started anew", out)
        self.assertIn("right", out)

    def test_a_client_whose_address_is_a_memory_nodes_on_the_next_rack_gives_way_and_goes_on(self):
        child = self.app("go-on", "memory1")
        self.assertEqual(child.stdout.readline(), "ready\n")
        self.sluice("rack", "down", code=0)
        self.sluice("rack", "up", "--no-metadata", "--memory-nodes", "4", "--memory-size", "16MiB", code=0)
        time.sleep(3)  # in which it finds out
        for node in "memory1", "memory2", "memory3", "memory4":
            self.finish(self.app("count", node, "2000"))
        child.stdin.write("enough\n")
        child.stdin.flush()
        self.assertEqual(self.finish(child), "right\n")

    def test_a_node_that_was_used_and_is_away_is_waited_for(self):
        child = self.app("await", "memory1")
        self.assertEqual(child.stdout.readline(), "ready\n")
        os.kill(int(pathlib.Path(self.dir, "memory1.pid").read_text().split()[0]), signal.SIGKILL)
        wait_until(lambda: self.node_state("memory1") == "gone", "its lease is over")
        child.stdin.write("go\n")
        child.stdin.flush()
        time.sleep(1)
        self.sluice("rack", "up", "--no-metadata", "--memory-size", "16MiB", code=0)
        self.assertEqual(self.finish(child), "right\n")

    def test_a_read_after_a_pause_waits_for_a_connection_that_was_lost(self):
        child = self.app("seldom", "memory1")
        node = int(pathlib.Path(self.dir, "memory1.pid").read_text().split()[0])
        for signal_number, said in (None, "ready\n"), (signal.SIGSTOP, "lost\n"), (signal.SIGCONT, "right\n"):
            if signal_number:
                os.kill(node, signal_number)
                child.stdin.write("go\n")
                child.stdin.flush()
            self.assertEqual(child.stdout.readline(), said)
        self.finish(child)

    def test_a_program_that_is_killed_takes_nothing_with_it(self):
        first = self.app("count", "memory2", "100000000")
        self.finish(self.app("count", "memory2", "1000"))
        first.kill()
        first.communicate()
        self.finish(self.app("check"))

    def test_without_descriptors_it_says_so_and_the_program_goes_on(self):
        out, err = self.app("poor", "memory1").communicate(timeout=PATIENCE_S)
        self.assertEqual((out, err), ("right\n", ""))

    def test_the_programs_signals_are_for_its_own_threads(self):
        self.assertEqual(self.finish(self.app("signals", "memory1")), "mine\n")

    def test_a_tenants_names_are_those_of_its_regions(self):
        token = self.folder + "/red.token"
        self.sluice("tenant", "add", "red", "--quota", "8MiB", "--out", token, code=0)
        for region in ("beta", "alpha"):
            self.sluice("region", "add", region, "1MiB", "--node", "memory1", "--token-file", token, code=0)
        self.assertEqual(self.finish(self.app("names", "memory1")), "memory1\nmemory2\nmemory1: is one\nNULL: a name is needed\n")
        with unittest.mock.patch.dict(os.environ, {"SLUICE_TOKEN_FILE": token}):
            out = self.finish(self.app("names", "alpha", "memory1"))
            self.assertEqual(out.splitlines()[:3], ["alpha", "beta", "alpha: is one"])
            self.assertIn("memory1: memory1 has several regions of yours; name one of ", out)
            self.sluice("region", "remove", "alpha", "--token-file", token, code=0)
            self.assertIn("memory1: is one", self.finish(self.app("names", "memory1")))

    def test_nothing_is_written_to_the_programs_output(self):
        child = self.app("quiet", "memory1")
        self.assertEqual(child.stdout.readline(), "before\n")
        os.kill(int(pathlib.Path(self.dir, "switch.pid").read_text().split()[0]), signal.SIGKILL)
        out, err = child.communicate(timeout=PATIENCE_S)
        self.assertEqual((child.returncode, out, err), (0, "after\n", ""))


class ExampleTest(unittest.TestCase):
    def test_ends_with_the_reason_where_an_operation_cannot_be_posted(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "sluice.h").write_text('#include "libsluice/sluice.h"\n')
            program = folder + "/counter"
            subprocess.run(["cc", f"-I{folder}", f"-I{ROOT / 'src'}", ROOT / "examples/remote/counter.c", ROOT / "tests/libsluice/refusing.c",
                            "-o", program], check=True)
            done = subprocess.run([program, "5"], capture_output=True, text=True, timeout=20)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (1, "", "memory1 was started anew\n"))


if __name__ == "__main__":
    live_rack.SLUICE, APP = (os.path.abspath(path) for path in sys.argv[1:3])
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
