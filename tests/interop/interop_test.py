#!/usr/bin/env python3
"""Linux Soft-RoCE in a QEMU guest against another peer, both ways.

usage: interop_test.py --rxe-peer FILE [--sluice-peer FILE] [--only NAME] [--quick]

Without --sluice-peer two guests talk to each other, which tests the harness and the peer program themselves. --only runs the
scenarios whose name contains NAME.
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
IMPAIRMENT = "impair(drop=2%,duplicate=2%,reorder=2%,corrupt=2%,seed=7)"  # of frames, in each direction


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rxe-peer", required=True)
    parser.add_argument("--sluice-peer")
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true", help="one MTU, no loss")
    return parser.parse_args()


def rxe(lab, number, arguments):
    vm = lab.boot(f"rxe{number}", f"10.77.0.{10 + number}", {"/usr/bin/rxe_peer": arguments.rxe_peer}, mtu=9000)
    print(f"guest rxe{number}: ready in {vm.boot_seconds:.1f} s ({'KVM' if lab.kvm else 'emulated'}), kernel {lab.kernel.name}", flush=True)
    vm.run(f"rxe_peer {RXE_PORT} >/tmp/peer.log 2>&1 &")
    return vm, scenarios.Peer(f"rxe{number}", vm.address, RXE_PORT)


class SluiceProcess:
    """sluice_peer on our end of the veth pair; ended with the block."""

    def __init__(self, program, impairment=""):
        self.command = [program, str(SLUICE_PORT), f"packet:{guest.NIC_INTERFACE}{impairment}", SLUICE_ADDRESS]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        return scenarios.Peer("sluice", "127.0.0.1", SLUICE_PORT, SLUICE_ADDRESS)

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


def both_ways(one, other):
    return [scenarios.Pair(one, other), scenarios.Pair(other, one)]


def run_faultless(report, one, other, quick):
    for mtu in [1024] if quick else [1024, 4096]:
        for scenario in scenarios.FAULTLESS:
            for pair in both_ways(one, other):
                report.run(scenario, pair, mtu)
    for scenario in scenarios.BY_CM:
        for pair in both_ways(one, other):
            report.run(scenario, pair, 4096)


def run_faulty(report, one, other, note):
    for scenario in scenarios.UNDER_LOSS + scenarios.BY_CM_UNDER_LOSS:
        for pair in both_ways(one, other):
            report.run(scenario, pair, 1024, note=note, lossy=True)


def run_all(report, vm, one, other, quick):
    run_faultless(report, one, other, quick)
    if not quick:
        vm.lose(LOSS_PERCENT)
        run_faulty(report, one, other, f", {LOSS_PERCENT} % loss each way")
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
            if not arguments.quick:
                with SluiceProcess(arguments.sluice_peer, "," + IMPAIRMENT) as other:
                    run_faulty(report, one, other, f", {IMPAIRMENT}")
        else:
            _, other = rxe(lab, 2, arguments)
            run_all(report, vm, one, other, arguments.quick)
    print(f"{report.passed} scenarios as they should be, {len(report.failed)} not")
    return 1 if report.failed or not report.passed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except guest.Unavailable as why:
        print(f"skipped: {why}")
        sys.exit(77)
