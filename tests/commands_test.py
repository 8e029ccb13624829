#!/usr/bin/env python3
"""./demo, ./test and what they share, run in a copy of the tree whose packages, cmake, ctest and program are stand-ins.

What is checked is the scripts themselves: what they pass on, how they count, what they say and how they end.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
CMAKE = """#!/bin/sh
echo "cmake $*" >>"$LOG"
case "$*" in
  *--build*) [ -z "$BREAK_BUILD" ] || { echo "error: no such thing"; exit 1; } ;;
esac
mkdir -p build && cp "$PROGRAM" build/sluice
"""
PROGRAM = """#!/bin/sh
echo "program $*" >>"$LOG"
case "$*" in
  *"--dir wait"*) trap 'echo interrupted >>"$LOG"; exit 130' INT; echo up; while :; do sleep 0.05; done ;;
  *"--dir fail"*) exit 3 ;;
esac
echo "in $PWD the program says: $*"
"""
CTEST = """#!/bin/sh
echo "ctest $*" >>"$LOG"
while [ $# -gt 0 ]; do [ "$1" = --output-junit ] && junit=$2; shift; done
[ -z "$NO_RESULTS" ] || exit 1
[ -z "$NO_TESTS" ] || { echo '<testsuite tests="0"/>' >"$junit"; exit 8; }
cat >"$junit" <<'XML'
<testsuite tests="5">
<testcase name="wire_test" status="run"/>
<testcase name="rc_test" status="CRASH"><failure message=""/></testcase>
<testcase name="interop" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/><system-out>x
skipped: QEMU is not installed
</system-out></testcase>
<testcase name="script" status="run"/>
</testsuite>
XML
cat >"${GTEST_OUTPUT#xml:}wire_test.xml" <<'XML'
<testsuites><testsuite name="Icrc">
<testcase name="A" status="run" classname="Icrc"/>
<testcase name="B" status="run" classname="Icrc"><CASE_B/></testcase>
<testcase name="C" status="run" result="skipped" classname="Icrc"><skipped message="a.cpp:3&#x0A;no reference data"/></testcase>
<testcase name="DISABLED_D" status="notrun" classname="Icrc"/>
</testsuite></testsuites>
XML
"""


def write(path, text, mode=0o755):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


class Commands(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="sluice commands ")  # with a space in its name
        self.addCleanup(self.folder.cleanup)
        self.tree = pathlib.Path(self.folder.name)
        for name in ("demo", "test", "scripts/steps.sh", "scripts/count-tests"):
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.tree / name)
        write(self.tree / "scripts/install-packages", '#!/bin/sh\necho packages >>"$LOG"; [ -z "$BREAK_PACKAGES" ]\n')
        write(self.tree / "bin/cmake", CMAKE)
        write(self.tree / "bin/ctest", CTEST.replace("<CASE_B/>", ""))
        write(self.tree / "program", PROGRAM)
        self.environment = os.environ | {"PATH": f"{self.tree}/bin:{os.environ['PATH']}", "LOG": f"{self.tree}/log",
                                         "PROGRAM": f"{self.tree}/program"}

    def run_command(self, *command, **environment):
        done = subprocess.run([f"{self.tree}/{command[0]}", *command[1:]], cwd="/", env=self.environment | environment,
                              capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr

    def log(self):
        path = self.tree / "log"
        return path.read_text() if path.exists() else ""

    def test_demo_installs_builds_and_passes_its_options_on(self):
        status, out, _ = self.run_command("demo", "--clients", "4", "--report", "two words")
        self.assertEqual(status, 0)
        self.assertIn("in / the program says: demo --clients 4 --report two words", out)  # where the user is, not the tree
        lines = self.log().splitlines()
        self.assertEqual(lines[0], "packages")
        # The program, and what `sluice run` puts before other programs.
        self.assertIn("--target sluice_cli_main sluice-verbs drop-in-ibverbs drop-in-rdmacm", lines[2])
        self.assertEqual(lines[-1], "program demo --clients 4 --report two words")

    def test_demo_ends_with_the_programs_status(self):
        self.assertEqual(self.run_command("demo", "--dir", "fail")[0], 3)

    def test_demo_says_when_a_step_fails_and_runs_nothing(self):
        for setting, what in (("BREAK_BUILD", "the build"), ("BREAK_PACKAGES", "installing packages")):
            status, _, err = self.run_command("demo", **{setting: "1"})
            self.assertEqual(status, 1)
            self.assertIn(f"demo: {what} failed", err)
            self.assertNotIn("program", self.log())

    def test_demo_help_builds_nothing(self):
        status, out, _ = self.run_command("demo", "--help")
        self.assertEqual(status, 0)
        self.assertIn("./demo OPTION...", out)
        self.assertEqual(self.log(), "")

    def test_demo_looks_at_its_arguments_before_it_does_anything(self):
        for words, why in ((["--cleints", "4"], 'no option "--cleints"'), (["--clients"], "the value of --clients is missing"),
                           (["two"], '"two" is no option'), (["--no-clients"], 'no option "--no-clients"'),
                           (["contention", "--processes", "2"], 'no option "--processes"')):
            status, out, err = self.run_command("demo", *words)
            self.assertEqual(status, 2)
            self.assertEqual(out, "")
            self.assertIn(why, err)
        self.assertEqual(self.log(), "")
        for words in (["--no-verbs", "--clients=4"], ["contention", "--live=false", "--records", "100"]):
            self.assertEqual(self.run_command("demo", *words)[0], 0)
            self.assertIn(f"program demo {' '.join(words)}\n", self.log())

    def test_an_interrupt_reaches_the_program(self):
        process = subprocess.Popen([f"{self.tree}/demo", "--dir", "wait"], env=self.environment, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True, start_new_session=True)
        self.addCleanup(process.stdout.close)
        while (line := process.stdout.readline()) != "up\n":
            self.assertTrue(line)
        os.killpg(process.pid, signal.SIGINT)
        self.assertEqual(process.wait(10), 130)
        self.assertIn("interrupted", self.log())
        self.assertGone(process.pid)

    def assertGone(self, group):
        for _ in range(100):
            try:
                os.killpg(group, 0)
            except ProcessLookupError:
                return
            time.sleep(0.05)
        self.fail("processes are left")

    def test_test_counts_single_cases_and_fails_when_one_does(self):
        status, out, _ = self.run_command("test")
        self.assertEqual(status, 1)
        self.assertEqual(out.splitlines()[-1], "3 passed, 1 failed, 2 skipped")
        self.assertIn("failed: rc_test", out)
        self.assertIn("skipped: interop: QEMU is not installed", out)
        self.assertIn("skipped: wire_test: Icrc.C: no reference data", out)
        self.assertIn("--label-exclude nightly", self.log())

    def test_test_names_a_failed_case(self):
        write(self.tree / "bin/ctest", CTEST.replace("<CASE_B/>", '<failure message="no"/>')
              .replace('name="wire_test" status="run"/>', 'name="wire_test" status="fail"><failure message=""/></testcase>')
              .replace('<testcase name="rc_test" status="CRASH"><failure message=""/></testcase>', ""))
        status, out, _ = self.run_command("test")
        self.assertEqual(status, 1)
        self.assertIn("failed: wire_test: Icrc.B", out)
        self.assertEqual(out.splitlines()[-1], "2 passed, 1 failed, 2 skipped")

    def test_test_passes_when_all_do(self):
        write(self.tree / "bin/ctest", CTEST.replace("<CASE_B/>", "").replace("CRASH", "run").replace('<failure message=""/>', ""))
        status, out, _ = self.run_command("test", "--nightly", "--filter", "wire|rc")
        self.assertEqual(status, 0)
        self.assertEqual(out.splitlines()[-1], "4 passed, 0 failed, 2 skipped")
        self.assertNotIn("--label-exclude", self.log())
        self.assertIn("--tests-regex wire|rc", self.log())

    def test_a_name_that_no_test_has_is_a_failure(self):
        status, out, _ = self.run_command("test", "--filter", "tyop", NO_TESTS="1")
        self.assertEqual(status, 1)
        self.assertIn("no test was run", out)

    def test_no_results_are_a_failure(self):
        status, out, _ = self.run_command("test", NO_RESULTS="1")
        self.assertEqual(status, 1)
        self.assertEqual(out.splitlines()[-1], "0 passed, 1 failed, 0 skipped")

    def test_a_broken_build_is_a_failure(self):
        status, out, _ = self.run_command("test", BREAK_BUILD="1")
        self.assertEqual(status, 1)
        self.assertEqual(out.splitlines()[-1], "0 passed, 1 failed, 0 skipped")
        self.assertNotIn("ctest", self.log())

    def test_each_package_is_named_once(self):
        names = subprocess.run([ROOT / "scripts/install-packages", "--list"], capture_output=True, text=True, check=True).stdout.split()
        self.assertEqual(len(names), len(set(names)))

    def test_unknown_options_are_refused(self):
        status, _, err = self.run_command("test", "--fliter", "x")
        self.assertEqual(status, 2)
        self.assertIn("unknown argument '--fliter'", err)
        self.assertEqual(self.log(), "")


if __name__ == "__main__":
    sys.exit(unittest.main())
