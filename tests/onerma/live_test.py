#!/usr/bin/env python3
"""1RMA between real processes: every port, sealed and plain, and what is said when keys, target or arguments are wrong."""
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

SLUICE = pathlib.Path(sys.argv[1]).resolve()
PATIENCE = 240  # seconds, for the slowest: four points, each in a process pair of its own, on a crowded machine


def bench(*arguments):
    return subprocess.run([SLUICE, "onerma", "bench", "--json", "--duration", "200ms", *arguments], capture_output=True,
                          text=True, timeout=PATIENCE, check=False)


class Target:
    """A target on a cable, in a folder of its own."""

    def __init__(self, *arguments):
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-")
        self.port = f"shm:{self.folder.name}/cable"
        self.grants = f"{self.folder.name}/grants.json"
        self.process = subprocess.Popen(
            [SLUICE, "onerma", "target", "--port", f"cable:{self.folder.name}/cable", "--grants", self.grants, "--memory", "64MiB",
             *arguments], stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        assert "serves" in self.process.stderr.readline()
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(PATIENCE)
        self.process.stderr.close()
        self.folder.cleanup()

    def bench(self, *arguments):
        return bench("--port", self.port, "--grants", self.grants, "--ops", "read", "--sizes", "64", "--depths", "16", *arguments)


class Onerma(unittest.TestCase):
    def test_all_ports_carry_it_beside_rc(self):
        for through in ("cable", "udp", "switch"):
            with self.subTest(through=through):
                done = bench("--through", through, "--sizes", "64", "--sizes", "1MiB", "--depths", "4")
                self.assertEqual(done.returncode, 0, done.stderr)
                points = json.loads(done.stdout)
                self.assertEqual(len(points), 3 * 2 * 2)  # transports, operations, sizes
                for point in points:
                    self.assertGreater(point["ops_per_second"], 0)

    def test_a_target_of_its_own_and_its_grants(self):
        with Target("--clients", "2") as target:
            self.assertEqual(stat.S_IMODE(os.stat(target.grants).st_mode), 0o600)
            sealed = target.bench("--transports", "sealed")
            self.assertEqual(sealed.returncode, 0, sealed.stderr)
            plain = target.bench("--transports", "plain")
            self.assertEqual(plain.returncode, 1)
            self.assertIn("access denied", plain.stderr)
            third = target.bench("--transports", "sealed")
            self.assertEqual(third.returncode, 1)
            self.assertIn("has no grant left", third.stderr)

    def test_forged_grants_read_nothing(self):
        with Target() as target:
            text = json.loads(pathlib.Path(target.grants).read_text())

            def other_keys(node):
                if isinstance(node, dict):
                    return {k: other_keys(v) for k, v in node.items()}
                if isinstance(node, list):
                    return [other_keys(v) for v in node]
                if isinstance(node, str) and len(node) == 32:
                    return node[::-1]
                return node

            forged = other_keys(text)
            self.assertNotEqual(forged, text)
            pathlib.Path(target.grants).write_text(json.dumps(forged))
            done = target.bench("--transports", "sealed")
            self.assertEqual(done.returncode, 1)
            self.assertIn("are these its grants", done.stderr)

    def test_a_killed_target_is_told_and_nothing_hangs(self):
        with Target() as target:
            client = subprocess.Popen(
                [SLUICE, "onerma", "bench", "--port", target.port, "--grants", target.grants, "--transports", "sealed", "--ops",
                 "read", "--depths", "16", "--sizes", "64", "--duration", "600s"], stderr=subprocess.PIPE, text=True)
            time.sleep(1)
            target.process.send_signal(signal.SIGKILL)
            _, err = client.communicate(timeout=PATIENCE)
            self.assertEqual(client.returncode, 1)
            self.assertIn("sealed read of 64 bytes, depth 16", err)

    def test_says_what_is_wrong(self):
        for arguments, what in ((["--grants", "/nowhere.json"], "--port and --grants belong together"),
                                (["--ops", "cas"], "must be read or write"),
                                (["--sizes", "2MiB"], "up to 1MiB"),
                                (["--transports", "tcp"], "must be sealed, plain or rc"),
                                (["--port", "shm:/nowhere", "--grants", "/nowhere.json", "--transports", "sealed"], "no file of grants")):
            done = bench(*arguments)
            self.assertEqual(done.returncode, 1)
            self.assertIn(what, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
