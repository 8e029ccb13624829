#!/usr/bin/env python3
"""A rack as those see it who run it: metrics scraped by the real Prometheus, the live view in a real browser, `sluice top`.

usage: operate_test.py SLUICE [TEST...]

SLUICE is the program. Tests skip, and say so, where Prometheus or Chromium is not installed.
"""

import functools
import http.client
import http.server
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
MONITORING = HERE.parent.parent / "monitoring"
UNITS = HERE.parent.parent / "packaging" / "systemd"
WEB = HERE.parent.parent / "web"
sys.path[:0] = [str(HERE), str(HERE.parent)]
import browser  # noqa: E402
import live_rack  # noqa: E402
from live_rack import wait_until  # noqa: E402

PATIENCE = 240  # seconds, on a crowded machine


def has(*programs):
    return all(shutil.which(program) for program in programs)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder."""

    def log_message(self, format, *arguments):  # noqa: A002
        pass


class OperateTest(live_rack.LiveRack):
    def setUp(self):
        super().setUp()
        self.pages = []

    def tearDown(self):
        for page in self.pages:
            page.close()
        super().tearDown()

    # --- a rack, something for it to do, and its HTTP server ---

    def up(self, *flags, box="clover"):
        self.sluice("rack", "up", "--http", "127.0.0.1:0", "--box", box, *flags, code=0)
        nodes = json.loads(self.sluice("rack", "status", "--json").stdout)["directory"]["nodes"]
        self.http = next(n for n in nodes if n["name"] == "switch")["attributes"]["http"]

    def load(self, seconds):
        return self.start("bench", "clover", "--records", "300", "--value-size", "100", "--duration", f"{seconds}s")

    def get(self, path, **headers):
        with urllib.request.urlopen(urllib.request.Request(f"http://{self.http}{path}", headers=headers), timeout=60) as answer:
            return answer.read().decode()

    def refusal(self, path, method="GET", body=None, **headers):
        """(status, error) of a request that must fail."""
        connection = http.client.HTTPConnection(self.http, timeout=60)
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        said = json.loads(answer.read())
        connection.close()
        return answer.status, said["error"]

    def metric(self, name, path="/metrics"):
        """The sum over all series of a name."""
        values = [line.rsplit(" ", 1)[1] for line in self.get(path).splitlines() if line.startswith((name + "{", name + " "))]
        self.assertNotEqual(values, [], f"no {name} at {path}")
        return sum(map(float, values))

    def box(self):
        return json.loads(self.get("/v1/box"))

    # --- metrics ---

    def test_every_daemon_says_what_it_counts(self):
        self.up()
        self.load(600)
        wait_until(lambda: self.metric("sluice_box_links_committed_total") > 100, "links are committed", PATIENCE)
        for daemon in ("", "/memory1", "/memory2", "/metadata"):
            text = self.get("/metrics" + daemon)
            if has("promtool"):
                checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
                self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""), daemon)
            self.assertEqual(self.metric("sluice_daemon_responsive", "/metrics" + daemon), 1)
            self.assertGreater(self.metric("process_resident_memory_bytes", "/metrics" + daemon), 1e6)
        self.assertGreater(self.metric("sluice_nic_rx_requests_total", "/metrics/memory1"), 0)
        self.assertGreater(self.metric("sluice_connections", "/metrics/memory1"), 0)
        self.assertEqual(self.metric("sluice_clover_keys", "/metrics/metadata"), 300)
        self.assertGreater(self.metric("sluice_operation_latency_seconds_count"), 0)
        # What the switch counts at a node's port is what the node counts there, but for what is under way.
        wait_until(lambda: 'node="memory1"' in self.get("/metrics"), "the node's port has its name")
        self.assertIn('sluice_directory_nodes{kind="memory",state="ready"} 2', self.get("/metrics"))

    @unittest.skipUnless(has("prometheus", "promtool"), "skipped: no prometheus (Debian: prometheus)")
    def test_prometheus_finds_scrapes_and_watches_the_rack(self):
        self.up()
        self.load(600)
        # The files that we ship, but for where this rack is, and with less time between looks.
        config = (MONITORING / "prometheus.yml").read_text().replace("127.0.0.1:7470", self.http).replace("5s", "1s")
        folder = pathlib.Path(self.folder) / "prometheus"
        folder.mkdir()
        (folder / "prometheus.yml").write_text(config)
        shutil.copy(MONITORING / "alerts.yml", folder)
        checked = subprocess.run(["promtool", "check", "config", folder / "prometheus.yml"], capture_output=True, text=True, check=False)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        address = f"127.0.0.1:{live_rack.free_port()}"
        log = open(folder / "log", "w", encoding="utf-8")  # noqa: SIM115
        self.addCleanup(log.close)
        prometheus = subprocess.Popen(["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                       f"--web.listen-address={address}"], stdout=log, stderr=log)
        self.children.append(prometheus)

        def ask(path, **parameters):
            try:
                with urllib.request.urlopen(f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=30) as answer:
                    return json.load(answer)["data"]
            except urllib.error.HTTPError as error:
                if error.code == 503:
                    return None  # it has not started yet
                raise AssertionError(f"{parameters}: {error.read().decode()}") from error
            except OSError:
                return None

        def answers(query):
            data = ask("query", query=query)
            return data["result"] if data else []

        names = {"switch", "memory1", "memory2", "metadata"}
        wait_until(lambda: {r["metric"]["instance"] for r in answers("up == 1")} == names, "all daemons are scraped", PATIENCE)
        wait_until(lambda: answers("rate(sluice_box_links_committed_total[15s]) > 0"), "rates move", PATIENCE)
        # The metrics' own labels are not hidden by those of the targets.
        for query in ('sluice_port_up{node="memory1",instance="switch"} == 1', 'sluice_directory_nodes{kind="memory",state="ready"} == 2'):
            wait_until(lambda q=query: answers(q), query, PATIENCE)
        # Every expression of the dashboard has an answer; those of latency and rates need two scrapes.
        panels = json.loads((MONITORING / "grafana-dashboard.json").read_text())["panels"]
        for panel in panels:
            for target in panel["targets"]:
                query = target["expr"].replace("$__rate_interval", "15s")
                wait_until(lambda q=query: answers(q), f"{panel['title']}: {query}", PATIENCE)
        rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
        self.assertEqual([rule["name"] for rule in rules if rule["health"] == "err"], [])
        self.assertIn("SluiceMemoryNodeGone", {rule["name"] for rule in rules})
        self.assertEqual(answers('ALERTS{severity="critical"}'), [])
        status = json.loads(self.sluice("rack", "status", "--json").stdout)
        os.kill(next(d["pid"] for d in status["daemons"] if d["name"] == "memory2"), signal.SIGKILL)
        wait_until(lambda: {"SluiceMemoryNodeGone", "SluiceDaemonDown"} <= {r["metric"]["alertname"] for r in answers("ALERTS")},
                   "the alerts of a dead memory node", PATIENCE)

    def test_what_a_stage_took_is_nowhere_said_to_be_dropped(self):
        panels = json.loads((MONITORING / "grafana-dashboard.json").read_text())["panels"]
        expressions = [target["expr"] for panel in panels for target in panel["targets"]] + (MONITORING / "alerts.yml").read_text().splitlines()
        of_drops = [expression for expression in expressions if "sluice_port_dropped_total" in expression and "(" in expression.split("sluice_port_dropped")[0]]
        self.assertGreaterEqual(len(of_drops), 2)
        for expression in of_drops:
            self.assertIn('sluice_port_dropped_total{reason!="taken by stage"}', expression)

    def test_a_node_whose_name_is_too_long_for_a_socket_is_watched_too(self):
        self.up("--no-metadata", "--memory-nodes", "1", box="off")
        name = "n" * 150
        child = self.start("memory", "--name", name, "--size", "16MiB")
        wait_until(lambda: name in self.get("/v1/targets"), "the node is among those that Prometheus asks", PATIENCE)
        self.assertEqual(self.metric("sluice_daemon_responsive", f"/metrics/{name}"), 1)
        child.terminate()
        child.wait(PATIENCE)
        # It left in order, so nobody misses it; its name is cut, and not at its end.
        page = self.sluice("top", "--once", code=0).stdout
        self.assertRegex(page, "(?m)^nnnnnnnnn…n{12} +memory +left ")
        self.assertNotIn(name, self.get("/v1/targets"))

    # --- the live view ---

    def open(self, **how):
        page = browser.Page(f"http://{self.http}/", **how)
        self.pages.append(page)
        page.wait_for("document.querySelectorAll('#nodes tbody tr').length > 3", "the nodes are listed", PATIENCE)
        return page

    @unittest.skipUnless(browser.find_browser(), "skipped: no browser (Debian: chromium)")
    def test_the_live_view_shows_the_rack_and_steers_it(self):
        self.up()
        self.load(600)
        page = self.open()
        page.wait_for("[...document.querySelectorAll('#verdicts tbody tr')].some(r => r.cells[0].textContent === 'links_committed'"
                      " && parseFloat(r.cells[1].textContent) > 0)", "links a second", PATIENCE)
        page.wait_for("document.querySelectorAll('#keys tbody tr').length > 5", "hot keys", PATIENCE)
        page.wait_for("[...document.querySelectorAll('#histogram rect')].some(r => parseFloat(r.getAttribute('height')) > 20)", "latencies", PATIENCE)
        page.wait_for("[...document.querySelectorAll('#rack text')].some(t => t.textContent === 'memory2')", "the picture", PATIENCE)
        # By mouse, by its key, and by the keyboard's way through the page.
        self.assertTrue(self.box()["on"])
        self.assertEqual(page.value("document.getElementById('steering').textContent"), "Steering: on")
        page.click("#steering")
        wait_until(lambda: not self.box()["on"], "off by the mouse", PATIENCE)
        page.wait_for("document.getElementById('steering').getAttribute('aria-checked') === 'false'", "the switch shows it")
        page.press("s", "KeyS")
        wait_until(lambda: self.box()["on"], "on by its key", PATIENCE)
        page.wait_for("!document.getElementById('steering').disabled", "the answer has come")
        page.value("document.getElementById('steering').focus()")
        page.press(" ", "Space")
        wait_until(lambda: not self.box()["on"], "off by the space bar", PATIENCE)
        # Paused, it stands still.
        page.press("p", "KeyP")
        page.wait_for("document.getElementById('pause').getAttribute('aria-pressed') === 'true'", "paused")
        shown = "document.getElementById('traffic').innerHTML + document.getElementById('tiles').innerHTML"
        picture = page.value(shown)
        time.sleep(2.5)
        self.assertEqual(page.value(shown), picture)
        page.press("p", "KeyP")
        # What the box took of a port was not dropped, here as in `sluice top`.
        self.assertEqual(page.value("dropsOf({drops: {'taken by stage': 5, 'queue full': 2, 'flood limit': 1}})"), 3)
        # A node dies: it is said aloud.
        status = json.loads(self.sluice("rack", "status", "--json").stdout)
        os.kill(next(d["pid"] for d in status["daemons"] if d["name"] == "memory2"), signal.SIGKILL)
        page.wait_for("document.getElementById('status').textContent.includes('memory2 is gone')", "the dead node", PATIENCE)
        # Nothing but our own page was loaded, and nothing went wrong.
        self.assertEqual({url.split("/")[2] for url in page.loaded if url.startswith("http")}, {self.http})
        self.assertEqual(page.errors, [])

    @unittest.skipUnless(browser.find_browser(), "skipped: no browser (Debian: chromium)")
    def test_the_live_view_is_dark_where_the_reader_is_and_comes_back_with_the_switch(self):
        self.sluice("rack", "up", "--http", "127.0.0.1:0", code=0)
        nodes = json.loads(self.sluice("rack", "status", "--json").stdout)["directory"]["nodes"]
        self.http = next(n for n in nodes if n["name"] == "switch")["attributes"]["http"]
        page = self.open(dark=True)
        brightness = "(() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + +b, 0))()"
        self.assertLess(page.value(brightness), 150)
        self.assertTrue(page.value("document.getElementById('steering').hidden"), "a rack without a box has nothing to steer")
        # The switch is killed and started again at the same address.
        status = json.loads(self.sluice("rack", "status", "--json").stdout)
        os.kill(next(d["pid"] for d in status["daemons"] if d["name"] == "switch"), signal.SIGKILL)
        page.wait_for("document.getElementById('status').className === 'lost'", "the page says that the switch is gone", PATIENCE)
        self.sluice("rack", "up", "--http", self.http, code=0)
        page.wait_for("document.getElementById('status').className === ''", "the page has come back", PATIENCE)
        # One that hangs ends no connection.
        status = json.loads(self.sluice("rack", "status", "--json").stdout)
        pid = next(d["pid"] for d in status["daemons"] if d["name"] == "switch")
        os.kill(pid, signal.SIGSTOP)
        try:
            page.wait_for("document.getElementById('status').textContent === 'nothing heard from the switch for 5 s'", "the silence", PATIENCE)
            self.assertEqual(page.value("document.getElementById('status').className"), "lost")
        finally:
            os.kill(pid, signal.SIGCONT)
        page.wait_for("document.getElementById('status').textContent.endsWith(' nodes')", "the switch is heard again", PATIENCE)

    def quiet_page(self, **how):
        """A page that is told by the test alone what to show, and what the rack would have told it."""
        page = self.open(**how)
        page.value("events.close()")
        return page, json.loads(self.get("/v1/state"))

    def show(self, page, state):
        page.value(f"take({json.dumps(state)})")

    def texts(self, page, selector):
        return page.value(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)")

    @unittest.skipUnless(browser.find_browser(), "skipped: no browser (Debian: chromium)")
    def test_the_live_view_says_what_it_cannot_draw_or_tell_apart(self):
        self.up(box="watch")
        page, state = self.quiet_page()
        self.assertTrue(page.value("document.getElementById('steering').hidden"), "a box that watches has nothing to switch")
        self.show(page, {**state, "box": {**state["box"], "rules": {"steer-writes": True}}})
        self.assertFalse(page.value("document.getElementById('steering').hidden"))
        self.show(page, {**state, "may_change": False, "box": {**state["box"], "rules": {"steer-writes": True}}})
        self.assertTrue(page.value("document.getElementById('steering').hidden"), "a page that may not, as where there are tenants")
        memory = next(n for n in state["nodes"] if n["name"] == "memory1")
        others = [n for n in state["nodes"] if n["kind"] != "memory"]

        def node(name, **more):
            return {**memory, "name": name, "mac": "02:00:00:00:00:00", **more}

        # More than there is room for: the lost one and the metadata server are drawn, and the rest is counted.
        self.show(page, {**state, "nodes": [*(node(f"m{i}") for i in range(20)), node("lost", state="gone"), *others]})
        drawn = self.texts(page, "#rack text")
        self.assertLessEqual({"lost", "metadata", "m0"}, set(drawn))
        self.assertTrue(drawn[-1].endswith("and 10 more memory nodes"), drawn[-1])
        # Many are lost, and those that live are seen all the same; of each kind is told how many are not.
        crowd = [node(f"l{i}", state="gone") for i in range(20)] + [node(f"m{i}") for i in range(5)]
        self.show(page, {**state, "nodes": [*crowd, *(node(f"s{i}", kind="metadata") for i in range(3))]})
        drawn = self.texts(page, "#rack text")
        self.assertLessEqual({"s0", "s1", "s2", "m0", "m1", "m2"}, set(drawn))
        self.assertEqual(len([text for text in drawn if text.startswith("l")]), 6)
        self.assertTrue(drawn[-1].endswith("and 16 more memory nodes"), drawn[-1])
        self.show(page, {**state, "nodes": [node(f"s{i}", kind="metadata") for i in range(13)]})
        self.assertTrue(self.texts(page, "#rack text")[-1].endswith("and 1 more metadata server"))
        # Who has left in order is not lost.
        self.show(page, {**state, "nodes": [node("away", state="gone", left=True), node("lost", state="gone"), *others]})
        self.assertNotIn("away", self.texts(page, "#rack text"))
        self.assertIn(f"{len(others)} of {len(others) + 1}nodes ready", self.texts(page, ".tile"))
        self.assertEqual(page.value("document.getElementById('status').textContent"), "lost is gone")
        color = "getComputedStyle([...document.querySelectorAll('#nodes tbody tr')].find((r) => r.cells[0].textContent === '%s').cells[2]).color"
        self.assertNotEqual(page.value(color % "lost"), page.value(color % "away"))
        # Long names that differ at their end.
        names = ["rack-of-the-cellar-1", "rack-of-the-cellar-2"]
        self.show(page, {**state, "nodes": [*map(node, names), *others]})
        drawn = [text for text in self.texts(page, "#rack text") if text.startswith("rack")]
        self.assertEqual((len(drawn), len(set(drawn))), (2, 2))
        self.assertLessEqual({f"{name}, memory node" for name in names}, set(self.texts(page, "#rack title")))
        # Two nodes behind one port.
        ports = [{**state["switch"]["ports"][0], "number": 90, "macs": ["02:00:00:00:00:0a", "02:00:00:00:00:0b"], "rx_frames": frames} for frames in (0, 5000)]
        for at, port in enumerate(ports):
            self.show(page, {**state, "at_ms": state["at_ms"] + at * 1000, "switch": {**state["switch"], "ports": [port]},
                             "nodes": [node("a", mac="02:00:00:00:00:0a"), node("b", mac="02:00:00:00:00:0b")]})
        self.assertEqual(self.texts(page, "#nodes tbody td:nth-child(6)"), ["≤ 5000", "≤ 5000"])
        title = "document.querySelector('#nodes tbody tr').title"
        self.assertEqual(page.value(title), "behind one port with b; counted together")
        self.assertFalse(page.value("document.getElementById('shared').hidden"))

        def behind_one_port(macs, *nodes):
            self.show(page, {**state, "switch": {**state["switch"], "ports": [{**ports[0], "macs": macs}]}, "nodes": nodes})

        # A node and strangers; one whose neighbour is gone; and so many that a title names only some.
        behind_one_port(["a", "x", "y"], node("a", mac="a"))
        self.assertEqual(page.value(title), "behind one port with 2 other addresses; counted together")
        behind_one_port(["a", "b"], node("a", mac="a"), node("b", mac="b", state="gone"))
        self.assertEqual(self.texts(page, "#nodes tbody td:nth-child(6)"), ["0", "0"])
        many = [f"n{i}" for i in range(2000)]
        behind_one_port([*many, "stranger"], *(node(name, mac=name) for name in many))
        self.assertEqual(page.value(title), "behind one port with n1, n2, n3, n4, n5, n6, n7, n8 and 1992 more; counted together")
        self.assertEqual(page.value("document.querySelectorAll('#nodes td[title]').length"), 0, "a row has one title, not a cell each")
        self.assertEqual(page.errors, [])

    @unittest.skipUnless(browser.find_browser(), "skipped: no browser (Debian: chromium)")
    def test_the_live_views_charts_show_every_sample_and_no_time_without_one(self):
        self.up()
        page, state = self.quiet_page()
        page.value("state.traffic.length = 0; state.latency = {}; state.now = null;")
        edges = len(state["switch"]["latency_edges_s"])

        def second(at, frames, reads):
            counts = [0] * (edges + 1)
            counts[10] = reads
            switch = {**state["switch"], "ports": [{**state["switch"]["ports"][0], "rx_frames": frames}], "latency": {"read": {"counts": counts, "sum_ns": 0}}}
            self.show(page, {**state, "at_ms": state["at_ms"] + at * 1000, "switch": switch})

        # One READ in the fifth second; nothing is heard from the tenth to the fortieth.
        for at in [*range(10), *range(40, 50)]:
            second(at, at * 2, 1 if at >= 5 else 0)
        self.assertEqual(page.value("document.querySelector('#traffic path').getAttribute('d')").count("M"), 2)
        self.assertEqual(page.value("document.querySelectorAll('#latency circle').length"), 2, "p50 and p99 of it")
        x = "document.querySelector('#traffic path').getAttribute('d').match(/[ML]([0-9.]+)/g).map((s) => parseFloat(s.slice(1)))"
        xs = page.value(x)
        self.assertAlmostEqual((xs[9] - xs[8]) / (xs[2] - xs[1]), 32, delta=3)
        # A clock that is set back tells of no rate: what was counted meanwhile is no peak.
        for at, frames in ((30, 10**9), (31, 10**9 + 5)):
            second(at, frames, 1)
            self.assertEqual(page.value("state.traffic.at(-1).value"), None if at == 30 else 0.005)
        for at in range(40, 50):
            second(at, at * 2, 1)
        labels = [text for text in self.texts(page, "#traffic text") if text.replace(".", "").isdigit()]
        self.assertGreater(len(labels), 2)
        self.assertEqual(len(labels), len(set(labels)), labels)
        # In a narrow window what is written can be read, and only parts are scrolled.
        page.ask("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=False)
        second(50, 100, 1)
        for svg in ("rack", "traffic", "latency"):
            self.assertGreater(page.value(f"document.querySelector('#{svg} text').getBoundingClientRect().height"), 11, svg)
        self.assertLessEqual(page.value("document.documentElement.scrollWidth"), 390)
        self.assertEqual(page.errors, [])

    @unittest.skipUnless(browser.find_browser(), "skipped: no browser (Debian: chromium)")
    def test_a_reports_wide_table_is_scrolled_by_itself_in_a_narrow_window(self):
        cells = [f"a long column {i}" for i in range(12)]
        sections = [{"title": f"{rows} rows", "table": {"columns": cells, "rows": [cells] * rows}} for rows in (3, 30)]
        data = {"title": "A report", "subtitle": "", "sound": True, "verdict": "sound", "sections": sections, "facts": {}}
        page = (WEB / "report.html").read_text().replace("@DATA@", json.dumps(data)).replace("@PLOTS@", "")
        path = pathlib.Path(self.folder) / "report.html"
        path.write_text(page.replace("@REPORT@", (WEB / "report.js").read_text()))
        page = browser.Page(f"file://{path}")
        self.pages.append(page)
        page.ask("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=False)
        page.wait_for("document.querySelectorAll('table').length === 2", "the tables")
        page.value("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        self.assertGreater(page.value("document.querySelector('table').scrollWidth"), 390)
        self.assertLessEqual(page.value("document.documentElement.scrollWidth"), 390)

    @unittest.skipUnless(browser.find_browser(), "skipped: no browser (Debian: chromium)")
    def test_a_live_view_that_was_refused_says_why_and_tries_again(self):
        self.up("--no-metadata", "--memory-nodes", "1", box="off")
        host, port = self.http.split(":")
        others = []
        try:
            for _ in range(12):
                others.append(socket.create_connection((host, int(port)), timeout=30))
                others[-1].sendall(b"GET /v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.assertIn(b"200", others[-1].recv(100))
            page = browser.Page(f"http://{self.http}/")
            self.pages.append(page)
            page.wait_for("document.getElementById('status')?.textContent.startsWith('12 pages are watching already')", "why it is refused", PATIENCE)
        finally:
            for s in others:
                s.close()
        page.wait_for("document.getElementById('status').textContent.endsWith(' nodes')", "the stream", PATIENCE)

    @unittest.skipUnless(browser.find_browser(), "skipped: no browser (Debian: chromium)")
    def test_what_is_between_a_live_view_and_the_switch_is_not_taken_for_the_switch(self):
        answers = {"login": (200, "text/html", "<form>"), "words": (502, "text/html", "bad gateway"), "json": (403, "application/json", '{"why": "no"}'),
                   "null": (403, "application/json", "null"), "away": (302, "text/html", ""), "silent": (503, "application/json", "")}
        asked = []

        class Between(Quiet):
            def do_GET(self):
                if not self.path.startswith("/v1/"):
                    return super().do_GET()
                asked.append(self.path)
                if self.server.way == "silent" and len(asked) > 1:
                    return self.server.ended.wait(PATIENCE)
                status, kind, text = answers[self.server.way]
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/live.html")
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                return self.wfile.write(text.encode())

        said = {"login": "not the switch answers, but something else (text/html); is there a login?", "words": "the answer is an error (502)",
                "json": "the answer is an error (403)", "null": "the answer is an error (403)",
                "away": "not the switch answers: the page is sent elsewhere; is there a login?", "silent": "the switch does not answer"}
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Between, directory=WEB)) as server:
            server.daemon_threads, server.ended = True, threading.Event()
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                for server.way, why in said.items():
                    asked.clear()
                    page = browser.Page(f"http://127.0.0.1:{server.server_port}/live.html")
                    self.pages.append(page)
                    page.wait_for(f"document.getElementById('status')?.textContent === {json.dumps(why + '; trying again …')}", server.way, PATIENCE)
                    self.pages.pop().close()
            finally:
                server.ended.set()
                server.shutdown()

    @unittest.skipUnless(browser.find_browser(), "skipped: no browser (Debian: chromium)")
    def test_a_page_of_another_origin_cannot_frame_the_live_view(self):
        self.up("--no-metadata", "--memory-nodes", "1", box="off")
        folder = pathlib.Path(self.folder) / "elsewhere"
        folder.mkdir()
        (folder / "index.html").write_text(f'<iframe src="http://{self.http}/" width="800" height="600"></iframe>')
        handler = functools.partial(Quiet, directory=folder)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                page = browser.Page(f"http://127.0.0.1:{server.server_port}/")
                self.pages.append(page)
                # What a page of the same address has in a frame, this browser lets it see: a page of its own, that says why there is nothing.
                framed = lambda: [child["frame"]["url"] for child in page.ask("Page.getFrameTree")["frameTree"].get("childFrames", [])]  # noqa: E731
                wait_until(lambda: framed() and framed() != ["about:blank"] and page.value("document.readyState") == "complete", "a frame", PATIENCE)
                self.assertTrue(framed()[0].startswith("chrome-error:"), framed())
                self.assertIn(f"http://{self.http}/", page.loaded)
                self.assertNotIn(f"http://{self.http}/live.js", page.loaded)
            finally:
                server.shutdown()

    # --- the terminal, and bad requests ---

    def test_top_shows_the_same_in_the_terminal(self):
        self.up()
        self.load(600)
        wait_until(lambda: self.metric("sluice_box_links_committed_total") > 100, "links are committed", PATIENCE)
        page = self.sluice("top", "--once", code=0).stdout
        for word in ("memory1", "metadata", "latency, switch to memory and back, p50 / p99", "HOTTEST KEYS", "links_committed"):
            self.assertIn(word, page)
        self.assertEqual({"at_ms", "box", "may_change", "nodes", "switch"}, set(json.loads(self.sluice("top", "--json", code=0).stdout)))
        self.sluice("rack", "down", code=0)
        self.assertIn("is the rack up?", self.sluice("top", "--once", code=1).stderr)

    def test_top_says_what_it_cannot_tell_apart_and_who_has_left(self):
        node = {"name": "switch", "kind": "switch", "state": "ready", "mac": "02:00:00:00:00:01", "regions": []}
        memory = {**node, "kind": "memory"}
        nodes = [node, {**memory, "name": "wire-a", "mac": "a"}, {**memory, "name": "wire-b", "mac": "b"}, {**memory, "name": "alone", "mac": "c"},
                 {**memory, "name": "away", "mac": "d", "state": "gone", "left": True}, {**memory, "name": "lost", "mac": "e", "state": "gone"},
                 {**memory, "name": "rack-of-the-cellar-below-1", "mac": "f"}, {**memory, "name": "rack-of-the-cellar-below-2", "mac": "g"},
                 {**memory, "name": "among-strangers", "mac": "h"}, {**memory, "name": "host-of-programs", "mac": "02:00:0a:4d:00:05"}]

        def state():
            at_ms = int(time.time() * 1000)
            port = {"up": True, "rx_frames": at_ms, "tx_frames": 0, "rx_bytes": 0, "tx_bytes": 0, "drops": {}}
            ports = [{**port, "number": 0, "macs": ["a", "b", "d"]}, {**port, "number": 1, "macs": ["c", "e"]}, {**port, "number": 2, "macs": ["h", "x"]},
                     {**port, "number": 3, "macs": ["02:01:0a:4d:00:05", "02:02:0a:4d:00:05"]}]
            return {"at_ms": at_ms, "nodes": nodes, "box": None, "may_change": True, "switch": {"ports": ports, "latency": {}, "latency_edges_s": []}}

        class Directory(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = json.dumps(state()).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def address_string(self):
                return "a socket"

            def log_message(self, *_):
                pass

        os.mkdir(self.dir, 0o700)
        with socketserver.ThreadingUnixStreamServer(self.dir + "/directory.sock", Directory) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                lines = self.sluice("top", "--once", code=0).stdout.splitlines()
            finally:
                server.shutdown()
        rows = {line.split()[0]: line.split()[1:] for line in lines if len(line.split()) > 4}
        for name in ("wire-a", "wire-b", "among-strangers"):
            self.assertTrue(rows[name][2].startswith("<="), lines)
        for name in ("alone", "host-of-programs"):
            self.assertEqual(rows[name][2][0], "1", lines)
        self.assertEqual((rows["away"][1], rows["lost"][1]), ("left", "gone"), lines)
        self.assertEqual(len([line for line in lines if line.startswith("rack-of")]), len([name for name in rows if name.startswith("rack-of")]), lines)
        self.assertIn("all of them together", "\n".join(lines))
        os.unlink(self.dir + "/directory.sock")

    def test_bad_requests_are_answered_in_words_and_disturb_nothing(self):
        self.up()
        self.assertEqual(self.refusal("/nothing")[0], 404)
        self.assertEqual(self.refusal("/metrics/nobody"), (404, "no daemon 'nobody' answers in this run directory"))
        self.assertEqual(self.refusal("/metrics/../switch.sock")[0], 404)
        self.assertEqual(self.refusal("/v1/box", "POST", "{}", Origin="http://elsewhere.example", **{"Content-Type": "application/json"})[0], 403)
        self.assertEqual(self.refusal("/v1/box", "POST", "{}")[0], 415)
        self.assertIn("keys = 0", self.refusal("/v1/box", "POST", '{"keys": 0}', **{"Content-Type": "application/json"})[1])
        self.assertEqual(self.refusal("/v1/state", Host="elsewhere.example")[0], 403)
        host, port = self.http.split(":")
        for garbage in (b"\0\xff" * 300, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/box HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
                        b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 5000 + b"\r\n"):
            with socket.create_connection((host, int(port)), timeout=30) as s:
                try:
                    s.sendall(garbage)
                    s.recv(4096)
                except OSError:
                    pass
        self.assertEqual(self.metric("sluice_daemon_responsive"), 1)
        self.assertTrue(self.box()["on"])

    def test_idle_connections_do_not_keep_others_out_for_long(self):
        self.up()
        host, port = self.http.split(":")
        idle = [socket.create_connection((host, int(port)), timeout=30) for _ in range(200)]
        try:
            # The rack itself has its own way to the directory.
            began = time.monotonic()
            self.sluice("rack", "status", code=0)
            self.sluice("top", "--once", code=0)
            self.assertLess(time.monotonic() - began, 60)
            self.assertEqual(self.metric("sluice_daemon_responsive"), 1)
        finally:
            for s in idle:
                s.close()

    # --- services ---

    def test_the_units_are_sound_and_give_no_more_than_is_needed(self):
        if not has("systemd-analyze"):
            self.skipTest("skipped: no systemd-analyze (Debian: systemd)")
        folder = pathlib.Path(self.folder) / "units"
        folder.mkdir()
        for unit in UNITS.glob("*.service"):
            # Where the program is, and an instance of the template.
            copy = folder / unit.name
            copy.write_text(unit.read_text().replace("/usr/bin/sluice", live_rack.SLUICE).replace("man:sluice(1)", "https://example.org"))
            verified = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, check=False)
            self.assertEqual((verified.returncode, verified.stderr), (0, ""), unit.name)
            judged = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=20", copy], capture_output=True, text=True,
                                    check=False)
            self.assertEqual(judged.returncode, 0, judged.stdout[-300:])

    def service(self, unit, instance=""):
        """What a unit starts, here; its arguments."""
        exec_start = next(line for line in (UNITS / unit).read_text().splitlines() if line.startswith("ExecStart="))
        words = exec_start.removeprefix("ExecStart=/usr/bin/sluice ").replace("%i", instance)
        return words.replace("${SLUICE_RUN}", self.dir).replace("${SLUICE_CONFIG}", str(self.config())).split()

    def test_the_daemons_work_with_the_system_calls_that_their_units_leave_them(self):
        if not has("systemd-analyze"):
            self.skipTest("skipped: no systemd-analyze (Debian: systemd)")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(self.folder + "/notify")
            manager.settimeout(PATIENCE)
            for unit, instance in (("sluice-switch.service", ""), ("sluice-memory@.service", "memory1"), ("sluice-memory@.service", "memory2"),
                                   ("sluice-metadata.service", "")):
                child = subprocess.Popen([sys.executable, HERE / "syscall_filter.py", UNITS / unit, live_rack.SLUICE, *self.service(unit, instance)],
                                         env={**os.environ, "NOTIFY_SOCKET": self.folder + "/notify"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                self.children.append(child)
                wait_until(lambda c=child: c.poll() is not None or select.select([manager], [], [], 0)[0], f"{unit} is ready", PATIENCE)
                self.assertIsNone(child.poll(), f"{unit} has ended")
                self.assertEqual(manager.recv(100), b"READY=1")
        self.sluice("bench", "clover", "--records", "100", "--duration", "1s", code=0)
        self.sluice("top", "--once", code=0)
        for child in reversed(self.children):
            child.terminate()
            self.assertEqual(child.wait(60), 0)

    def test_what_is_not_understood_of_a_units_filter_is_refused(self):
        if not has("systemd-analyze"):
            self.skipTest("skipped: no systemd-analyze (Debian: systemd)")
        unit = pathlib.Path(self.folder) / "a.service"

        def run(*lines):
            unit.write_text("\n".join(["[Service]", *lines, ""]))
            return subprocess.run([sys.executable, HERE / "syscall_filter.py", unit, "true"], capture_output=True, text=True, check=False)

        service = "SystemCallFilter=@system-service"
        self.assertEqual(run(service, "SystemCallFilter=~@resources chroot", "SystemCallErrorNumber=1").returncode, 0)
        for lines, said in (([], "no allow-list"), (["SystemCallFilter=~@resources"], "no allow-list"), ([service, "SystemCallFilter="], "without a name"),
                            ([service, "SystemCallFilter=~"], "without a name"), ([service, "SystemCallFilter=~chrooot"], "chrooot: no system call"),
                            ([service, "SystemCallFilter=~@resorces"], "@resorces: no set"), ([service, "SystemCallFilter=~chroot:EPERM"], "no system call"),
                            ([service, "SystemCallErrorNumber=EPRM"], "no error number"), ([service, "SystemCallErrorNumber=0"], "no error number")):
            refused = run(*lines)
            self.assertNotEqual(refused.returncode, 0, lines)
            self.assertIn(said, refused.stderr)

    def test_the_units_try_until_the_machine_has_its_addresses(self):
        units = sorted(UNITS.glob("*.service"))
        self.assertEqual(len(units), 3)
        for unit in units:
            lines = unit.read_text().splitlines()
            head = lines[:lines.index("[Service]")]
            self.assertIn("StartLimitIntervalSec=0", head, unit.name)
            for order in ("Wants=", "After="):
                self.assertTrue(any(line.startswith(order) and "network-online.target" in line for line in head), unit.name)
            self.assertIn("Restart=always", lines)

    def test_a_service_manager_is_told_when_a_daemon_is_ready(self):
        words = self.service("sluice-switch.service")
        for name in (self.folder + "/notify", "\0sluice-test-notify-" + str(os.getpid())):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
                manager.bind(name)
                manager.settimeout(PATIENCE)
                child = subprocess.Popen([live_rack.SLUICE, *words], env={**os.environ, "NOTIFY_SOCKET": name.replace("\0", "@")},
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                self.children.append(child)
                self.assertEqual(manager.recv(100), b"READY=1")
                child.terminate()
                self.assertEqual(child.wait(60), 0)

    def config(self):
        """The settings that the units use, at a port of this test's own."""
        path = pathlib.Path(self.folder) / "rack.toml"
        text = (UNITS / "rack.toml").read_text()
        for shipped, ours in (("127.0.0.1:7470", "127.0.0.1:0"), ('# box = "clover"', 'box = "clover"'), ("/var/lib/sluice/", self.folder + "/")):
            self.assertIn(shipped, text)
            text = text.replace(shipped, ours)
        path.write_text(text)
        return path


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    live_rack.SLUICE = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
