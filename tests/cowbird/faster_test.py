#!/usr/bin/env python3
"""The FASTER device against a rack: a log that goes round and round remote memory, every byte checked, also when the engine is replaced."""
import signal
import subprocess
import sys
import time
import unittest

from engine_test import PATIENCE, Rack

CHECK = sys.argv[2]


def check(rack, megabytes):
    return subprocess.Popen([CHECK, rack.socket, str(megabytes)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Faster(unittest.TestCase):
    def finish(self, process):
        out, err = process.communicate(timeout=3 * PATIENCE)
        self.assertEqual(process.returncode, 0, out + err)
        self.assertIn(" 0 wrong", out)

    def test_every_byte_of_the_log_comes_back(self):
        with Rack() as rack:
            rack.start_engine()
            self.finish(check(rack, 24))

    def test_a_killed_engine_delays_and_loses_nothing(self):
        with Rack() as rack:
            engine = rack.start_engine()
            process = check(rack, 200)
            self.assertEqual(process.stdout.readline(), "begins\n")
            time.sleep(0.3)
            self.assertIsNone(process.poll(), "it has ended before the engine was killed")
            engine.send_signal(signal.SIGKILL)
            engine.wait(PATIENCE)
            rack.start_engine("--name", "engine2")
            self.finish(process)

    def test_says_what_is_missing(self):
        with Rack() as rack:
            process = check(rack, 24)
            _, err = process.communicate(timeout=PATIENCE)
            self.assertEqual(process.returncode, 1)
            self.assertIn("start one with `sluice cowbird engine`", err)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
