#!/usr/bin/env python3
"""A box on a wire that is not its own: between a rack and a memory node on another machine, it knows of neither, and they know nothing of it.

usage: inline_test.py SLUICE [TEST...]

SLUICE is the program. Exits with 77 where no namespaces can be had.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import live_rack  # noqa: E402
from live_rack import run, wait_until  # noqa: E402
from neighbor import Neighbor, enter_namespace  # noqa: E402

PATIENCE = 240
SWITCH, OTHER = "10.9.9.1", "10.9.9.2"
SERVE = f"{SWITCH}:7472"


class InlineTest(live_rack.LiveRack):
    @classmethod
    def setUpClass(cls):
        """rack0 - left [box] right - far0, which is there."""
        cls.other = Neighbor(SWITCH, OTHER)
        cls.addClassCleanup(cls.other.end)
        cls.other.join("right", "far0", "mtu 4200")
        cls.other.run_here("ip link add rack0 mtu 4200 type veth peer name left mtu 4200")
        for name in ("rack0", "left"):
            cls.other.run_here(f"ip link set {name} up")
        # A veth leaves cutting to hardware that is not there; on a wire it is. Its checksums the box finishes.
        for prefix, name in (([], "rack0"), ([], "left"), ([], "right"), (cls.other.prefix, "far0")):
            subprocess.run([*prefix, "ethtool", "-K", name, "tso", "off", "gso", "off", "gro", "off"], check=True, stdout=subprocess.DEVNULL)

    def setUp(self):
        super().setUp()
        self.there_dir = self.folder + "/there"
        self.box_dir = self.folder + "/box"

    def start_box(self, *flags):
        # Its own subnet, and no routing: it is no part of the rack's network but a piece of wire.
        self.box = subprocess.Popen([live_rack.SLUICE, "switch", "--dir", self.box_dir, "--subnet", "10.78.0.0", "--no-router", "--port", "packet:left,filter=all",
                                     "--port", "packet:right,filter=all", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.children.append(self.box)
        wait_until(lambda: self.box_status() is not None or self.box.poll() is not None, "the box is up", PATIENCE)
        self.assertIsNone(self.box.poll(), self.box.poll() is not None and self.box.communicate())

    def box_status(self):
        done = run("box", "top", "--json", "--dir", self.box_dir)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def there(self, *words):
        return [*self.other.prefix, live_rack.SLUICE, *words, "--dir", self.there_dir]

    def nodes(self):
        done = self.sluice("rack", "status", "--json")
        return {n["name"]: n for n in json.loads(done.stdout)["directory"].get("nodes", [])} if done.stdout.startswith("{") else {}

    def rack_with_memory_there(self):
        self.sluice("rack", "init", SWITCH, code=0)
        self.switch = self.start("switch", "--port", "packet:rack0,filter=all", "--serve", SERVE)
        wait_until(lambda: "switch" in self.nodes() or self.switch.poll() is not None, "the switch is up", PATIENCE)
        self.assertIsNone(self.switch.poll(), self.switch.poll() is not None and self.switch.communicate())
        invitation = self.folder + "/invitation.json"
        self.sluice("rack", "invite", "m2", "--out", invitation, code=0)
        subprocess.run(self.there("rack", "join", invitation), check=True, capture_output=True)
        self.memory = subprocess.Popen(self.there("memory", "--name", "far", "--size", "64MiB", "--port", "packet:far0,filter=all"), stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True)
        self.children.append(self.memory)
        wait_until(lambda: self.nodes().get("far", {}).get("state") == "ready" or self.memory.poll() is not None, "the memory node is ready", PATIENCE)
        self.assertIsNone(self.memory.poll(), self.memory.poll() is not None and self.memory.communicate())
        return self.nodes()["far"]["ip"]

    def contend(self):
        done = self.sluice("bench", "locks", "--clients", "16", "--duration", "2s", "--json", code=0)
        return json.loads(done.stdout)

    def test_locks_on_a_server_that_only_the_box_was_told_of_are_replaced(self):
        address = self.rack_with_memory_there()
        self.start_box("--box", "words", "--box-server", address)
        result = self.contend()
        counters = self.box_status()["counters"]
        self.assertGreater(counters.get("AtomicReplaced", 0), 1000, counters)
        self.assertEqual(self.box_status()["asymmetric"], "")
        self.assertGreater(result["turns"], 0, result)
        self.assertTrue(result["sound"], result)

    def test_what_is_no_roce_crosses_untouched(self):
        self.start_box("--box", "words", "--box-server", "192.0.2.7")
        self.other.run_here("ip address add 10.5.0.1/24 dev rack0")
        self.other.run_there("ip address add 10.5.0.2/24 dev far0")
        payload = os.urandom(1 << 20)
        received = []

        def take():
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as stream:
                received.append(stream.read())

        with socket.create_server(("10.5.0.1", 7000)) as server:
            server.settimeout(PATIENCE)
            taker = threading.Thread(target=take)
            taker.start()
            send = "import socket, sys\nwith socket.create_connection(('10.5.0.1', 7000), timeout=60) as s: s.sendall(sys.stdin.buffer.read())"
            subprocess.run([*self.other.prefix, sys.executable, "-c", send], input=payload, check=True, timeout=PATIENCE)
            taker.join(PATIENCE)
        self.assertEqual(received, [payload])

    def test_vlan_tags_stay(self):
        self.start_box("--box", "words", "--box-server", "192.0.2.7")
        # Without a driver for VLANs the kernel still tells a raw socket of a tag that it took off: tpacket_auxdata.
        receive = """
import socket, struct
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(("far0", 0))
s.setsockopt(263, 8, 1)
s.settimeout(60)
print("listening", flush=True)
while True:
    frame, ancillary, _, _ = s.recvmsg(2048, 256)
    if b"through the box" not in frame: continue
    tags = [struct.unpack_from("IIIHHHH", data)[5] for level, kind, data in ancillary if (level, kind) == (263, 8)]
    print(tags[0] & 0xFFF if tags else struct.unpack_from("!H", frame, 14)[0] & 0xFFF, flush=True)
    break
"""
        listener = subprocess.Popen([*self.other.prefix, sys.executable, "-c", receive], stdout=subprocess.PIPE, text=True)
        self.children.append(listener)
        self.assertEqual(listener.stdout.readline(), "listening\n")
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
            raw.bind(("rack0", 0))
            header = bytes.fromhex("ffffffffffff" "020000000001" "8100" "2007" "88b5")  # 802.1Q, priority 1, VLAN 7
            raw.send(header + b"through the box".ljust(64, b"\0"))
        self.assertEqual(listener.stdout.readline(), "7\n")

    def test_what_the_box_cannot_use_is_said(self):
        for flags, words in ((("--box", "words", "--box-server", "far"), "box-servers"), (("--box-server", "192.0.2.7"), "say --box words")):
            done = run("switch", "--dir", self.box_dir, *flags)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    live_rack.SLUICE = os.path.abspath(sys.argv[1])
    enter_namespace()
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
