#!/usr/bin/env python3
"""Unmodified perftest against itself: one side on Sluice's NIC (`sluice run --wire`), the other on Linux Soft-RoCE in a QEMU guest, both ways.

usage: perftest_test.py SLUICE [--only TEXT]

SLUICE is the program. RC write, read, send and atomics, connected by perftest's own TCP exchange and by rdma_cm (-R).
Exits with 77 after a line "skipped: WHY" where no guest can be had.
"""

import argparse
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import guest

PROGRAMS = ["ib_write_bw", "ib_write_lat", "ib_read_bw", "ib_read_lat", "ib_send_bw", "ib_send_lat", "ib_atomic_bw", "ib_atomic_lat"]
TESTS = ["ib_write_bw -s 4096 -n 200", "ib_write_bw -s 65536 -n 50", "ib_read_bw -s 4096 -n 100", "ib_read_lat -n 50", "ib_send_bw -s 4096 -n 200",
         "ib_send_lat -n 50", "ib_atomic_bw -A FETCH_AND_ADD -n 100", "ib_atomic_lat -A CMP_AND_SWAP -n 50"]
BY_CM = ["ib_write_bw -s 4096 -n 200", "ib_read_bw -s 4096 -n 100", "ib_send_bw -s 4096 -n 200", "ib_atomic_bw -A FETCH_AND_ADD -n 100"]
SLUICE_ADDRESS = "10.77.0.20"
TIMEOUT_S = 60
NOBODY_LISTENS = ("Couldn't connect", "REJECTED", "Unexpected CM event bl blka 8")  # the last is perftest's way to say "rejected"
EVERYWHERE = "-F -m 1024 -u 18"


class Sluice:
    """perftest on our NIC, on the end of the veth pair. Its TCP goes by the kernel of this machine."""

    tcp_address, address, options = guest.HOST_ADDRESS, SLUICE_ADDRESS, "-x 1"

    def __init__(self, program):
        self.prefix = [program, "run", "--wire", guest.NIC_INTERFACE, "--ip", SLUICE_ADDRESS, "--verbose", "--"]
        self.server, self.log = None, pathlib.Path(guest.FOLDER) / "sluice.log"

    def start(self, command):
        with self.log.open("w") as log:
            self.server = subprocess.Popen(self.prefix + command.split(), stdout=log, stderr=subprocess.STDOUT)

    def await_end(self, deadline):
        try:
            return self.server.wait(max(deadline - time.monotonic(), 1)), self.said()
        except subprocess.TimeoutExpired:
            return -1, self.said()

    def said(self):
        return self.log.read_text()

    def run(self, command, seconds):
        try:
            done = subprocess.run(self.prefix + command.split(), capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired as late:
            return 1, f"no end in {seconds:.0f} s\n{(late.stdout or b'').decode()}"
        return done.returncode, done.stdout + done.stderr

    def end(self):
        if self.server and self.server.poll() is None:
            self.server.send_signal(signal.SIGTERM)
            self.server.wait()


class Rxe:
    """perftest in the guest."""

    options = ""

    def __init__(self, vm):
        self.vm, self.address, self.tcp_address = vm, vm.address, vm.address

    def start(self, command):
        self.vm.run(f"rm -f /tmp/status /tmp/server.log; ({command} >/tmp/server.log 2>&1; echo $? >/tmp/status) &")

    def await_end(self, deadline):
        seconds = max(deadline - time.monotonic(), 1)
        self.vm.run(f"n=0; while [ ! -s /tmp/status ] && [ $n -lt {int(seconds)} ]; do sleep 1; n=$((n+1)); done; true", seconds=seconds + 60)
        there, status = self.vm.run("cat /tmp/status", check=False)
        return -1 if there or not status.strip() else int(status), self.said()

    def said(self):
        return self.vm.run("cat /tmp/server.log", check=False)[1]

    def run(self, command, seconds):
        return self.vm.run(f"timeout {int(seconds)} {command} 2>&1", seconds=seconds + 60, check=False)

    def end(self):
        self.vm.run("killall -9 " + " ".join(PROGRAMS) + " 2>/dev/null; true")


def run_test(test, server, client, by_cm):
    """What went wrong, or nothing."""
    deadline = time.monotonic() + TIMEOUT_S
    flags = EVERYWHERE + (" -R" if by_cm else "")
    try:
        server.start(f"{test} {flags} {server.options}")
        said = ""
        for _ in range(20):  # until it listens
            time.sleep(1)
            status, said = client.run(f"{test} {flags} {client.options} {server.address if by_cm else server.tcp_address}", deadline - time.monotonic())
            if status == 0 or time.monotonic() > deadline - 5 or not any(words in said for words in NOBODY_LISTENS):
                break
        ended, log = server.await_end(deadline) if status == 0 else (0, server.said())
    finally:
        server.end()
    if status or "#bytes" not in said:
        return f"the client ended with {status}\n{said}\n--- server\n{log}"
    return f"the server ended with {ended}\n{log}" if ended else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("sluice", type=pathlib.Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    program = str(arguments.sluice.resolve())
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        print("skipped: not installed:", ", ".join(missing))
        return 77
    guest.enter_private_network()
    failed, passed = [], 0
    with guest.Lab() as lab:
        vm = lab.boot("rxe1", "10.77.0.11", {f"/usr/bin/{name}": shutil.which(name) for name in PROGRAMS}, mtu=9000)
        print(f"guest: ready in {vm.boot_seconds:.1f} s, kernel {lab.kernel.name}", flush=True)
        sluice, rxe = Sluice(program), Rxe(vm)
        for by_cm, tests in ((False, TESTS), (True, BY_CM)):
            for test in tests:
                for server, client in ((rxe, sluice), (sluice, rxe)):
                    name = f"{test}{' -R' if by_cm else ''}, {type(client).__name__} to {type(server).__name__}"
                    if arguments.only not in name:
                        continue
                    began = time.monotonic()
                    wrong = run_test(test, server, client, by_cm)
                    print(f"  {name}: {'FAILED: ' + wrong if wrong else 'ok'} ({time.monotonic() - began:.1f} s)", flush=True)
                    passed += not wrong
                    failed += [name] if wrong else []
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    guest.exit_with(main)
