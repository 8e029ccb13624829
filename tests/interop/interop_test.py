#!/usr/bin/env python3
"""Linux Soft-RoCE in a QEMU guest against another peer, both ways.

usage: interop_test.py --rxe-peer FILE [--sluice-peer FILE] [--only NAME] [--quick] [--keep]

Without --sluice-peer two guests talk to each other, which tests the harness and the peer program themselves. --only runs the
scenarios whose name contains NAME; --keep leaves the guest running and prints how to reach it, until Ctrl-C.
Exits with 77 after a line "skipped: WHY" where no guest can be had.
"""

import argparse
import subprocess
import sys
import time
import traceback

import guest
import scenarios

RXE_PORT = 7001
SLUICE_PORT = 7002
SLUICE_ADDRESS = "10.77.0.20"
LOSS_PERCENT = 5


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rxe-peer", required=True)
    parser.add_argument("--sluice-peer")
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true", help="one MTU, no loss")
    parser.add_argument("--keep", action="store_true")
    return parser.parse_args()


def rxe(lab, number, arguments):
    vm = lab.boot(f"rxe{number}", f"10.77.0.{10 + number}", {"/usr/bin/rxe_peer": arguments.rxe_peer}, mtu=9000)
    print(f"guest rxe{number}: ready in {vm.boot_seconds:.1f} s ({'KVM' if lab.kvm else 'emulated'}), kernel {lab.kernel.name}", flush=True)
    vm.run(f"rxe_peer {RXE_PORT} >/tmp/peer.log 2>&1 &")
    return vm, scenarios.Peer(f"rxe{number}", vm.address, RXE_PORT)


class SluiceProcess:
    """sluice_peer on our end of the veth pair; ended with the block."""

    def __init__(self, program):
        self.program = program

    def __enter__(self):
        self.process = subprocess.Popen([self.program, str(SLUICE_PORT), guest.NIC_INTERFACE, SLUICE_ADDRESS],
                                        stdin=subprocess.DEVNULL)
        return scenarios.Peer("sluice", "127.0.0.1", SLUICE_PORT)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(10)


class Report:
    def __init__(self, only):
        self.only = only
        self.passed = 0
        self.failed = []

    def run(self, scenario, pair, mtu, note="", **options):
        name = f"{pair.a.name} -> {pair.b.name}: {scenario.__name__.replace('_', ' ')}, MTU {mtu}{note}"
        if self.only and self.only.replace("_", " ") not in name:
            return
        began = time.monotonic()
        try:
            scenario(pair, mtu, **options)
            self.passed += 1
            verdict = "ok"
        except (scenarios.Wrong, OSError) as error:
            self.failed.append(name)
            verdict = f"FAILED: {error}"
        except Exception:  # an error in the harness: say where
            self.failed.append(name)
            verdict = f"FAILED:\n{traceback.format_exc()}"
        print(f"  {name}: {verdict} ({time.monotonic() - began:.1f} s)", flush=True)


def run_all(report, vm, one, other, quick):
    ways = [scenarios.Pair(one, other), scenarios.Pair(other, one)]
    for mtu in [1024] if quick else [1024, 4096]:
        for scenario in scenarios.FAULTLESS:
            for pair in ways:
                report.run(scenario, pair, mtu)
    if not quick:
        vm.lose(LOSS_PERCENT)
        for scenario in scenarios.UNDER_LOSS:
            for pair in ways:
                report.run(scenario, pair, 1024, note=f", {LOSS_PERCENT} % loss each way", lossy=True)
        incoming, outgoing = vm.lost()
        print(f"  {vm.name} lost {incoming} packets coming in and {outgoing} going out", flush=True)
        if not report.only and min(incoming, outgoing) < 100:
            report.failed.append("packets should have been lost")
        vm.lose(0)


def main():
    arguments = parse()
    guest.enter_private_network()
    report = Report(arguments.only)
    with guest.Lab() as lab:
        vm, one = rxe(lab, 1, arguments)
        if arguments.sluice_peer:
            with SluiceProcess(arguments.sluice_peer) as other:
                run_all(report, vm, one, other, arguments.quick)
        else:
            _, other = rxe(lab, 2, arguments)
            run_all(report, vm, one, other, arguments.quick)
        if arguments.keep:
            print(f"left running; enter with: nsenter -t {guest.outer_pid()} -n -m -p", flush=True)
            try:
                time.sleep(1 << 30)
            except KeyboardInterrupt:
                pass
    print(f"{report.passed} scenarios as they should be, {len(report.failed)} not")
    return 1 if report.failed or not report.passed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except guest.Unavailable as why:
        print(f"skipped: {why}")
        sys.exit(77)
