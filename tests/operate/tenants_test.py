#!/usr/bin/env python3
"""Tenants of a rack: tokens, regions of one's own, quotas; what is refused, and that the daemons live on.

usage: tenants_test.py SLUICE [TEST...]

SLUICE is the program. What listens does so on loopback.
"""

import concurrent.futures
import json
import mmap
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import live_rack  # noqa: E402
from live_rack import wait_until  # noqa: E402

PATIENCE = 120


def looking_costs_memory():
    """Does this kernel give private memory that was never written pages of its own where it is read? Most show one page of zeros."""
    length = 16 << 20

    def resident():
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    with mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        before = resident()
        for at in range(0, length, mmap.PAGESIZE):
            memory[at]
        return resident() - before > length // 2


class TenantsTest(live_rack.LiveRack):
    def setUp(self):
        super().setUp()
        self.there_dir = self.folder + "/there"

    def tearDown(self):
        live_rack.run("rack", "leave", "--dir", self.there_dir)
        super().tearDown()

    # --- a rack, tenants, and how they come ---

    def up(self, *flags):
        self.sluice("rack", "up", "--memory-nodes", "2", "--memory-size", "64MiB", "--value-size", "100", *flags, code=0)

    def up_served(self, *flags):
        self.sluice("rack", "init", "127.0.0.1", code=0)
        self.up("--serve", "127.0.0.1:0", *flags)

    def tenant(self, name, quota="8MiB", *flags):
        file = f"{self.folder}/{name}.token"
        self.sluice("tenant", "add", name, *(["--quota", quota] if quota else []), "--out", file, *flags, code=0)
        self.assertEqual(os.stat(file).st_mode & 0o777, 0o600)
        return file

    def as_tenant(self, token, *words, code=None):
        return self.sluice(*words, "--token-file", token, code=code)

    def join_there(self):
        invitation = self.folder + "/m2.json"
        self.sluice("rack", "invite", "m2", "--out", invitation, code=0)
        return live_rack.run("rack", "join", invitation, "--dir", self.there_dir)

    def there(self, *words, code=None):
        done = live_rack.run(*words, "--dir", self.there_dir)
        if code is not None:
            self.assertEqual(done.returncode, code, f"{words}\n{done.stdout}\n{done.stderr}")
        return done

    def refused(self, reason):
        text = self.get("/metrics")
        return int(re.search(rf'^sluice_tenant_refused_total{{.*reason="{reason}".*}} (\d+)', text, re.M).group(1))

    def get(self, path):
        return subprocess.run(["curl", "-sS", "--fail", "--unix-socket", self.dir + "/directory.sock", "http://rack" + path], capture_output=True, text=True,
                              check=True, timeout=PATIENCE).stdout

    def post(self, path, body):
        return subprocess.run(["curl", "-sS", "--unix-socket", self.dir + "/directory.sock", "-H", "Content-Type: application/json", "-d", json.dumps(body),
                               "http://rack" + path], capture_output=True, text=True, check=True, timeout=PATIENCE).stdout

    def pid(self, name):
        return next(d["pid"] for d in json.loads(self.sluice("rack", "status", "--json").stdout)["daemons"] if d["name"] == name)

    def regions(self, *flags):
        return {f"{r['tenant']}/{r['name']}": r for r in json.loads(self.sluice("region", "list", "--json", *flags, code=0).stdout)}

    # --- memory of one's own ---

    def test_a_tenant_has_memory_of_its_own_and_sees_no_other(self):
        self.up()
        red, blue = self.tenant("red"), self.tenant("blue")
        self.as_tenant(red, "region", "add", "heap", "1MiB", code=0)
        self.as_tenant(blue, "region", "add", "heap", "2MiB", code=0)
        self.as_tenant(red, "remote", "write", "heap", "0x40", "--text", "red was here", code=0)
        self.as_tenant(blue, "remote", "write", "heap", "0x40", "--text", "blue was here", code=0)
        self.assertIn("red was here", self.as_tenant(red, "remote", "read", "heap", "0x40", "0x10", code=0).stdout)
        self.assertIn("blue was here", self.as_tenant(blue, "remote", "read", "heap", "0x40", "16", code=0).stdout)
        # Atomics and its end are as those of any memory.
        self.as_tenant(red, "remote", "add", "heap", "8", "5", code=0)
        self.assertEqual(self.as_tenant(red, "remote", "read", "heap", "0x100000", "8").returncode, 1)
        # What is the rack's own, and the others'.
        for name in ("memory1", "memory2", "blue/heap"):
            seen = self.as_tenant(red, "remote", "read", name, "0x40", "16")
            self.assertNotIn("blue was", seen.stdout, name)
        self.assertIn("no memory node blue/heap", self.as_tenant(red, "remote", "read", "blue/heap", "0", "8", code=1).stderr)
        mine = json.loads(self.as_tenant(red, "rack", "status", "--json").stdout)["directory"]
        self.assertEqual([r["owner"] for n in mine["nodes"] for r in n["regions"]], ["red"])
        self.assertIn("no metadata server", self.as_tenant(red, "bench", "clover", "--duration", "1s", "--records", "10").stderr)
        self.assertIn("a tenant is not shown any", self.as_tenant(red, "bench", "locks", "--duration", "1s", code=1).stderr)
        self.assertIn("is for the rack's operator", self.as_tenant(red, "tenant", "list", code=1).stderr)
        self.assertEqual(list(self.regions("--token-file", red)), ["red/heap"])
        # The rack itself goes on as before, and sees all.
        self.sluice("remote", "write", "memory1", "0", "--text", "the rack's", code=0)
        self.assertIn("the rack's", self.sluice("remote", "read", "memory1", "0", "16", code=0).stdout)
        self.assertEqual(sorted(self.regions()), ["blue/heap", "red/heap"])
        done = json.loads(self.sluice("bench", "clover", "--records", "100", "--value-size", "100", "--duration", "1s", "--clients", "2", "--json", code=0).stdout)
        self.assertEqual(done["run"]["values_wrong"], 0)
        # Stores of a tenant's own lie in its own memory.
        self.as_tenant(red, "region", "remove", "heap", code=0)
        self.as_tenant(red, "region", "add", "heap", "1MiB", code=0)
        self.assertNotIn("red was", self.as_tenant(red, "remote", "read", "heap", "0x40", "16", code=0).stdout)
        # Given back, it is nobody's.
        self.as_tenant(red, "region", "remove", "heap", code=0)
        self.assertIn("region add", self.as_tenant(red, "remote", "read", "heap", "0", "8", code=1).stderr)

    def test_a_nodes_name_is_a_tenants_one_region_there_and_none_of_several(self):
        self.up("--no-metadata")
        red = self.tenant("red")
        self.as_tenant(red, "region", "add", "b1", "1MiB", "--node", "memory1", code=0)
        self.as_tenant(red, "remote", "write", "memory1", "0", "--text", "to b1", code=0)
        self.assertIn("to b1", self.as_tenant(red, "remote", "read", "b1", "0", "8", code=0).stdout)
        self.as_tenant(red, "region", "add", "a1", "1MiB", "--node", "memory1", code=0)
        for words in (("write", "memory1", "0", "--text", "to which"), ("read", "memory1", "0", "8")):
            self.assertIn("memory1 has several regions of yours; name one of a1, b1", self.as_tenant(red, "remote", *words, code=1).stderr)
        self.assertNotIn("to which", self.as_tenant(red, "remote", "read", "a1", "0", "8", code=0).stdout)
        # For the rack it is the rack's own, whatever tenants have there.
        self.sluice("remote", "write", "memory1", "0", "--text", "the rack's", code=0)
        self.assertNotIn("the rack's", self.as_tenant(red, "remote", "read", "a1", "0", "16", code=0).stdout)

    def test_over_quota_is_refused_in_one_line(self):
        self.up()
        red = self.tenant("red", "3MiB", "--regions", "2")
        self.as_tenant(red, "region", "add", "one", "2MiB", code=0)
        refused = self.as_tenant(red, "region", "add", "two", "2MiB", code=1).stderr
        self.assertEqual(refused.count("\n"), 1, refused)
        self.assertIn("tenant 'red' asked for 2MiB, uses 2MiB, and is allowed 3MiB", refused)
        self.as_tenant(red, "region", "add", "two", "1MiB", code=0)
        self.sluice("tenant", "quota", "red", "--quota", "1GiB", "--regions", "2", code=0)
        self.assertIn("asked for 1 region, uses 2, and is allowed 2", self.as_tenant(red, "region", "add", "three", "1MiB", code=1).stderr)
        self.assertEqual(self.refused("over_quota"), 2)
        # Beyond what any node has.
        self.sluice("tenant", "quota", "red", "--quota", "900TiB", "--regions", "9", code=0)
        self.assertIn("has the most room", self.as_tenant(red, "region", "add", "three", "100TiB", code=1).stderr)
        # What is not said stays as it is.
        self.assertIn("red may have 1GiB in 9 regions", self.sluice("tenant", "quota", "red", "--quota", "1GiB", code=0).stderr)
        self.assertIn("red may have 1GiB in 5 regions", self.sluice("tenant", "quota", "red", "--regions", "5", code=0).stderr)
        self.assertIn("nothing to change", self.sluice("tenant", "quota", "red", code=2).stderr)
        listed = json.loads(self.sluice("tenant", "list", "--json", code=0).stdout)["tenants"]
        self.assertEqual((listed[0]["used_bytes"], listed[0]["used_regions"]), (3 << 20, 2))
        self.assertEqual((listed[0]["quota_bytes"], listed[0]["quota_regions"]), (1 << 30, 5))
        self.assertIn('sluice_tenant_bytes{', self.get("/metrics"))

    def test_a_tenants_token_does_nothing_to_anothers_region(self):
        self.up()
        red, blue = self.tenant("red"), self.tenant("blue")
        for token in (red, blue):
            self.as_tenant(token, "region", "add", "heap", "1MiB", code=0)
        for words in (("remove", "heap"), ("add", "more", "1MiB")):
            self.assertIn("memory of tenant 'blue' is for the rack's operator, not for tenant 'red'",
                          self.as_tenant(red, "region", *words, "--tenant", "blue", code=1).stderr)
        self.assertEqual(sorted(self.regions()), ["blue/heap", "red/heap"])
        self.assertEqual(self.refused("forbidden"), 2)
        self.as_tenant(red, "region", "remove", "heap", "--tenant", "red", code=0)

    # --- tokens ---

    def test_wrong_revoked_and_missing_tokens_are_told_so_and_everybody_lives_on(self):
        self.up_served()
        self.assertEqual(self.join_there().returncode, 0, "no tenants: no token")
        self.there("remote", "write", "memory1", "0", "--text", "as ever", code=0)
        pids = [self.pid(name) for name in ("switch", "memory1", "metadata")]
        red = self.tenant("red")
        # From another machine without a token, from now on.
        missing = self.there("remote", "read", "memory1", "0", "8", code=1).stderr
        self.assertIn("this rack has tenants", missing)
        self.assertIn("SLUICE_TOKEN_FILE", missing)
        self.assertGreater(self.refused("missing"), 0)
        # With it.
        self.there("region", "add", "heap", "1MiB", "--token-file", red, code=0)
        self.there("remote", "write", "heap", "0", "--text", "from there", "--token-file", red, code=0)
        environment = os.environ | {"SLUICE_TOKEN_FILE": red}
        read = subprocess.run([live_rack.SLUICE, "remote", "read", "heap", "0", "16", "--dir", self.there_dir], capture_output=True, text=True, env=environment,
                              timeout=PATIENCE, check=False)
        self.assertIn("from there", read.stdout, read.stderr)
        self.assertEqual(self.there("memory", "--name", "mine", "--token-file", red).returncode, 1)
        # A wrong one, and files that hold none.
        wrong = self.folder + "/wrong.token"
        for text, what in (("sluice_" + "0" * 64, "of no tenant"), ("", "is no token"), ("\x00\x01", "is no token"), ("a b", "is no token")):
            pathlib.Path(wrong).write_text(text)
            os.chmod(wrong, 0o600)
            self.assertIn(what, self.there("remote", "read", "heap", "0", "8", "--token-file", wrong, code=1).stderr)
            self.assertIn(what, self.as_tenant(wrong, "region", "list", code=1).stderr)
        os.chmod(wrong, 0o644)
        self.assertIn("chmod 600", self.as_tenant(wrong, "region", "list", code=1).stderr)
        # Rotated, revoked.
        os.rename(red, red + ".old")
        self.sluice("tenant", "rotate", "red", "--out", red, code=0)
        self.assertIn("of no tenant", self.as_tenant(red + ".old", "region", "list", code=1).stderr)
        self.assertIn("from there", self.as_tenant(red, "remote", "read", "heap", "0", "16", code=0).stdout)
        self.sluice("tenant", "revoke", "red", code=0)
        self.assertIn("'red' was revoked", self.there("remote", "read", "heap", "0", "8", "--token-file", red, code=1).stderr)
        # The watch of the read before may not have been over yet.
        self.assertIn(self.refused("revoked"), (1, 2))
        # Very many of them, several at once.
        before = self.refused("wrong")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = set(pool.map(self.ask_with_a_wrong_token, range(1000)))
        self.assertEqual(answers, {403})
        self.assertEqual(self.refused("wrong"), before + 1000)
        self.assertEqual(pids, [self.pid(name) for name in ("switch", "memory1", "metadata")])
        self.sluice("remote", "write", "memory1", "0", "--text", "alive", code=0)

    def ask_with_a_wrong_token(self, number):
        """By HTTP as it is: the client would not send some of these."""
        token = ["x" * 5000, "sluice_" + f"{number:064x}", "'; DROP TABLE tenants; --", "\x7f\x00\xff"][number % 4]
        answer = b""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.dir + "/directory.sock")
            connection.settimeout(PATIENCE)
            connection.sendall(b"GET /v1/nodes HTTP/1.1\r\nHost: rack\r\nConnection: close\r\nAuthorization: Bearer " + token.encode("latin-1") + b"\r\n\r\n")
            while piece := connection.recv(65536):
                answer += piece
        status = int(answer.split()[1])
        return 403 if status == 400 and number % 4 == 3 else status  # bytes that no header may have

    def test_a_revoked_tenants_clients_lose_their_connections(self):
        self.up()
        red = self.tenant("red")
        self.as_tenant(red, "region", "add", "heap", "1MiB", code=0)
        self.assertIn("'cowbird' is a name for the rack's own daemons", self.as_tenant(red, "cowbird", "engine", code=1).stderr)
        engine = self.start("cowbird", "engine", "--name", "cowbird-of-red", "--token-file", red)
        client = lambda: [n for n in json.loads(self.get("/v1/state"))["nodes"] if n["attributes"].get("tenant") == "red" and n["state"] == "ready"]  # noqa: E731
        wait_until(lambda: client() or engine.poll() is not None, "the engine is there", PATIENCE)
        self.assertIsNone(engine.poll())
        self.sluice("tenant", "revoke", "red", code=0)
        wait_until(lambda: not client(), "it is gone", PATIENCE)

    # --- what outlives what ---

    def test_tenants_outlive_the_switch_and_the_rack(self):
        self.up()
        red = self.tenant("red", "3MiB")
        self.as_tenant(red, "region", "add", "heap", "2MiB", code=0)
        self.as_tenant(red, "remote", "write", "heap", "0", "--text", "still here", code=0)
        os.kill(self.pid("switch"), signal.SIGKILL)
        self.up()
        self.assertIn("still here", self.as_tenant(red, "remote", "read", "heap", "0", "16", code=0).stdout)
        self.assertIn("is allowed 3MiB", self.as_tenant(red, "region", "add", "more", "2MiB", code=1).stderr)
        # A memory node that dies takes what was in it along; the region comes again.
        node = self.regions()["red/heap"]["node"]
        os.kill(self.pid(node), signal.SIGKILL)
        self.up()
        wait_until(lambda: self.regions()["red/heap"]["state"] == "ready", "the region is there again", PATIENCE)
        self.assertNotIn("still here", self.as_tenant(red, "remote", "read", "heap", "0", "16", code=0).stdout)
        # All of it.
        self.sluice("rack", "down", code=0)
        self.up()
        wait_until(lambda: self.regions()["red/heap"]["state"] == "ready", "the region is there again", PATIENCE)
        self.as_tenant(red, "remote", "write", "heap", "0", "--text", "anew", code=0)
        # A record that is damaged is said so.
        self.sluice("rack", "down", code=0)
        ledger = pathlib.Path(self.dir) / "tenants.json"
        self.assertEqual(ledger.stat().st_mode & 0o777, 0o600)
        whole = ledger.read_text()
        self.assertNotIn(pathlib.Path(red).read_text().strip(), whole)
        ledger.write_text(whole[:-20])
        self.assertIn("record of tenants makes no sense", self.sluice("rack", "up", code=1).stderr)
        ledger.write_text(whole)
        self.up()

    def test_a_file_of_tenants_is_one_racks_alone(self):
        config = pathlib.Path(self.folder, "rack.toml")
        config.write_text('[switch]\ntenants = "tenants.json"\n')
        self.up("--config", str(config))
        self.tenant("red")
        self.assertTrue(pathlib.Path(self.folder, "tenants.json").exists(), "beside the file that names it, wherever it was started")
        refused = live_rack.run("rack", "up", "--config", str(config), "--dir", self.there_dir)
        live_rack.run("rack", "down", "--dir", self.there_dir)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("tenants.json is another switch's", refused.stderr)
        self.sluice("rack", "down", code=0)
        self.up("--config", str(config))
        self.assertIn("red", self.sluice("tenant", "list", code=0).stdout)

    def test_without_an_operators_token_nobody_is_told_keys_or_connections(self):
        self.up("--http", "127.0.0.1:0", "--box", "clover")
        red = self.tenant("red")
        # The box shows connections while they are there, so the work goes on until all has been asked for.
        self.children.append(
            subprocess.Popen([live_rack.SLUICE, "bench", "clover", "--records", "100", "--value-size", "100", "--duration", "60s", "--clients", "2",
                              "--dir", self.dir], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

        def is_busy():
            box = json.loads(self.get("/v1/box"))
            return box["top_keys"] and box["top_connections"]

        wait_until(is_busy, "the box has seen keys and connections", PATIENCE)
        at = json.loads(self.get("/v1/nodes"))["nodes"]
        http = next(n["attributes"]["http"] for n in at if n["name"] == "switch")
        token = pathlib.Path(red).read_text().strip()
        for path in ("/v1/state", "/v1/box"):
            box = json.loads(self.get(path))
            if path == "/v1/state":
                self.assertIs(box["may_change"], True)
            box = box.get("box") if path == "/v1/state" else box
            self.assertTrue(box["top_keys"] and box["top_connections"], path)
            for header in ([], ["-H", f"Authorization: Bearer {token}"]):
                told = json.loads(subprocess.run(["curl", "-sS", "--fail", *header, f"http://{http}{path}"], capture_output=True, text=True, check=True,
                                                 timeout=PATIENCE).stdout)
                # So a page that is shown this offers nothing that would be refused.
                if path == "/v1/state":
                    self.assertIs(told["may_change"], False)
                told = told["box"] if path == "/v1/state" else told
                self.assertEqual((told["top_keys"], told["top_connections"]), ([], []), path)
                self.assertEqual(told["order"], box["order"])

    def test_memory_of_other_machines_comes_with_an_operators_token(self):
        self.up_served()
        self.assertEqual(self.join_there().returncode, 0)
        red = self.tenant("red")
        ops = self.folder + "/ops.token"
        self.sluice("tenant", "add", "ops", "--operator", "--out", ops, code=0)
        child = subprocess.Popen([live_rack.SLUICE, "memory", "--name", "memory7", "--size", "1MiB", "--token-file", ops, "--dir", self.there_dir],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.children.append(child)
        state = lambda: {n["name"]: n["state"] for n in json.loads(self.get("/v1/state"))["nodes"]}  # noqa: E731
        wait_until(lambda: state().get("memory7") == "ready" or child.poll() is not None, "memory7 is ready", PATIENCE)
        self.as_tenant(red, "region", "add", "far", "1MiB", "--node", "memory7", code=0)
        self.there("remote", "write", "far", "0", "--text", "over there", "--token-file", red, code=0)
        self.assertIn("over there", self.as_tenant(red, "remote", "read", "far", "0", "16", code=0).stdout)
        self.assertIn("memory7", self.there("tenant", "list", "--token-file", ops, code=0).stdout + self.there("rack", "status", "--token-file", ops).stdout)

    def test_without_its_authority_the_switch_lets_no_machine_in(self):
        self.up_served()
        self.assertEqual(self.join_there().returncode, 0)
        self.assertIn("memory1", self.there("rack", "status").stdout)
        os.rename(self.dir + "/tls", self.dir + "/away")
        self.assertIn("authority has been removed or made anew", self.there("rack", "status").stdout)
        self.sluice("rack", "init", "127.0.0.1", code=0)
        self.assertIn("authority has been removed or made anew", self.there("rack", "status").stdout)
        self.assertNotIn("memory1", self.there("rack", "status").stdout)

    def test_a_tenant_that_floods_the_switch_costs_nobody_his_lease(self):
        self.up_served()
        self.assertEqual(self.join_there().returncode, 0)
        red, blue, ops = self.tenant("red"), self.tenant("blue"), self.tenant("ops", None, "--operator")
        with open(self.folder + "/memory7.log", "w", encoding="utf-8") as log:
            self.children.append(subprocess.Popen([live_rack.SLUICE, "memory", "--name", "memory7", "--size", "1MiB", "--token-file", ops, "--dir", self.there_dir],
                                                  stdout=log, stderr=log))
        state = lambda: {n["name"]: n["state"] for n in json.loads(self.get("/v1/state"))["nodes"]}  # noqa: E731
        wait_until(lambda: state().get("memory7") == "ready", "memory7 is ready", PATIENCE)

        self.sluice("rack", "invite", "m3", "--out", self.folder + "/m3.json", code=0)
        invitation = json.loads(pathlib.Path(self.folder, "m3.json").read_text())
        for part in ("authority", "certificate", "key"):
            pathlib.Path(self.folder, part + ".pem").write_text(invitation[part])
        context = ssl.create_default_context(cafile=self.folder + "/authority.pem")
        context.load_cert_chain(self.folder + "/certificate.pem", self.folder + "/key.pem")
        port = int(json.loads(self.get("/v1/nodes"))["nodes"][0]["attributes"]["serve"].rsplit(":", 1)[1])

        def ask(words, says=""):
            plain = socket.create_connection(("127.0.0.1", port), timeout=10, source_address=("127.0.0.2", 0))
            sealed = context.wrap_socket(plain, server_hostname="127.0.0.1")
            sealed.sendall(f"{words} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {pathlib.Path(red).read_text().strip()}\r\n{says}\r\n".encode())
            self.addCleanup(sealed.close)

        def list_as_blue():
            began = time.monotonic()
            self.there("region", "list", "--token-file", blue, code=0)
            return time.monotonic() - began

        undisturbed = max(list_as_blue() for _ in range(3))
        for _ in range(24):
            ask("GET /v1/watch?seen=999999999&timeout_ms=60000")
        for _ in range(12):
            ask("GET /v1/live")
        end = time.monotonic() + 10
        while time.monotonic() < end:
            for _ in range(5):
                ask("POST /v1/join", "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n")
                ask("GET /v1/nodes")
            self.assertLess(list_as_blue(), 3 + 5 * undisturbed)
        self.assertNotIn("lease", pathlib.Path(self.folder, "memory7.log").read_text())
        self.assertEqual(state()["memory7"], "ready")

    def test_shared_memory_is_for_all_tenants(self):
        config = self.folder + "/rack.toml"
        red = self.folder + "/red.token"
        pathlib.Path(config).write_text("[memory]\nshared = true\n")
        self.up("--config", config)
        self.tenant("red")
        done = self.as_tenant(red, "bench", "clover", "--records", "100", "--value-size", "100", "--duration", "1s", "--clients", "2", "--json", code=0)
        self.assertEqual(json.loads(done.stdout)["run"]["values_wrong"], 0)
        self.assertIn("no memory node has memory for tenants", self.as_tenant(red, "region", "add", "heap", "1MiB", code=1).stderr)

    def test_a_revoked_tenant_is_out_of_shared_memory_too(self):
        config = self.folder + "/rack.toml"
        pathlib.Path(config).write_text("[memory]\nshared = true\n")
        self.up("--config", config)
        red = self.tenant("red")
        bench = self.start("bench", "clover", "--records", "100", "--value-size", "100", "--duration", "600s", "--clients", "2", "--token-file", red)
        connections = lambda name: live_rack.metrics(f"{self.dir}/{name}.http.sock").get("sluice_connections")  # noqa: E731
        everywhere = lambda: [connections(name) for name in ("memory1", "memory2", "metadata")]  # noqa: E731
        before = everywhere()
        wait_until(lambda: bench.poll() is not None or all(now > was for now, was in zip(everywhere(), before)), "it is connected", PATIENCE)
        self.assertIsNone(bench.poll())
        self.sluice("tenant", "revoke", "red", code=0)
        wait_until(lambda: everywhere() == before, "it is out", 30)
        time.sleep(2)
        self.assertEqual(everywhere(), before, "and stays out")

    # --- what everybody may see, and act on ---

    def test_what_a_tenant_says_of_itself_is_acted_on_by_nobody_and_its_end_is_no_loss(self):
        self.up()
        red = pathlib.Path(self.tenant("red")).read_text().strip()

        def ask(path, body, *headers):
            words = ["curl", "-sS", "--unix-socket", self.dir + "/directory.sock", "-H", "Content-Type: application/json", *headers, "-d", json.dumps(body)]
            return json.loads(subprocess.run([*words, "http://rack" + path], capture_output=True, text=True, check=True, timeout=PATIENCE).stdout)

        node = {"name": "mine", "kind": "client", "cm_port": 0, "regions": [], "attributes": {"http": "192.0.2.1:80", "machine": "\x1b[31m", "story": "a secret"}}
        lease = ask("/v1/join", {"node": node, "lease_ms": 60000}, "-H", f"Authorization: Bearer {red}")["lease"]
        self.assertEqual(ask("/v1/publish", {"lease": lease, "node": node}), {})
        listed = lambda: {target["labels"]["instance"]: target["targets"] for target in json.loads(self.get("/v1/targets"))}  # noqa: E731
        self.assertEqual(sorted(listed()), ["memory1", "memory2", "metadata", "switch"])
        self.assertNotIn("\x1b", self.sluice("rack", "status", code=0).stdout)
        shown = json.loads(self.get("/v1/state"))["nodes"]
        self.assertEqual({key for n in shown for key in n["attributes"]}, {"pid", "tenant"})
        self.assertEqual({(r["key"], r["address"]) for n in shown for r in n["regions"]}, {(0, 0)})
        # One that is ended is not missing, one that is killed is.
        os.kill(self.pid("memory2"), signal.SIGTERM)
        os.kill(self.pid("metadata"), signal.SIGKILL)
        wait_until(lambda: sorted(listed()) == ["memory1", "metadata", "switch"], "who has left is no target", PATIENCE)
        wait_until(lambda: 'sluice_directory_nodes{kind="metadata",state="gone"} 1' in self.get("/metrics"), "it is missed", PATIENCE)
        for state, many in (("left", 1), ("gone", 0), ("ready", 1)):
            self.assertIn(f'sluice_directory_nodes{{kind="memory",state="{state}"}} {many}', self.get("/metrics"))

    # --- draining ---

    def test_a_drained_node_gets_nothing_new_and_says_what_is_left(self):
        self.up("--no-metadata")
        red = self.tenant("red")
        self.as_tenant(red, "region", "add", "heap", "1MiB", "--node", "memory2", code=0)
        left = self.sluice("rack", "drain", "memory2", code=1)
        self.assertIn("red/heap", left.stdout)
        self.assertIn("do not move by themselves: `sluice region move REGION --tenant TENANT`", left.stderr)
        self.assertRegex(self.sluice("rack", "status", code=0).stdout, r"memory2 +memory +draining")
        self.assertIn("is being drained", self.as_tenant(red, "region", "add", "more", "1MiB", "--node", "memory2", code=1).stderr)
        self.as_tenant(red, "region", "add", "more", "1MiB", code=0)
        self.assertEqual(self.regions()["red/more"]["node"], "memory1")
        # Moved, with all that is in it.
        self.as_tenant(red, "remote", "write", "heap", "0xFFFF8", "--text", "the end", code=0)
        self.as_tenant(red, "remote", "write", "heap", "0", "--text", "start", code=0)
        self.assertIn("for the rack's operator", self.as_tenant(red, "region", "move", "heap", code=1).stderr)
        self.sluice("rack", "drain", "memory2", "--undo", code=0)
        self.assertIn("on memory2 already", self.sluice("region", "move", "heap", "--tenant", "red", "--to", "memory2", code=1).stderr)
        self.sluice("rack", "drain", "memory2", code=1)
        self.assertIn("on memory1 now", self.sluice("region", "move", "heap", "--tenant", "red", code=0).stderr)
        self.assertEqual(self.regions()["red/heap"]["node"], "memory1")
        self.assertIn("the end", self.as_tenant(red, "remote", "read", "heap", "0xFFFF8", "8", code=0).stdout)
        self.assertIn("start", self.as_tenant(red, "remote", "read", "heap", "0", "8", code=0).stdout)
        self.assertIn("is not being moved", self.post("/v1/regions", {"do": "moved", "tenant": "red", "name": "heap", "next_birth": 1, "incarnation": 1}))
        # Begun and left: out of reach, then back as it was.
        self.sluice("rack", "drain", "memory2", "--undo", code=0)
        self.post("/v1/regions", {"do": "move", "tenant": "red", "name": "heap", "node": "memory2"})
        self.assertEqual(self.regions()["red/heap"]["state"], "moving to memory2")
        wait_until(lambda: self.as_tenant(red, "remote", "read", "heap", "0", "8").returncode == 1, "it is out of reach", PATIENCE)
        self.sluice("region", "move", "heap", "--tenant", "red", "--undo", code=0)
        wait_until(lambda: self.regions()["red/heap"]["state"] == "ready", "it is back", PATIENCE)
        self.assertIn("start", self.as_tenant(red, "remote", "read", "heap", "0", "8", code=0).stdout)
        self.sluice("rack", "drain", "memory2", code=0)
        self.as_tenant(red, "region", "remove", "heap", code=0)
        self.assertIn("may be ended", self.sluice("rack", "drain", "memory2", code=0).stderr)
        self.sluice("rack", "drain", "memory2", "--undo", code=0)
        self.as_tenant(red, "region", "add", "heap", "1MiB", "--node", "memory2", code=0)
        self.assertIn("there is no memory node 'memory9'", self.sluice("rack", "drain", "memory9", code=1).stderr)

    def resident(self, name):
        return next(d["resident_bytes"] for d in json.loads(self.sluice("rack", "status", "--json").stdout)["daemons"] if d["name"] == name)

    def test_a_sparse_region_stays_sparse_where_it_is_moved_to_and_nothing_else_stays_there(self):
        self.up("--no-metadata")
        red = self.tenant("red", "512MiB")
        self.as_tenant(red, "region", "add", "heap", "256MiB", "--node", "memory1", code=0)
        self.as_tenant(red, "remote", "write", "heap", "0x8000000", "--text", "in the midst", code=0)
        before = self.resident("memory2")
        self.sluice("region", "move", "heap", "--tenant", "red", "--to", "memory2", code=0)
        if looking_costs_memory():
            print("how much is resident is not judged: this kernel gives memory that is only read pages of its own", file=sys.stderr)
        else:
            self.assertLess(self.resident("memory2") - before, 64 << 20)
        self.assertIn("in the midst", self.as_tenant(red, "remote", "read", "heap", "0x8000000", "16", code=0).stdout)
        # A move that goes on finds what the one before has left there.
        self.post("/v1/regions", {"do": "move", "tenant": "red", "name": "heap", "node": "memory1"})
        wait_until(lambda: self.sluice("remote", "write", "arriving:red/heap", "0x5000", "--text", "left over").returncode == 0, "it is there", PATIENCE)
        self.sluice("region", "move", "heap", "--tenant", "red", code=0)
        self.assertIn("in the midst", self.as_tenant(red, "remote", "read", "heap", "0x8000000", "16", code=0).stdout)
        self.assertNotIn("left over", self.as_tenant(red, "remote", "read", "heap", "0x5000", "16", code=0).stdout)

    def test_a_move_that_is_interrupted_says_how_the_region_is_left(self):
        self.up("--no-metadata")
        red = self.tenant("red", "16GiB")
        self.as_tenant(red, "region", "add", "heap", "14GiB", "--node", "memory1", code=0)  # far more than is copied here
        self.as_tenant(red, "remote", "write", "heap", "0", "--text", "start", code=0)
        move = self.start("region", "move", "heap", "--tenant", "red")
        wait_until(lambda: self.sluice("remote", "read", "arriving:red/heap", "0", "16").stdout.find("start") > 0, "it is being copied", PATIENCE)
        move.send_signal(signal.SIGINT)
        _, said = move.communicate(timeout=30)
        self.assertEqual(move.returncode, 130, said)
        self.assertIn("interrupted; heap is out of reach for its tenant meanwhile: move it again, which goes on, or leave it where it was with --undo", said)
        self.assertEqual(self.regions()["red/heap"]["state"], "moving to memory2")
        self.assertIn("--to excludes --undo", self.sluice("region", "move", "heap", "--tenant", "red", "--undo", "--to", "memory2", code=2).stderr)
        self.sluice("region", "move", "heap", "--tenant", "red", "--undo", code=0)
        wait_until(lambda: self.regions()["red/heap"]["state"] == "ready", "it is back", PATIENCE)
        self.assertIn("start", self.as_tenant(red, "remote", "read", "heap", "0", "8", code=0).stdout)

    def test_a_token_that_could_not_be_written_is_not_made(self):
        self.up("--no-metadata")
        red = self.tenant("red")
        nowhere = self.folder + "/none/red.token"
        self.assertIn("No such file or directory", self.sluice("tenant", "rotate", "red", "--out", nowhere, code=1).stderr)
        self.as_tenant(red, "region", "list", code=0)  # with the token of before
        self.sluice("tenant", "add", "blue", "--quota", "1MiB", "--out", nowhere, code=1)
        self.assertNotIn("blue", self.sluice("tenant", "list", code=0).stdout)
        self.assertIn("leave out --quota", self.sluice("tenant", "add", "ops", "--operator", "--quota", "1MiB", code=2).stderr)

    def test_a_rack_that_comes_up_says_which_nodes_are_drained(self):
        self.up("--no-metadata")
        self.sluice("rack", "drain", "memory2", code=0)
        self.sluice("rack", "down", code=0)
        said = self.sluice("rack", "up", "--memory-nodes", "2", "--memory-size", "64MiB", "--no-metadata", code=0).stderr
        self.assertIn("memory2 is still drained, from before: it is given no regions; `sluice rack drain memory2 --undo` gives it some again", said)
        self.sluice("rack", "drain", "memory2", "--undo", code=0)
        self.assertNotIn("drained", self.sluice("rack", "up", "--memory-nodes", "2", "--memory-size", "64MiB", "--no-metadata", code=0).stderr)


if __name__ == "__main__":
    live_rack.SLUICE = os.path.abspath(sys.argv[1])
    os.environ.pop("SLUICE_TOKEN_FILE", None)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
