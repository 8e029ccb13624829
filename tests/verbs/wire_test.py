#!/usr/bin/env python3
"""`sluice run --wire`: programs on a real interface, with the address that the kernel has there.

usage: wire_test.py SLUICE

SLUICE is the program. Two network namespaces of the test's own, joined by a veth pair; each end's kernel has an address, which the program's NIC
shares: the program's TCP is the kernel's, RoCEv2 the NIC's. Exits with 77 where no namespaces can be had, or no pingpong.
"""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from neighbor import Neighbor, enter_namespace  # noqa: E402

SERVER_IP, CLIENT_IP = "10.9.0.1", "10.9.0.2"
ROCE_PORT = 4791
PATIENCE_S = 60


def refusals(prefix):
    """ICMP "destination unreachable" messages that this kernel has sent."""
    lines = [line.split() for line in subprocess.run([*prefix, "cat", "/proc/net/snmp"], check=True, capture_output=True, text=True).stdout.splitlines()
             if line.startswith("Icmp:")]
    return int(dict(zip(*lines))["OutDestUnreachs"])


def pingpong(sluice, neighbor):
    """What the two said: server, client."""
    command = ["--", "ibv_rc_pingpong", "-g", "1", "-n", "500", "-s", "9000"]
    server = subprocess.Popen([sluice, "run", "--wire", "here", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + PATIENCE_S
        for _ in range(PATIENCE_S * 5):  # until it listens
            client = subprocess.run([*neighbor.prefix, sluice, "run", "--wire", "there", *command, SERVER_IP], capture_output=True, text=True,
                                    timeout=max(deadline - time.monotonic(), 1), check=False)
            if "Couldn't connect" not in client.stderr:
                break
            time.sleep(0.2)
        said = server.communicate(timeout=max(deadline - time.monotonic(), 1))[0]
    finally:
        server.kill()
    if client.returncode or server.returncode or "usec/iter" not in client.stdout:
        sys.exit(f"ended with {server.returncode} and {client.returncode}\n--- server\n{said}\n--- client\n{client.stdout}{client.stderr}")
    return said, client.stdout


def check_path_mtu(sluice):
    """Of the interface's MTU of 1500."""
    said = subprocess.run([sluice, "run", "--wire", "here", "--", "ibv_devinfo"], capture_output=True, text=True, timeout=PATIENCE_S, check=False).stdout
    expect(re.search(r"active_mtu:\s+1024 ", said), f"the path MTU is what the interface holds:\n{said}")
    done = subprocess.run([sluice, "run", "--wire", "here", "--mtu", "2048", "--", "true"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    expect(done.returncode == 2 and "the MTU of here holds 1024 at most" in done.stderr, f"a path MTU beyond it is refused: {done.returncode} {done.stderr}")


def expect(fine, what):
    if not fine:
        sys.exit(f"FAILED: {what}")


def main():
    sluice = os.path.abspath(sys.argv[1])
    missing = [name for name in ("ibv_devinfo", "ibv_rc_pingpong", "ip", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        print("skipped: not installed:", ", ".join(missing))
        return 77
    enter_namespace()
    with Neighbor(SERVER_IP, CLIENT_IP) as neighbor:
        check_path_mtu(sluice)
        said = pingpong(sluice, neighbor)
        for text, ip in zip(said, (SERVER_IP, CLIENT_IP)):
            expect(re.search(rf"local address:.*GID ::ffff:{re.escape(ip)}$", text, re.MULTILINE), f"the NIC has the kernel's address {ip}:\n{text}")
        expect(refusals([]) == 0 and refusals(neighbor.prefix) == 0, "a kernel answered RoCEv2 with ICMP")
        # Without a NIC it does answer: what was counted above can be seen.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stray:
            stray.sendto(b"x", (CLIENT_IP, ROCE_PORT))
        deadline = time.monotonic() + PATIENCE_S
        while refusals(neighbor.prefix) == 0:
            expect(time.monotonic() < deadline, "no ICMP where nobody has the port")
            time.sleep(0.05)
    print("a program on each end of a wire, with the kernels' addresses: all right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
