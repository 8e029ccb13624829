#!/usr/bin/env python3
"""What a rack goes through: a full disk, ten thousand connections that say nothing.

usage: hardship_test.py SLUICE [TEST...]

SLUICE is the program. Runs in a mount namespace of its own; exits with 77 where none can be had.
"""

import errno
import json
import os
import pathlib
import resource
import socket
import subprocess
import sys
import time
import unittest
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import live_rack  # noqa: E402
from live_rack import wait_until  # noqa: E402

PATIENCE = 240
IDLE = 10_000


def enter_namespace():
    """Runs this script again in a mount namespace of its own, unless it is in one."""
    if "SLUICE_IN_NAMESPACE" in os.environ:
        return
    as_root = [] if os.geteuid() == 0 else ["--map-root-user", "--user"]
    if subprocess.run(["unshare", *as_root, "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], check=False, capture_output=True).returncode:
        print("skipped: no mount namespaces")
        sys.exit(77)
    os.environ["SLUICE_IN_NAMESPACE"] = "1"
    os.execvp("unshare", ["unshare", *as_root, "--mount", sys.executable, *sys.argv])


class HardshipTest(live_rack.LiveRack):
    def up(self, *flags):
        self.sluice("rack", "up", "--memory-nodes", "1", "--memory-size", "64MiB", "--value-size", "100", *flags, code=0)

    def left_over(self):
        return live_rack.processes_of(self.folder) + live_rack.processes_of(self.dir)

    def test_a_full_disk_is_told_and_what_runs_goes_on(self):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4M,mode=0700", "none", "/mnt"], check=True)
        self.addCleanup(subprocess.run, ["umount", "--lazy", "/mnt"], check=False)
        self.dir = "/mnt/sluice-run"
        self.up()
        running = self.start("bench", "clover", "--records", "200", "--value-size", "100", "--clients", "2", "--duration", "8s", "--json")
        wait_until(lambda: any(n["kind"] == "client" and n["state"] == "ready" for n in self.nodes()), "the benchmark is on the rack", PATIENCE)
        ballast = pathlib.Path("/mnt/ballast")
        with ballast.open("wb", buffering=0) as out:
            for piece in (65536, 4096, 512, 1):  # to the last byte
                while True:
                    try:
                        if out.write(bytes(piece)) < piece:
                            break
                    except OSError as error:
                        self.assertEqual(error.errno, errno.ENOSPC)
                        break
        refused = self.sluice("remote", "read", "memory1", "0", "8")
        if refused.returncode == 0:  # there was room in what SQLite has already
            for _ in range(200):
                refused = self.sluice("remote", "read", "memory1", "0", "8")
                if refused.returncode:
                    break
        self.assertEqual(refused.returncode, 1, "nothing was refused on a full disk")
        self.assertRegex(refused.stderr, r"directory state: .*full.*free space")
        self.assertTrue(any(n["name"] == "memory1" and n["state"] == "ready" for n in self.nodes()), "the directory still answers")
        out, err = running.communicate(timeout=PATIENCE)
        self.assertEqual(running.returncode, 0, err)
        self.assertEqual(json.loads(out)["run"]["values_wrong"], 0)
        ballast.unlink()
        self.sluice("remote", "read", "memory1", "0", "8", code=0)
        self.assertTrue(all(d["running"] for d in json.loads(self.sluice("rack", "status", "--json").stdout)["daemons"]))

    def nodes(self):
        return json.loads(self.sluice("rack", "status", "--json").stdout)["directory"].get("nodes", [])

    def test_ten_thousand_idle_connections_keep_nobody_else_out(self):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        wanted = min(IDLE, most - 100)
        self.assertGreater(wanted, 900)
        self.sluice("rack", "init", "127.0.0.1", code=0)
        self.up("--http", "127.0.0.1:0", "--serve", "127.0.0.1:0")
        attributes = next(n for n in self.nodes() if n["name"] == "switch")["attributes"]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        for where in ("http", "serve"):
            host, port = attributes[where].rsplit(":", 1)
            idle = [self.begin(host, int(port)) for _ in range(wanted)]
            try:
                switch = next(d for d in json.loads(self.sluice("rack", "status", "--json").stdout)["daemons"] if d["name"] == "switch")
                descriptors = len(os.listdir(f"/proc/{switch['pid']}/fd"))
                self.assertLess(descriptors, 500, "the switch holds them all")
                # Who asks something is answered, in a while; the run directory's sockets at once.
                began = time.monotonic()
                with urllib.request.urlopen(f"http://{attributes['http']}/v1/switch", timeout=PATIENCE) as answer:
                    self.assertEqual(answer.status, 200)
                print(f"    {where}: {wanted} idle, answered after {time.monotonic() - began:.2f} s", file=sys.stderr)
                self.sluice("remote", "write", "memory1", "0", "--word", "42", code=0)
            finally:
                for connection in idle:
                    connection.close()
        self.assertTrue(all(d["running"] for d in json.loads(self.sluice("rack", "status", "--json").stdout)["daemons"]))

    @staticmethod
    def begin(host, port):
        """A connection that is on its way, or there, and says nothing."""
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex((host, port))
        return connection


if __name__ == "__main__":
    live_rack.SLUICE = os.path.abspath(sys.argv[1])
    enter_namespace()
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
