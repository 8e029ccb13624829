#!/usr/bin/env python3
"""A rack of two machines: network namespaces joined by two veth pairs; one has the switch, the other joins.

usage: join_test.py SLUICE [TEST...]

SLUICE is the program. Exits with 77 where no namespaces can be had.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import live_rack  # noqa: E402
from live_rack import run, wait_until  # noqa: E402
from neighbor import Neighbor, enter_namespace  # noqa: E402

PATIENCE = 240
SWITCH, OTHER = "10.9.9.1", "10.9.9.2"
SERVE = f"{SWITCH}:7472"


class JoinTest(live_rack.LiveRack):
    @classmethod
    def setUpClass(cls):
        cls.other = Neighbor(SWITCH, OTHER)
        cls.other.join("wire0", "wire1", "mtu 9000")

    @classmethod
    def tearDownClass(cls):
        cls.other.end()

    def setUp(self):
        super().setUp()
        self.there_dir = self.folder + "/there"

    # --- a rack here, and the other machine ---

    def up(self, *flags):
        self.sluice("rack", "init", SWITCH, code=0)
        self.sluice("rack", "up", "--serve", SERVE, "--memory-nodes", "1", "--memory-size", "64MiB", "--value-size", "100", *flags, code=0)

    def invite(self, name="m2", *flags):
        file = f"{self.folder}/{name}.json"
        self.sluice("rack", "invite", name, "--out", file, *flags, code=0)
        return file

    def there(self, *words, code=None, timeout=PATIENCE):
        done = subprocess.run([*self.other.prefix, live_rack.SLUICE, *words, "--dir", self.there_dir], capture_output=True, text=True, timeout=timeout,
                              check=False)
        if code is not None:
            self.assertEqual(done.returncode, code, f"{words}\n{done.stdout}\n{done.stderr}")
        return done

    def start_there(self, *words, log=subprocess.PIPE):
        child = subprocess.Popen([*self.other.prefix, live_rack.SLUICE, *words, "--dir", self.there_dir], stdout=subprocess.PIPE, stderr=log, text=True)
        self.children.append(child)
        return child

    def nodes(self):
        answer = json.loads(self.sluice("rack", "status", "--json").stdout)["directory"]
        return {node["name"]: node for node in answer.get("nodes", [])}

    def ready(self, name):
        return self.nodes().get(name, {}).get("state") == "ready"

    def memory_there(self, name, *flags, **more):
        child = self.start_there("memory", "--name", name, "--size", "64MiB", *flags, **more)
        wait_until(lambda: self.ready(name) or child.poll() is not None, f"{name} is ready", PATIENCE)
        self.assertIsNone(child.poll(), child.poll() is not None and child.communicate())
        return child

    # --- what a rack of two machines is for ---

    def test_the_other_machine_gives_memory_and_uses_the_racks(self):
        self.up()
        invitation = self.invite()
        self.assertEqual(os.stat(invitation).st_mode & 0o777, 0o600)
        self.assertIn("1 memory node is ready", self.there("rack", "join", invitation, code=0).stderr)
        self.memory_there("memory2", "--http", "0.0.0.0:0")
        attributes = self.nodes()["memory2"]["attributes"]
        self.assertEqual(attributes["machine"], "m2")
        self.assertRegex(attributes["http"], rf"^{re.escape(OTHER)}:\d+$")  # nobody reaches 0.0.0.0
        # Written here into memory there, read there; and the other way round.
        self.sluice("remote", "write", "memory2", "0x40", "--text", "from here", code=0)
        self.assertIn("from here", self.there("remote", "read", "memory2", "0x40", "16", code=0).stdout)
        self.there("remote", "write", "memory1", "0x40", "--text", "from there", code=0)
        self.assertIn("from there", self.sluice("remote", "read", "memory1", "0x40", "16", code=0).stdout)
        done = self.there("bench", "clover", "--records", "200", "--value-size", "100", "--duration", "1s", "--clients", "2", "--json", code=0)
        outcome = json.loads(done.stdout)["run"]
        self.assertGreater(outcome["operations"], 0)
        self.assertEqual(outcome["values_wrong"], 0)
        status = self.there("rack", "status", code=0).stdout
        self.assertIn(f"joined the rack at {SERVE} as m2", status)
        self.assertIn("memory2", status)
        self.there("rack", "up", code=1)
        self.assertIn("has joined the rack", self.there("switch", code=1).stderr)
        self.there("rack", "leave", code=0)
        self.assertEqual(self.there("remote", "read", "memory1", "0x40", "16").returncode, 1)

    def test_a_real_wire_carries_the_frames_where_there_is_one(self):
        self.sluice("rack", "init", SWITCH, code=0)
        config = self.folder + "/rack.toml"
        pathlib.Path(config).write_text('[switch]\nports = ["packet:wire0,filter=all"]\n')
        self.sluice("rack", "up", "--config", config, "--serve", SERVE, "--memory-nodes", "1", "--memory-size", "64MiB", "--value-size", "100", code=0)
        self.there("rack", "join", self.invite(), code=0)
        self.memory_there("memory2", "--port", "packet:wire1,filter=all")
        self.sluice("remote", "write", "memory2", "0x80", "--text", "over the wire", code=0)
        self.assertIn("over the wire", self.sluice("remote", "read", "memory2", "0x80", "16", code=0).stdout)
        counts = subprocess.run([*self.other.prefix, "cat", "/proc/self/net/dev"], capture_output=True, text=True, check=True).stdout
        received = next(line for line in counts.splitlines() if line.strip().startswith("wire1:")).split()[2]
        self.assertGreater(int(received), 2)

    def test_a_switch_that_is_killed_and_comes_back_is_found_again(self):
        self.up()
        self.there("rack", "join", self.invite(), code=0)
        self.memory_there("memory2")
        switch = next(d for d in json.loads(self.sluice("rack", "status", "--json").stdout)["daemons"] if d["name"] == "switch")
        os.kill(switch["pid"], signal.SIGKILL)
        self.sluice("rack", "up", "--serve", SERVE, "--memory-nodes", "1", "--memory-size", "64MiB", "--value-size", "100", code=0)
        wait_until(lambda: self.ready("memory2"), "memory2 is back", PATIENCE)
        self.sluice("remote", "write", "memory2", "0x40", "--text", "again", code=0, timeout=PATIENCE)
        self.assertIn("again", self.there("remote", "read", "memory2", "0x40", "16", code=0).stdout)

    # --- who is kept out ---

    def test_a_machine_that_is_shut_out_is_out(self):
        self.up()
        self.there("rack", "join", self.invite(), code=0)
        log = pathlib.Path(self.folder + "/memory2.log")
        with open(log, "w", encoding="utf-8") as file:
            self.memory_there("memory2", log=file)
        self.sluice("rack", "revoke", "m2", code=0)
        wait_until(lambda: not self.ready("memory2"), "memory2 is gone", PATIENCE)
        wait_until(lambda: "the lease is not renewed" in log.read_text(), "memory2 says so", PATIENCE)
        self.assertIn("was revoked", log.read_text())
        self.assertIn("was revoked", self.there("rack", "status").stdout)
        ports = lambda: json.loads(self.sluice("rack", "status", "--json").stdout)["switch"]["ports"]  # noqa: E731
        wait_until(lambda: not any(port["name"].startswith(f"udp:{OTHER}") for port in ports()), "its port is gone", PATIENCE)
        self.there("rack", "join", self.invite(), code=0)  # a new invitation counts

    def test_strangers_are_told_so_and_the_rack_goes_on(self):
        self.up()
        good = self.invite()
        # Another rack's authority.
        theirs = self.folder + "/theirs"
        self.assertEqual(run("rack", "init", SWITCH, "--dir", theirs).returncode, 0)
        self.assertEqual(run("rack", "invite", "m2", "--to", SERVE, "--out", self.folder + "/foreign.json", "--dir", theirs).returncode, 0)
        foreign = self.there("rack", "join", self.folder + "/foreign.json", code=1)
        self.assertIn("cannot show that it is the switch of the rack", foreign.stderr)
        # One that believes in our switch, and shows another rack's certificate; and one that shows none.
        invitation = json.loads(pathlib.Path(good).read_text())
        other = json.loads(pathlib.Path(self.folder + "/foreign.json").read_text())
        mixed = {**invitation, "certificate": other["certificate"], "key": other["key"]}
        pathlib.Path(self.folder + "/mixed.json").write_text(json.dumps(mixed))
        self.assertIn("does not take this machine's certificate", self.there("rack", "join", self.folder + "/mixed.json", code=1).stderr)
        self.there("rack", "join", good, code=0)
        self.there("rack", "join", self.folder + "/mixed.json", code=1)
        self.assertIn(f"joined the rack at {SERVE}", self.there("rack", "status").stdout)
        self.there("rack", "leave", code=0)
        self.assertRaises((ssl.SSLError, ConnectionError), self.handshake, None)
        self.assertRaises((ssl.SSLError, ConnectionError), self.handshake, self.expired())
        # Damaged files, and none.
        for text, what in (("", "no invitation"), ("{}", "no invitation"), (json.dumps({**invitation, "key": ""}), "'key'"),
                           (json.dumps({**invitation, "certificate": "x"}), "no certificate in PEM"),
                           (json.dumps({**invitation, "address": "10.9.9.1:9"}), "no switch answers")):
            pathlib.Path(self.folder + "/damaged.json").write_text(text)
            self.assertIn(what, self.there("rack", "join", self.folder + "/damaged.json", code=1).stderr)
        self.assertIn("cannot read", self.there("rack", "join", self.folder + "/none.json", code=1).stderr)
        # A frame's hello from nowhere gets no port.
        before = self.udp_ports()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as hello:
            hello.sendto(bytes(64), (SWITCH, 7472))
        self.assertEqual(self.udp_ports(), before)
        self.there("rack", "join", good, code=0)

    def udp_ports(self):
        ports = json.loads(self.sluice("rack", "status", "--json").stdout)["switch"]["ports"]
        return sum(port["name"].startswith("udp:") for port in ports)

    def expired(self):
        """The files of a machine whose certificate, by our authority, counts no more."""
        tls = self.dir + "/tls"
        at = self.folder + "/expired"
        openssl = lambda *words: subprocess.run(["openssl", *words], check=True, capture_output=True)  # noqa: E731
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", at + ".key", "-subj", "/CN=late", "-out", at + ".csr")
        openssl("x509", "-req", "-in", at + ".csr", "-CA", tls + "/authority.pem", "-CAkey", tls + "/authority.key", "-CAcreateserial", "-days", "-1", "-out",
                at + ".pem")
        return at + ".pem", at + ".key"

    def handshake(self, files):
        context = ssl.create_default_context(cafile=self.dir + "/tls/authority.pem")
        if files:
            context.load_cert_chain(*files)
        with socket.create_connection((SWITCH, 7472), timeout=30) as plain, context.wrap_socket(plain, server_hostname=SWITCH) as sealed:
            sealed.sendall(b"GET /v1/nodes HTTP/1.1\r\nHost: 10.9.9.1\r\n\r\n")
            if not sealed.recv(1):
                raise ConnectionError("closed")

    def test_says_what_is_missing(self):
        self.assertIn("no authority", self.sluice("rack", "invite", "m2", "--to", SERVE, code=1).stderr)
        self.sluice("rack", "init", SWITCH, code=0)
        self.assertIn("has an authority already", self.sluice("rack", "init", SWITCH, code=1).stderr)
        self.assertIn("say where it will, with --to", self.sluice("rack", "invite", "m2", code=1).stderr)
        self.assertIn("no address that another machine can reach", self.sluice("rack", "invite", "m2", "--to", "0.0.0.0:7472", code=2).stderr)
        self.assertIn("certificate names 10.9.9.1 only", self.sluice("rack", "invite", "m2", "--to", "10.9.9.77:7472", code=1).stderr)
        self.assertIn("no machine 'm9' was invited", self.sluice("rack", "revoke", "m9", code=1).stderr)
        shutil.rmtree(self.dir + "/tls")
        self.assertIn("no authority", self.sluice("rack", "up", "--serve", SERVE, code=1).stderr)


if __name__ == "__main__":
    live_rack.SLUICE = os.path.abspath(sys.argv[1])
    enter_namespace()
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
