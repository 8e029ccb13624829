#!/usr/bin/env python3
"""`sluice capture` on a live rack: real processes, real packets, read by tshark.

usage: capture_test.py SLUICE [TEST...]
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import live_rack  # noqa: E402
from live_rack import wait_until  # noqa: E402

COMPARE_SWAP = 0x13  # BTH opcode
IN, OUT = 1, 2  # pcapng, epb_flags


def fields(path, *names):
    """Of every frame what tshark makes of these fields."""
    words = ["tshark", "-r", str(path), "-T", "fields"]
    for name in names:
        words += ["-e", name]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    return [tuple(line.split("\t")) for line in done.stdout.splitlines()]


class Capture(live_rack.LiveRack):
    def up(self, *flags):
        self.sluice("rack", "up", "--memory-nodes", "2", "--memory-size", "64MiB", "--no-metadata", *flags, code=0)

    def captures(self):
        return live_rack.metrics(self.dir + "/directory.sock").get("sluice_switch_captures")

    def add(self, node="memory1"):
        return self.sluice("remote", "add", node, "0", "1", code=0)

    def capture(self, *words):
        """A capture that is under way, alone."""
        wait_until(lambda: not self.captures(), "the switch has let the one before go")
        child = self.start("capture", *words)
        wait_until(lambda: self.captures() == 1, "the capture has begun")
        return child

    def stop(self, child, how=signal.SIGINT):
        child.send_signal(how)
        out, err = child.communicate(timeout=30)
        self.assertEqual(child.returncode, 0, err)
        return out, err

    def test_frames_are_printed_as_they_pass(self):
        self.up()
        child = self.capture("--node", "memory1")
        self.add("memory2")
        self.add("memory1")
        self.add("memory2")
        out, err = self.stop(child)
        lines = out.splitlines()
        self.assertEqual([int(line.split()[0]) for line in lines], list(range(1, len(lines) + 1)))
        self.assertEqual(sum("FETCH_ADD" in line for line in lines), 1, out)
        self.assertEqual(sum("ATOMIC_ACKNOWLEDGE" in line for line in lines), 1, out)
        answer = next(line for line in lines if "ATOMIC_ACKNOWLEDGE" in line)
        self.assertRegex(answer, r" in  \d+:memory1 .* icrc ok")
        self.assertIn(f"captured {len(lines)} frames, 0 lost", err)
        wait_until(lambda: self.captures() == 0, "the switch has let it go")

    def test_count_time_and_filter_end_and_choose(self):
        self.up()
        child = self.capture("--count", "3", "udp", "port", "4791")
        while child.poll() is None:
            self.add()
        out, err = child.communicate()
        self.assertEqual(len(out.splitlines()), 3, err)
        began = time.monotonic()
        self.sluice("capture", "--for", "1s", code=0)
        self.assertLess(time.monotonic() - began, 5)

    @unittest.skipUnless(shutil.which("tshark"), "tshark is not installed")
    def test_a_file_shows_both_sides_of_the_box(self):
        """A lock's CAS comes in as such, and leaves as the WRITE that the box has made of it; tshark knows interfaces, directions and names."""
        self.up("--box", "words")
        path = pathlib.Path(self.folder) / "both.pcapng"
        child = self.capture("--direction", "both", "--out", str(path), "udp", "port", "4791")
        self.sluice("bench", "locks", "--clients", "4", "--duration", "200ms", code=0)
        _, err = self.stop(child)
        self.assertIn(" 0 lost", err)
        seen = fields(path, "frame.interface_name", "frame.packet_flags_direction", "infiniband.bth.opcode")
        self.assertGreater(len(seen), 1000)
        swaps = [int(direction, 0) for _, direction, opcode in seen if opcode and int(opcode, 0) == COMPARE_SWAP]
        self.assertGreater(swaps.count(IN), 200)
        self.assertLess(swaps.count(OUT), swaps.count(IN) / 2)
        self.assertTrue(any(name.endswith((":memory1", ":memory2")) for name, _, _ in seen))
        shown = live_rack.run("pcap", "show", str(path)).stdout.splitlines()
        self.assertEqual([(line.split()[3], line.split()[2]) for line in shown], [(name, "in" if int(way, 0) == IN else "out") for name, way, _ in seen])
        stamps = [float(stamp) for (stamp,) in fields(path, "frame.time_epoch")]
        self.assertEqual(stamps, sorted(stamps))
        self.assertLess(abs(stamps[-1] - time.time()), 60)
        # What came in is complete and sound: every ICRC is right.
        incoming = pathlib.Path(self.folder) / "in.pcap"
        child = self.capture("--out", str(incoming))
        self.add()
        self.stop(child)
        self.assertEqual(live_rack.run("pcap", "check", str(incoming)).returncode, 0)
        self.assertEqual(incoming.stat().st_mode & 0o777, 0o600)
        # Cut, it tells what its headers say, and is not verified.
        child = self.capture("--out", str(incoming), "--snap", "96", "--buffer", "1MiB", "--count", "2", "greater", "400")
        for _ in range(2):
            self.sluice("remote", "write", "memory1", "0", "--text", "x" * 500, code=0)
        child.communicate(timeout=30)
        shown = live_rack.run("pcap", "show", str(incoming))
        self.assertEqual(shown.returncode, 0)
        for line in shown.stdout.splitlines():
            self.assertRegex(line, r" in +\d+:.* \| cut, 96 of \d+ bytes")
        self.assertIn("RDMA_WRITE", shown.stdout)
        checked = live_rack.run("pcap", "check", str(incoming))
        self.assertEqual((checked.returncode, "2 cut and so not verified, 0 wrong" in checked.stdout), (1, True), checked.stdout)
        # Nothing has passed: it is a capture all the same. And what is refused leaves the file as it was.
        self.sluice("capture", "--for", "1s", "--out", str(incoming), "udp", "port", "1", code=0)
        self.assertEqual(live_rack.run("pcap", "check", str(incoming)).returncode, 0)
        before = incoming.read_bytes()
        self.sluice("capture", "--out", str(incoming), "--node", "memory7", code=1)
        self.assertEqual(incoming.read_bytes(), before)

    def test_a_reader_that_stops_holds_up_nobody(self):
        self.up()
        child = self.capture("--direction", "both", "--out", "/dev/null")
        child.send_signal(signal.SIGSTOP)
        # Beyond what its ring and its socket hold.
        much = pathlib.Path(self.folder) / "much"
        much.write_bytes(bytes(16 << 20))
        for _ in range(2):
            self.sluice("remote", "write", "memory1", "0", "--file", str(much), code=0)
        self.assertEqual(self.captures(), 1)
        child.kill()
        wait_until(lambda: self.captures() == 0, "the switch has let it go")
        # And one that is killed while nothing passes.
        child = self.capture()
        child.kill()
        wait_until(lambda: self.captures() == 0, "the switch has let it go")

    def test_a_reader_that_has_had_enough_ends_it(self):
        self.up()
        child = self.capture("--node", "memory1")
        child.stdout.close()
        self.add()
        self.assertEqual(child.wait(timeout=10), 0, child.stderr.read())
        # Also in the midst of more than a buffer holds, wherever it is then.
        for _ in range(5):
            child = self.capture("--direction", "both")
            load = self.start("bench", "locks", "--clients", "4", "--duration", "600ms")
            child.stdout.readline()
            time.sleep(0.3)
            child.stdout.close()
            status, err = child.wait(timeout=10), child.stderr.read()
            self.assertEqual((status, "stdout" in err), (0, False), err)
            load.communicate(timeout=30)

    def test_a_signal_ends_it_also_while_it_waits_for_a_reader(self):
        self.up()
        pipe = self.folder + "/pipe"
        os.mkfifo(pipe)
        for words in (("--out", pipe), ("--direction", "both")):  # nobody opens it; nobody reads stdout
            child = self.start("capture", *words)
            wait_until(lambda: self.captures() == 1, "the capture has begun")
            for _ in range(20):
                self.sluice("remote", "read", "memory1", "0", "1MiB", code=0)
            child.send_signal(signal.SIGTERM)
            self.assertEqual(child.wait(timeout=10), 0)
            wait_until(lambda: self.captures() == 0, "the switch has let it go")

    def test_what_cannot_be_is_told(self):
        down = self.sluice("capture", code=1)
        self.assertIn("sluice rack up", down.stderr)
        self.up()
        for words, told in (
            (("--node", "memory7"), "no node 'memory7' is on the rack"),
            (("--out", self.folder + "/none/x.pcapng"), "No such file or directory"),
        ):
            refused = self.sluice("capture", *words, code=1)
            self.assertIn(told, refused.stderr)
            self.assertEqual(len(refused.stderr.splitlines()), 1, refused.stderr)
        for words, told in ((("udp", "prot", "4791"), "pcap-filter(7)"), (("--snap", "64"), "--out"), (("inbound",), "--direction says in or out")):
            refused = self.sluice("capture", *words, code=2)
            self.assertIn(told, refused.stderr)
            self.assertEqual(len(refused.stderr.splitlines()), 1, refused.stderr)
        self.assertIn("power of two", self.sluice("capture", "--buffer", "3MiB", code=2).stderr)
        full = self.sluice("capture", "--for", "1s", "--out", "/dev/full", code=1)
        self.assertIn("No space left on device", full.stderr)
        wait_until(lambda: self.captures() == 0, "none is under way any more")
        running = [self.start("capture") for _ in range(4)]
        wait_until(lambda: self.captures() == 4, "four captures")
        self.assertIn("4 captures are under way already; end one of them", self.sluice("capture", code=1).stderr)
        self.sluice("rack", "down", code=0)
        for child in running:
            _, err = child.communicate(timeout=30)
            self.assertEqual(child.returncode, 1)
            self.assertIn("the switch has ended it", err)

    def test_tenants_see_nothing_and_operators_until_they_are_revoked(self):
        self.up()
        token = pathlib.Path(self.folder) / "token"
        self.sluice("tenant", "add", "red", "--quota", "1MiB", "--out", str(token), code=0)
        refused = self.sluice("capture", "--for", "1s", "--token-file", str(token), code=1)
        self.assertIn("/v1/capture", refused.stderr)
        token = pathlib.Path(self.folder) / "operators"
        self.sluice("tenant", "add", "ops", "--operator", "--out", str(token), code=0)
        child = self.capture("--token-file", str(token))
        self.sluice("tenant", "revoke", "ops", code=0)
        _, err = child.communicate(timeout=10)
        self.assertEqual(child.returncode, 1)
        self.assertIn("the switch has ended it", err)


if __name__ == "__main__":
    live_rack.SLUICE = sys.argv.pop(1)
    unittest.main(verbosity=2)
