#!/usr/bin/env python3
"""Steering in the kernel, live: a Clover store whose memory node lies behind a veth pair, with the program on both of its ends, in a network
namespace of the test's own. Exits with 77 and says why where that cannot be had.

usage: live_test.py SLUICE [TEST...]
"""

import ctypes
import json
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import live_rack  # noqa: E402
from live_rack import run  # noqa: E402

CLONE_NEWNET = 0x40000000


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


def refusal():
    """Why it cannot be had here, or nothing."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        return "no network namespace of our own (needs root)"
    ip("link", "set", "lo", "up")
    # A path MTU of 2048 passes; what is longer does not fit into the one buffer that an XDP program sees.
    if ip("link", "add", "near", "mtu", "3400", "type", "veth", "peer", "name", "far", "mtu", "3400").returncode != 0:
        return "`ip link add ... type veth` does not work here"
    for end in ("near", "far"):
        ip("link", "set", end, "addrgenmode", "none")
        ip("link", "set", end, "up")
    probe = run("xdp", "attach", "near", "far", "--region", "10.0.0.1:1")
    if probe.returncode != 0:
        return probe.stderr.strip() or "XDP does not work here"
    run("xdp", "detach")
    return ""


class SteeringInTheKernel(live_rack.LiveRack):
    def setUp(self):
        super().setUp()
        config = pathlib.Path(self.folder + "/rack.toml")
        config.write_text('[switch]\nports = ["packet:near"]\n[memory]\nport = "packet:far"\n')
        self.sluice("rack", "up", "--config", str(config), "--memory-nodes", "1", "--memory-size", "1GiB", "--value-size", "128")

    def tearDown(self):
        run("xdp", "detach")
        super().tearDown()

    def sluice(self, *words, code=0, with_dir=True):
        done = run(*words, *(("--dir", self.dir) if with_dir else ()))
        self.assertEqual(done.returncode, code, f"{words}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def bench(self, *flags):
        return json.loads(self.sluice("bench", "clover", "--json", "--clients", "16", "--caches", "16", "--records", "200",
                                      "--operations", "8000", "--check", *flags))

    def show(self):
        return json.loads(self.sluice("xdp", "show", "near", "--json", with_dir=False))

    @staticmethod
    def lost_swaps(result):
        cost = result["run"]["cost"]
        return cost["atomics_failed"] / cost["atomics"]

    def test_a_store_is_steered_and_histories_are_linearizable(self):
        off = self.bench("--workload", "w50")
        self.sluice("xdp", "attach", "near", "far")
        on = self.bench("--workload", "w50", "--phase", "all")
        shown = self.show()
        self.assertTrue(off["history"]["linearizable"])
        self.assertTrue(on["history"]["linearizable"])
        self.assertEqual(on["run"]["values_wrong"], 0)
        counters = shown["counters"]
        self.assertGreater(counters["CasSteered"], 100)
        self.assertGreater(counters["ReadSteered"], 100)
        self.assertGreater(counters["connections_announced"], 0)
        print(f"    swaps lost: {self.lost_swaps(off):.1%} without, {self.lost_swaps(on):.1%} steered in the kernel", file=sys.stderr)
        self.assertLess(self.lost_swaps(on), self.lost_swaps(off))
        # In the midst of work it goes and comes back, and nothing is lost by that.
        self.sluice("xdp", "detach", with_dir=False)
        self.sluice("xdp", "show", code=1, with_dir=False)
        after = self.bench("--workload", "A", "--phase", "all")
        self.assertTrue(after["history"]["linearizable"])

    def test_its_state_can_be_lost_at_any_time(self):
        """Detached and attached anew, again and again, while clients write: whose connections are then not followed."""
        self.sluice("xdp", "attach", "near", "far")
        child = subprocess.Popen([live_rack.SLUICE, "bench", "clover", "--json", "--clients", "16", "--caches", "16", "--records", "200", "--workload",
                                  "w50", "--duration", "4s", "--check", "--dir", self.dir], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True)
        turns = 0
        while child.poll() is None:
            self.sluice("xdp", "detach", with_dir=False)
            self.sluice("xdp", "attach", "near", "far")
            turns += 1
        out, err = child.communicate()
        result = json.loads(out)
        self.assertTrue(result["history"]["linearizable"], err)
        self.assertEqual(result["run"]["values_wrong"], 0)
        self.assertGreater(turns, 2)


class Attaching(unittest.TestCase):
    def tearDown(self):
        run("xdp", "detach")

    def test_an_interface_that_has_none_says_so(self):
        self.assertIn("no steering program", run("xdp", "show", "near").stderr)
        self.assertIn("no interface nowhere", run("xdp", "attach", "nowhere", "--region", "10.0.0.1:1").stderr)
        self.assertIn("near is named twice", run("xdp", "attach", "near", "near", "--region", "10.0.0.1:1").stderr)

    def test_memory_is_named_by_an_ipv6_address_in_brackets(self):
        done = run("xdp", "attach", "near", "--region", "[fd00::2]:0x1234", "--region", "10.0.0.1:1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(run("xdp", "show", "near", "--json").stdout)["regions"], 2)
        self.assertIn("[fd00::2]:0x1234", run("xdp", "attach", "far", "--region", "fd00::2").stderr)

    def test_across_before_the_network_stack_says_what_is_lost_there(self):
        """A veth device takes no program whose frames may be longer than a page."""
        self.assertEqual(ip("link", "add", "left", "mtu", "4500", "type", "veth", "peer", "name", "right", "mtu", "4500").returncode, 0)
        self.addCleanup(ip, "link", "del", "left")
        done = run("xdp", "attach", "--out", "across", "left", "right", "--region", "10.0.0.1:1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("`ethtool -K left gro off`, `ethtool -K right gro off`", done.stdout)
        run("xdp", "detach")
        for words in (["--out", "across", "near", "far"], ["left", "right"]):
            done = run("xdp", "attach", *words, "--region", "10.0.0.1:1")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("gro off", done.stdout)
            run("xdp", "detach")


if __name__ == "__main__":
    live_rack.SLUICE = str(pathlib.Path(sys.argv[1]).resolve())
    why = refusal()
    if why:
        print(f"skipped: {why}")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
