#!/usr/bin/env python3
"""The live view and reports in a real browser, without a rack: what a stand-in for the switch says is in the test's hand.

usage: page_test.py SLUICE [TEST...]

SLUICE is the program, which draws a report of results that are made up. Skips, and says so, where Chromium is not installed.
"""

import http.server
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = pathlib.Path(__file__).resolve().parent
WEB = HERE.parent.parent / "web"
sys.path[:0] = [str(HERE), str(HERE.parent)]
import browser  # noqa: E402
import live_rack  # noqa: E402

PATIENCE = 240  # seconds, on a crowded machine

PORT = {"up": True, "rx_frames": 0, "tx_frames": 0, "rx_bytes": 0, "tx_bytes": 0, "drops": {}}
BOX = {"box": "clover", "on": True, "rules": {"clover-writes": True}, "connections": 0, "tracked_keys": 0, "tracked_words": 0, "open_links": 0,
       "replaced_under_way": 0, "held": 0, "counters": {}, "meanings": {}, "top_keys": [], "top_connections": []}


def node(number, name, kind="memory", **more):
    return {"name": name, "kind": kind, "state": "ready", "mac": f"m{number}", "ip": f"10.0.0.{number}", "regions": [], "left": False, **more}


def state(at, nodes, frames=None, **more):
    """What is told `at` so many seconds: of each node, how many frames came from it."""
    ports = [{**PORT, "number": i, "name": f"p{i}", "macs": [n["mac"]], "rx_frames": (frames or {}).get(n["name"], 0)} for i, n in enumerate(nodes)]
    return {"at_ms": 1_700_000_000_000 + at * 1000, "nodes": nodes, "switch": {"ports": ports, "latency": {}, "latency_edges_s": [1e-6, 1e-5]},
            "box": None, "may_change": True, **more}


class Switch(http.server.BaseHTTPRequestHandler):
    """A stand-in: serves the page, tells those who listen one state, and then nothing. What is asked of the box is not answered before `server.ended`."""

    def do_GET(self):
        kind, file = {"/": ("text/html; charset=utf-8", "live.html"), "/live.js": ("text/javascript; charset=utf-8", "live.js")}.get(self.path, (None, None))
        if file:
            return self.answer(kind, (WEB / file).read_bytes())
        if self.path != "/v1/live":
            return self.answer("application/json", b"{}")
        self.server.listeners += 1
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(f"data: {json.dumps(self.server.told)}\n\n".encode())
        self.wfile.flush()
        return self.server.ended.wait(PATIENCE)

    def do_POST(self):
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.ended.wait(PATIENCE)

    def answer(self, kind, body):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@unittest.skipUnless(browser.find_browser(), "skipped: no browser (Debian: chromium)")
class PageTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-page-")
        self.addCleanup(self.folder.cleanup)

    def serve(self, handler, **more):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads, server.ended = True, threading.Event()
        vars(server).update(more)
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def end():
            server.ended.set()
            server.shutdown()
            server.server_close()

        self.addCleanup(end)
        return server

    def open(self, url, **how):
        self.page = browser.Page(url, **how)
        self.addCleanup(self.page.close)
        return self.page

    def live(self, told, **how):
        """The live view, which was told this, and hears no more but from the test."""
        self.switch = self.serve(Switch, told=told, listeners=0, asked=[])
        page = self.open(f"http://127.0.0.1:{self.switch.server_port}/", **how)
        page.wait_for("document.querySelectorAll('#nodes tbody tr').length > 0", "the nodes are listed", PATIENCE)
        page.value("state.heard = Infinity")  # no silence but what a test makes
        return page

    def silent_for(self, seconds):
        for moment in ("heard", "opened"):
            self.page.value(f"state.{moment} = performance.now() - {seconds * 1000}")
        self.page.value("noteSilence()")

    def show(self, told):
        self.page.value(f"take({json.dumps(told)})")

    def text(self, selector):
        return self.page.value(f"document.querySelector({json.dumps(selector)}).textContent")

    def texts(self, selector):
        return self.page.value(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)")

    def is_old(self):
        """Whether the page says that what it shows is not of now; in one way for the eye, in another in words."""
        old = self.page.value("document.querySelector('main').classList.contains('old')")
        self.assertEqual(self.text("#age").startswith("shown: as of "), old)
        return old

    # --- the live view: what is known, and since when ---

    def test_what_is_old_is_not_shown_as_if_it_were_new(self):
        nodes = [node(1, "memory1")]
        page = self.live(state(0, nodes))
        self.assertFalse(self.is_old())
        self.assertEqual(self.text("#status"), "1 node")
        # Nothing is heard.
        self.silent_for(6)
        self.assertTrue(self.is_old())
        self.assertTrue(page.value("document.title").startswith("! nothing heard from the switch"))
        self.show(state(1, nodes))
        self.assertFalse(self.is_old())
        self.assertEqual(page.value("document.title"), f"Sluice 127.0.0.1:{self.switch.server_port}")
        # The switch is busy; and speaks in a way that this page does not know, as one may that is newer.
        for said, why in (({"switch": {"error": "the switch is busy"}}, "the switch is busy"), ({"switch": {}}, "this page does not understand the switch")):
            page.value(f"events.onmessage({{ data: {json.dumps(json.dumps(said))} }})")
            self.assertTrue(self.text("#status").startswith(why), self.text("#status"))
            self.assertTrue(self.is_old())
            self.show(state(2, nodes))
            self.assertFalse(self.is_old())
        # A node that is gone is news.
        self.show(state(3, [node(1, "memory1", state="gone")]))
        self.assertEqual(self.text("#status"), "memory1 is gone")
        self.assertFalse(self.is_old())
        # Paused it is old at once, and goes on with what was heard last.
        page.click("#pause")
        self.assertTrue(self.is_old())
        self.show(state(4, [node(1, "memory1"), node(2, "memory2")]))
        self.assertEqual(self.texts("#nodes tbody td:first-child"), ["memory1"])
        page.click("#pause")
        self.assertEqual(self.texts("#nodes tbody td:first-child"), ["memory1", "memory2"])
        self.assertFalse(self.is_old())
        # The switch ends, and with it the stream.
        self.switch.ended.set()
        self.switch.shutdown()
        self.switch.server_close()
        page.wait_for("document.getElementById('status').textContent.startsWith('the switch does not answer')", "the end", PATIENCE)
        self.assertTrue(self.is_old())

    def test_a_stream_that_has_been_silent_for_long_is_opened_anew(self):
        page = self.live(state(0, [node(1, "memory1")]))
        self.assertEqual(self.switch.listeners, 1)
        self.silent_for(20)
        self.assertEqual(page.value("events.readyState"), 1)
        self.switch.told = state(40, [node(1, "memory1"), node(2, "memory2")])
        self.silent_for(31)
        page.wait_for("document.getElementById('status').textContent === '2 nodes'", "what is told there", PATIENCE)
        self.assertEqual(self.switch.listeners, 2)
        # Where that is silent, too, it is given as much time.
        page.value("state.heard = performance.now() - 31000; noteSilence()")
        self.assertEqual((self.switch.listeners, page.value("events.readyState")), (2, 1))

    def test_a_switch_that_does_not_answer_leaves_the_button_and_what_it_said_is_forgotten(self):
        page = self.live(state(0, [node(1, "memory1")], box=BOX))
        page.press("s", "KeyS")
        page.press("s", "KeyS")
        page.wait_for("document.getElementById('said').textContent.startsWith('no answer within 5 s')", "that there is none", PATIENCE)
        self.assertFalse(page.value("document.getElementById('steering').disabled"))
        self.assertEqual(self.switch.asked, [{"on": False}], "once for two presses")
        self.assertFalse(page.value("document.activeElement === document.getElementById('steering')"), "who was elsewhere stays there")
        page.wait_for("document.getElementById('said').textContent === ''", "it is no news any more", PATIENCE)

    def test_where_there_are_tenants_the_page_says_what_it_does_not_show(self):
        page = self.live(state(0, [node(1, "memory1")], box=BOX))
        untold = "document.getElementById('untold').checkVisibility()"
        self.assertFalse(page.value(untold))
        self.show(state(1, [node(1, "memory1")], box=BOX, may_change=False))
        self.assertTrue(page.value(untold))

    def test_programs_on_a_hosts_nic_are_the_host(self):
        host = node(1, "host", "client", mac="02:00:0a:4d:00:05")
        page = self.live(state(0, [host]))
        for at, frames in ((1, 100), (2, 600)):
            told = state(at, [host], {"host": frames})
            told["switch"]["ports"][0]["macs"] = ["02:01:0a:4d:00:05", "02:02:0a:4d:00:05"]
            self.show(told)
        self.assertEqual(self.texts("#nodes tbody td:nth-child(6)"), ["500"])
        self.assertFalse(page.value("document.getElementById('shared').checkVisibility()"))

    # --- the live view: for who looks at it for long ---

    def test_what_is_selected_stays_while_numbers_change(self):
        nodes = [node(1, "memory1"), node(2, "memory2")]
        page = self.live(state(0, nodes))
        page.value("getSelection().selectAllChildren(document.querySelector('#nodes tbody tr:nth-child(2) td:nth-child(4)')); title = document.querySelector('#rack title')")
        for at in range(1, 4):
            self.show(state(at, nodes, {"memory2": at * 100}))
        self.assertEqual(self.texts("#nodes tbody td:nth-child(6)"), ["0", "100"])
        self.assertEqual(page.value("getSelection().toString()"), "10.0.0.2")
        self.assertTrue(page.value("title.isConnected"), "what is pointed at")
        self.show(state(5, nodes[:1]))
        self.assertEqual(self.texts("#nodes tbody td:nth-child(1)"), ["memory1"])

    def test_nothing_is_drawn_while_nobody_looks(self):
        page = self.live(state(0, [node(1, "memory1")]))
        hide = "Object.defineProperty(document, 'hidden', {{ configurable: true, value: {} }}); document.dispatchEvent(new Event('visibilitychange'))"
        page.value(hide.format("true"))
        self.show(state(1, [node(2, "memory2")]))
        self.show(state(2, [node(3, "memory3", state="gone")]))
        self.assertEqual(self.texts("#nodes tbody td:first-child"), ["memory1"])
        self.assertEqual(page.value("document.title.split(' – ')[0]"), "! memory3 is gone")
        page.value(hide.format("false"))
        self.assertEqual(self.texts("#nodes tbody td:first-child"), ["memory3"])
        self.assertEqual(page.value("state.traffic.length"), 3, "the seconds between are known")

    def test_the_picture_tells_kinds_apart_without_colours_and_clients_keep_their_places(self):
        nodes = [node(1, "a"), node(2, "b", "metadata"), *(node(10 + i, f"c{i}", "client") for i in range(20))]
        page = self.live(state(0, nodes))
        self.assertEqual(self.texts("#rack title")[:3], ["a, memory node", "b, metadata server", "c0, client"])
        corners = page.value("[...document.querySelectorAll('#rack g rect')].map((r) => r.getAttribute('rx'))")
        self.assertNotEqual(corners[0], corners[1])
        # The busiest are others each second, among those that are drawn.
        total = dict.fromkeys((f"c{i}" for i in range(3, 15)), 0)
        drawn = []
        for at in range(1, 4):
            for i, name in enumerate(total):
                total[name] += 100 + (i * at * 5) % 12
            self.show(state(at, nodes, total))
            drawn.append([title.split(",")[0] for title in self.texts("#rack title")[2:]])
        self.assertEqual(drawn, [list(total)] * 3)

    # --- reports ---

    def report(self, sections, plots="", **more):
        data = {"title": "A report", "subtitle": "", "sound": True, "verdict": "sound", "sections": sections, "facts": {"facts": [1, 2]}, **more}
        text = (WEB / "report.html").read_text().replace("@DATA@", json.dumps(data)).replace("@PLOTS@", plots)
        path = pathlib.Path(self.folder.name) / "report.html"
        path.write_text(text.replace("@REPORT@", (WEB / "report.js").read_text()))
        page = self.open(f"file://{path}")
        page.wait_for("document.querySelectorAll('main > details').length === 1", "the report's end", PATIENCE)
        return page

    def test_a_plot_that_cannot_be_drawn_takes_nothing_else_with_it(self):
        plots = "var vega = {}; var vegaLite = { compile() { throw new Error('no such mark'); } };"
        table = {"columns": ["a", "b"], "rows": [["x", "1"]]}
        page = self.report([{"title": "one", "plot": {}, "table": table}, {"title": "two", "table": table}], plots)
        self.assertEqual(self.text(".plot"), "This plot cannot be drawn: no such mark")
        self.assertEqual(self.texts("h2"), ["one", "two"])
        self.assertEqual(self.texts("td"), ["x", "1"] * 2)
        self.assertEqual(page.value("document.title"), "A report")
        # All data are there for who wants them.
        self.assertEqual(self.text("main > details pre"), "")
        page.click("main > details summary")
        page.wait_for("document.querySelector('main > details pre').textContent.includes('\"facts\"')", "the data", PATIENCE)

    def test_a_report_loads_nothing_whatever_is_in_it(self):
        asked = []

        class Elsewhere(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                pass

        where = f"http://127.0.0.1:{self.serve(Elsewhere).server_port}"
        fetched = f"fetch('{where}/fetched', {{ mode: 'no-cors' }}).then(() => 'loaded', () => 'refused')"
        page = self.report([], f"new Image().src = '{where}/picture'; var ended = {fetched};")
        self.assertEqual(page.value("ended"), "refused")
        self.assertEqual(asked, [])
        self.assertEqual(page.value(f"document.body.append(new Image()), {fetched}"), "refused")

    def drawn(self, names, xs, **more):
        """The report of a result that is made up."""
        points = [{"panel": "", "series": name, "x": x, "metrics": {"rate": i + 1}, "paper": {}, "far": [], "problem": "", "hardware": "h"}
                  for i, name in enumerate(names) for x in xs]
        result = {"name": "mine", "commit": "0", "simulated": True, "problem": "", "y": "rate", "y_title": "rate, M/s", "x_title": "clients",
                  "y_scale": "linear", "figure": "", "title": "t", "text": "", "points": points, **more}
        folder = pathlib.Path(self.folder.name)
        (folder / "mine.json").write_text(json.dumps(result))
        out = folder / "drawn.html"
        subprocess.run([live_rack.SLUICE, "report", "--results", folder, "--out", out], check=True, timeout=60, capture_output=True)
        if "vegaLite" not in out.read_text():
            self.skipTest("skipped: this program was built without npm")
        page = self.open(f"file://{out}")
        page.wait_for("document.querySelectorAll('.plot .mark-symbol path').length > 20", "the plot", PATIENCE)
        return page

    def test_every_line_of_a_figure_with_many_is_another(self):
        names = [f"a series with a long name, number {i}" for i in range(20, 9, -1)]
        page = self.drawn(names, ("1", "2"), numeric=True)
        looks = page.value("[...document.querySelectorAll('.plot .mark-line path')].map((p) => p.getAttribute('stroke') + ' ' + p.getAttribute('stroke-dasharray'))")
        self.assertEqual((len(looks), len(set(looks))), (11, 11), looks)
        self.assertGreater(len({look.split(" ")[1] for look in looks}), 3, "not by colour alone")
        self.assertEqual(self.texts(".plot .role-legend-label text"), [*names, "simulated", "paper"], "no name is cut, and each is there once")
        self.assertEqual(page.errors, [])

    def test_points_over_a_name_are_of_other_colours_in_the_legends_order(self):
        names = [f"number {i}" for i in range(20, 9, -1)]
        page = self.drawn(names, ("one", "other"), numeric=False)
        points = page.value("[...document.querySelectorAll('.plot .role-mark.mark-symbol path')].map((p) => [p.getAttribute('stroke'),"
                            " ...p.getAttribute('transform').match(/[0-9.]+/g).map(Number)])")
        self.assertEqual((len(points), len({color for color, *_ in points})), (22, 11), points)
        # The rate tells which series a point is of.
        left = sorted(points, key=lambda point: point[1])[:11]
        self.assertEqual(left, sorted(left, key=lambda point: -point[2]))
        self.assertEqual(self.texts(".plot .role-legend-label text"), [*names, "simulated", "paper"])
        self.assertEqual(page.errors, [])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    live_rack.SLUICE = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
