#!/usr/bin/env python3
"""sluice experiment and report: what they promise, check, and refuse.

usage: experiment_test.py SLUICE [TEST...]
"""

import csv
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SLUICE = ""
HARDWARE = pathlib.Path(__file__).resolve().parents[2] / "experiments" / "hardware" / "connectx5.toml"

TWO_LINES = """title = "WRITEs and CASes"
figure = "none"
kind = "verbs"
hardware = "connectx5"
x = "queue_pairs"
x_title = "Queue pairs"
y = "throughput"
y_title = "M operations/s"

[workload]
in_flight = 16
signal_every = 16
warm_up = "20 us"
measure = "50 us"

[sweep]
queue_pairs = [1, 2]

[[series]]
name = "WRITE"
operation = "write"

[[series]]
name = "CAS"
operation = "cas"
"""

ONLY_WRITES = """title = "Only WRITEs"
figure = "none"
kind = "clover"
hardware = "connectx5"
x = "threads"
x_title = "Threads"
y = "throughput"
y_title = "M operations/s"

[workload]
machines = 1
keys = 64
theta_thousandths = 990
value_bytes = "104 B"
writes_percent = 100
warm_up = "100 us"
measure = "200 us"

[sweep]
threads = [1, 2]

[[series]]
name = "Clover"
system = "clover"
"""

# One point, simulated with two seeds.
TWICE = TWO_LINES[:TWO_LINES.index("[workload]")].replace('"verbs"', '"order"').replace('y = "throughput"', 'y = "share"') + """
repetitions = 2
[workload]
addresses = 64
theta_thousandths = 990
bytes = "64 B"
interval = "200 ns"
requests = 3000
gap = 1
[sweep]
queue_pairs = [32]
"""


def points(series, ys, **more):
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in more.items())
    return f'\n[[paper]]\nseries = "{series}"\nsource = "made up"\n{lines}y = {ys}\n'


class Experiment(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-experiment-", dir="/tmp"))
        (self.folder / "hardware").mkdir()
        shutil.copy(HARDWARE, self.folder / "hardware")

    def tearDown(self):
        shutil.rmtree(self.folder)

    def simulate(self, text, *flags, code=0):
        (self.folder / "mine.toml").write_text(text)
        done = subprocess.run([SLUICE, "experiment", str(self.folder / "mine.toml"), "--out", str(self.folder / "out"), *flags],
                              capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, code, f"{done.stdout}\n{done.stderr}")
        return done

    def rates(self):
        """What it comes to, by series and queue pairs."""
        self.simulate(TWO_LINES)
        with open(self.folder / "out" / "mine.csv", encoding="utf-8") as file:
            return {(row["series"], row["queue_pairs"]): float(row["throughput"]) for row in csv.DictReader(file)}

    def test_check_fails_exactly_when_a_promise_is_broken(self):
        rates = self.rates()
        right = [rates["CAS", "1"], rates["CAS", "2"]]
        far = [right[0], right[1] * 1.3]
        self.simulate(TWO_LINES + points("CAS", right, within_percent=1), "--check")
        said = self.simulate(TWO_LINES + points("CAS", far, within_percent=20), "--check", code=1).stdout
        self.assertIn("1 of 2 points are as near the paper's as they are meant to be (within 20 %)", said)
        self.assertIn("not within 20 %", said)
        self.simulate(TWO_LINES + points("CAS", far, within_percent=20))  # told, but not asked to check
        self.simulate(TWO_LINES + points("CAS", far, within_factor=2), "--check")
        self.simulate(TWO_LINES + points("CAS", [right[0] * 3, "nan"], within_factor=2).replace("'nan'", "nan"), "--check", code=1)
        self.simulate(TWO_LINES + points("CAS", [right[0] + 0.5, right[1]], within_points=1), "--check")
        self.simulate(TWO_LINES + points("CAS", [right[0] + 2, right[1]], within_points=1), "--check", code=1)
        self.simulate(TWO_LINES + points("CAS", [right[0] + 2, right[1]], within_points=1, within_or="below"), "--check")
        self.simulate(TWO_LINES + points("CAS", [right[0] + 2, right[1]], within_points=1, within_or="above"), "--check", code=1)

    def test_ratios_of_two_series_are_compared(self):
        rates = self.rates()
        ratios = [rates["WRITE", n] / rates["CAS", n] for n in ("1", "2")]
        text = TWO_LINES + points("WRITE", ratios, over="CAS", within_percent=1)
        said = self.simulate(text, "--check").stdout
        self.assertIn("throughput, times that of CAS", said)
        self.simulate(TWO_LINES + points("WRITE", [ratios[0], ratios[1] * 1.1], over="CAS", within_percent=1), "--check", code=1)

    def test_a_range_of_the_papers_is_one_line_of_points(self):
        rates = self.rates()
        right = [rates["CAS", "1"], rates["CAS", "2"]]

        def ranges(low, high):
            return points("CAS", [r * low for r in right], within_percent=1, up_to=[r * high for r in right])

        self.simulate(TWO_LINES + ranges(0.5, 2), "--check")
        self.simulate(TWO_LINES + ranges(0.5, 0.9), "--check", code=1)
        self.simulate(TWO_LINES + ranges(1.1, 2), "--check", code=1)
        twice = points("CAS", right, within_percent=1)
        said = self.simulate(TWO_LINES + twice + twice, code=2).stderr
        self.assertIn("CAS has two lines of points of one metric; a range is one line, from y to up_to", said)

    def test_promises_may_differ_from_place_to_place(self):
        rates = self.rates()
        first, second = (rates["CAS", at] for at in ("1", "2"))

        def lines(times):
            other = points("CAS", [first * times, "nan"], within_factor=2) + points("CAS", ["nan", second * times], within_percent=20)
            return TWO_LINES + other.replace("'nan'", "nan")

        self.assertIn("2 of 2 points are as near the paper's as they are meant to be (within 2x, within 20 %)",
                      self.simulate(lines(1.1), "--check").stdout)
        said = self.simulate(lines(1.5), "--check", code=1).stdout
        self.assertIn("1 of 2 points", said)
        self.assertIn("not within 20 %", said)

    def test_points_that_name_no_panel_are_every_panels(self):
        panels = "".join(f'\n[[panel]]\nname = "{name}"\nmeasure = "{measure}"\n' for name, measure in (("short", "50 us"), ("long", "60 us")))
        right = [self.rates()["CAS", at] for at in ("1", "2")]
        said = self.simulate(TWO_LINES + panels + points("CAS", right, within_percent=30), "--check").stdout
        self.assertIn("4 of 4 points are as near the paper's", said)
        said = self.simulate(TWO_LINES + panels + points("CAS", right, within_percent=30, panel="long"), "--check").stdout
        self.assertIn("2 of 2 points are as near the paper's", said)
        both = points("CAS", right) + points("CAS", right, panel="short")
        self.assertIn("two lines of points of one metric", self.simulate(TWO_LINES + panels + both, code=2).stderr)

    def test_a_point_that_comes_to_nothing_is_not_near_the_papers(self):
        said = self.simulate(ONLY_WRITES + points("Clover", [5, 5], metric="read_p99_us", within_percent=1), "--check", code=1).stdout
        self.assertIn("0 of 2 points are as near the paper's as they are meant to be", said)
        self.assertIn("not within 1 %", said)

    def test_a_metric_that_no_point_has_is_refused_before_anything_starts(self):
        said = self.simulate(TWO_LINES.replace('y = "throughput"', 'y = "thruput"'), code=2).stderr
        self.assertIn("y must be one of throughput, p50_us, p99_us", said)
        said = self.simulate(TWO_LINES + points("CAS", [1, 2], metric="p50"), code=2).stderr
        self.assertIn("metric must be one of throughput, p50_us, p99_us", said)

    def test_every_number_of_the_csv_stands_under_its_name(self):
        rates = self.rates()
        names = 'a "fast, bad" one', "CAS"
        text = TWO_LINES.replace('name = "WRITE"', f"name = {json.dumps(names[0])}") + points("CAS", [1, 2], over=names[0]) + points("CAS", [3, 4])
        self.simulate(text)
        with open(self.folder / "out" / "mine.csv", encoding="utf-8") as file:
            rows = {(row["series"], row["queue_pairs"]): row for row in csv.DictReader(file)}
        self.assertEqual({series for series, _ in rows}, set(names))
        ratio = f"throughput, times that of {names[0]}"
        for at, (theirs, times) in {"1": ("3", "1"), "2": ("4", "2")}.items():
            first, second = rows[names[0], at], rows["CAS", at]
            self.assertEqual({len(first), len(second)}, {len(first)})
            self.assertEqual((first[ratio], first["paper_" + ratio], first["paper_throughput"]), ("", "", ""))
            self.assertEqual((second["paper_throughput"], second["paper_" + ratio]), (theirs, times))
            self.assertAlmostEqual(float(second[ratio]), rates["CAS", at] / rates["WRITE", at], places=4)
            self.assertEqual((first["simulated"], second["simulated"]), ("yes", "yes"))

    def test_of_two_repetitions_the_median_lies_between(self):
        said = self.simulate(TWICE).stdout
        with open(self.folder / "out" / "mine.csv", encoding="utf-8") as file:
            shares = [float(row["share"]) for row in csv.DictReader(file)]
        self.assertNotEqual(*shares)
        self.assertIn(f"{sum(shares) / 2:.4g}\n", said)

    def test_of_repetitions_the_mean_is_told_where_the_file_says_so(self):
        said = self.simulate(TWICE.replace("repetitions = 2", 'repetitions = 3\nsummary = "mean"')).stdout
        with open(self.folder / "out" / "mine.csv", encoding="utf-8") as file:
            shares = sorted(float(row["share"]) for row in csv.DictReader(file))
        self.assertNotAlmostEqual(sum(shares) / 3, shares[1], places=4)
        self.assertIn(f"{sum(shares) / 3:.4g}\n", said)

    def test_of_a_range_what_is_nearest_to_the_median_is_the_papers(self):
        self.simulate(TWICE)
        with open(self.folder / "out" / "mine.csv", encoding="utf-8") as file:
            least, most = sorted(float(row["share"]) for row in csv.DictReader(file))
        median = (least + most) / 2
        low, high = median - (most - least) / 4, median + (most - least) / 4  # neither of the two is in it
        text = TWICE + f'\n[[paper]]\nsource = "made up"\nwithin_percent = 1\ny = [{low}]\nup_to = [{high}]\n'
        self.assertIn("+0.0%", self.simulate(text, "--check").stdout)
        result = json.loads((self.folder / "out" / "mine.json").read_text(encoding="utf-8"))
        for point in result["points"]:
            self.assertAlmostEqual(point["paper"]["share"], median, places=2)
        report = self.folder / "report.html"
        subprocess.run([SLUICE, "report", "--results", str(self.folder / "out"), "--out", str(report)], check=True, timeout=60,
                       capture_output=True)
        self.assertIn('"+0.0 %"', report.read_text(encoding="utf-8"))

    def test_one_name_for_two_is_refused_before_anything_is_simulated(self):
        for wrong, words in ((TWO_LINES.replace('"CAS"', '"WRITE"'), ("series", "WRITE")), (TWO_LINES.replace("[1, 2]", "[1, 2, 1.0]"), ("queue_pairs", "twice"))):
            said = self.simulate(wrong, code=2).stderr
            for word in words:
                self.assertIn(word, said)
        (self.folder / "more").mkdir()
        (self.folder / "more" / "mine.toml").write_text(TWO_LINES)
        said = self.simulate(TWO_LINES, str(self.folder / "more" / "mine.toml"), code=2).stderr
        self.assertIn("results of both would be called mine", said)
        for name, words in ((b"\xff\xfe.toml", "is no UTF-8"), (300 * b"x" + b".toml", "is no file and no experiment")):
            file = os.fsencode(self.folder) + b"/" + name
            if len(name) < 256:
                shutil.copy(self.folder / "mine.toml", file)
            done = subprocess.run([SLUICE, "experiment", file, "--out", str(self.folder / "out")], capture_output=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words.encode(), done.stderr)
        self.assertFalse((self.folder / "out").exists())

    def test_a_report_names_what_is_no_result(self):
        results = self.folder / "results"
        results.mkdir()
        for text in ("{", '{"points": []}', '{"points": [{"metrics": []}]}', "[1]"):
            (results / "mine.json").write_text(text)
            done = subprocess.run([SLUICE, "report", "--results", str(results), "--out", str(self.folder / "report.html")], capture_output=True,
                                  text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("mine.json: not a result", done.stderr)

    def test_a_kept_point_that_is_not_whole_is_simulated_again(self):
        rates = self.rates()
        for broken in ("", "{", '{"metrics": 5}', '{"metrics": [["throughput"]]}', '{"metrics": []}'):
            for point in (self.folder / "out" / "points").glob("*.json"):
                point.write_text(broken)
            self.assertEqual(self.rates(), rates)

    def test_a_program_of_any_size_keeps_points(self):
        large = self.folder / "sluice"
        shutil.copy(SLUICE, large)
        os.truncate(large, 80 << 20)  # as one with all that debuggers want to know
        (self.folder / "mine.toml").write_text(TWO_LINES)
        subprocess.run([large, "experiment", str(self.folder / "mine.toml"), "--out", str(self.folder / "out")], check=True, timeout=120,
                       capture_output=True)
        self.assertEqual(len(list((self.folder / "out" / "points").glob("*.json"))), 4)

    def test_check_without_a_promise_is_refused_before_anything_is_simulated(self):
        said = self.simulate(TWO_LINES + points("CAS", [1, 2]), "--check", code=2).stderr
        self.assertIn("there is nothing to --check", said)
        said = self.simulate(TWO_LINES + points("CAS", "[nan, nan]", within_percent=1), "--check", code=2).stderr
        self.assertIn("there is nothing to --check", said)
        self.assertFalse((self.folder / "out").exists())

    def test_a_result_needs_a_place(self):
        for words, must in ((["experiment", "edm-table1", "--out", ""], "--out = \"\": must be a folder's path"),
                            (["report", "--out", ""], "--out = \"\": must be a file's path"),
                            (["report", "--results", ""], "--results = \"\": must be a folder's path"),
                            (["demo", "--report", ""], "--report = \"\": must be a file's path")):
            done = subprocess.run([SLUICE, *words], cwd=self.folder, capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(must, done.stderr)

    def test_a_panel_may_have_hardware_of_its_own(self):
        other = (self.folder / "hardware" / "connectx5.toml").read_text()
        self.assertIn('"100 Gb/s", source', other)
        other = other.replace('name = "', 'name = "slow ', 1).replace('"100 Gb/s", source', '"1 Gb/s", source')
        (self.folder / "hardware" / "slow.toml").write_text(other)
        panels = '\n[[panel]]\nname = "usual"\n\n[[panel]]\nname = "slow"\nhardware = "slow"\n'
        self.simulate(TWO_LINES + panels)
        with open(self.folder / "out" / "mine.csv", encoding="utf-8") as file:
            rates = {(row["panel"], row["series"], row["queue_pairs"]): (float(row["throughput"]), row["hardware"]) for row in csv.DictReader(file)}
        usual, slow = rates["usual", "WRITE", "2"], rates["slow", "WRITE", "2"]
        self.assertLess(slow[0], usual[0] / 2)
        self.assertTrue(slow[1].startswith("slow "))
        names = "; ".join(dict.fromkeys(hardware for _, hardware in rates.values()))
        self.assertIn(f"simulated on {names}", self.simulate(TWO_LINES + panels).stdout)
        report = self.folder / "report.html"
        subprocess.run([SLUICE, "report", "--results", str(self.folder / "out"), "--out", str(report)], check=True, timeout=60, capture_output=True)
        self.assertIn("slow ", report.read_text(encoding="utf-8").split("Hardware: ")[1].split(". Program")[0])
        said = self.simulate(TWO_LINES + panels, "--hardware", str(self.folder / "hardware" / "slow.toml"), code=2).stderr
        self.assertIn("panels of it have hardware of their own", said)
        self.assertIn("nowhere.toml", self.simulate(TWO_LINES + panels.replace('hardware = "slow"', 'hardware = "nowhere"'), code=2).stderr)

    def test_what_a_rack_cannot_do_is_a_problem_and_no_crash(self):
        head = TWO_LINES[:TWO_LINES.index("[workload]")]
        order = head.replace('"verbs"', '"order"').replace('y = "throughput"', 'y = "share"') + """[workload]
addresses = 64
theta_thousandths = 990
bytes = "4096 B"
interval = "1 ns"
requests = 100000
gap = 1
[sweep]
queue_pairs = [1]
"""
        self.assertIn("interval is too short", self.simulate(order, code=1).stderr)

    def test_experiments_of_ones_own_hide_no_others(self):
        (self.folder / "experiments").mkdir()
        (self.folder / "experiments" / "mine.toml").write_text("title = 3\n")
        done = subprocess.run([SLUICE, "search", "--seeds", "1"], cwd=self.folder, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = subprocess.run([SLUICE, "experiment", "--list"], cwd=self.folder, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("fig11 ", done.stdout)
        columns = {len(found[0]) for found in re.finditer(r"(?m)^\S+ +(?=(SwordBox|Cowbird) Figure)", done.stdout)}
        self.assertEqual(len(columns), 1, done.stdout)

    def test_a_load_in_which_nothing_ends_is_no_result(self):
        short = TWO_LINES.replace('warm_up = "20 us"', 'warm_up = "1 ns"').replace('measure = "50 us"', 'measure = "1 ns"')
        done = self.simulate(short, code=1)
        self.assertIn("no operation ended", done.stdout + done.stderr)

    def test_a_problem_names_its_point_and_no_one_is_told_to_trust_that(self):
        short = TWO_LINES.replace('measure = "50 us"', "queue_pairs = 1").replace("queue_pairs = [1, 2]", 'measure = ["1 ns", "50 us"]')
        short = short.replace('x = "queue_pairs"', 'x = "measure"')
        done = self.simulate(short + points("CAS", [1, 2], within_factor=1000), code=1)
        self.assertIn("mine: WRITE, measure = 1 ns: no operation ended in what is measured: make `measure` longer than an operation takes", done.stderr)
        self.assertIn("(and 1 more of 4 points went wrong)", done.stderr)
        with open(self.folder / "out" / "mine.csv", encoding="utf-8") as file:
            self.assertEqual([row["problem"].split(":")[0] for row in csv.DictReader(file)], ["no operation ended in what is measured", ""] * 2)
        self.assertEqual(done.stdout.count("  not to be trusted"), 2)
        result = json.loads((self.folder / "out" / "mine.json").read_text(encoding="utf-8"))
        self.assertEqual([point["problem"] != "" for point in result["points"]], [True, False, True, False])
        report = self.folder / "report.html"
        subprocess.run([SLUICE, "report", "--results", str(self.folder / "out"), "--out", str(report)], check=True, timeout=60, capture_output=True)
        text = report.read_text(encoding="utf-8")
        for words in ("some simulations went wrong: mine", "Not sound: WRITE, measure = 1 ns: no operation ended"):
            self.assertIn(words, text)
        self.assertEqual(text.count('"not to be trusted"'), 2)
        self.assertEqual(text.count('"x":"1 ns","y"'), 1)  # the paper's

    def test_a_problem_of_one_experiment_keeps_no_other_from_being_simulated(self):
        short = TWO_LINES.replace('warm_up = "20 us"', 'warm_up = "1 ns"').replace('measure = "50 us"', 'measure = "1 ns"')
        for name, text in (("first", short), ("second", TWO_LINES), ("third", short)):
            (self.folder / f"{name}.toml").write_text(text)
        files = [str(self.folder / f"{name}.toml") for name in ("first", "second", "third")]
        done = subprocess.run([SLUICE, "experiment", *files, "--out", str(self.folder / "out")],
                              capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertTrue((self.folder / "out" / "second.json").is_file(), done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for name in ("first", "third"):
            self.assertIn(f"{name}: WRITE, queue_pairs = 1: no operation ended", done.stderr)

    def test_a_y_that_no_point_comes_to_is_a_problem(self):
        isolation = TWO_LINES[:TWO_LINES.index("[workload]")].replace('"verbs"', '"tenants"').replace('"throughput"', '"p50_us"')
        isolation = isolation.replace('x = "queue_pairs"', 'x = "depth"').replace('"connectx5"', '"connectx5-dcqcn"')
        shutil.copy(HARDWARE.parent / "connectx5-dcqcn.toml", self.folder / "hardware")
        text = isolation + '[workload]\nscenario = "isolation"\nwarm_up = "50 us"\nmeasure = "50 us"\n[sweep]\ndepth = [4]\n'
        self.assertIn('no point has come to y = "p50_us"', self.simulate(text, code=1).stderr)
        self.simulate(text.replace('"p50_us"', '"small_p50_us"'))

    def test_what_is_counted_is_not_called_simulated(self):
        done = subprocess.run([SLUICE, "experiment", "fig08", "edm-table1", "--out", str(self.folder / "out")], capture_output=True, text=True,
                              timeout=120, check=True)
        self.assertIn("(SwordBox Figure 8), counted\n", done.stdout)
        with open(self.folder / "out" / "fig08.csv", encoding="utf-8") as file:
            self.assertEqual({(row["simulated"], row["hardware"], row["trace_hash"]) for row in csv.DictReader(file)}, {("no", "", "")})
        with open(self.folder / "out" / "edm-table1.csv", encoding="utf-8") as file:
            self.assertEqual({(row["simulated"], row["trace_hash"]) for row in csv.DictReader(file)}, {("yes", "")})  # it has no events
        report = self.folder / "report.html"
        subprocess.run([SLUICE, "report", "--results", str(self.folder / "out"), "--out", str(report)], check=True, timeout=60, capture_output=True)
        text = report.read_text(encoding="utf-8")
        for words in ("Memory of the box, by feature (counted)", "Everything here but what is called counted is simulated"):
            self.assertIn(words, text)
        self.assertNotIn("Memory of the box, by feature (simulated)", text)
        said = self.simulate((HARDWARE.parents[1] / "fig08.toml").read_text(encoding="utf-8"), "--hardware", str(HARDWARE), code=2).stderr
        self.assertIn("--hardware: nothing of it is simulated", said)

    def test_a_wrong_file_names_line_key_and_what_is_allowed(self):
        for wrong, words in (
            (TWO_LINES.replace("in_flight = 16", "in_flight = 16\nin_fligth = 16"), ("mine.toml: line 12", "in_fligth")),
            (TWO_LINES.replace('"50 us"', '"50 parsecs"'), ("mine.toml: line 14", "[workload] measure", "us")),
            (TWO_LINES.replace('operation = "cas"', 'operation = "cash"'), ("[[series]] operation", "write")),
            (TWO_LINES.replace("[1, 2]", '["a", "b"]'), ("[sweep] queue_pairs", "whole number")),
            (TWO_LINES + '[[panel]]\nname = "a"\nin_flight = "b"\n', ("[[panel]] in_flight", "whole number")),
            (TWO_LINES + points("FAA", [1, 2]), ("series", "WRITE, CAS")),
            (TWO_LINES + points("CAS", [1, 2, 3]), ("y", "2 numbers")),
            (TWO_LINES + points("CAS", [0, 2]), ("y", "above 0, or nan where")),
            (TWO_LINES + points("CAS", "[inf, 2]"), ("y", "above 0, or nan where")),
            (TWO_LINES + points("CAS", "[1, -2.5]"), ("y", "above 0, or nan where")),
            (TWO_LINES.replace('"connectx5"', '"' + 300 * "x" + '"'), ("hardware names xxx", "that is not there", "there are connectx5")),
            (TWO_LINES + points("CAS", [1, 2], within_factor=1), ("within_factor",)),
            (TWO_LINES + points("CAS", [1, 5], up_to=[1, 4]), ("[paper] up_to has 4 where y has 5",)),
            (TWO_LINES.replace('"cas"', '"cas"\nqueue_pairs = 4'), ("mine.toml: line 26", "[[series]] queue_pairs is what [sweep] varies")),
            (TWO_LINES + points("CAS", [1, 2], panel="zz"), ('panel is "zz", and there are no panels',)),
            (TWICE + points("", [1], over="zz").replace('series = ""', ""), ('over is "zz", and there are no series',)),
        ):
            said = self.simulate(wrong, code=2).stderr
            for word in words:
                self.assertIn(word, said)
            self.assertEqual(len(said.strip().splitlines()), 1, said)

    def ranks(self, *files, out="spread"):
        """One rank for each file, of one MPI job."""
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        apps = []
        for file in files:
            apps += [":"] if apps else []
            apps += ["-n", "1", SLUICE, "experiment", str(self.folder / file), "--distribute", "mpi", "--jobs", "1", "--out",
                     str(self.folder / f"{out}-{len(apps)}")]
        return subprocess.run(["mpirun", *root, "--oversubscribe", *apps], capture_output=True, text=True, timeout=120, check=False)

    @unittest.skipIf(shutil.which("mpirun") is None, "no Open MPI")
    def test_ranks_of_an_mpi_job_share_the_points_and_come_to_the_same(self):
        self.rates()
        done = self.ranks("mine.toml", "mine.toml")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        first, second = sorted(self.folder.glob("spread-*"), key=lambda path: int(path.name.split("-")[1]))
        self.assertEqual((first / "mine.csv").read_text(), (self.folder / "out" / "mine.csv").read_text())
        self.assertEqual(len(list((first / "points").glob("*.json"))), 4)  # the first rank has all
        self.assertGreater(len(list((second / "points").glob("*.json"))), 0)  # the second has done some
        self.assertFalse((second / "mine.csv").exists())
        self.assertEqual(done.stdout.count("simulated on"), 1)

    @unittest.skipIf(shutil.which("mpirun") is None, "no Open MPI")
    def test_ranks_that_have_not_the_same_before_them_start_nothing(self):
        (self.folder / "mine.toml").write_text(TWO_LINES)
        (self.folder / "other.toml").write_text(TWO_LINES.replace("in_flight = 16", "in_flight = 8"))
        done = self.ranks("mine.toml", "other.toml", out="apart")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("rank 1 on", done.stderr)
        self.assertIn("all must have the same", done.stderr)
        self.assertEqual(list(self.folder.glob("apart-*/points/*")), [])

    def test_distribution_without_mpirun_says_how_to_start_it(self):
        said = self.simulate(TWO_LINES, "--distribute", "mpi", code=1).stderr
        self.assertTrue("mpirun -n" in said or "built without MPI" in said, said)

    def search(self, *flags):
        done = subprocess.run([SLUICE, "search", "--hardware", str(HARDWARE), *flags], capture_output=True, text=True, timeout=600,
                              check=False)
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}")
        return done.stdout

    def test_racks_drawn_from_seeds_are_sound(self):
        self.assertIn("150 seeds from 1 on: all sound", self.search("--seeds", "150"))
        fresh = time.time_ns() % 1_000_000_000_000
        self.assertIn("all sound", self.search("--first", str(fresh), "--seeds", "50"))  # a failure names the seed
        self.assertEqual(self.search("--first", "7", "--seeds", "1", "--show"), self.search("--first", "7", "--seeds", "1", "--show"))

    def test_a_failing_seed_fails_again_by_the_line_that_is_printed(self):
        far = self.folder / "far away.toml"
        far.write_text(re.sub(r'(?m)^delay = \{ value = "[^"]*"', 'delay = { value = "1 s"', HARDWARE.read_text(encoding="utf-8")))
        done = subprocess.run([SLUICE, "search", "--hardware", str(far), "--seeds", "1", "--tries", "0"], capture_output=True, text=True,
                              timeout=120, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        again = re.search(r"again: sluice (.*)", done.stdout)[1]
        done = subprocess.run([SLUICE, *shlex.split(again), "--tries", "0"], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual((done.returncode, again in done.stdout), (1, True), done.stdout)
        simplest = self.folder / "the simplest.toml"
        simplest.write_text(done.stdout.split("found to fail:\n")[1])
        for words, code in (("--hardware", str(far)), 1), ((), 0):
            done = subprocess.run([SLUICE, "search", "--case", str(simplest), "--tries", "0", *words], capture_output=True, text=True,
                                  timeout=120, check=False)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertIn("the simplest.toml: sound", done.stdout)

    def interrupted(self, *words):
        """What a command says that Ctrl-C reaches once it has said how far it is."""
        with subprocess.Popen([SLUICE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
            command.stderr.readline()
            command.send_signal(signal.SIGINT)
            told, said = command.communicate(timeout=60)
        self.assertEqual((command.returncode, told), (130, ""), said)
        return said

    def test_who_is_interrupted_is_told_what_is_kept(self):
        said = self.interrupted("experiment", "fig11", "--jobs", "1", "--out", str(self.folder / "out"))
        self.assertIn("sluice experiment: interrupted; what has been simulated is kept", said)

    def test_who_began_anew_is_told_to_go_on_without_that(self):
        said = self.interrupted("experiment", "fig11", "--fresh", "--jobs", "1", "--out", str(self.folder / "out"))
        self.assertIn("the same command goes on from there, without --fresh\n", said)

    def test_who_is_interrupted_is_told_how_many_seeds_were_sound(self):
        said = self.interrupted("search", "--seeds", "100000", "--jobs", "1")
        self.assertRegex(said, r"sluice search: interrupted; [1-9]\d* of 100000 seeds have been simulated, all sound\n")

    def test_who_is_interrupted_while_making_a_case_simpler_stops_and_tells_the_simplest_so_far(self):
        far = self.folder / "far.toml"
        far.write_text(re.sub(r'(?m)^delay = \{ value = "[^"]*"', 'delay = { value = "1 s"', HARDWARE.read_text(encoding="utf-8")))  # all cases fail
        with subprocess.Popen([SLUICE, "search", "--hardware", str(far), "--first", "1", "--seeds", "1", "--tries", "100000"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as searching:
            while "a simpler case" not in searching.stderr.readline():
                pass
            searching.send_signal(signal.SIGINT)
            told, said = searching.communicate(timeout=60)
        self.assertIn(searching.returncode, (1, -signal.SIGINT))  # between two cases nobody holds it
        self.assertLess(said.count("a simpler case"), 10)  # of 24
        if searching.returncode == 1:
            self.assertIn("The simplest case that was found to fail:", told)

    def test_a_report_holds_the_plots_and_says_simulated(self):
        self.simulate(TWO_LINES + points("CAS", [1, 2], within_percent=10))
        report = self.folder / "report.html"
        subprocess.run([SLUICE, "report", "--results", str(self.folder / "out"), "--out", str(report)], check=True, timeout=60,
                       capture_output=True)
        text = report.read_text(encoding="utf-8")
        for words in ("WRITEs and CASes", "simulated", "as near the paper&#39;s" if "&#39;" in text else "as near the paper"):
            self.assertIn(words, text)
        self.assertGreater(os.path.getsize(report), 100_000)  # it carries its plotting library

    def test_a_report_draws_names_in_the_order_of_the_experiment(self):
        text = TWO_LINES.replace("queue_pairs = [1, 2]", 'measure = ["50 us", "100 us", "60 us"]').replace('x = "queue_pairs"', 'x = "measure"')
        self.simulate(text.replace('measure = "50 us"', "queue_pairs = 1"))
        report = self.folder / "report.html"
        subprocess.run([SLUICE, "report", "--results", str(self.folder / "out"), "--out", str(report)], check=True, timeout=60,
                       capture_output=True)
        self.assertIn('"sort":["50 us","100 us","60 us"]', report.read_text(encoding="utf-8"))

    def test_a_report_leaves_zeros_out_of_a_logarithmic_plot(self):
        self.simulate(TWO_LINES + points("CAS", [1, 2]))
        file = self.folder / "out" / "mine.json"
        result = json.loads(file.read_text(encoding="utf-8"))
        result["points"][0]["metrics"]["throughput"] = 0
        report = self.folder / "report.html"
        for scale, zeros in (("linear", 1), ("log", 0)):
            file.write_text(json.dumps({**result, "y_scale": scale}), encoding="utf-8")
            subprocess.run([SLUICE, "report", "--results", str(self.folder / "out"), "--out", str(report)], check=True, timeout=60, capture_output=True)
            text = report.read_text(encoding="utf-8")
            self.assertEqual(len(re.findall(r'"y":0(?:\.0)?}', text)), zeros, scale)
            self.assertIn('["WRITE","1","0",', text)


if __name__ == "__main__":
    SLUICE = os.path.abspath(sys.argv.pop(1))
    unittest.main()
