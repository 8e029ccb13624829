"""Chromium without a window, driven over its debugging pipe (no port, no other program): what a test needs of it."""

import json
import os
import shutil
import subprocess
import tempfile
import time

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def find_browser():
    return next((path for path in map(shutil.which, PROGRAMS) if path), None)


class Page:
    """One page. Its console's errors and all that it loaded are kept."""

    def __init__(self, url, dark=False, size=(1300, 1500)):
        self.profile = tempfile.mkdtemp(prefix="sluice-browser-", dir="/tmp")
        to_browser, self.out = os.pipe()
        self.into, from_browser = os.pipe()
        flags = ["--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 f"--user-data-dir={self.profile}", f"--window-size={size[0]},{size[1]}", "--remote-debugging-pipe"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # which root may not have; it opens our own page only

        def place():
            os.dup2(to_browser, 3)
            os.dup2(from_browser, 4)

        os.set_inheritable(to_browser, True)
        os.set_inheritable(from_browser, True)
        self.process = subprocess.Popen([find_browser(), *flags, "about:blank"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, preexec_fn=place, pass_fds=(3, 4))
        os.close(to_browser)
        os.close(from_browser)
        os.set_blocking(self.into, False)
        self.buffer = b""
        self.number = 0
        self.session = None
        self.errors = []
        self.loaded = []
        target = next(t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")
        if dark:
            self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        self.ask("Page.navigate", url=url)

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.into)
        shutil.rmtree(self.profile, ignore_errors=True)

    def take(self, message):
        method, what = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(what["exceptionDetails"]["text"])
        if method == "Log.entryAdded" and what["entry"]["level"] == "error":
            self.errors.append(f"{what['entry']['text']} {what['entry'].get('url', '')}")
        if method == "Network.requestWillBeSent":
            self.loaded.append(what["request"]["url"])

    def read(self, end):
        """The next message; None when there is none before `end`."""
        while b"\0" not in self.buffer:
            try:
                more = os.read(self.into, 1 << 20)
                if not more:
                    raise AssertionError("the browser has ended")
                self.buffer += more
            except BlockingIOError:
                if time.monotonic() > end:
                    return None
                time.sleep(0.01)
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, **parameters):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.out, json.dumps(request).encode() + b"\0")
        end = time.monotonic() + 120
        while (message := self.read(end)) is not None:
            if message.get("id") == self.number:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return message["result"]
            self.take(message)
        raise AssertionError(f"the browser does not answer to {method}")

    def value(self, expression):
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, expression, what, seconds=120):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.value(expression):
                return
            time.sleep(0.1)
        raise AssertionError(f"not within {seconds} s: {what}; the page says: {self.value('document.body.innerText')}")

    def press(self, key, code=None, text=None):
        parameters = {"key": key, "code": code or key}
        self.ask("Input.dispatchKeyEvent", type="keyDown", text=text if text is not None else (key if len(key) == 1 else ""), **parameters)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **parameters)

    def click(self, selector):
        box = self.value(f"(() => {{ const r = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
                         " return [r.x + r.width / 2, r.y + r.height / 2]; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)
