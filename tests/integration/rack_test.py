#!/usr/bin/env python3
"""A rack of real processes: brought up, used, hurt, and taken down.

usage: rack_test.py SLUICE [TEST...]

SLUICE is the program. Every test has a rack of its own in a temporary run directory, and must leave no process behind.
"""

import fcntl
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import live_rack  # noqa: E402
from live_rack import processes_of, run, wait_until  # noqa: E402

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden" / "rxe"


class RackTest(live_rack.RackOfDaemons):
    def ports_with_traffic(self):
        return [p for p in self.status()["switch"]["ports"] if p["rx_frames"]]

    def bench_under_way(self, *flags):
        """A bench on 500 records, some way into its run."""
        child = self.start("bench", "clover", "--json", "--records", "500", *flags)
        wait_until(lambda: f"clover-{child.pid}-0" in self.node_states(), "the bench has joined")
        time.sleep(1)
        return child

    # --- up, down, status ---

    def test_a_rack_needs_no_configuration_and_leaves_nothing_behind(self):
        self.up()
        status = self.status()
        self.assertEqual([d["name"] for d in status["daemons"]], ["memory1", "memory2", "metadata", "switch"])
        self.assertTrue(all(d["running"] for d in status["daemons"]))
        self.assertEqual(set(self.node_states().values()), {"ready"})
        exported = [r["length"] for n in status["directory"]["nodes"] for r in n["regions"]]
        self.assertEqual(exported, [16 << 30, 16 << 30])
        shown = self.sluice("rack", "status", code=0).stdout
        self.assertIn("memory1", shown)
        self.assertRegex(shown, r"\nMEMORY OF +SIZE KEY\nmemory1 +16GiB 0x")
        # In a terminal of the usual width, and with nothing that cannot be seen.
        self.assertEqual([line for line in shown.splitlines() if len(line) > 80 or line != line.rstrip()], [])
        self.sluice("rack", "down", code=0)
        self.assertEqual(processes_of(self.folder), [])
        left = [f for f in os.listdir(self.dir) if not f.endswith(".log") and f != "lock"]
        self.assertEqual(left, [])
        self.sluice("rack", "status", code=1)

    def test_up_and_down_are_idempotent(self):
        self.up()
        before = {d["name"]: d["pid"] for d in self.status()["daemons"]}
        self.up()
        self.assertEqual({d["name"]: d["pid"] for d in self.status()["daemons"]}, before)
        self.sluice("rack", "down", code=0)
        self.sluice("rack", "down", code=0)

    def test_files_of_ones_own_in_the_run_directory_stay(self):
        os.mkdir(self.dir, 0o755)
        for folder in ("host-tools", "host-x"):
            os.mkdir(f"{self.dir}/{folder}")
        config = pathlib.Path(self.dir, "switch.config")
        config.write_text('[switch]\nmac-age = "200s"\n')
        mine = {name: f"precious {name}\n" for name in ("app.config", "my.pid", "db.journal", "draft.new", "a.lease", "host-tools/notes.txt", "host-x/users")}
        for name, text in mine.items():
            pathlib.Path(self.dir, name).write_text(text)
        self.up("--no-metadata", "--memory-nodes", "1", "--memory-size", "1MiB", "--config", str(config))
        self.assertEqual(sorted(d["name"] for d in self.status()["daemons"]), ["memory1", "switch"])
        for pid in processes_of(self.folder):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not processes_of(self.folder), "all dead")
        self.up("--memory-nodes", "1", "--memory-size", "64MiB")
        self.sluice("rack", "down", code=0)
        for name, text in mine.items():
            self.assertEqual(pathlib.Path(self.dir, name).read_text(), text)
        self.assertIn("200s", config.read_text())
        left = {str(f.relative_to(self.dir)) for f in pathlib.Path(self.dir).rglob("*") if f.is_file() and f.suffix != ".log"} - {"lock", "switch.config"}
        self.assertEqual(left, set(mine))

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "skipped: needs root, to be somebody else")
    def test_a_rack_of_somebody_elses_is_not_taken_for_none(self):
        self.up("--no-metadata", "--memory-nodes", "1", "--memory-size", "1MiB")
        os.chmod(self.folder, 0o755)
        program = self.folder + "/sluice"
        shutil.copy(live_rack.SLUICE, program)
        asked = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", program, "rack", "status", "--dir", self.dir], capture_output=True,
                               text=True, timeout=60, check=False)
        self.assertEqual(asked.returncode, 1)
        self.assertIn(f"{self.dir}: Permission denied; ask as its owner", asked.stderr)
        for words in (["remote", "read", "memory1", "0", "8"], ["bench", "locks"], ["capture"], ["top", "--json"]):
            asked = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", program, *words, "--dir", self.dir], capture_output=True,
                                   text=True, timeout=60, check=False)
            self.assertEqual(asked.returncode, 1)
            self.assertIn("Permission denied; ask as its owner", asked.stderr)

    def test_a_change_of_the_settings_file_is_noticed(self):
        config = pathlib.Path(self.folder, "rack.toml")
        config.write_text("[switch]\nmac-age = \"200s\"\n")
        self.up("--config", str(config))
        self.sluice("rack", "up", "--no-metadata", "--memory-nodes", "1", "--config", str(config), code=0)
        config.write_text("[switch]\nbox = \"clover\"\n")
        self.assertIn("switch, memory1, memory2 run with other options (the settings file has changed since); `sluice rack down` first",
                      self.sluice("rack", "up", "--no-metadata", "--config", str(config), code=1).stderr)
        config.write_text("[switch]\nmac-slots = 1000\n")
        self.assertIn("power of two", self.sluice("rack", "up", "--config", str(config), code=2).stderr)

    def test_options_that_would_not_take_effect_start_nothing(self):
        self.up("--no-metadata", "--memory-nodes", "1", "--memory-size", "16MiB")
        done = self.sluice("rack", "up", "--memory-nodes", "2", "--memory-size", "16MiB", "--box", "clover", code=1)
        self.assertIn("switch runs with other options (no --box clover); `sluice rack down` first", done.stderr)
        self.assertEqual(sorted(d["name"] for d in self.status()["daemons"]), ["memory1", "switch"])

    def test_a_rack_of_daemons_started_by_hand_is_shown(self):
        self.sluice("rack", "status", code=1)
        self.start("switch")
        self.start("memory", "--name", "memory1", "--size", "16MiB")
        self.ready("memory1")
        shown = self.sluice("rack", "status", code=0).stdout
        self.assertIn("were not started by `sluice rack up`", shown)
        self.assertRegex(shown, r"memory1 +memory +ready")
        self.assertNotIn("no rack is up", shown)
        down = self.sluice("rack", "down", code=0).stderr
        self.assertRegex(down, rf"memory1 \(pid {self.children[1].pid}\) was not started by `sluice rack up` and goes on: end it")
        self.assertIn("a switch that `sluice rack up` has not started goes on", down)
        self.assertNotIn("no rack is up", down)
        self.sluice("rack", "status", code=0)

    def test_down_names_who_goes_on(self):
        self.up("--no-metadata", "--memory-nodes", "1", "--memory-size", "16MiB")
        pids = [self.start(*words).pid for words in (("memory", "--name", "spare", "--size", "16MiB"), ("cowbird", "engine"))]
        self.ready("spare")
        self.ready("cowbird")
        down = self.sluice("rack", "down", code=0).stderr
        for name, pid in zip(("spare", "cowbird"), pids):
            self.assertIn(f"{name} (pid {pid})", down)
        self.assertIn(" were not started by `sluice rack up` and go on: end them", down)
        self.assertNotIn("memory1 (pid", down)
        for child in self.children:
            self.end(child)
        self.assertIn("no rack is up", self.sluice("rack", "down", code=0).stderr)

    def test_a_memory_node_whose_address_is_anothers_on_the_next_rack_ends(self):
        self.up("--no-metadata", "--memory-nodes", "1", "--memory-size", "16MiB")
        left = self.start("memory", "--name", "memory9", "--size", "16MiB")
        self.ready("memory9")
        self.sluice("rack", "down", code=0)
        self.up("--no-metadata", "--memory-nodes", "3", "--memory-size", "16MiB")
        _, said = left.communicate(timeout=60)
        self.assertEqual(left.returncode, 1, said)
        self.assertIn("the rack has begun anew, and the address of this process may be another's there; start it again", said)
        for name in ("memory1", "memory2", "memory3"):
            self.sluice("remote", "write", name, "0", "--text", name, code=0)
            self.assertIn(name, self.sluice("remote", "read", name, "0", str(len(name)), code=0).stdout)

    def test_a_switch_that_hangs_is_told(self):
        self.up("--no-metadata")
        switch = next(d["pid"] for d in self.status()["daemons"] if d["name"] == "switch")
        os.kill(switch, signal.SIGSTOP)
        try:
            self.assertIn("does not answer", self.sluice("rack", "status", code=1).stdout)
        finally:
            os.kill(switch, signal.SIGCONT)

    def test_a_rack_killed_whole_is_recognised_and_replaced(self):
        self.up()
        for pid in processes_of(self.folder):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not processes_of(self.folder), "all dead")
        done = self.sluice("rack", "status", code=1)
        self.assertIn("DEAD", done.stdout)
        self.up()
        self.assertEqual(set(self.node_states().values()), {"ready"})
        self.bench("--operations", "2000", "--records", "200")

    def test_a_daemon_that_cannot_start_is_told_with_its_log(self):
        config = self.folder + "/rack.toml"
        pathlib.Path(config).write_text('[switch]\nlisten = ["udp:nowhere.invalid:1"]\n')
        done = self.sluice("rack", "up", "--config", config, code=1)
        self.assertIn("switch ended while starting", done.stderr)
        self.assertIn("udp:nowhere.invalid:1", done.stderr)
        self.assertEqual(processes_of(self.folder), [])

    def used(self):
        """By all daemons: seconds of a core, and how often a thread of theirs woke."""
        daemons = self.status()["daemons"]
        threads = [t / "status" for d in daemons for t in pathlib.Path(f"/proc/{d['pid']}/task").iterdir()]
        wakes = sum(int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", t.read_text(), re.M)[1]) for t in threads)
        return sum(d["cpu_ms"] for d in daemons) / 1000, wakes

    def test_an_idle_rack_uses_little_of_a_core_and_little_memory(self):
        self.up()
        time.sleep(1)
        seconds, wakes = self.used()
        began, ours = time.monotonic(), time.thread_time()
        for _ in range(40):
            time.sleep(0.1)
        nap = (time.thread_time() - ours) / 40
        elapsed = time.monotonic() - began
        seconds, wakes = ((after - before) / elapsed for after, before in zip(self.used(), (seconds, wakes)))
        print(f"    idle: {100 * seconds:.2f} % of a core, {wakes:.0f} wakes/s; waking alone {1e6 * nap:.0f} us", file=sys.stderr)
        self.assertLess(wakes, 100)
        # Where the host of a virtual machine is busy, waking alone takes hundreds of microseconds, and so does all that is done rarely.
        self.assertLess(seconds, min(0.2, max(0.02, 5 * wakes * nap)))
        for daemon in self.status()["daemons"]:
            self.assertLess(daemon["resident_bytes"], 64 << 20, daemon["name"])

    # --- Clover ---

    def test_clover_histories_of_64_clients_are_linearizable(self):
        self.up()
        for workload, caches in (("A", 8), ("F", 64), ("w50", 1)):
            result = self.bench("--workload", workload, "--clients", "64", "--caches", str(caches), "--records", "300", "--operations", "10000",
                                "--check")
            self.assertTrue(result["history"]["linearizable"])
            self.assertGreaterEqual(result["history"]["operations"], 10300)
            self.assertEqual(result["run"]["values_wrong"], 0)
            self.assertGreater(result["run"]["values_verified"], 3000)

    def test_a_history_with_inserts_wants_a_store_without_those_keys(self):
        self.up()
        flags = ("--records", "500", "--operations", "4000", "--clients", "16", "--check")
        self.assertTrue(self.bench("--workload", "D", *flags)["history"]["linearizable"])
        self.assertIn("more keys than the 500 that are loaded; --check and --history need a fresh one",
                      self.sluice("bench", "clover", "--workload", "D", *flags, code=1).stderr)
        self.assertTrue(self.bench("--workload", "A", *flags)["history"]["linearizable"])

    def test_keys_that_are_not_there_are_counted_in_the_table(self):
        self.up()
        self.sluice("bench", "clover", "--phase", "load", "--records", "100", code=0)
        table = self.sluice("bench", "clover", "--workload", "C", "--phase", "run", "--records", "500", "--operations", "2000", code=0).stdout
        self.assertRegex(table, r"operations without effect: \d+ not found")

    def test_every_workload_that_clover_can_do_runs(self):
        self.up("--replication", "2", "--value-size", "256")
        for workload in "ABCDF":
            result = self.bench("--workload", workload, "--clients", "16", "--operations", "2000", "--records", "500", "--threads", "2")
            self.assertEqual(result["run"]["operations"], 2000)
            self.assertEqual(result["value_bytes"], 256)
            self.assertEqual(result["failed"], 0)
        done = self.sluice("bench", "clover", "--workload", "E", code=2)
        self.assertIn("E", done.stderr)

    def test_values_of_another_size_are_whole(self):
        self.up()
        self.bench("--phase", "load", "--records", "500")
        ran = self.bench("--phase", "run", "--workload", "c", "--records", "500", "--operations", "500", "--value-size", "40")
        self.assertEqual(ran["run"]["values_wrong"], 0)

    def test_processes_side_by_side_share_the_store(self):
        self.up()
        self.bench("--phase", "load", "--records", "1000")
        runs = [self.start("bench", "clover", "--json", "--phase", "run", "--clients", "16", "--records", "1000", "--operations", "2000", "--place", f"{i}/3")
                for i in range(3)]
        for child in runs:
            out, err = child.communicate(timeout=60)
            self.assertEqual(child.returncode, 0, err)
            self.assertEqual(json.loads(out)["run"]["values_wrong"], 0)

    def test_data_lands_in_the_memory_nodes(self):
        self.up()
        before = {d["name"]: d["resident_bytes"] for d in self.status()["daemons"]}
        self.bench("--phase", "load", "--records", "8000")
        grown = sum(self.daemon(n)["resident_bytes"] - before[n] for n in ("memory1", "memory2"))
        self.assertGreater(grown, 8000 * 1000)
        self.assertLess(grown, 8000 * 1024 * 4 + (8 << 20))

    # --- EDM ---

    def grants(self, *flags):
        return json.loads(self.sluice("edm", "grants", "--json", *flags, code=0).stdout)

    def test_a_switch_that_grants_memory_traffic_serves_a_store(self):
        self.up("--edm")
        for mode in ("on", "off", "on"):
            before = self.grants("--set", mode)
            result = self.bench("--workload", "A", "--clients", "16", "--records", "200", "--operations", "3000", "--check")
            self.assertTrue(result["history"]["linearizable"])
            self.assertEqual(result["run"]["values_wrong"], 0)
            after = self.grants()
            for what in ("reads", "frames"):
                self.assertEqual(after[what] > before[what], mode == "on", f"{what}, {mode}: {before} {after}")
            self.assertEqual(after["lost"], 0)
        self.assertIn("granted", self.sluice("edm", "grants", code=0).stdout)

    def test_a_switch_grants_in_the_order_that_it_was_told(self):
        self.up("--edm")
        self.assertEqual(self.grants()["policy"], "srpt")
        self.sluice("rack", "down", code=0)
        config = pathlib.Path(self.folder, "policy.toml")
        config.write_text('[switch]\nedm-policy = "fcfs"\n')
        self.up("--edm", "--config", str(config))
        self.assertEqual(self.grants()["policy"], "fcfs")
        result = self.bench("--workload", "A", "--clients", "8", "--records", "100", "--operations", "1000", "--check")
        self.assertTrue(result["history"]["linearizable"])
        config.write_text('[switch]\nedm-policy = "lifo"\n')
        self.assertIn("one of srpt, fcfs", self.sluice("switch", "--config", str(config), code=2).stderr)
        self.assertIn("one of srpt, fcfs", self.sluice("switch", "--edm-policy", "lifo", code=2).stderr)

    # --- deaths ---

    def test_a_killed_client_loses_nothing_that_was_acknowledged(self):
        self.up()
        child = self.bench_under_way("--workload", "w100", "--duration", "60s")
        child.kill()
        child.wait()
        # Every key is still there and whole, and others go on.
        result = self.bench("--phase", "run", "--workload", "C", "--distribution", "uniform", "--records", "500", "--operations", "20000")
        self.assertEqual(result["run"]["values_wrong"], 0)
        self.assertEqual(result["run"]["actions"]["read"]["outcomes"], {"ok": 20000})
        wait_until(lambda: self.node_states().get(f"clover-{child.pid}-0") == "gone", "the dead client's lease ends")

    def test_a_killed_memory_node_gives_clear_errors_and_no_hang(self):
        self.up("--replication", "1")
        child = self.bench_under_way("--workload", "A", "--duration", "5s")
        os.kill(self.daemon("memory2")["pid"], signal.SIGKILL)
        out, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 1, err)
        result = json.loads(out)
        self.assertGreater(result["failed"], 0)
        self.assertEqual(result["run"]["values_wrong"], 0)
        self.assertIn("memory2", err)
        self.assertIn("DEAD", self.sluice("rack", "status", code=1).stdout)
        wait_until(lambda: self.node_states()["memory2"] == "gone", "the directory notices")
        self.assertIn("memory2 was started anew: what a store without replicas had there is lost; `sluice rack down`", self.sluice("rack", "up", "--replication", "1", code=0).stderr)
        self.assertNotIn("anew", self.sluice("rack", "up", "--replication", "1", code=0).stderr)

    def test_a_store_that_does_not_serve_is_not_taken_for_none(self):
        self.up("--replication", "1")
        self.assertIn("keeps data there", self.sluice("rack", "drain", "memory1", code=1).stderr)
        os.kill(self.daemon("metadata")["pid"], signal.SIGKILL)
        wait_until(lambda: self.node_states()["metadata"] == "gone", "the directory notices")
        self.assertIn("is not known", self.sluice("rack", "drain", "memory1", code=1).stderr)

    def test_names_that_are_no_utf8_spoil_no_json(self):
        directory = os.fsdecode(self.dir.encode() + b"-\xff")
        done = subprocess.run([live_rack.SLUICE, "rack", "status", "--json", "--dir", directory], capture_output=True, timeout=60, check=False)
        self.assertEqual(json.loads(done.stdout.decode())["daemons"], [], done.stderr)

    def test_a_history_begins_with_a_load_that_went_through(self):
        self.up("--replication", "1")
        self.bench("--phase", "load", "--records", "200")
        os.kill(self.daemon("memory2")["pid"], signal.SIGKILL)
        wait_until(lambda: self.node_states()["memory2"] == "gone", "the directory notices")
        refused = self.sluice("bench", "clover", "--check", "--records", "200", "--operations", "1000", code=1)
        self.assertIn("a history begins with", refused.stderr)
        self.assertNotIn("NOT LINEARIZABLE", refused.stdout)

    def test_with_replicas_a_store_survives_the_death_of_a_memory_node(self):
        self.up("--replication", "2")
        child = self.bench_under_way("--workload", "A", "--duration", "6s", "--check")
        os.kill(self.daemon("memory1")["pid"], signal.SIGKILL)
        out, err = child.communicate(timeout=90)
        result = json.loads(out)
        self.assertTrue(result["history"]["linearizable"], err)
        self.assertEqual(result["run"]["values_wrong"], 0)
        # The survivors serve everything.
        after = self.bench("--phase", "run", "--workload", "C", "--records", "500", "--operations", "5000")
        self.assertEqual(after["run"]["actions"]["read"]["outcomes"], {"ok": 5000})

    def test_a_killed_switch_comes_back_and_everybody_reattaches(self):
        self.up()
        before = {d["name"]: d["pid"] for d in self.status()["daemons"]}
        child = self.bench_under_way("--workload", "A", "--duration", "6s", "--check")
        os.kill(before["switch"], signal.SIGKILL)
        time.sleep(0.3)
        self.up()
        out, err = child.communicate(timeout=90)
        result = json.loads(out)
        self.assertTrue(result["history"]["linearizable"], err)
        self.assertEqual(result["run"]["values_wrong"], 0)
        after = {d["name"]: d["pid"] for d in self.status()["daemons"]}
        self.assertNotEqual(after["switch"], before["switch"])
        self.assertEqual({n: after[n] for n in after if n != "switch"}, {n: before[n] for n in before if n != "switch"})
        wait_until(lambda: {n: s for n, s in self.node_states().items() if not n.startswith("clover-")} ==
                   {"switch": "ready", "memory1": "ready", "memory2": "ready", "metadata": "ready"}, "all are ready again")
        self.assertEqual(self.bench("--operations", "5000", "--records", "500")["failed"], 0)

    def test_a_metadata_server_that_was_stopped_for_a_moment_takes_nobody_for_lost(self):
        self.up()
        child = self.bench_under_way("--workload", "A", "--duration", "6s", "--check")
        pid = self.daemon("metadata")["pid"]
        os.kill(pid, signal.SIGSTOP)
        time.sleep(2)
        os.kill(pid, signal.SIGCONT)
        out, err = child.communicate(timeout=90)
        self.assertTrue(json.loads(out)["history"]["linearizable"], err)
        self.assertEqual(live_rack.metrics(f"{self.dir}/metadata.http.sock")["sluice_clover_expired_clients_total"], 0)

    def test_a_bench_whose_descriptors_run_out_fails_in_one_line(self):
        self.up()
        few = (resource.RLIMIT_NOFILE, (48, 48))
        done = subprocess.run([live_rack.SLUICE, "bench", "clover", "--threads", "16", "--records", "100", "--duration", "1s", "--dir", self.dir],
                              capture_output=True, text=True, timeout=60, check=False, preexec_fn=lambda: resource.setrlimit(*few))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("Too many open files", done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_ctrl_c_ends_a_bench_with_what_it_has(self):
        self.up()
        child = self.bench_under_way("--duration", "60s")
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=20)
        self.assertEqual(child.returncode, 130)
        self.assertGreater(json.loads(out)["run"]["operations"], 0)
        self.assertEqual(self.node_states()[f"clover-{child.pid}-0"], "gone")
        self.assertRegex(self.sluice("rack", "status", code=0).stdout, rf"clover-{child.pid}-0 +client +left ")

    def test_a_history_takes_the_place_of_another_only_when_it_is_whole(self):
        self.up()
        history = pathlib.Path(self.folder, "history.csv")
        record = lambda seed: self.bench("--operations", "500", "--records", "100", "--history", str(history), "--seed", seed)
        record("1")
        first = history.read_text()
        self.assertRegex(first, r"^client,kind,key,value,begin,end,outcome\n(\d+,\w+,\d+,\d+,\d+,\d+,[\w ]+\n){600,}$")
        kept = pathlib.Path(self.folder, "kept.csv")
        os.link(history, kept)
        record("2")
        self.assertNotEqual(history.read_text(), first)
        self.assertEqual(kept.read_text(), first, "written beside it, not into it")

    def remote(self, *words, code=0):
        return self.sluice("remote", *words, code=code)

    def test_memory_is_read_and_changed_by_hand(self):
        self.up("--no-metadata")
        self.remote("write", "memory1", "4096", "--text", "hello rack")
        self.assertIn("|hello rack......|", self.remote("read", "memory1", "0x1000").stdout)
        data = os.urandom(1_000_003)
        path = pathlib.Path(self.folder) / "data"
        path.write_bytes(data)
        self.remote("write", "memory2", "1MiB", "--file", str(path))
        self.remote("write", "memory2", str((1 << 20) + 16), "--hex", "00ff10")
        self.assertEqual(self.remote("read", "memory2", str((1 << 20) + 16), "8", "--word").stdout.strip(),
                         str(int.from_bytes(b"\x00\xff\x10" + data[19:24], "little")))
        self.assertEqual(self.remote("cas", "memory1", "8192", "0", "7").stdout, "swapped, was 0\n")
        self.assertEqual(self.remote("cas", "memory1", "8192", "0", "9", code=1).stdout, "not swapped, was 7\n")

    def test_clients_that_count_by_hand_lose_nothing(self):
        self.up("--no-metadata")
        counting = [self.start("remote", "add", "memory1", "64", "3", "--times", "2000") for _ in range(3)]
        for child in counting:
            out, errors = child.communicate(timeout=120)
            self.assertEqual(child.returncode, 0, errors)
            self.assertEqual(int(out) % 3, 0)
            self.assertRegex(errors, r"2000 additions in .* s, [0-9.]+ us each")
        self.assertEqual(self.remote("read", "memory1", "64", "8", "--word").stdout, "18000\n")

    def test_an_interrupted_count_tells_how_far_it_came(self):
        self.up("--no-metadata", "--memory-nodes", "1")
        child = self.start("remote", "add", "memory1", "64", "1", "--times", "100000000")
        wait_until(lambda: self.remote("read", "memory1", "64", "8", "--word").stdout != "0\n", "it has begun")
        child.send_signal(signal.SIGINT)
        out, errors = child.communicate(timeout=60)
        self.assertEqual((child.returncode, out), (130, ""), errors)
        done = re.search(r"sluice remote add: interrupted after (\d+) of 100000000 additions$", errors, re.MULTILINE)
        self.assertIsNotNone(done, errors)
        self.assertEqual(self.remote("read", "memory1", "64", "8", "--word").stdout, done[1] + "\n")

    def test_what_cannot_be_done_by_hand_is_told(self):
        self.up("--no-metadata", "--memory-nodes", "1", "--memory-size", "1MiB")
        for words, told in ((("read", "memory1", "1MiB", "8"), "memory1 has 1MiB of memory"), (("read", "memory1", "1048568", "9"), "do not lie in it"),
                            (("read", "memory7", "0"), "there are memory1"), (("write", "memory1", "0", "--file", self.folder + "/none"), "cannot be read")):
            self.assertIn(told, self.remote(*words, code=1).stderr)
        for words, told in ((("add", "memory1", "3"), "must be a multiple of 8"), (("write", "memory1", "0", "--hex", "0g"), "pairs of hexadecimal digits"),
                            (("cas", "memory1", "0", "x", "1"), 'COMPARE = "x"'), (("read", "memory1", "here"), 'OFFSET = "here"')):
            self.assertIn(told, self.remote(*words, code=2).stderr)

    def test_without_a_rack_a_bench_says_what_to_do(self):
        done = self.sluice("bench", "clover", code=1)
        self.assertIn("(nothing listens there, or no way leads to it); is the rack up?", done.stderr)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1)


class ConfigurationTest(unittest.TestCase):
    """Every mistake: exit code 2, one line that names file, key, value and what is allowed; nothing is touched."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="sluice-config-", dir="/tmp")

    def tearDown(self):
        shutil.rmtree(self.folder)

    def refused(self, command, *expected, toml=None):
        words = [*command, "--dir", self.folder + "/run"]
        if toml is not None:
            pathlib.Path(self.folder + "/rack.toml").write_text(toml)
            words += ["--config", self.folder + "/rack.toml"]
        done = run(*words)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        self.assertFalse(pathlib.Path(self.folder, "run").exists())
        for text in expected:
            self.assertIn(text, done.stderr)

    def test_flags(self):
        self.refused(["memory", "--size", "16potatoes"], '--size = "16potatoes": must be a size from 4KiB')
        self.refused(["rack", "up", "--memory-size", "1"], '--memory-size = "1": must be 0, or a size from 4KiB')
        self.refused(["rack", "up", "--start-timeout", "1ms"], "must be a time from 1s to 600s, such as 3s")
        self.refused(["rack", "up", "--memory-nodes", "0"], '--memory-nodes = "0": must be a whole number from 1 to 64')
        self.refused(["rack", "up", "--replication", "4"], "must be a whole number from 0 to 3")
        self.refused(["rack", "up", "--replication", "3", "--memory-nodes", "2"], "each copy is on a memory node of its own, and there are 2")
        self.refused(["rack", "up", "--memory-nodes", "49"], "a Clover store has at most 48")
        self.refused(["metadata", "--memory-nodes", "49"], '--memory-nodes = "49": must be')
        self.refused(["run", "--wire", "nosuch0", "--", "true"], "there is no interface of that name")
        self.refused(["run", "--kill-link-after=-1", "--", "true"], "--kill-link-after -1: must be a time such as 5s")
        for words in (["bench", "clover"], ["bench", "verbs"], ["bench", "cowbird"], ["bench", "locks"]):
            self.refused([*words, "--json", "--csv"], "--csv", "--json")
        self.refused(["switch", "--mac-age", "soon"], '--mac-age = "soon": must be a time from 1s')
        self.refused(["switch", "--mac-slots", "1000"], "power of two")
        self.refused(["switch", "--ecn-threshold", "4MiB"], "must be less than queue, 4MiB")
        self.refused(["switch", "--ring", "128MiB"], "64MiB")
        self.refused(["rack", "up", "--box", "nonsense"], '--box = "nonsense": must be one of off, watch, clover, words, clover+words, or empty')
        for where in ("127.0.0.1", "localhost", ":7479", "127.0.0.1:99999", "127.0.0.1:http", "::1:80"):
            self.refused(["rack", "up", "--http", where], f'--http = "{where}": must be HOST:PORT, such as 127.0.0.1:7470')
        self.refused(["bench", "clover", "--workload", "Z"], '--workload = "Z": must be A, B, C, D, F, or w0 to w100')
        self.refused(["bench", "fusee", "--workload", "E"], "must be A, B, C, D, F, or w0 to w100", "scans")
        self.refused(["bench", "sherman", "--workload", "Z"], "must be A, B, C, D, E, F, or w0 to w100")
        self.refused(["bench", "clover", "--place", "2/2"], '--place = "2/2"')
        self.refused(["bench", "clover", "--check", "--threads", "2"], "--threads: must be 1")
        self.refused(["bench", "clover", "--check", "--place", "0/2"], "--place: must be 0/1")
        self.refused(["bench", "clover", "--place", "0/2"], "--phase: must be load or run")
        self.refused(["bench", "verbs", "--ops", "steal"], '--ops = "steal"')
        self.refused(["bench", "verbs", "--through", "wall"], '--through = "wall": must be one of cable, udp, switch')
        self.refused(["remote", "read", "memory1", "0", "--patience", "5"], "--patience: must be a time, such as 500ms or 5s")
        self.refused(["remote", "write", "memory1", "0", "--text", "a", "--hex", "00"], "one of --text, --hex, --word, --file must be given, and only one")
        self.refused(["remote", "write", "memory1", "0"], "one of --text, --hex, --word, --file must be given, and only one")
        self.refused(["bench", "clover", "--buckets"], "--buckets: goes with --json")

    def test_files(self):
        up = ["rack", "up"]
        self.refused(up, "rack.toml: line 2: [memory] size", '"lots"', "must be a size", toml='[memory]\nsize = "lots"\n')
        self.refused(up, "line 2: [switch] colour", "unknown key", "mac-age", toml='[switch]\ncolour = "red"\n')
        self.refused(up, "[colours]: unknown table", "memory, metadata, ", ", rack", toml="[colours]\nsize = 1\n")
        self.refused(up, "[rak]: unknown table; did you mean `[rack]`?", toml="[rak]\nmemory-nodes = 3\n")
        self.refused(up, 'in quotes: "1GiB"', toml="[memory]\nsize = 1GiB\n")
        self.refused(up, "no valid TOML", toml="[memory\n")
        self.refused(up, "line 2: [rack] metadata", "true or false", toml="[rack]\nmetadata = 7\n")
        self.refused([*up, "--config", self.folder + "/missing.toml"], "missing.toml", "No such file")

    def test_what_is_no_command_or_option_is_named_and_something_near_it(self):
        for words, said in (([], "sluice: a command is missing"), (["dance"], 'sluice: there is no command "dance"'),
                            (["rcak"], "did you mean `sluice rack`?"), (["up"], "did you mean `sluice rack up`?"),
                            ([""], 'sluice: there is no command ""; `sluice --help`'),
                            (["rack"], "sluice rack: a command is missing: one of up, down, "), (["box", "nonsense"], "there are top, on, off"),
                            (["box", "explane", "x"], "did you mean `sluice box explain`?"), (["rack", "up", "please"], '"please" is one word too many'),
                            (["rack", "up", "--colour", "red"], 'sluice rack up: there is no option "--colour"'),
                            (["rack", "up", "--memroy-nodes=3"], "did you mean `--memory-nodes`?"),
                            (["rack", "up", "--memory-nodes"], "--memory-nodes: its value is missing"), (["remote", "read", "memory1"], "OFFSET is required")):
            done = run(*words)
            self.assertEqual(done.returncode, 2, words)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
            self.assertIn(said, done.stderr)
            self.assertTrue(done.stderr.rstrip().endswith("--help` tells more"), done.stderr)

    def test_what_would_have_no_effect_is_refused(self):
        nowhere = self.folder + "/nowhere"
        for words, said in ((["edm", "trace", "--cdf", nowhere, "--bytes", "64"], "--bytes: not with --cdf"),
                            (["edm", "trace", "--unit", "64"], "--unit: goes with --cdf"),
                            (["search", "--case", nowhere, "--seeds", "3"], "leave out --first and --seeds"),
                            (["experiment", "--list", "fig3"], "leave names out"),
                            (["box", "explain", "--rule", "watch", "--order", "strict", nowhere], "--rule watch: has no use for --order"),
                            (["onerma", "bench", "--port", "shm:" + nowhere, "--grants", nowhere, "--through", "udp"], "--through: not with --port"),
                            (["run", "--switch", "udp:192.0.2.1:7471", "--wire", "lo", "--ip", "10.0.0.3", "--", "true"], "--switch: not with --wire"),
                            (["run", "--drop-in", nowhere, "--ip", "10.0.0.3", "--host", "a"], "--host: needs a program")):
            done = run(*words)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), f"{words} {done.stderr}")
            self.assertIn(said, done.stderr)
        self.assertEqual(os.listdir(self.folder), [])

    def test_what_can_be_told_from_the_words_alone_is_2_and_what_fails_is_1(self):
        nowhere = self.folder + "/nowhere"
        for words, code in ((["box", "set"], 2), (["box", "rules", "clover-reads"], 2), (["box", "set", "--order", "any"], 2),
                            (["box", "explain", "--region", "here", nowhere], 2), (["edm", "trace", "--rate", "fast"], 2),
                            (["edm", "simulate", "--chunk", "9", nowhere], 2), (["tenant", "quota", "red", "--quota", "much"], 2),
                            (["region", "add", "heap", "much"], 2), (["rack", "invite", "a", "--to", "here"], 2), (["completion", "ksh"], 2),
                            (["host", "--mac", "x"], 2), (["run"], 2), (["run", "--mtu", "1000", "--", "true"], 2), (["run", "--mac", "zz", "--", "true"], 2),
                            (["run", "--mac", "ff:ff:ff:ff:ff:ff", "--", "true"], 2), (["run", "--device", "", "--", "true"], 2),
                            (["run", "--ip", "255.255.255.255", "--", "true"], 2), (["run", "--ip", "127.0.0.1", "--", "true"], 2),
                            (["remote", "add", "memory1", "0", "--times", "-3"], 2), (["box", "set", "--keys", "-1"], 2),
                            (["tenant", "add", "red", "--quota", "1GiB", "--regions", "-1"], 2), (["rack", "invite", "a", "--days", "-1"], 2),
                            (["run", "--rnr", "often", "--", "true"], 2), (["experiment", "fig0"], 2),
                            (["bench", "cowbird", "--parts", "all"], 2), (["demo", "contention", "--workload", "E"], 2),
                            (["cache", "get", "key"], 2), (["onerma", "target"], 2), (["xdp", "attach", "lo", "--region", "here"], 2),
                            (["box", "explain", nowhere], 1), (["edm", "simulate", self.folder], 1), (["edm", "simulate", "/dev/null"], 1),
                            (["pcap", "check", nowhere], 1), (["edm", "simulate", nowhere], 1),
                            (["box", "top", "--dir", nowhere], 1), (["remote", "add", "memory1", "0", "--dir", nowhere], 1),
                            (["rack", "status", "--dir", nowhere], 1), (["run", "--dir", nowhere, "--", "true"], 1)):
            done = run(*words)
            self.assertEqual(done.returncode, code, f"{words} {done.stderr}")

    def test_help_is_of_the_command_that_is_named(self):
        self.assertEqual(run("help", "rack", "up").stdout, run("rack", "up", "--help").stdout)
        self.assertEqual(run("help").stdout, run("--help").stdout)
        self.assertIn("\n  help ", run("help").stdout)
        self.assertIn("did you mean `sluice rack`?", run("help", "rcak").stderr)
        self.assertEqual(run("help", "remote", "read", "memory1", "0").stdout, run("remote", "read", "--help").stdout)
        self.assertIn("up\t", run("__complete", "help", "rack", "").stdout)

    def test_help_of_a_group_has_no_examples_of_others(self):
        self.assertIn("Examples:", run("--help").stdout)
        for group in ("rack", "tenant", "pcap", "box", "edm", "bench"):
            told = run(group, "--help").stdout
            self.assertNotIn("Examples:", told)
            self.assertIn(f"`sluice {group} COMMAND --help` tells more", told)

    def test_help_shows_flags_as_the_reference_does(self):
        chapters = run("reference").stdout.split("\n## ")[1:]
        self.assertGreater(len(chapters), 60)
        for chapter in chapters:
            words = chapter.splitlines()[0].split()[1:]
            if words == ["help"]:  # its own is that of all
                continue
            told = run(*words, "--help").stdout
            synopsis = next(line.strip() for line in chapter.splitlines() if line.startswith("    sluice"))
            self.assertIn(f"\nUsage: {synopsis}\n", told)
            for flag in re.findall(r"(?m)^- `(-.*?)`: ", chapter):
                self.assertRegex(told, rf"(?m)^  {re.escape(flag)}( |$)", words)
            for raw in ("{false}", "[Option Group", "Excludes:", " TEXT", " UINT", " FLOAT"):
                self.assertNotIn(raw, told, words)
        self.assertRegex(run("rack", "up", "--help").stdout, r"\n  --metadata, --no-metadata +start a Clover metadata server \[true\]\n")
        self.assertRegex(run("remote", "write", "--help").stdout, r"\nOne of:\n  --text VALUE +these letters\n")

    def test_help_fits_the_terminal_and_is_in_long_lines_elsewhere(self):
        def shown(columns):
            ours, theirs = os.openpty()
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            with subprocess.Popen([live_rack.SLUICE, "bench", "locks", "--help"], stdout=theirs) as child:
                os.close(theirs)
                text = b""
                try:
                    while part := os.read(ours, 4096):
                        text += part
                except OSError:  # a terminal's other end has gone
                    pass
            os.close(ours)
            self.assertEqual(child.returncode, 0)
            return text.decode().replace("\r\n", "\n").split("\nExamples:")[0]

        elsewhere = run("bench", "locks", "--help").stdout.split("\nExamples:")[0]
        self.assertGreater(max(map(len, elsewhere.splitlines())), 100)
        self.assertEqual(shown(500), elsewhere)
        for columns in (80, 120):
            self.assertLessEqual(max(map(len, shown(columns).splitlines())), columns)
            self.assertEqual(shown(columns).split(), elsewhere.split())

    def test_help_shows_defaults_in_one_way(self):
        for words in (("rack", "invite"), ("tenant", "add")):
            told = run(*words, "--help").stdout
            self.assertNotIn("...", told)
            self.assertNotRegex(told, r"[A-Z]=\d")
        self.assertRegex(run("rack", "invite", "--help").stdout, r"--days NUMBER .*\[365\]")

    def test_demo_knows_the_programs_options(self):
        demo = pathlib.Path(__file__).resolve().parents[2].joinpath("demo").read_text()
        for words, variable in ((["demo"], "options"), (["demo", "contention"], "contention_options")):
            offered = {line.split("\t")[0] for line in run("__complete", *words, "--").stdout.splitlines()}
            known = set(re.search(rf'^{variable}="(.*)"$', demo, re.MULTILINE)[1].split())
            self.assertEqual(known, {name for name in offered if name != "--help" and not name.startswith("--no-")})

    def test_every_command_has_help_with_examples(self):
        for words in (["rack", "up"], ["rack", "down"], ["rack", "status"], ["switch"], ["memory"], ["metadata"], ["bench", "clover"],
                      ["bench", "verbs"], ["bench", "cowbird"], ["pcap", "check"], ["pcap", "show"], ["demo"]):
            done = run(*words, "--help")
            self.assertEqual(done.returncode, 0)
            self.assertIn("Examples:", done.stdout, words)
            self.assertIn("sluice " + " ".join(words), done.stdout)


class DemoTest(live_rack.LiveRack):
    def test_it_tells_what_it_saw_and_leaves_its_page_up_until_interrupted(self):
        report = pathlib.Path(self.folder, "report.html")
        demo = self.start("demo", "--duration", "2s", "--records", "500", "--clients", "8", "--processes", "1", "--stay", "yes", "--report",
                          str(report))
        said = []
        for line in demo.stdout:
            said.append(line)
            if "a gentle load goes on" in line:
                break
        self.assertIn("Every value read was right.\n", said)
        self.assertTrue("YCSB-A over time" in report.read_text())
        self.assertTrue(any(re.match(r"  a bare RDMA read takes +[0-9.]+ us \(median\), of 8 bytes", line) for line in said), said)
        page = re.search(r"http://127\.0\.0\.1:\d+/", said[-1])[0]
        self.assertIn("<title>", urllib.request.urlopen(page, timeout=30).read().decode())
        busy = lambda: sum(port["rx_frames"] for port in json.loads(urllib.request.urlopen(page + "v1/state", timeout=30).read())["switch"]["ports"])
        before = busy()
        wait_until(lambda: busy() > before + 100, "the load goes on")
        demo.send_signal(signal.SIGINT)
        self.assertIn("switch has ended", demo.communicate(timeout=60)[0])
        self.assertEqual(demo.returncode, 0)

    def test_clients_that_die_are_no_result(self):
        demo = self.start("demo", "--duration", "2s", "--records", "500", "--clients", "8", "--processes", "1", "--verbs=false", "--stay", "no", "--report",
                          str(pathlib.Path(self.folder, "report.html")))
        while "the same again" not in (line := demo.stdout.readline()):
            self.assertTrue(line)
        children = lambda: pathlib.Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
        clients = lambda: [int(pid) for pid in children() if int(pid) in processes_of("client1.json")]
        wait_until(lambda: clients() != [], "the client is there")
        os.kill(clients()[0], signal.SIGKILL)
        told, said = demo.communicate(timeout=60)
        self.assertEqual(demo.returncode, 1, told)
        self.assertIn("a client died (of signal 9)", said)
        self.assertNotIn("Every value", told)

    def test_bars_of_contention_have_one_scale_that_is_told(self):
        done = run("demo", "contention", "--no-live", "--duration", "4s", "--clients", "8", "--records", "100")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("a full bar is"), 1)
        full, rows = re.search(r"operations a second; a full bar is (([125])0*)\n +s  without SwordBox +with SwordBox\n((?: .*\n)+)", done.stdout).group(1, 3)
        rows = [re.fullmatch(r" +(\d+)  +(\d+) (█*) *(▶?) +(\d+) ?(█*) *(▶?)", row.rstrip()) for row in rows.splitlines()]
        self.assertGreaterEqual(len(rows), 2)
        for second, row in enumerate(rows, 1):
            self.assertEqual(int(row[1]), second)
            for rate, bar, over in (row.group(2, 3, 4), row.group(5, 6, 7)):
                self.assertAlmostEqual(len(bar), min(24, 24 * int(rate) / int(full)), delta=0.51)
                self.assertEqual(over, "▶" if int(rate) > int(full) else "")

    def test_it_takes_no_rack_over_that_is_up(self):
        self.sluice("rack", "up", "--no-metadata", "--memory-nodes", "1", "--memory-size", "64MiB", code=0)
        self.assertIn("a rack is up in", self.sluice("demo", "--stay", "no", code=1).stderr)
        self.sluice("rack", "status", code=0)


class VerbsTest(unittest.TestCase):
    def test_every_operation_runs_through_every_path(self):
        for through in ("cable", "udp", "switch"):
            done = run("bench", "verbs", "--through", through, "--duration", "50ms", "--sizes", "8", "--sizes", "4KiB", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            points = json.loads(done.stdout)["points"]
            self.assertEqual({p["op"] for p in points}, {"write", "read", "cas", "faa", "send"})
            self.assertEqual(len(points), 3 * 2 * 2 + 2 * 2)
            for point in points:
                self.assertGreater(point["operations"], 0, point)

    def test_operations_survive_a_bad_cable(self):
        done = run("bench", "verbs", "--through", "cable", "--duration", "300ms", "--impair", "drop=1%,duplicate=1%,reorder=1%,corrupt=1%,seed=3",
                   "--csv")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(done.stdout.strip().splitlines()), 1 + 10)


class CowbirdBenchTest(unittest.TestCase):
    def test_every_part_is_measured_beside_verbs(self):
        done = run("bench", "cowbird", "--reads", "4000", "--duration", "30ms", "--sizes", "8", "--sizes", "512", "--table", "1MiB", "--json", timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertEqual(len(result["cost"]), 5)
        for stage in ("about 1 s in all", "1 of 3: cost of a read, 4000 reads", "2 of 3: where it goes", "3 of 3: hash probes, 16 points of 30ms: 0.48 s"):
            self.assertIn(stage, done.stderr)
        self.assertTrue(all(row["both_ns"] > 0 and row["reads"] >= 1000 for row in result["cost"]), result["cost"])
        self.assertTrue(1 < result["machine"][0]["before_ns"] < 1e6, result["machine"])
        self.assertEqual(len(result["breakdown"]), 10)
        self.assertEqual(len(result["probe"]), 2 * 8)
        self.assertEqual({row["way"] for row in result["probe"]}, {"local", "index alone", "verbs", "cowbird", "cowbird, not batched"})
        self.assertTrue(all(row["probes_per_second"] > 0 and row["p50_us"] <= row["p99_us"] for row in result["probe"]), result["probe"])


class PcapTest(unittest.TestCase):
    def test_sound_captures_pass(self):
        files = sorted(str(f) for f in GOLDEN.glob("*.pcap"))
        done = run("pcap", "check", "--json", *files)
        self.assertEqual(done.returncode, 0, done.stdout)
        results = json.loads(done.stdout)
        self.assertEqual(len(results), len(files))
        self.assertTrue(all(r["sound"] > 0 and r["wrong"] == {} for r in results))
        shown = run("pcap", "show", files[0])
        self.assertEqual(len(shown.stdout.splitlines()), results[0]["frames"])

    def test_a_pipe_shows_what_the_file_shows(self):
        file = GOLDEN / "loss_write_bw.pcap"
        shown = run("pcap", "show", str(file)).stdout
        with subprocess.Popen(["cat", file], stdout=subprocess.PIPE) as source:
            piped = subprocess.run([live_rack.SLUICE, "pcap", "show", "/dev/stdin"], stdin=source.stdout, capture_output=True, text=True, timeout=60, check=False)
        self.assertGreater(len(shown.splitlines()), 100)
        self.assertEqual((piped.stdout, piped.stderr), (shown, ""))

    def test_a_flipped_bit_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            data = bytearray((GOLDEN / "cas_lat.pcap").read_bytes())
            data[-20] ^= 1
            damaged = pathlib.Path(folder) / "damaged.pcap"
            damaged.write_bytes(data)
            self.assertEqual(run("pcap", "check", str(damaged)).returncode, 1)
            shown = run("pcap", "show", "--wrong", str(damaged))
            self.assertEqual(shown.returncode, 1)
            self.assertEqual(len(shown.stdout.splitlines()), 1)
            damaged.write_bytes(data[:-7])
            self.assertEqual(run("pcap", "check", str(damaged)).returncode, 1)

    def test_traffic_that_is_no_roce_may_have_options_and_fragments(self):
        def ipv4(protocol, payload, options=b"", fragment=0, tag=b"", damage=0):
            words = 5 + len(options) // 4
            header = struct.pack(">BBHHHBBH4s4s", 0x40 + words, 0, 4 * words + len(payload), 7, fragment, 64, protocol, 0, b"\x0a\0\0\1", b"\x0a\0\0\2") + options
            total = sum(struct.unpack(f">{2 * words}H", header))
            checksum = 0xFFFF - (total % 0xFFFF)
            header = header[:10] + struct.pack(">H", checksum ^ damage) + header[12:]
            return bytes(12) + tag + b"\x08\x00" + header + payload

        def udp(port):
            return struct.pack(">HHHH", 53, port, 60, 0) + bytes(52)

        def check(*frames):
            with tempfile.TemporaryDirectory() as folder:
                capture = pathlib.Path(folder) / "other.pcap"
                records = b"".join(struct.pack("<4I", 1_800_000_000, 0, len(f), len(f)) + f for f in frames)
                capture.write_bytes(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1) + records)
                done = run("pcap", "check", "--json", str(capture))
            result = json.loads(done.stdout)[0]
            self.assertEqual(done.returncode, 1 if result["wrong"] else 0)
            return result["other"], result["wrong"]

        alert, tcp, more, tag = b"\x94\x04\0\0", 6, 0x2000, b"\x81\0\0\7"
        others = [ipv4(2, bytes(8), alert), ipv4(tcp, bytes(20), alert * 10), ipv4(tcp, bytes(40), fragment=more), ipv4(17, udp(53), alert),
                  ipv4(17, udp(53), fragment=more), ipv4(17, bytes(64), fragment=8), ipv4(2, bytes(8), alert, tag=tag)]
        self.assertEqual(check(*others), (len(others), {}))
        self.assertEqual(check(ipv4(17, udp(4791), fragment=more)), (0, {"IP fragment": 1}))
        # What is wrong whoever it is for, and RoCE with one bit of its header's length flipped.
        options = "bad IPv4 header length"
        self.assertEqual(check(ipv4(17, udp(4791), alert), ipv4(tcp, bytes(20), alert, damage=1)), (0, {options: 2}))
        whole = ipv4(17, udp(4791))
        self.assertEqual(check(whole[:14] + b"\x47" + whole[15:], whole[:14] + b"\x44" + whole[15:], ipv4(tcp, b"", alert)[:36]), (0, {options: 3}))

    def test_what_is_not_there_is_named_once(self):
        for words in (["pcap", "check"], ["pcap", "show"], ["box", "explain"]):
            self.assertEqual(run(*words, "/nope.pcap").stderr, f"sluice {' '.join(words)}: /nope.pcap: No such file or directory\n")

    def test_what_is_no_capture_is_said_so(self):
        done = run("pcap", "check", __file__)
        self.assertEqual(done.returncode, 1)
        self.assertIn("rack_test.py", done.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    live_rack.SLUICE = sys.argv.pop(1)
    unittest.main(verbosity=2)
