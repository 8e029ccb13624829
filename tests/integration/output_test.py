#!/usr/bin/env python3
"""What becomes of what the program writes: to a full disk, to a reader who has gone, to a closed stream, to a file, when it is interrupted or hung up on.

usage: output_test.py SLUICE [TEST...]
"""

import csv
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import live_rack  # noqa: E402
from live_rack import wait_until  # noqa: E402

FULL = "/dev/full"  # takes nothing: ENOSPC


def end_of(words, **streams):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.run([live_rack.SLUICE, *words], text=True, timeout=60, check=False, **streams)


class Output(unittest.TestCase):
    def test_a_result_that_cannot_be_written_is_a_failure_and_told_once(self):
        # One fits into a buffer, the other does not.
        for words in (["version"], ["box", "memory", "--json"], ["--help"], ["reference"]):
            with open(FULL, "w", encoding="utf-8") as full:
                done = end_of(words, stdout=full)
            self.assertEqual(done.returncode, 1, f"{words}: {done.stderr}")
            self.assertIn("No space left on device", done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_measurements_are_had_as_json_and_as_csv_with_the_same_names(self):
        one = ["--duration", "20ms", "--sizes", "64", "--depths", "1"]
        for words in (["bench", "verbs", "--ops", "read", "--ops", "cas", *one], ["onerma", "bench", "--transports", "sealed", "--ops", "read", "--ops", "write", *one],
                      ["cache", "bench", "--duration", "50ms", "--records", "10"]):
            told = json.loads(end_of([*words, "--json"]).stdout)
            points = told if isinstance(told, list) else told.get("points", [told])
            names, *rows = list(csv.reader(end_of([*words, "--csv"]).stdout.splitlines()))
            self.assertEqual(len(rows), len(points), words)
            for row in rows:
                self.assertEqual(len(row), len(names), words)
            self.assertLessEqual(set(points[0]), set(names), words)
            self.assertEqual([point.get("op") for point in points], [dict(zip(names, row)).get("op") for row in rows])
            self.assertEqual(end_of([*words, "--csv", "--json"]).returncode, 2)

    def test_a_result_that_could_not_be_written_is_refused_before_the_work(self):
        folder = tempfile.mkdtemp(prefix="sluice-out-", dir="/tmp")
        self.addCleanup(shutil.rmtree, folder)
        for words, told in ((["bench", "verbs", "--duration", "1000s", "--out", f"{folder}/none/x.json"], "No such file"),
                            (["bench", "cowbird", "--duration", "1000s", "--out", folder], "is a directory"),
                            (["bench", "clover", "--history", f"{folder}/none/x.json", "--dir", folder], "--history = "),
                            (["edm", "trace", "--out", folder], "is a directory")):
            done = end_of(words)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(told, done.stderr)
            self.assertEqual(os.listdir(folder), [])

    def test_manual_and_reference_say_nothing_of_the_machine_that_writes_them(self):
        folder = tempfile.mkdtemp(prefix="sluice-out-", dir="/tmp")
        self.addCleanup(shutil.rmtree, folder)
        where = {**os.environ, "SLUICE_DIR": "/nowhere/mine"}
        self.assertEqual(end_of(["man", "--out", folder], env=where).returncode, 0)
        written = [path.read_text() for path in pathlib.Path(folder).rglob("*.1")]
        written += [end_of(words, env=where).stdout for words in (["reference"], ["reference", "--settings"])]
        self.assertNotIn("/nowhere/mine", "".join(written))
        for text in (written[-1], written[-2], pathlib.Path(folder, "sluice-rack-up.1").read_text().replace("\\", "")):
            self.assertIn("$SLUICE_DIR, or $XDG_RUNTIME_DIR/sluice, or /tmp/sluice-UID", text)
        self.assertIn("[/nowhere/mine]", end_of(["rack", "up", "--help"], env=where).stdout)

    def test_manual_and_reference_have_every_command_by_its_name_and_all_its_options(self):
        folder = tempfile.mkdtemp(prefix="sluice-out-", dir="/tmp")
        self.addCleanup(shutil.rmtree, folder)
        self.assertEqual(end_of(["man", "--out", folder]).returncode, 0)
        self.assertEqual([name for name in os.listdir(folder) if not re.fullmatch(r"sluice(-[a-z0-9]+)*\.1", name)], [])
        told = end_of(["reference"]).stdout
        self.assertEqual([line for line in told.splitlines() if line.startswith("##") and not re.fullmatch(r"## sluice( [a-z0-9-]+)*", line)], [])
        write = told[told.index("## sluice remote write"):].split("\n## ")[0]
        page = pathlib.Path(folder, "sluice-remote-write.1").read_text().replace("\\", "")
        for text in (write, page):
            self.assertIn("sluice remote write [OPTIONS] (--text VALUE | --hex VALUE | --word VALUE | --file VALUE) NODE OFFSET", text)
            self.assertIn("bytes, two digits each", text)
            self.assertNotIn("COMMAND", text)
        offered = end_of(["__complete", "remote", "write", "--h"]).stdout
        self.assertIn("--hex\t", offered)

    def test_a_stdout_that_is_closed_takes_no_result_and_nobodys_place(self):
        for words in (["version"], ["reference"]):
            done = end_of(words, preexec_fn=lambda: os.close(1))
            self.assertEqual(done.returncode, 1, f"{words}: {done.stderr}")
            self.assertIn("Bad file descriptor", done.stderr)

    def test_nobody_who_hears_an_error_is_no_other_error(self):
        for close in (False, True):
            with open(FULL, "w", encoding="utf-8") as full:
                done = end_of(["pcap", "check", "/nowhere"], stderr=full, preexec_fn=(lambda: os.close(2)) if close else None)
            self.assertEqual(done.returncode, 1)

    def test_a_file_is_written_whole_in_its_place_and_keeps_its_mode(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-out-", dir="/tmp"))
        self.addCleanup(shutil.rmtree, folder)
        file = folder / "trace.csv"
        words = ["edm", "trace", "--messages", "5", "--out"]
        self.assertEqual(end_of([*words, str(file)]).returncode, 0)
        first = file.read_text()
        self.assertEqual(len(first.splitlines()), 5)
        (folder / "link").symlink_to(file)
        file.chmod(0o600)
        self.assertEqual(end_of([*words, str(folder / "link"), "--seed", "2"]).returncode, 0)
        self.assertTrue((folder / "link").is_symlink())
        self.assertNotEqual(file.read_text(), first)
        self.assertEqual(file.stat().st_mode & 0o777, 0o600)
        self.assertEqual(sorted(os.listdir(folder)), ["link", "trace.csv"])  # nothing is left beside it
        self.assertEqual(end_of([*words, "/dev/stdout", "--seed", "1"]).stdout, first)
        done = end_of([*words, str(folder / "none" / "trace.csv")])
        self.assertEqual(done.returncode, 1)
        self.assertIn("No such file or directory", done.stderr)


class Interrupted(unittest.TestCase):
    """Ctrl-C reaches all processes of a terminal, a TERM the one that it names: either way nothing is left in the folder for what is temporary."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="sluice-out-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.folder)

    def interrupt(self, words, end, said_before="", left=()):
        with subprocess.Popen([live_rack.SLUICE, *words], env=os.environ | {"TMPDIR": self.folder}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, start_new_session=True) as bench:
            status = pathlib.Path("/proc", str(bench.pid), "status")
            wait_until(lambda: int(re.search(r"(?m)^SigBlk:\s*(\w+)", status.read_text())[1], 16) & 1 << (signal.SIGINT - 1), f"{words} minds signals")
            end(bench.pid)
            told, said = bench.communicate(timeout=60)
        self.assertEqual(bench.returncode, 130, said)
        self.assertRegex(told, rf"\A{said_before}\Z")
        self.assertIn("interrupted\n", said)
        wait_until(lambda: os.listdir(self.folder) == list(left), f"nothing is left of {words}")
        return bench.pid

    def test_a_measurement_leaves_nothing_and_says_so(self):
        for words in (["bench", "verbs", "--duration", "60s"], ["bench", "cowbird", "--table", "1MiB", "--duration", "60s"],
                      ["onerma", "bench", "--duration", "60s"], ["cache", "bench", "--duration", "60s"]):
            self.interrupt(words, lambda pid: os.killpg(pid, signal.SIGINT))
            self.interrupt(words, lambda pid: os.kill(pid, signal.SIGTERM))

    def test_changes_under_way_end_with_their_client(self):
        words = ["cache", "bench", "--writes", "50", "--clients", "4", "--duration", "60s"]
        with subprocess.Popen([live_rack.SLUICE, *words], env=os.environ | {"TMPDIR": self.folder}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, start_new_session=True) as bench:
            ticks = lambda: sum(map(int, pathlib.Path("/proc", str(bench.pid), "stat").read_text().rsplit(") ", 1)[1].split()[11:13]))
            wait_until(lambda: ticks() > 1.5 * os.sysconf("SC_CLK_TCK"), "it is at work, for longer than it takes to begin")
            os.killpg(bench.pid, signal.SIGINT)
            told, said = bench.communicate(timeout=60)
        self.assertEqual(bench.returncode, 130, said)
        self.assertTrue(told.startswith("lookups "), told)  # what it has measured so far
        wait_until(lambda: os.listdir(self.folder) == [], "nothing is left")

    def test_a_demo_leaves_nothing_and_says_so(self):
        pid = self.interrupt(["demo"], lambda pid: os.killpg(pid, signal.SIGINT), said_before="(?s:.*take the rack down.*)")
        self.assertFalse(pathlib.Path(f"/tmp/sluice-demo-{pid}").exists())
        pid = self.interrupt(["demo", "contention"], lambda pid: os.killpg(pid, signal.SIGINT), said_before="(?s:.*)")
        self.assertEqual(list(pathlib.Path("/tmp").glob(f"sluice-contention-{pid}-*")), [])

    def test_a_rack_that_comes_up_is_taken_down(self):
        directory = self.folder + "/run"
        self.interrupt(["rack", "up", "--dir", directory], lambda pid: os.kill(pid, signal.SIGINT), said_before="(?s:.*)", left=["run"])
        self.assertEqual(end_of(["rack", "status", "--dir", directory]).returncode, 1)


class Refused(unittest.TestCase):
    """What was asked wrongly ends with 2 and one line, before anything is touched; a file that cannot be read with 1 and the reason."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-out-", dir="/tmp"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.dir = ["--dir", str(self.folder / "run")]

    def refused(self, words, code, *told, **environment):
        done = subprocess.run([live_rack.SLUICE, *words], capture_output=True, timeout=60, check=False, env=os.environ | environment)
        told_us = done.stderr.decode()  # whatever the words were
        self.assertEqual((done.returncode, len(told_us.splitlines())), (code, 1), f"{words}: {told_us}")
        for text in told:
            self.assertIn(text, told_us)

    def test_switches_that_cannot_be(self):
        self.refused(["switch", "--subnet", "10.77.128.0", *self.dir], 2, "must end in .0.0")
        self.refused(["switch", "--box", "words", "--cores", "2", "--edm", *self.dir], 2, "--edm")

    def test_numbers_and_times_that_are_none(self):
        for words in (["pcap", "show", "--limit", "1.5", "x"], ["box", "set", "--keys", "many"], ["xdp", "show", "--keys", "many"],
                      ["tenant", "add", "red", "--quota", "1GiB", "--regions", "few"]):
            self.refused(words, 2, "must be a whole number")
        self.refused(["box", "set", "--on", "perhaps"], 2, "--on: must be true or false")
        for time in ("0s", "1000", "61s"):
            self.refused(["xdp", "attach", "lo", "--flight", time], 2, "--flight: must be a time")

    def test_no_folder_for_what_is_temporary(self):
        for words in (["cache", "bench"], ["bench", "verbs"], ["bench", "cowbird"], ["onerma", "bench"]):
            for none in ("/nope", "/proc"):
                self.refused(words, 1, "TMPDIR", TMPDIR=none)

    def test_names_that_are_none(self):
        config = self.folder / "rack.toml"
        config.write_text('[memory]\nname = "a/b"\n')
        self.refused(["memory", "--config", str(config), *self.dir], 2, "letters, digits")
        for name in ("", "a/b", b"\xff"):
            for words in (
                ["tenant", "add", name, "--quota", "1GiB"],
                ["tenant", "remove", name],
                ["tenant", "revoke", name],
                ["tenant", "quota", name, "--quota", "1GiB"],
                ["region", "add", name, "1GiB"],
                ["region", "move", name],
                ["region", "move", "heap", "--to", name or "a/b"],
                ["rack", "drain", name],
                ["rack", "invite", name, "--to", "192.0.2.1:7472"],
                ["memory", "--name", name],
                ["metadata", "--name", name],
                ["cowbird", "engine", "--name", name],
                ["host", "--name", name],
                ["run", "--host", name or "../x", *self.dir, "--", "true"],
            ):
                self.refused(words if "run" in words else [*words, *self.dir], 2, "must have 1 to", "letters, digits, '-', '_' or '.'")
        for words in (["add", "blue"], ["quota", "blue"]):
            self.refused(["tenant", *words, "--quota", "64", *self.dir], 2, '--quota = "64": must be at least 4KiB')
        for days in ("0", "100000", "1.5"):
            self.refused(["rack", "invite", "m2", "--days", days, *self.dir], 2, "--days")
        self.assertFalse((self.folder / "run").exists())

    def test_files_that_cannot_be_read(self):
        nope = str(self.folder / "nope")
        for words in (
            ["rack", "join", nope, *self.dir],
            ["tenant", "list", "--token-file", nope, *self.dir],
            ["onerma", "bench", "--grants", nope, "--port", "shm:" + nope + ".sock"],
        ):
            self.refused(words, 1, "No such file or directory", nope)
        self.assertEqual(list(self.folder.glob("nope*")), [])

    def test_a_file_in_a_sockets_place_stays(self):
        notes = self.folder / "notes.txt"
        notes.write_text("notes")
        self.refused(["switch", "--listen", f"shm:{notes}", *self.dir], 1, "no socket to replace")
        self.assertEqual(notes.read_text(), "notes")


class Readers(live_rack.LiveRack):
    def test_a_rack_that_is_kept_goes_down_though_nobody_reads(self):
        for words in (["rack", "up", "--keep", "--no-metadata"], ["demo", "--duration", "1s", "--records", "100", "--no-verbs", "--stay", "no",
                                                                 "--report", self.folder + "/report.html"]):
            reader, writer = os.pipe()
            child = subprocess.Popen([live_rack.SLUICE, *words, "--dir", self.dir], stdout=writer, stderr=writer)
            self.children.append(child)
            os.close(writer)
            self.assertTrue(os.read(reader, 1))
            os.close(reader)
            wait_until(lambda: self.sluice("rack", "status").returncode == 0 or child.poll() is not None, "the rack is up")
            if "--keep" in words:
                child.send_signal(signal.SIGTERM)
            child.wait(60)
            self.assertEqual(json.loads(self.sluice("rack", "status", "--json").stdout)["daemons"], [], words)

    def test_a_rack_that_is_kept_goes_down_with_its_terminal_and_not_under_nohup(self):
        for before, ends in ((signal.SIG_DFL, True), (signal.SIG_IGN, False)):
            child = subprocess.Popen([live_rack.SLUICE, "rack", "up", "--keep", "--no-metadata", "--dir", self.dir], stderr=subprocess.DEVNULL,
                                     preexec_fn=lambda as_before=before: signal.signal(signal.SIGHUP, as_before))
            self.children.append(child)
            wait_until(lambda: self.sluice("rack", "status").returncode == 0, "the rack is up")
            child.send_signal(signal.SIGHUP)
            if not ends:
                with self.assertRaises(subprocess.TimeoutExpired):
                    child.wait(1)
                child.send_signal(signal.SIGTERM)
            child.wait(60)
            self.assertEqual(json.loads(self.sluice("rack", "status", "--json").stdout)["daemons"], [])

    def test_a_parent_that_ignored_the_ends_of_its_children_leaves_us_ours(self):
        experiments = pathlib.Path(__file__).resolve().parents[2] / "experiments"
        words = [live_rack.SLUICE, "experiment", str(experiments / "fig08.toml"), "--out", self.folder]
        done = subprocess.run(words, preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN), capture_output=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    live_rack.SLUICE = os.path.abspath(sys.argv.pop(1))
    unittest.main()
