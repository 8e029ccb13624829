#!/usr/bin/env python3
"""libcowbird, the engine, here, in the switch and on a memory node, as real processes: right answers, also when one of them is killed."""
import fcntl
import http.client
import json
import mmap
import os
import pathlib
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

SLUICE, APP = (pathlib.Path(p).resolve() for p in sys.argv[1:3])
PATIENCE = 60
ENDLESS = 10**9  # operations: more than any test waits for
DENIED, TOO_LONG = 16, 21


class Rack:
    """A rack of its own: a switch, two memory nodes, and engines that the test starts."""

    def __init__(self, switch="", rack=()):
        self.settings = f"[switch]\n{switch}\n"
        self.arguments = rack

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-")
        self.dir = self.folder.name
        self.engines = []
        self.config = f"{self.dir}/rack.toml"
        pathlib.Path(self.config).write_text(self.settings)
        subprocess.run([SLUICE, "rack", "up", "--dir", self.dir, "--config", self.config, "--no-metadata", "--memory-nodes", "2",
                        *self.arguments], check=True, capture_output=True, timeout=PATIENCE)
        return self

    def __exit__(self, *_):
        for engine in self.engines:
            engine.kill()
            engine.wait()
        subprocess.run([SLUICE, "rack", "down", "--dir", self.dir], check=False, capture_output=True, timeout=PATIENCE)
        self.folder.cleanup()

    @property
    def socket(self):
        return f"{self.dir}/cowbird.sock"

    def start_engine(self, *arguments):
        with open(f"{self.dir}/engine.log", "ab") as log:
            engine = subprocess.Popen([SLUICE, "cowbird", "engine", "--dir", self.dir, *arguments], stderr=log)
        self.engines.append(engine)
        for _ in range(PATIENCE * 20):
            if os.path.exists(self.socket) or engine.poll() is not None:
                break
            time.sleep(0.05)
        return engine

    def app(self, node="memory1", operations=5000, seed=1):
        return subprocess.Popen([APP, self.socket, node, str(operations), str(seed)], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def replace_memory(self, name, *arguments):
        """Kills a memory node and starts another of its name: its region has another key."""
        os.kill(self.pid_of(name), signal.SIGKILL)
        with open(f"{self.dir}/{name}-again.log", "ab") as log:
            self.engines.append(subprocess.Popen([SLUICE, "memory", "--dir", self.dir, "--name", name, "--size", "64MiB", *arguments],
                                                 stdout=log, stderr=log))

    def wait_for_log(self, text):
        for _ in range(PATIENCE * 10):
            log = pathlib.Path(f"{self.dir}/engine.log").read_text()
            if text in log:
                break
            time.sleep(0.1)
        return log

    def metrics_of(self, daemon, prefix):
        switch = http.client.HTTPConnection("switch", timeout=PATIENCE)
        switch.sock = socket.socket(socket.AF_UNIX)
        switch.sock.connect(f"{self.dir}/directory.sock")
        switch.request("GET", f"/metrics{daemon}")
        lines = switch.getresponse().read().decode().splitlines()
        switch.close()
        return {line.split("{")[0].split()[0]: float(line.split()[-1]) for line in lines if line.startswith(prefix)}

    def pid_of(self, daemon):
        return int(pathlib.Path(f"{self.dir}/{daemon}.pid").read_text().split()[0])

    def without_the_directory(self, action):
        """What is asked meanwhile does not arrive."""
        os.rename(f"{self.dir}/directory.sock", f"{self.dir}/away.sock")
        action()
        time.sleep(0.3)
        os.rename(f"{self.dir}/away.sock", f"{self.dir}/directory.sock")


class Rings:
    """An application that writes its rings by itself, and so may say in them what libcowbird would not. It only reads, one request at a time."""

    CHANNEL, PROGRESS, ERRORS, METADATA = 4096, 128, 256, 640  # in the block; in the channel
    ENTRIES, REQUEST_BYTES = 16, 64

    def __init__(self, rack, response_bytes=1024):
        self.responses = self.METADATA + 32 * self.ENTRIES + self.REQUEST_BYTES
        size = self.CHANNEL + (self.responses + response_bytes + 4095) // 4096 * 4096
        memory = os.memfd_create("rings", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, size)
        fcntl.fcntl(memory, 1033, 0x6)  # F_ADD_SEALS: neither shorter nor longer
        self.block = mmap.mmap(memory, size)
        self.words = memoryview(self.block).cast("Q")  # stored at once: pack_into stores zeros first, and the engine looks at any time
        struct.pack_into("<8s6I", self.block, 0, b"COWBIRD1", 1, 1, self.ENTRIES, self.REQUEST_BYTES, response_bytes, 64)
        self.issued, self.regions, self.generation, self.errors = 0, 0, 0, 0
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(rack.socket)
        socket.send_fds(self.socket, [f"instance 1 {size}".encode()], [memory])
        os.close(memory)
        assert self.socket.recv(4096) == b"ok"

    def close(self):
        self.socket.close()

    def word(self, at):
        return self.words[(self.CHANNEL + at) // 8]

    def store(self, at, value):
        self.words[(self.CHANNEL + at) // 8] = value

    def ask(self, node, offset, length):
        """Node, key and base of memory that the rack has."""
        self.socket.send(f"region {node} {offset} {length}".encode())
        kind, *numbers = self.socket.recv(4096).decode().split()
        assert kind == "region", numbers
        return [int(number) for number in numbers[:3]]

    def add(self, node, key, base, length):
        struct.pack_into("<IIQQQ", self.block, 64 + 32 * self.regions, node, key, base, length, 1)
        self.regions += 1
        self.change(self.regions)
        return self.regions - 1

    def change(self, generation):
        self.generation = generation
        self.store(16, generation)

    def read(self, region, length=8, patience=PATIENCE):
        """Its status; None: it was not completed."""
        entry = self.METADATA + 32 * (self.issued % self.ENTRIES)
        self.issued += 1
        struct.pack_into("<QQIHHQ", self.block, self.CHANNEL + entry, 0, self.responses, length, region, 1, self.issued)
        self.store(0, self.issued)
        deadline = time.monotonic() + patience
        while self.word(self.PROGRESS) < self.issued:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.0002)
        logged = self.word(self.ERRORS)
        status = 0 if logged == self.errors else self.word(self.ERRORS + 16 * (1 + (logged - 1) % 16) + 8)
        self.errors = logged
        self.store(8, logged)
        return status


def recovers_from_a_stale_key(test, rack, *memory_arguments):
    app = rack.app(operations=ENDLESS)
    test.addCleanup(app.kill)
    bystander = rack.app(node="memory2", operations=20000)
    for one in (app, bystander):
        test.assertEqual(one.stdout.readline(), "ready\n")
    rack.replace_memory("memory1", *memory_arguments)
    # Whoever holds the old key is told so, nobody else notices, and whoever asks anew is served by the same engine.
    readable, _, _ = select.select([app.stdout], [], [], PATIENCE)
    test.assertTrue(readable, "the application never heard of it")
    # (Out of reach where the new node took longer to come than the engine waits.)
    test.assertRegex(app.stdout.readline(), "request failed: the memory node (refused|was lost|cannot be reached)")
    out, err = bystander.communicate(timeout=2 * PATIENCE)
    test.assertEqual(bystander.returncode, 0, out + err)
    for _ in range(PATIENCE):
        again = rack.app(operations=2000)
        out, err = again.communicate(timeout=2 * PATIENCE)
        if again.returncode == 0:
            break
        time.sleep(0.2)  # the directory may not know the new node yet
    test.assertIn("2000 operations, 0 wrong, 0 failed", out + err)
    # The old one goes on being refused, and takes nobody's connection with it.
    again = rack.app(operations=2000, seed=2)
    out, err = again.communicate(timeout=2 * PATIENCE)
    test.assertIn("2000 operations, 0 wrong, 0 failed", out + err)
    app.kill()
    app.communicate()


def reads_are_right(test, rack):
    for app in [rack.app(node, seed=seed) for seed, node in enumerate(["memory1", "memory2"])]:
        out, err = app.communicate(timeout=2 * PATIENCE)
        test.assertEqual(app.returncode, 0, out + err)
        test.assertIn("5000 operations, 0 wrong, 0 failed", out)


def moves_what_fits_the_ring(test, rack, longest):
    mib = 1 << 20
    rings = Rings(rack, 4 * mib)
    region = rings.add(*rings.ask("memory1", 0, 4 * mib), 4 * mib)
    for length in (8, mib, mib + 8, 4 * mib):
        test.assertEqual(rings.read(region, length), 0 if length <= longest else TOO_LONG, length)
    rings.close()


def does_what_it_has_begun(test, app):
    """It is told to begin no more, and loses none."""
    app.send_signal(signal.SIGTERM)
    out, err = app.communicate(timeout=4 * PATIENCE)
    test.assertEqual(app.returncode, 0, out + err)
    test.assertRegex(out, r"\d+ operations, 0 wrong, 0 failed")


def survives_killed_hosts(test, rack, start_host):
    app = None
    for restart in range(3):
        host = start_host("--name", f"host{restart}")
        if app is None:
            app = rack.app(operations=ENDLESS)
            test.assertEqual(app.stdout.readline(), "ready\n")
        time.sleep(0.5)
        if restart < 2:
            test.assertIsNone(app.poll(), "it has ended before anything was killed")
            host.send_signal(signal.SIGKILL if restart == 0 else signal.SIGTERM)
            host.wait(PATIENCE)
    does_what_it_has_begun(test, app)


class Engine(unittest.TestCase):
    def test_every_read_is_right(self):
        with Rack() as rack:
            rack.start_engine()
            reads_are_right(self, rack)

    def test_a_killed_engine_is_replaced_and_nothing_is_lost(self):
        with Rack() as rack:
            app = None
            for restart in range(4):
                engine = rack.start_engine("--name", f"engine{restart}")
                if app is None:
                    app = rack.app(operations=ENDLESS)
                    self.assertEqual(app.stdout.readline(), "ready\n")
                time.sleep(0.5)
                if restart < 3:
                    self.assertIsNone(app.poll(), "it has ended before anything was killed")
                    engine.send_signal(signal.SIGKILL if restart % 2 == 0 else signal.SIGTERM)
                    engine.wait(PATIENCE)
            does_what_it_has_begun(self, app)

    def test_a_killed_memory_node_gives_errors_and_others_go_on(self):
        with Rack() as rack:
            rack.start_engine("--patience", "500ms")
            app = rack.app(operations=ENDLESS)
            self.addCleanup(app.kill)
            self.assertEqual(app.stdout.readline(), "ready\n")
            os.kill(rack.pid_of("memory1"), signal.SIGKILL)
            readable, _, _ = select.select([app.stdout], [], [], PATIENCE)
            self.assertTrue(readable, "the application never heard of it")
            self.assertIn("request failed: the memory node", app.stdout.readline())
            other = rack.app(node="memory2")
            out, err = other.communicate(timeout=PATIENCE)
            self.assertEqual(other.returncode, 0, out + err)
            app.kill()
            app.communicate()

    def test_a_stale_key_is_refused_and_a_new_one_is_served(self):
        with Rack() as rack:
            rack.start_engine()
            recovers_from_a_stale_key(self, rack)

    def test_a_wrong_key_takes_nobodys_connection(self):
        with Rack() as rack:
            rack.start_engine()
            rings = Rings(rack)
            node, key, base = rings.ask("memory1", 0, 4096)
            rings.add(node, key ^ 0x5555, base, 4096)

            def spoil():
                while not enough.is_set():
                    rings.change(rings.generation + 1)
                    statuses.add(rings.read(0))

            statuses = set()
            enough = threading.Event()
            spoiler = threading.Thread(target=spoil, daemon=True)
            spoiler.start()
            out, err = rack.app(operations=20000, seed=2).communicate(timeout=2 * PATIENCE)
            enough.set()
            spoiler.join(PATIENCE)
            rings.close()
            self.assertIn("20000 operations, 0 wrong, 0 failed", out + err)  # nobody's connection was lost by that
            self.assertEqual(statuses, {DENIED})

    def test_whatever_fits_the_ring_is_moved_at_once(self):
        with Rack() as rack:
            rack.start_engine()
            moves_what_fits_the_ring(self, rack, 4 << 20)

    def test_a_second_engine_says_whom_it_waits_for_and_takes_over(self):
        with Rack() as rack:
            first = rack.start_engine()
            second, third = (subprocess.Popen([SLUICE, "cowbird", "engine", "--dir", rack.dir], stderr=subprocess.PIPE, text=True)
                             for _ in range(2))
            rack.engines += [second, third]
            self.addCleanup(second.stderr.close)
            self.addCleanup(third.stderr.close)
            for waiting in (second, third):
                self.assertIn(f"process {first.pid} is the rack's engine of this name already", waiting.stderr.readline())
            third.send_signal(signal.SIGINT)
            self.assertEqual(third.wait(PATIENCE), 0)
            first.send_signal(signal.SIGTERM)
            first.wait(PATIENCE)
            self.assertIn("ready at", second.stderr.readline())
            app = rack.app()
            out, err = app.communicate(timeout=PATIENCE)
            self.assertEqual(app.returncode, 0, out + err)

    def test_one_that_is_only_stopped_keeps_its_applications(self):
        with Rack() as rack:
            first = rack.start_engine()
            second = subprocess.Popen([SLUICE, "cowbird", "engine", "--dir", rack.dir], stderr=subprocess.PIPE, text=True)
            rack.engines.append(second)
            self.addCleanup(second.stderr.close)
            self.assertIn("standing by to take over", second.stderr.readline())
            first.send_signal(signal.SIGSTOP)
            time.sleep(5)  # its lease has 3 s
            self.assertIsNone(second.poll(), "the other one goes on standing by")
            first.send_signal(signal.SIGCONT)
            app = rack.app()
            out, err = app.communicate(timeout=PATIENCE)
            self.assertEqual(app.returncode, 0, out + err)
            first.kill()
            first.wait(PATIENCE)
            self.assertIn("ready at", second.stderr.readline())

    def test_one_whose_name_was_taken_meanwhile_ends(self):
        with Rack() as rack:
            first = rack.start_engine()
            first.send_signal(signal.SIGSTOP)
            other = os.path.join(rack.dir, "other.sock")
            rack.start_engine("--socket", other)
            for _ in range(PATIENCE * 20):  # once the lease is over
                if os.path.exists(other):
                    break
                time.sleep(0.05)
            first.send_signal(signal.SIGCONT)
            self.assertEqual(first.wait(PATIENCE), 1)

    def test_one_that_stands_by_says_what_it_would_lack(self):
        with Rack() as rack:
            rack.start_engine()
            for arguments, lacks in ((["--engine", "at:nosuch"], 'no memory node "nosuch" is on the rack'),
                                     (["--engine", "at:memory1"], "memory1 has no engine"),
                                     (["--engine", "switch"], "the switch has no engine for us"), ([], None)):
                with self.subTest(arguments=arguments):
                    second = subprocess.Popen([SLUICE, "cowbird", "engine", "--dir", rack.dir, *arguments], stderr=subprocess.PIPE, text=True)
                    rack.engines.append(second)
                    self.addCleanup(second.stderr.close)
                    if lacks:
                        self.assertIn(lacks, second.stderr.readline())
                    self.assertIn("standing by to take over", second.stderr.readline())
            far = subprocess.run([SLUICE, "cowbird", "engine", "--dir", rack.dir, "--socket", "/tmp/" + 200 * "x"], check=False, capture_output=True,
                                 text=True, timeout=PATIENCE)
            self.assertEqual(far.returncode, 2)
            self.assertIn("must have at most 107 bytes", far.stderr)

    def test_says_what_is_wrong(self):
        with Rack() as rack:
            app = rack.app()
            _, err = app.communicate(timeout=PATIENCE)
            self.assertTrue(err.rstrip().endswith(f"no Cowbird engine at {rack.socket}: start one with `sluice cowbird engine`"), err)
            rack.start_engine()
            app = rack.app(node="memory9")
            _, err = app.communicate(timeout=PATIENCE)
            self.assertRegex(err, 'there is no memory node memory9; there are memory[12], memory[12]')


class InTheSwitch(unittest.TestCase):
    """The same applications, their data moved by the switch."""

    @staticmethod
    def rack(switch=""):
        return Rack(switch, ["--cowbird"])

    @staticmethod
    def start_host(rack, *arguments):
        return rack.start_engine("--engine", "switch", *arguments)

    @staticmethod
    def counters(rack):
        shown = subprocess.run([SLUICE, "cowbird", "show", "--json", "--dir", rack.dir], check=True, capture_output=True, text=True,
                               timeout=PATIENCE)
        return json.loads(shown.stdout)

    def test_every_read_is_right(self):
        with self.rack() as rack:
            self.start_host(rack)
            reads_are_right(self, rack)
            done = self.counters(rack)["counters"]
            self.assertGreaterEqual(done["reads"] + done["writes"], 10000)
            self.assertGreaterEqual(done["relayed"], 10000)
            metrics = rack.metrics_of("", "sluice_cowbird_switch")
            for name in ("reads", "writes", "relayed", "publications"):
                self.assertGreaterEqual(metrics[f"sluice_cowbird_switch_{name}_total"], done[name], name)
            self.assertIn("sluice_cowbird_switch_channels", metrics)

    def test_a_killed_host_process_is_replaced_and_nothing_is_lost(self):
        with self.rack() as rack:
            survives_killed_hosts(self, rack, lambda *arguments: self.start_host(rack, *arguments))

    def test_a_killed_switch_is_replaced_and_nothing_is_lost(self):
        with self.rack() as rack:
            self.start_host(rack)
            app = rack.app(operations=20000)
            self.assertEqual(app.stdout.readline(), "ready\n")
            before = self.counters(rack)["boot"]
            killed = rack.pid_of("switch")
            self.assertIsNone(app.poll())
            os.kill(killed, signal.SIGKILL)
            # Its sockets are its own until it has ended; a second switch beside it would be refused.
            for _ in range(100):
                try:
                    with open(f"/proc/{killed}/stat", encoding="ascii") as stat:
                        if stat.read().rsplit(")", 1)[1].split()[0] == "Z":
                            break
                except (FileNotFoundError, ProcessLookupError):
                    break
                time.sleep(0.05)
            with open(f"{rack.dir}/switch2.log", "ab") as log:
                switch = subprocess.Popen([SLUICE, "switch", "--cowbird", "--dir", rack.dir], stdout=log, stderr=log)
            rack.engines.append(switch)
            out, err = app.communicate(timeout=4 * PATIENCE)
            self.assertEqual(app.returncode, 0, out + err)
            self.assertIn("20000 operations, 0 wrong, 0 failed", out)
            self.assertNotEqual(self.counters(rack)["boot"], before)

    def test_a_killed_memory_node_gives_errors_and_others_go_on(self):
        with self.rack('cowbird-patience = "3s"') as rack:
            self.start_host(rack)
            app = rack.app(operations=ENDLESS)
            self.addCleanup(app.kill)
            self.assertEqual(app.stdout.readline(), "ready\n")
            os.kill(rack.pid_of("memory1"), signal.SIGKILL)
            readable, _, _ = select.select([app.stdout], [], [], PATIENCE)
            self.assertTrue(readable, "the application never heard of it")
            self.assertIn("request failed: the memory node", app.stdout.readline())
            other = rack.app(node="memory2")
            out, err = other.communicate(timeout=2 * PATIENCE)
            self.assertEqual(other.returncode, 0, out + err)
            app.kill()
            app.communicate()

    def test_a_stale_key_is_refused_and_a_new_one_is_served(self):
        with self.rack('cowbird-patience = "3s"') as rack:
            self.start_host(rack)
            recovers_from_a_stale_key(self, rack)

    def test_regions_whose_message_was_lost_are_told_again(self):
        with self.rack() as rack:
            self.start_host(rack)
            rings = Rings(rack)
            first, second = (rings.ask("memory1", 4096 * i, 4096) for i in range(2))
            rings.add(*first, 4096)
            self.assertEqual(rings.read(0), 0)
            rack.without_the_directory(lambda: rings.add(*second, 4096))
            for region in (1, 0):
                self.assertEqual(rings.read(region, patience=10), 0, f"region {region}")
            rings.close()

    def test_a_channel_whose_farewell_was_lost_is_let_go(self):
        with self.rack() as rack:
            self.start_host(rack)
            gone, stays = Rings(rack), Rings(rack)
            for rings in (gone, stays):
                rings.add(*rings.ask("memory1", 0, 4096), 4096)
                self.assertEqual(rings.read(0), 0)
            self.assertEqual(len(self.counters(rack)["channels"]), 2)
            rack.without_the_directory(gone.close)
            for _ in range(100):
                left = self.counters(rack)["channels"]
                if len(left) == 1:
                    break
                time.sleep(0.1)
            self.assertEqual(len(left), 1)
            self.assertEqual(stays.read(0), 0)
            stays.close()

    def test_one_that_changes_its_regions_all_the_time_costs_nobody_anything(self):
        with self.rack() as rack:
            self.start_host(rack)
            rings = Rings(rack)
            enough = threading.Event()

            def spoil():
                node = 1000
                while not enough.is_set():
                    for region in range(64):
                        struct.pack_into("<IIQQQ", rings.block, 64 + 32 * region, node + region, 1, 0, 8, 1)
                    node += 64
                    rings.change(max(rings.generation, 64) + 1)
                    time.sleep(0.001)

            spoiler = threading.Thread(target=spoil, daemon=True)
            spoiler.start()
            time.sleep(5)
            app = rack.app()
            self.addCleanup(app.kill)
            out, err = app.communicate(timeout=2 * PATIENCE)
            self.assertIn("5000 operations, 0 wrong, 0 failed", out + err)
            enough.set()
            spoiler.join(PATIENCE)
            rings.close()
            begun = time.monotonic()
            while self.counters(rack)["channels"] and time.monotonic() - begun < 10:
                time.sleep(0.05)
            self.assertLess(time.monotonic() - begun, 3, "what it has made the host say was said before its farewell")

    def test_what_the_switch_does_not_move_at_once_is_named(self):
        with self.rack() as rack:
            self.start_host(rack)
            moves_what_fits_the_ring(self, rack, 1 << 20)

    def test_a_tenant_is_told_that_this_engine_is_not_for_it(self):
        with self.rack() as rack:
            token = f"{rack.dir}/red.token"
            subprocess.run([SLUICE, "tenant", "add", "red", "--quota", "64MiB", "--out", token, "--dir", rack.dir], check=True,
                           capture_output=True, timeout=PATIENCE)
            host = subprocess.run([SLUICE, "cowbird", "engine", "--engine", "switch", "--name", "reds", "--token-file", token, "--dir", rack.dir], check=False,
                                  capture_output=True, text=True, timeout=PATIENCE)
            self.assertNotEqual(host.returncode, 0)
            self.assertIn("is for the rack's operator, not for tenant 'red'", host.stderr)

    def test_a_switch_without_an_engine_is_named(self):
        with Rack() as rack:
            self.start_host(rack)
            app = rack.app(operations=10)
            self.addCleanup(app.kill)
            shown = subprocess.run([SLUICE, "cowbird", "show", "--dir", rack.dir], check=False, capture_output=True, text=True,
                                   timeout=PATIENCE)
            self.assertEqual(shown.returncode, 1)
            self.assertIn("has no Cowbird engine; `sluice rack down`, then `sluice rack up --cowbird`", shown.stderr)
            self.assertIn("is it `sluice switch --cowbird`?", rack.wait_for_log("is it `sluice switch --cowbird`?"))
            app.kill()
            app.communicate()


class OnTheMemoryNode(unittest.TestCase):
    """The same applications, their data moved by an engine in memory1's process."""

    @staticmethod
    def rack():
        return Rack(rack=["--memory-cowbird"])

    @staticmethod
    def start_host(rack, *arguments):
        return rack.start_engine("--engine", "at:memory1", *arguments)

    def test_every_read_is_right(self):
        with self.rack() as rack:
            self.start_host(rack)
            reads_are_right(self, rack)
            metrics = rack.metrics_of("/memory1", "sluice_cowbird")
            self.assertEqual(metrics["sluice_cowbird_applications_accepted_total"], 2)
            self.assertGreaterEqual(metrics["sluice_cowbird_reads_total"] + metrics["sluice_cowbird_writes_total"], 10000)
            self.assertEqual(metrics["sluice_cowbird_failed_total"], 0)
            self.assertEqual(rack.metrics_of("/memory2", "sluice_cowbird")["sluice_cowbird_applications_accepted_total"], 0)
            for _ in range(PATIENCE * 10):
                if rack.metrics_of("/memory1", "sluice_cowbird")["sluice_cowbird_applications"] == 0:
                    break
                time.sleep(0.1)
            self.assertEqual(rack.metrics_of("/memory1", "sluice_cowbird")["sluice_cowbird_applications"], 0, "they have left")

    def test_a_killed_host_process_is_replaced_and_nothing_is_lost(self):
        with self.rack() as rack:
            survives_killed_hosts(self, rack, lambda *arguments: self.start_host(rack, *arguments))

    def test_a_killed_engine_is_replaced_and_nothing_is_lost(self):
        with self.rack() as rack:
            self.start_host(rack)
            app = rack.app(node="memory2", operations=30000)
            self.assertEqual(app.stdout.readline(), "ready\n")
            self.assertIsNone(app.poll())
            rack.replace_memory("memory1", "--cowbird")
            out, err = app.communicate(timeout=4 * PATIENCE)
            self.assertEqual(app.returncode, 0, out + err)
            self.assertIn("30000 operations, 0 wrong, 0 failed", out)

    def test_an_engine_that_stays_away_is_said_to_be_absent(self):
        with self.rack() as rack:
            self.start_host(rack)
            app = rack.app(node="memory2", operations=30000)
            self.assertEqual(app.stdout.readline(), "ready\n")
            self.assertIsNone(app.poll())
            os.kill(rack.pid_of("memory1"), signal.SIGTERM)
            self.assertIn('no memory node "memory1" is on the rack; applications wait for it', rack.wait_for_log("applications wait for it"))
            time.sleep(2)
            with open(f"{rack.dir}/memory1-again.log", "ab") as log:
                rack.engines.append(subprocess.Popen([SLUICE, "memory", "--dir", rack.dir, "--name", "memory1", "--cowbird"], stdout=log, stderr=log))
            out, err = app.communicate(timeout=4 * PATIENCE)
            self.assertIn("30000 operations, 0 wrong, 0 failed, engine was absent: yes", out + err)
            log = pathlib.Path(f"{rack.dir}/engine.log").read_text()
            self.assertEqual(log.count("applications wait for it"), 1)
            self.assertEqual(log.count("the engine of memory1 moves the data"), 2)

    def test_a_stale_key_is_refused_and_a_new_one_is_served(self):
        with self.rack() as rack:
            self.start_host(rack)
            recovers_from_a_stale_key(self, rack, "--cowbird")

    def test_whatever_fits_the_ring_is_moved_at_once(self):
        with self.rack() as rack:
            self.start_host(rack)
            moves_what_fits_the_ring(self, rack, 4 << 20)

    def test_a_node_without_an_engine_is_named(self):
        with Rack() as rack:
            self.start_host(rack)
            self.assertIn("memory1 has no engine", rack.wait_for_log("is it `sluice memory --cowbird`?"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
