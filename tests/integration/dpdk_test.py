#!/usr/bin/env python3
"""A switch with a port on a DPDK device: a memory node at the other end of a veth pair, a store in it, a box in between.

Runs itself again in a network namespace of its own; exits with 77 and says why where that is not to be had, or where `sluice` was
built without DPDK.

usage: dpdk_test.py SLUICE
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SLUICE = ""
INSIDE = "SLUICE_TEST_INSIDE"


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


class SwitchOnADevice(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="sluice-dpdk-", dir="/tmp")
        self.dir = self.folder + "/run"
        self.children = []

    def tearDown(self):
        for child in self.children:
            child.terminate()
        for child in self.children:
            child.communicate(timeout=20)
        shutil.rmtree(self.folder)

    def start(self, *words):
        """Starts a daemon and waits until it says that it is ready."""
        child = subprocess.Popen([SLUICE, *words, "--dir", self.dir], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.children.append(child)
        said = ""
        for line in child.stdout:
            said += line
            if "ready" in line:
                return child
        self.fail(f"{words}: {said}")

    def refusal(self, *words):
        done = subprocess.run([SLUICE, *words, "--dir", self.dir], capture_output=True, text=True, timeout=60, check=False)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        return done.stderr

    def test_steering_on_an_interface_stays_when_af_xdp_would_take_its_place(self):
        interfaces = ("near", "far")
        for name in interfaces:
            subprocess.run(["ip", "link", "set", name, "mtu", "1500"], check=True)
        attached = subprocess.run([SLUICE, "xdp", "attach", *interfaces, "--region", "192.0.2.7:0x1234"], capture_output=True, text=True, timeout=60, check=False)
        if attached.returncode != 0:
            self.skipTest(attached.stderr)
        try:
            self.assertIn("near has an XDP program already", self.refusal("switch", "--port", "dpdk:af_xdp,iface=near"))
            for name in interfaces:
                self.assertEqual(subprocess.run([SLUICE, "xdp", "show", name], capture_output=True, timeout=60, check=False).returncode, 0, name)
        finally:
            subprocess.run([SLUICE, "xdp", "detach"], capture_output=True, timeout=60, check=True)
            for name in interfaces:
                subprocess.run(["ip", "link", "set", name, "mtu", "4500"], check=True)

    def test_an_interface_is_taken_once(self):
        self.assertIn("another port is on near already", self.refusal("switch", "--port", "packet:near", "--port", "dpdk:af_packet,iface=near"))

    def test_memory_on_an_interface_with_a_small_mtu_is_reached_with_a_smaller_path_mtu(self):
        for name in ("near", "far"):
            subprocess.run(["ip", "link", "set", name, "mtu", "1500"], check=True)
        try:
            self.start("switch", "--port", "packet:near")
            self.start("memory", "--size", "256MiB", "--port", "packet:far")
            self.start("metadata", "--value-size", "3000")
            self.assertTrue(self.bench()["history"]["linearizable"])
        finally:
            for name in ("near", "far"):
                subprocess.run(["ip", "link", "set", name, "mtu", "4500"], check=True)

    def test_a_tree_is_not_used_with_packets_that_are_too_small_for_its_nodes(self):
        for name in ("near", "far"):
            subprocess.run(["ip", "link", "set", name, "mtu", "1000"], check=True)
        try:
            self.start("switch", "--port", "packet:near")
            self.start("memory", "--size", "256MiB", "--port", "packet:far")
            self.assertIn("its nodes need packets of 1024 bytes, and an interface here holds 512", self.refusal("bench", "sherman", "--records", "100"))
        finally:
            for name in ("near", "far"):
                subprocess.run(["ip", "link", "set", name, "mtu", "4500"], check=True)

    def bench(self):
        done = subprocess.run([SLUICE, "bench", "clover", "--json", "--check", "--clients", "8", "--records", "100", "--operations",
                               "2000", "--workload", "w50", "--dir", self.dir], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_a_store_behind_packet_sockets_is_steered_and_linearizable(self):
        self.start("switch", "--box", "clover", "--port", "dpdk:af_packet,iface=near")
        self.start("memory", "--size", "256MiB", "--port", "packet:far")
        self.start("metadata", "--value-size", "128")
        result = self.bench()
        self.assertTrue(result["history"]["linearizable"])
        top = subprocess.run([SLUICE, "box", "top", "--json", "--dir", self.dir], capture_output=True, text=True, timeout=20, check=True)
        counters = json.loads(top.stdout)["counters"]
        self.assertGreater(counters["CasSteered"], 50)
        self.assertNotIn("chains_broken", counters)


def main():
    global SLUICE  # pylint: disable=global-statement
    SLUICE = os.path.abspath(sys.argv.pop(1))
    if INSIDE not in os.environ:
        again = ["unshare", "--net", sys.executable, __file__, SLUICE, *sys.argv[1:]]
        if subprocess.run(["unshare", "--net", "ip", "link", "add", "near", "type", "veth", "peer", "name", "far"], capture_output=True,
                          check=False).returncode != 0:
            skip("no network namespace of our own, or no veth in it (needs root, package iproute2, kernel module veth)")
        sys.exit(subprocess.run(again, env={**os.environ, INSIDE: "1"}, check=False).returncode)
    for command in ("ip link set lo up", "ip link add near type veth peer name far", "ip link set near addrgenmode none",
                    "ip link set far addrgenmode none", "ip link set near mtu 4500", "ip link set far mtu 4500", "ip link set near up",
                    "ip link set far up"):
        subprocess.run(command.split(), check=True)
    said = subprocess.run([SLUICE, "switch", "--port", "dpdk:null,size=no", "--dir", tempfile.gettempdir() + "/sluice-dpdk-none"],
                          capture_output=True, text=True, timeout=30, check=False)
    if "has no DPDK in it" in said.stderr + said.stdout:
        skip("sluice was built without DPDK")
    unittest.main(verbosity=2)


if __name__ == "__main__":
    main()
