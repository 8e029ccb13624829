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
            self.assertIn("--allow-plain", plain.stderr)
            third = target.bench("--transports", "sealed")
            self.assertEqual(third.returncode, 1)
            self.assertIn("has no grant left", third.stderr)

    def test_a_mistake_uses_no_grant_up(self):
        with Target() as target:
            before = pathlib.Path(target.grants).read_bytes()
            for port in ("bogus", f"shm:{target.folder.name}/nobody", "shm:/nowhere/cable"):
                done = bench("--port", port, "--grants", target.grants, "--ops", "read", "--sizes", "64")
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertEqual(pathlib.Path(target.grants).read_bytes(), before, done.stderr)
            self.assertEqual(target.bench().returncode, 0)

    def test_nobody_listens_at_port_0(self):
        with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
            for kind, command in (("onerma", "target"), ("cache", "serve")):
                done = subprocess.run([SLUICE, kind, command, "--port", "udp:127.0.0.1:0", "--listen", "--grants", f"{folder}/x.json"], capture_output=True,
                                      text=True, timeout=PATIENCE, check=False)
                self.assertEqual(done.returncode, 1)
                self.assertIn("port 0 is nobody's", done.stderr)
            self.assertEqual(os.listdir(folder), [])

    def test_a_client_changes_the_key_under_load_where_it_may_and_no_operation_fails(self):
        with Target("--allow-rekey") as target:
            done = target.bench("--ops", "write", "--rekey-every", "10ms")
            self.assertEqual(done.returncode, 0, done.stderr)
            for point in json.loads(done.stdout):  # read, write
                self.assertGreaterEqual(point["rekeys"], 1)
                self.assertGreater(point["rekey_pause_p50_us"], 0)
            after = target.bench()  # the others' grants are worth nothing now
            self.assertEqual(after.returncode, 1)
            self.assertIn("access denied", after.stderr)
        with Target() as target:
            done = target.bench("--rekey-every", "10ms")
            self.assertEqual(done.returncode, 1)
            self.assertIn("--allow-rekey", done.stderr)

    def test_keys_are_changed_sealed_alone(self):
        done = bench("--ops", "read", "--sizes", "64", "--depths", "16", "--rekey-every", "10ms")
        self.assertEqual(done.returncode, 0, done.stderr)
        points = json.loads(done.stdout)
        self.assertEqual([point["transport"] for point in points], ["sealed"])
        self.assertGreaterEqual(points[0]["rekeys"], 1)
        for transports in (["plain"], ["sealed", "plain"]):
            named = [word for transport in transports for word in ("--transports", transport)]
            done = bench(*named, "--rekey-every", "10ms")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("a key that is sent in clear is none", done.stderr)

    def test_a_target_that_cannot_listen_leaves_grants_alone(self):
        with Target() as target:
            folder = target.folder.name
            theirs = pathlib.Path(target.grants).read_bytes()
            before = sorted(os.listdir(folder))
            for kind, command in (("onerma", "target"), ("cache", "serve")):
                for port, grants in ((f"cable:{folder}/cable", target.grants), ("cable:/nowhere/cable", f"{folder}/other.json")):
                    with self.subTest(command=kind, port=port):
                        done = subprocess.run([SLUICE, kind, command, "--port", port, "--grants", grants], capture_output=True, text=True,
                                              timeout=PATIENCE, check=False)
                        self.assertEqual(done.returncode, 1, done.stderr)
                        self.assertEqual(sorted(os.listdir(folder)), before)
            self.assertEqual(pathlib.Path(target.grants).read_bytes(), theirs)
            self.assertEqual(target.bench().returncode, 0)

    def test_a_target_tells_at_its_end_what_it_has_counted(self):
        with Target() as target:
            self.assertEqual(target.bench().returncode, 0)
            self.assertEqual(target.bench("--transports", "plain").returncode, 1)
            target.process.terminate()
            said = target.process.stderr.read()
            self.assertRegex(said, r"[0-9]+ reads answered\n")
            self.assertRegex(said, r"[0-9]+ plain messages refused\n")

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

    def killed(self, target_options, *bench_options):
        """Seconds until a client says that its target has been killed."""
        with Target(*target_options) as target:
            client = subprocess.Popen(
                [SLUICE, "onerma", "bench", "--port", target.port, "--grants", target.grants, "--transports", "sealed", "--duration", "600s",
                 *bench_options], stderr=subprocess.PIPE, text=True)
            time.sleep(1)
            target.process.send_signal(signal.SIGKILL)
            began = time.monotonic()
            try:
                _, err = client.communicate(timeout=PATIENCE)
            finally:
                client.kill()
            self.assertEqual(client.returncode, 1)
            self.assertIn("an operation failed: ", err)
            return time.monotonic() - began

    def test_a_killed_target_is_told_in_time_when_long_transfers_were_half_done(self):
        for op in ("read", "write"):
            with self.subTest(op=op):  # 5 s, and a few time-outs of 0.1 s
                self.assertLess(self.killed((), "--ops", op, "--sizes", "1MiB", "--depths", "4"), 10)

    def test_a_killed_target_is_told_while_its_key_is_changed(self):
        for _ in range(3):  # a change is under way in about half of them
            self.killed(("--allow-rekey",), "--ops", "read", "--sizes", "64", "--depths", "4", "--rekey-every", "1us")

    def test_two_clients_of_one_target_share_a_switch(self):
        with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
            port, grants = f"shm:{folder}/switch.sock", f"{folder}/grants.json"
            switch = subprocess.Popen([SLUICE, "switch", "--dir", folder], stderr=subprocess.DEVNULL)
            end = time.monotonic() + PATIENCE
            while not pathlib.Path(f"{folder}/switch.sock").exists() and time.monotonic() < end:
                time.sleep(0.05)
            target = subprocess.Popen([SLUICE, "onerma", "target", "--port", port, "--grants", grants, "--memory", "64MiB"], stderr=subprocess.PIPE, text=True)
            try:
                self.assertIn("serves", target.stderr.readline())
                def begin():
                    return subprocess.Popen(
                        [SLUICE, "onerma", "bench", "--port", port, "--grants", grants, "--ops", "read", "--sizes", "64", "--depths", "16", "--duration", "1500ms",
                         "--json"], stdout=subprocess.PIPE, text=True)

                def retries(clients):
                    return sum(json.loads(client.communicate(timeout=PATIENCE)[0])[0]["retries"] for client in clients)

                alone = retries([begin()])
                together = retries([begin(), begin()])
            finally:
                for process in (target, switch):
                    process.kill()
                    process.wait(PATIENCE)
                target.stderr.close()
            # With one address for both, each took answers of the other, which then waited for 0.1 s: dozens of times.
            # A machine that is busy with something else has its part in them, as when one was alone.
            self.assertLess(together, 10 + 4 * alone)

    def test_the_packet_port_carries_it_between_two_ends_of_a_veth_pair(self):
        own = [] if os.geteuid() == 0 else ["--map-root-user", "--user"]
        if subprocess.run(["unshare", *own, "--net", "ip", "link", "add", "here", "type", "veth", "peer", "name", "there"], check=False,
                          capture_output=True).returncode:
            self.skipTest("no network namespaces, or no ip")
        for mtu in (9000, 1500):  # frames of 4 KB do not pass the latter
            with self.subTest(mtu=mtu):
                self.over_veth(own, mtu)

    def over_veth(self, own, mtu):
        with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
            script = f"""
                set -e
                ip link add here type veth peer name there
                ip link set here mtu {mtu} up
                ip link set there mtu {mtu} up
                {SLUICE} onerma target --port packet:here,filter=all --grants {folder}/grants.json --memory 64MiB 2> {folder}/said &
                target=$!
                trap 'kill $target' EXIT
                for _ in $(seq 300); do grep -q serves {folder}/said && break; sleep 0.1; done
                {SLUICE} onerma bench --port packet:there,filter=all --grants {folder}/grants.json --transports sealed --sizes 64 --sizes 1MiB \
                    --depths 4 --duration 100ms --json
            """
            done = subprocess.run(["unshare", *own, "--net", "sh", "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(json.loads(done.stdout)), 2 * 2)  # operations, sizes

    def test_says_what_is_wrong(self):
        for code, arguments, what in ((2, ["--grants", "/nowhere.json"], "--port and --grants belong together"),
                                      (2, ["--ops", "cas"], "must be read or write"),
                                      (2, ["--sizes", "2MiB"], "up to 1MiB"),
                                      (2, ["--transports", "tcp"], "must be sealed, plain or rc"),
                                      (1, ["--port", "shm:/nowhere", "--grants", "/"], "no file of grants"),
                                      (1, ["--port", "shm:/nowhere", "--grants", "/nowhere.json", "--transports", "sealed"], "cannot read /nowhere.json")):
            done = bench(*arguments)
            self.assertEqual(done.returncode, code)
            self.assertIn(what, done.stderr)


def cache(*arguments, timeout=PATIENCE):
    return subprocess.run([SLUICE, "cache", *arguments], capture_output=True, text=True, timeout=timeout, check=False)


class Rack:
    """A switch, and replicas of a cache that reach each other through it."""

    def __init__(self, replicas, *options):
        self.options = options
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-")
        self.port = f"shm:{self.folder.name}/switch.sock"
        self.grants = [f"{self.folder.name}/{i}.json" for i in range(replicas)]
        self.switch = subprocess.Popen([SLUICE, "switch", "--dir", self.folder.name], stderr=subprocess.DEVNULL)
        self.replicas = []

    def __enter__(self):
        end = time.monotonic() + PATIENCE
        while not pathlib.Path(self.port.removeprefix("shm:")).exists() and time.monotonic() < end:
            time.sleep(0.05)
        for i, grants in enumerate(self.grants):
            replica = subprocess.Popen([SLUICE, "cache", "serve", "--port", self.port, "--ip", f"10.77.253.{i + 1}", "--grants", grants, "--memory",
                                        "1MiB", *self.options], stderr=subprocess.PIPE, text=True)
            assert "serves" in replica.stderr.readline()
            self.replicas.append(replica)
        return self

    def __exit__(self, *_):
        for process in (*self.replicas, self.switch):
            process.kill()
            process.wait(PATIENCE)
        for replica in self.replicas:
            replica.stderr.close()
        self.folder.cleanup()

    def once(self, what, *words):
        return cache(what, "--port", self.port, *(word for grants in self.grants for word in ("--grants", grants)), "--patience", "2s", *words)


class Cache(unittest.TestCase):
    def test_a_key_is_set_found_and_erased_and_survives_a_replica(self):
        with Rack(2) as rack:
            self.assertIn("fruit: not there", rack.once("get", "fruit").stderr)
            self.assertEqual(rack.once("set", "fruit", "apple").returncode, 0)
            self.assertEqual(rack.once("set", "fruit", "a pear").returncode, 0)  # another client: it learns the version first
            self.assertEqual(rack.once("set", "root", "turnip").returncode, 0)
            self.assertEqual(rack.once("get", "fruit").stdout, "a pear\n")
            self.assertEqual(rack.once("erase", "root").returncode, 0)
            self.assertIn("root: not there", rack.once("get", "root").stderr)
            rack.replicas[0].kill()
            rack.replicas[0].wait(PATIENCE)
            self.assertEqual(rack.once("get", "fruit").stdout, "a pear\n")
            self.assertIn("fruit: not at all replicas", rack.once("set", "fruit", "a fig").stderr)
            self.assertEqual(rack.once("get", "fruit").stdout, "a fig\n")

    def test_a_value_may_be_as_long_as_the_replicas_take(self):
        with Rack(2, "--max-value", "100000B") as rack:
            longest = "x" * 100_000
            done = rack.once("set", "long", longest)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(rack.once("get", "long").stdout, longest + "\n")
            self.assertIn("a value of 100001 bytes is too long: the replicas take 100000 at most", rack.once("set", "long", longest + "x").stderr)

    def test_a_mistake_uses_no_grant_up(self):
        with Rack(2) as rack:
            def grants():
                return [pathlib.Path(path).read_bytes() for path in rack.grants]

            before = grants()
            one, two = rack.grants
            for words in (["--port", "shm:/nowhere/switch.sock", "--grants", one, "k"], ["--port", "bogus", "--grants", one, "k"],
                          ["--port", rack.port, "--grants", one, "--grants", "/nowhere.json", "k"],
                          ["--port", rack.port, "--grants", one, "--grants", one, "k"],
                          ["--port", rack.port, "--grants", one, "--grants", two, "k" * 251]):
                done = cache("get", *words)
                self.assertNotEqual(done.returncode, 0, words)
                self.assertEqual(grants(), before, f"{words}: {done.stderr}")
            self.assertEqual(rack.once("set", "k", "x" * 100_000).returncode, 1)
            self.assertEqual(grants(), before)
            pathlib.Path(two).write_text(json.dumps({**json.loads(before[1]), "grants": []}))
            done = rack.once("get", "k")
            self.assertIn(f"{two} has no grant left; start its replica anew", done.stderr)
            self.assertEqual(pathlib.Path(one).read_bytes(), before[0])

    def test_a_second_replica_leaves_the_grants_of_one_that_runs(self):
        with Rack(1) as rack:
            before = pathlib.Path(rack.grants[0]).read_bytes()
            done = cache("serve", "--port", rack.port, "--ip", "10.77.253.9", "--grants", rack.grants[0], "--memory", "1MiB", timeout=60)
            self.assertEqual(done.returncode, 1)
            self.assertIn("has the grants of another replica that runs", done.stderr)
            self.assertEqual(pathlib.Path(rack.grants[0]).read_bytes(), before)

    def test_every_value_found_is_right_while_others_change_and_a_replica_dies(self):
        done = cache("bench", "--duration", "3s", "--kill-after", "500ms", "--writes", "5", "--records", "200", "--patience", "1s", "--json")
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        said = json.loads(done.stdout)
        self.assertGreater(said["lookups"], 0)
        self.assertGreater(said["changes"], 0)
        self.assertEqual((said["wrong"], said["failed"], said["misses"]), (0, 0, 0))
        self.assertGreaterEqual(said["left_out"], 1)
        self.assertGreaterEqual(said["failovers"], 1)

    def test_says_what_is_wrong(self):
        for code, arguments, what in ((2, ["serve", "--grants", "x"], "--port is needed"), (2, ["serve", "--port", "cable:/nowhere"], "--grants is needed"),
                                      (2, ["get", "--port", "shm:/nowhere", "k"], "--grants is needed"),
                                      (2, ["get", "--port", "shm:/nowhere", "--grants", "x", "k" * 251], "it may have 250 at most"),
                                      (2, ["bench", "--kill-after", "5s", "--duration", "500ms"], "must be before the end"),
                                      (1, ["get", "--port", "shm:/nowhere", "--grants", "/nowhere.json", "k"], "cannot read /nowhere.json")):
            done = cache(*arguments)
            self.assertEqual(done.returncode, code)
            self.assertIn(what, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
