#!/usr/bin/env python3
"""A rack whose directory is in etcd: the real server, one or three of it, with and without TLS and passwords, killed and brought back.

usage: etcd_test.py SLUICE [TEST...]

SLUICE is the program. Exits with 77 where etcd is not installed.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import live_rack  # noqa: E402
from live_rack import free_ports, wait_until  # noqa: E402

PATIENCE = 240


class Etcd:
    """One server or several, which find each other; `flags` for each."""

    def __init__(self, folder, servers=1, scheme="http", flags=()):
        ports = free_ports(2 * servers)
        self.scheme = scheme
        self.addresses = [f"127.0.0.1:{port}" for port in ports[:servers]]
        peers = [f"http://127.0.0.1:{port}" for port in ports[servers:]]
        cluster = ",".join(f"e{i}={peer}" for i, peer in enumerate(peers))
        self.commands = [["etcd", "--name", f"e{i}", "--data-dir", f"{folder}/etcd{i}", "--listen-client-urls", f"{scheme}://{address}",
                          "--advertise-client-urls", f"{scheme}://{address}", "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                          "--initial-cluster", cluster, "--heartbeat-interval", "100", "--election-timeout", "1000", *flags]
                         for i, (address, peer) in enumerate(zip(self.addresses, peers))]
        self.log = open(f"{folder}/etcd.log", "ab")  # noqa: SIM115
        self.servers = [self.start(i) for i in range(servers)]

    def start(self, i):
        return subprocess.Popen(self.commands[i], stdout=self.log, stderr=self.log)

    def kill(self, i):
        self.servers[i].send_signal(signal.SIGKILL)
        self.servers[i].wait()

    def restart(self, i):
        self.servers[i] = self.start(i)

    def control(self, *words, flags=()):
        endpoints = ",".join(f"{self.scheme}://{address}" for address in self.addresses)
        return subprocess.run(["etcdctl", "--endpoints", endpoints, *flags, *words], capture_output=True, text=True, timeout=PATIENCE, check=False,
                              env={**os.environ, "ETCDCTL_API": "3"})

    def leader(self):
        status = json.loads(self.control("endpoint", "status", "--write-out", "json").stdout)
        ids = {one["Endpoint"].split("//")[1]: one["Status"] for one in status}
        return next(i for i, address in enumerate(self.addresses) if address in ids and ids[address]["header"]["member_id"] == ids[address]["leader"])

    def end(self):
        for server in self.servers:
            server.kill()
            server.wait()
        self.log.close()


class EtcdTest(live_rack.LiveRack):
    def etcd(self, *args, **named):
        etcd = Etcd(self.folder, *args, **named)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.addCleanup(etcd.end)
        self.etcds = etcd
        return etcd

    def tearDown(self):
        # The rack goes before its directory does.
        self.sluice("rack", "down")
        if hasattr(self, "etcds"):
            self.etcds.end()
        super().tearDown()

    def config(self, *settings):
        config = self.folder + "/rack.toml"
        addresses = ", ".join(f'"{address}"' for address in self.etcds.addresses)
        pathlib.Path(config).write_text("\n".join(["[switch]", f"etcd = [{addresses}]", *settings]) + "\n")
        return config

    def up(self, *settings, code=0):
        return self.sluice("rack", "up", "--config", self.config(*settings), "--memory-nodes", "2", "--memory-size", "64MiB", "--value-size", "100", code=code)

    def nodes(self):
        answer = json.loads(self.sluice("rack", "status", "--json").stdout)["directory"]
        return {node["name"]: node for node in answer.get("nodes", [])}

    def ready(self, name):
        return self.nodes().get(name, {}).get("state") == "ready"

    def ask_switch(self, path):
        """(status, body)"""
        connection = live_rack.SocketConnection(self.dir + "/directory.sock", timeout=60)
        connection.request("GET", path)
        answer = connection.getresponse()
        told = answer.read().decode()
        connection.close()
        return answer.status, told

    def bench(self, seconds):
        return self.start("bench", "clover", "--records", "200", "--value-size", "100", "--clients", "4", "--duration", f"{seconds}s", "--json")

    def good(self, child):
        out, err = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 0, f"{err}\n{out}")
        outcome = json.loads(out)
        self.assertEqual((outcome["run"]["values_wrong"], outcome["failed"]), (0, 0))
        self.assertGreater(outcome["run"]["operations"], 0)

    def test_the_racks_state_is_there_and_outlives_the_switch(self):
        self.etcd()
        self.up()
        self.good(self.bench(1))
        self.assertIn("/sluice/nodes/memory1", self.etcds.control("get", "--prefix", "/sluice/", "--keys-only").stdout)
        before = self.nodes()
        # Compacted under everybody's watch.
        revision = json.loads(self.etcds.control("get", "x", "--write-out", "json").stdout)["header"]["revision"]
        self.etcds.control("compact", str(revision))
        switch = next(d for d in json.loads(self.sluice("rack", "status", "--json").stdout)["daemons"] if d["name"] == "switch")
        os.kill(switch["pid"], signal.SIGKILL)
        for state in pathlib.Path(self.dir).glob("directory.sqlite*"):
            state.unlink()
        self.up()
        wait_until(lambda: self.ready("memory1") and self.ready("memory2"), "the memory nodes are there again", PATIENCE)
        after = self.nodes()
        for name in ("memory1", "memory2", "metadata"):
            self.assertEqual((after[name]["id"], after[name]["ip"]), (before[name]["id"], before[name]["ip"]))
        self.good(self.bench(1))

    def test_a_second_switch_does_not_take_the_place_of_one_that_lives(self):
        self.etcd()
        self.up()
        first = next(d["pid"] for d in json.loads(self.sluice("rack", "status", "--json").stdout)["daemons"] if d["name"] == "switch")
        other = self.folder + "/other"
        os.mkdir(other, 0o700)
        second = live_rack.run("switch", "--dir", other, "--config", self.folder + "/rack.toml", timeout=PATIENCE)
        self.assertEqual(second.returncode, 1, second.stdout)
        self.assertRegex(second.stderr, "'switch' is taken: .*is there a switch with the etcd-prefix")
        self.assertEqual(self.nodes()["switch"]["attributes"]["pid"], str(first))
        self.assertTrue(self.ready("switch"))
        # Of one that has died it does.
        os.kill(first, signal.SIGKILL)
        child = subprocess.Popen([live_rack.SLUICE, "switch", "--dir", other, "--config", self.folder + "/rack.toml"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.children.append(child)
        alive = lambda: self.etcds.control("get", "/sluice/nodes/switch").stdout  # noqa: E731
        wait_until(lambda: f'"pid":"{child.pid}"' in alive() and '"ready"' in alive(), "it is the switch", PATIENCE)

    def test_a_switch_that_was_stopped_while_another_took_its_place_ends_with_an_error(self):
        self.etcd()
        config = self.config()

        def switch(name):
            folder = f"{self.folder}/{name}"
            os.mkdir(folder, 0o700)
            child = subprocess.Popen([live_rack.SLUICE, "switch", "--dir", folder, "--config", config], stdout=subprocess.DEVNULL,
                                     stderr=subprocess.PIPE, text=True)
            self.children.append(child)
            alive = lambda: self.etcds.control("get", "/sluice/nodes/switch").stdout  # noqa: E731
            wait_until(lambda: f'"pid":"{child.pid}"' in alive() and '"ready"' in alive(), "it is the switch", PATIENCE)
            return child

        first = switch("one")
        first.send_signal(signal.SIGSTOP)
        switch("two")
        first.send_signal(signal.SIGCONT)
        said = first.communicate(timeout=PATIENCE)[1]
        self.assertEqual(first.returncode, 1, said)
        self.assertIn('another switch serves the etcd-prefix "/sluice" now', said)

    def test_tenants_are_there_too(self):
        self.etcd()
        self.up()
        token = self.folder + "/red.token"
        self.sluice("tenant", "add", "red", "--quota", "2MiB", "--out", token, code=0)
        self.sluice("region", "add", "heap", "1MiB", "--token-file", token, code=0)
        self.sluice("remote", "write", "heap", "0", "--text", "kept", "--token-file", token, code=0)
        self.assertIn('"red"', self.etcds.control("get", "/sluice/tenants").stdout)
        self.assertFalse((pathlib.Path(self.dir) / "tenants.json").exists())
        switch = next(d for d in json.loads(self.sluice("rack", "status", "--json").stdout)["daemons"] if d["name"] == "switch")
        os.kill(switch["pid"], signal.SIGKILL)
        for state in pathlib.Path(self.dir).glob("directory.sqlite*"):
            state.unlink()
        self.up()
        self.assertIn("kept", self.sluice("remote", "read", "heap", "0", "8", "--token-file", token, code=0).stdout)
        self.assertIn("is allowed 2MiB", self.sluice("region", "add", "more", "2MiB", "--token-file", token, code=1).stderr)
        # While etcd is away, who is in goes on.
        self.etcds.kill(0)
        self.assertEqual(self.sluice("tenant", "list").returncode, 1)
        self.etcds.restart(0)
        wait_until(lambda: self.sluice("tenant", "list").returncode == 0, "etcd is there again", PATIENCE)
        self.assertIn("kept", self.sluice("remote", "read", "heap", "0", "8", "--token-file", token, code=0).stdout)

    def test_a_leader_is_killed_and_comes_back_and_nobody_notices(self):
        self.etcd(3)
        self.up()
        running = self.bench(12)
        wait_until(lambda: any(n["kind"] == "client" and n["state"] == "ready" for n in self.nodes().values()), "the benchmark is on the rack", PATIENCE)
        leader = self.etcds.leader()
        self.etcds.kill(leader)
        self.sluice("remote", "write", "memory1", "0", "--word", "42", code=0)  # one who joins while there is none, and after
        self.etcds.restart(leader)
        self.good(running)
        self.assertTrue(self.ready("memory1") and self.ready("memory2"))

    def test_without_etcd_what_runs_goes_on_and_who_comes_is_told(self):
        self.etcd()
        self.up()
        running = self.bench(15)
        wait_until(lambda: any(n["kind"] == "client" and n["state"] == "ready" for n in self.nodes().values()), "the benchmark is on the rack", PATIENCE)
        self.etcds.kill(0)
        refused = self.sluice("remote", "read", "memory1", "0", "8", code=1)
        self.assertRegex(refused.stderr, "etcd at|no directory answers")
        # "None" would make Prometheus forget everybody, and end every alert.
        self.assertEqual(self.ask_switch("/v1/targets")[0], 503)
        told = self.ask_switch("/metrics")[1]
        self.assertIn("\nsluice_directory_answers 0\n", told)
        self.assertNotIn("\nsluice_directory_nodes{", told)
        self.assertIn("etcd", json.loads(self.ask_switch("/v1/state")[1])["nodes_error"])
        self.etcds.restart(0)
        self.good(running)
        wait_until(lambda: self.ready("memory1") and self.ready("memory2"), "the memory nodes are there again", PATIENCE)
        self.sluice("remote", "read", "memory1", "0", "8", code=0)
        self.assertIn("\nsluice_directory_answers 1\n", self.ask_switch("/metrics")[1])
        self.assertEqual(self.ask_switch("/v1/targets")[0], 200)

    def test_tls_and_a_password(self):
        tls = self.folder + "/tls"
        os.mkdir(tls)
        openssl = lambda *words: subprocess.run(["openssl", *words], check=True, capture_output=True)  # noqa: E731
        new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        openssl("req", "-x509", *new_key, "-keyout", tls + "/ca.key", "-out", tls + "/authority.pem", "-subj", "/CN=etcd authority", "-days", "30")
        pathlib.Path(tls + "/names").write_text("subjectAltName=IP:127.0.0.1\n")
        for name in ("server", "certificate"):
            openssl("req", *new_key, "-keyout", f"{tls}/{name}.key", "-out", f"{tls}/{name}.csr", "-subj", f"/CN={name}")
            openssl("x509", "-req", "-in", f"{tls}/{name}.csr", "-CA", tls + "/authority.pem", "-CAkey", tls + "/ca.key", "-CAcreateserial", "-days", "30",
                    "-extfile", tls + "/names", "-out", f"{tls}/{name}.pem")
        os.rename(tls + "/certificate.key", tls + "/key.pem")
        self.etcd(scheme="https", flags=["--cert-file", tls + "/server.pem", "--key-file", tls + "/server.key", "--trusted-ca-file", tls + "/authority.pem"])
        sealed = ["--cacert", tls + "/authority.pem", "--cert", tls + "/certificate.pem", "--key", tls + "/key.pem"]
        wait_until(lambda: "is healthy" in (done := self.etcds.control("endpoint", "health", flags=sealed)).stdout + done.stderr, "etcd is up", PATIENCE)
        for words in (("user", "add", "root:secret"), ("user", "grant-role", "root", "root"), ("auth", "enable")):
            done = self.etcds.control(*words, flags=sealed)
            self.assertEqual(done.returncode, 0, done.stderr)
        password = self.folder + "/password"
        pathlib.Path(password).write_text("secret\n")
        user = ['etcd-user = "root"', f'etcd-password = "{password}"']
        # Plain, another's authority, no user, a wrong password.
        self.assertIn("etcd at", self.up(code=1).stderr)
        other = self.folder + "/other"
        os.mkdir(other)
        openssl("req", "-x509", *new_key, "-keyout", other + "/ca.key", "-out", other + "/authority.pem", "-subj", "/CN=another", "-days", "30")
        self.assertIn("etcd at", self.up(f'etcd-tls = "{other}"', *user, code=1).stderr)
        self.assertIn("etcd at", self.up(f'etcd-tls = "{tls}"', code=1).stderr)
        pathlib.Path(password).write_text("guess\n")
        self.assertIn("authentication failed", self.up(f'etcd-tls = "{tls}"', *user, code=1).stderr)
        pathlib.Path(password).write_text("secret\n")
        self.up(f'etcd-tls = "{tls}"', *user)
        self.good(self.bench(1))


if __name__ == "__main__":
    live_rack.SLUICE = os.path.abspath(sys.argv[1])
    missing = [name for name in ("etcd", "etcdctl") if shutil.which(name) is None]
    if missing:
        print("skipped: not installed:", ", ".join(missing))
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
