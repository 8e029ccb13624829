"""What tests of real processes share: a run directory of their own, `sluice` in it, waiting, and that nothing is left behind.

A test script sets `live_rack.SLUICE` to the program before it begins, and finds this file beside its own folder.
"""

import functools
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

SLUICE = ""


def run(*words, timeout=240):
    return subprocess.run([SLUICE, *words], capture_output=True, text=True, timeout=timeout, check=False)


def wait_until(condition, what, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


def free_ports(count):
    """Of TCP, on all addresses, below those that the kernel gives to connections."""
    found = []
    for port in random.sample(range(20000, 32768), 100):
        with socket.socket() as listener:
            try:
                listener.bind(("", port))
                found.append(port)
            except OSError:
                continue
        if len(found) == count:
            return found
    raise AssertionError(f"of a hundred ports {len(found)} were free")


def free_port():
    return free_ports(1)[0]


def processes_of(folder):
    """Pids of all processes that name the folder in their arguments."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if folder.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


class SocketConnection(http.client.HTTPConnection):
    """HTTP to a daemon's own socket."""

    def __init__(self, path, timeout=10):
        super().__init__("daemon", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def metrics(path):
    """What the daemon at this socket says of itself now: numbers by name and labels, as in sluice_port_up{port="1"}; none while it does not answer."""
    connection = SocketConnection(path)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    except (OSError, http.client.HTTPException):
        return {}
    finally:
        connection.close()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))}


class LiveRack(unittest.TestCase):
    """Every test has a run directory in a folder of its own; the rack in it is taken down, and no process may outlive it. Who fails tells what was logged last."""

    def __init__(self, method="runTest"):
        super().__init__(method)
        # Not a function: unittest takes one for a static method.
        setattr(self, method, functools.partial(self.telling, getattr(self, method)))

    def telling(self, test):
        try:
            test()
        except unittest.SkipTest:
            raise
        except Exception as failure:
            failure.add_note(self.logged_last())
            raise

    def logged_last(self, lines=6):
        told = []
        for log in sorted(pathlib.Path(self.folder).rglob("*.log")):
            last = log.read_text(errors="replace").splitlines()[-lines:]
            if last:
                told += [f"{log.name}:", *(f"    {line[:300]}" for line in last)]
        return "\n".join(told)

    def setUp(self):
        self.began = time.monotonic()
        self.folder = tempfile.mkdtemp(prefix="sluice-test-", dir="/tmp")
        self.dir = self.folder + "/run"
        self.children = []

    def tearDown(self):
        for child in self.children:
            self.end(child)
        done = run("rack", "down", "--dir", self.dir)
        left = self.left_over()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder)
        print(f"    {time.monotonic() - self.began:.1f} s", file=sys.stderr)
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}")
        self.assertEqual(left, [], "processes left behind")

    def end(self, child):
        """Ends a process that the test started."""
        if child.poll() is None:
            child.kill()
        child.communicate()

    def left_over(self):
        return processes_of(self.folder)

    def sluice(self, *words, code=None, timeout=240):
        """Runs a command on the rack; fails when it does not end with `code`, if one is given."""
        done = run(*words, "--dir", self.dir, timeout=timeout)
        if code is not None:
            self.assertEqual(done.returncode, code, f"{words}\n{done.stdout}\n{done.stderr}")
        return done

    def start(self, *words):
        child = subprocess.Popen([SLUICE, *words, "--dir", self.dir], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.children.append(child)
        return child


class RackOfDaemons(LiveRack):
    """A rack that `rack up` brings up, and who is in it."""

    def up(self, *flags):
        return self.sluice("rack", "up", *flags, code=0)

    def status(self):
        return json.loads(self.sluice("rack", "status", "--json").stdout)

    def daemon(self, name):
        return next(d for d in self.status()["daemons"] if d["name"] == name)

    def node_states(self):
        return {n["name"]: n["state"] for n in self.status()["directory"].get("nodes", [])}

    def ready(self, name):
        wait_until(lambda: self.node_states().get(name) == "ready", f"{name} is there")

    def gone(self, name, number):
        os.kill(self.daemon(name)["pid"], number)
        wait_until(lambda: self.node_states()[name] == "gone", "the directory notices")

    def bench(self, *flags, code=0, timeout=120):
        done = self.sluice("bench", "clover", "--json", *flags, code=code, timeout=timeout)
        return json.loads(done.stdout)
