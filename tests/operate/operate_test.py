#!/usr/bin/env python3
"""A rack as those see it who run it: metrics scraped by the real Prometheus, the live view in a real browser, `sluice top`.

usage: operate_test.py SLUICE [TEST...]

SLUICE is the program. Tests skip, and say so, where Prometheus or Chromium is not installed.
"""

import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest
import urllib.parse
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
MONITORING = HERE.parent.parent / "monitoring"
UNITS = HERE.parent.parent / "packaging" / "systemd"
sys.path[:0] = [str(HERE), str(HERE.parent)]
import browser  # noqa: E402
import live_rack  # noqa: E402
from live_rack import wait_until  # noqa: E402

PATIENCE = 240  # seconds, on a crowded machine


def has(*programs):
    return all(shutil.which(program) for program in programs)


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

    # --- the terminal, and bad requests ---

    def test_top_shows_the_same_in_the_terminal(self):
        self.up()
        self.load(600)
        wait_until(lambda: self.metric("sluice_box_links_committed_total") > 100, "links are committed", PATIENCE)
        page = self.sluice("top", "--once", code=0).stdout
        for word in ("memory1", "metadata", "latency, switch to memory and back, p50 / p99", "HOTTEST KEYS", "links_committed"):
            self.assertIn(word, page)
        self.assertEqual({"at_ms", "box", "nodes", "switch"}, set(json.loads(self.sluice("top", "--json", code=0).stdout)))
        self.sluice("rack", "down", code=0)
        self.assertIn("is the rack up?", self.sluice("top", "--once", code=1).stderr)

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
        exec_start = next(line for line in (UNITS / "sluice-switch.service").read_text().splitlines() if line.startswith("ExecStart="))
        words = exec_start.removeprefix("ExecStart=/usr/bin/sluice ")
        words = words.replace("${SLUICE_RUN}", self.dir).replace("${SLUICE_CONFIG}", str(self.config())).split()
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
        path.write_text((UNITS / "rack.toml").read_text().replace("127.0.0.1:7470", "127.0.0.1:0"))
        return path


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    live_rack.SLUICE = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
