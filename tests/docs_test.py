#!/usr/bin/env python3
"""The documentation builds as a site without a link that leads nowhere; and the checks would have found one.

usage: docs_test.py SLUICE OUT

SLUICE is the program, OUT a folder of the test's own. Exits with 77 where mkdocs or doxygen are missing.
"""

import importlib.machinery
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SLUICE, OUT = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()

loader = importlib.machinery.SourceFileLoader("docs", str(ROOT / "scripts/docs"))
sys.dont_write_bytecode = True
docs = importlib.util.module_from_spec(importlib.util.spec_from_loader("docs", loader))
loader.exec_module(docs)


def site(pages):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-docs-test-"))
    for name, text in pages.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


class Site(unittest.TestCase):
    def test_is_built_and_whole(self):
        done = subprocess.run([ROOT / "scripts/docs", "--sluice", SLUICE, "--out", OUT], capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        text = lambda name: (OUT / name).read_text()
        self.assertIn("sluice_box_links_opened_total", text("reference/metrics.html"))
        self.assertIn("sluice_cowbird_applications", text("reference/metrics.html"))
        self.assertIn("cowbird_async_read", text("reference/c-api/cowbird_8h.html"))
        self.assertIn("flood-rate", text("reference/settings.html"))
        self.assertIn("sluice rack join", text("reference/commands.html"))

        # All that the program can tell is in the list, and so is all that alerts and the dashboard ask for.
        listed = set(re.findall(r"<code>(sluice_\w+)</code>", text("reference/metrics.html")))
        told = {name for source in (ROOT / "src").rglob("*.cpp") if not source.name.endswith("_test.cpp")
                for name in re.findall(r'\.(?:counter|gauge|histogram)\(\s*"([a-z_0-9]+)"', source.read_text())}
        self.assertGreater(len(told), 50)
        self.assertEqual(set(), {name for name in told if not name.endswith("_") and not {f"sluice_{name}", f"sluice_{name}_total"} & listed})
        watched = (ROOT / "monitoring/alerts.yml").read_text() + (ROOT / "monitoring/grafana-dashboard.json").read_text()
        self.assertEqual(set(), {re.sub("_bucket$", "", name) for name in re.findall(r"\bsluice_\w+", watched)} - listed)

    def test_every_page_of_docs_is_in_the_navigation(self):
        listed = (ROOT / "docs/site.yml").read_text()
        for page in docs.markdown_files(ROOT):
            if page.parts[0] == "docs":
                self.assertIn(f": {page}\n", listed)


class Checks(unittest.TestCase):
    def wrong(self, pages):
        folder = site(pages)
        try:
            return docs.check_site(folder)
        finally:
            shutil.rmtree(folder)

    def test_nothing_wrong(self):
        self.assertEqual([], self.wrong({"a.html": '<h1 id="x">A</h1><a href="b/c.html#y">c</a><a href="#x">x</a><a href="https://example.org">e</a>',
                                         "b/c.html": '<p id="y"></p><a href="../a.html">a</a>'}))

    def test_a_link_that_leads_nowhere(self):
        self.assertEqual(["a.html: b.html leads nowhere"], self.wrong({"a.html": '<a href="b.html">b</a>'}))

    def test_an_anchor_that_is_not_there(self):
        self.assertIn("no such place", self.wrong({"a.html": '<a href="#b">b</a>'})[0])

    def test_what_would_be_loaded_from_elsewhere(self):
        self.assertEqual(["a.html: loads https://cdn.example.org/x.js"], self.wrong({"a.html": '<script src="https://cdn.example.org/x.js"></script>'}))

    def test_a_path_that_is_not_there(self):
        folder = site({"README.md": "See `src/there.cpp`, `src/{there,gone}.cpp`, `src/absent.h` and `fuzz/corpus/NAME`.", "src/there.cpp": ""})
        try:
            subprocess.run(["git", "init", "-q", folder], check=True)
            self.assertEqual(["README.md: names src/absent.h, which is not there", "README.md: names src/{there,gone}.cpp, which is not there"],
                             docs.check_paths(folder))
        finally:
            shutil.rmtree(folder)

    def test_lists_get_their_empty_line(self):
        self.assertEqual("a\n\n- b\n- c", docs.with_room_for_lists("a\n- b\n- c"))
        self.assertEqual("```\na\n- b\n```", docs.with_room_for_lists("```\na\n- b\n```"))


if __name__ == "__main__":
    if shutil.which("mkdocs") is None or shutil.which("doxygen") is None:
        print("skipped: mkdocs or doxygen is not installed")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
