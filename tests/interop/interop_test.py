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
    parser.add_argument("--lose-guest", type=int, default=0, metavar="TIMES",
                        help="end the guest this many times before a scenario, to see that the harness says so and goes on")
    return parser.parse_args()


class Rxe:
    """rxe_peer in a guest of its own."""

    def __init__(self, lab, number, program):
        self.lab, self.number, self.program = lab, number, program
        self.loss = 0
        self.guests_lost = 0
        self.vm = None
        self.boot()
        self.start()
        self.peer = scenarios.Peer(self.vm.name, self.vm.address, RXE_PORT)

    def boot(self):
        address = f"10.77.0.{10 + self.number}"
        self.vm = self.lab.boot(f"rxe{self.number}", address, {"/usr/bin/rxe_peer": self.program}, mtu=9000)
        how = "KVM" if self.lab.kvm else "emulated"
        print(f"guest {self.vm.name}: ready in {self.vm.boot_seconds:.1f} s ({how}), kernel {self.lab.kernel.name}", flush=True)

    def start(self):
        self.vm.run(f"rxe_peer {RXE_PORT} >/tmp/peer.log 2>&1 &")

    def lose(self, percent):
        self.loss = percent
        self.vm.lose(percent)

    def renew(self):
        """After a failure, when nobody knows what the peer is at: a new process, in a new guest when the old one does not obey any
        more. Then returns why, with the end of its console."""
        lost = ""
        try:
            self.vm.run("killall -9 rxe_peer; n=0; while pidof rxe_peer; do n=$((n+1)); [ $n -lt 100 ] || exit 1; sleep 0.1; done",
                        seconds=60)
        except guest.GuestDied as died:
            lost = str(died)
        except RuntimeError:
            lost = f"rxe_peer cannot be ended in the guest {self.vm.name}\n{self.vm.console_end()}"
        if lost:
            self.guests_lost += 1
            self.vm.stop()
            self.boot()
            self.vm.lose(self.loss)
        self.start()
        self.peer.connect()
        return lost


class SluiceProcess:
    """sluice_peer on our end of the veth pair; ended with the block."""

    def __init__(self, program, impairment=""):
        self.command = [program, str(SLUICE_PORT), f"packet:{guest.NIC_INTERFACE}{impairment}", SLUICE_ADDRESS]

    def __enter__(self):
        self.start()
        self.peer = scenarios.Peer("sluice", "127.0.0.1", SLUICE_PORT, SLUICE_ADDRESS)
        return self

    def __exit__(self, *_):
        self.end()

    def start(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def end(self):
        """Its exit status, when it has ended by itself."""
        status = self.process.poll()
        self.process.kill()
        self.process.wait()
        return status

    def renew(self):
        if (status := self.end()) is not None:
            print(f"  sluice_peer has ended by itself: {status}", flush=True)
        self.start()
        self.peer.connect()
        return ""


class Report:
    def __init__(self, only, lose_guest):
        self.only = only
        self.lose_guest = lose_guest
        self.passed = 0
        self.failed = []

    def run(self, scenario, sides, mtu, note="", **options):
        """The scenario; once again when it failed because a guest was lost. One that failed leaves nothing to the next."""
        pair = scenarios.Pair(*(side.peer for side in sides))
        name = f"{pair.a.name} -> {pair.b.name}: {scenario.__name__.replace('_', ' ')}, MTU {mtu}{note}"
        if self.only and self.only.replace("_", " ") not in name:
            return
        for attempt in (1, 2):
            began = time.monotonic()
            wrong = self.attempt(scenario, pair, sides, mtu, options)
            if not wrong:
                self.passed += 1
                print(f"  {name}: ok ({time.monotonic() - began:.1f} s)", flush=True)
                return
            took = time.monotonic() - began
            lost = "".join(side.renew() for side in sides)
            again = lost and attempt == 1
            print(f"  {name}: {'a guest was lost' if again else 'FAILED'}: {wrong} ({took:.1f} s)\n{lost}", flush=True)
            if not again:
                break
        self.failed.append(name)

    def attempt(self, scenario, pair, sides, mtu, options):
        """What went wrong, or nothing."""
        if self.lose_guest:
            self.lose_guest -= 1
            next(side for side in sides if isinstance(side, Rxe)).vm.qemu.kill()
        try:
            scenario(pair, mtu, **options)
            return ""
        except (scenarios.Wrong, OSError) as error:
            return str(error) or type(error).__name__
        except Exception:  # an error in the harness: say where
            return "\n" + traceback.format_exc()


def both_ways(one, other):
    return [(one, other), (other, one)]


def run_faultless(report, one, other, quick):
    for mtu in [1024] if quick else [1024, 4096]:
        for scenario in scenarios.FAULTLESS:
            for sides in both_ways(one, other):
                report.run(scenario, sides, mtu)
    for scenario in scenarios.BY_CM:
        for sides in both_ways(one, other):
            report.run(scenario, sides, 4096)


def run_faulty(report, one, other, note):
    for scenario in scenarios.UNDER_LOSS + scenarios.BY_CM_UNDER_LOSS:
        for sides in both_ways(one, other):
            report.run(scenario, sides, 1024, note=note, lossy=True)


def run_all(report, one, other, quick):
    run_faultless(report, one, other, quick)
    if not quick:
        one.lose(LOSS_PERCENT)
        run_faulty(report, one, other, f", {LOSS_PERCENT} % loss each way")
        incoming, outgoing = one.vm.lost()
        print(f"  {one.peer.name} lost {incoming} packets coming in and {outgoing} going out", flush=True)
        if not report.only and not one.guests_lost and min(incoming, outgoing) < 100:
            report.failed.append("packets should have been lost")
        one.lose(0)


def main():
    arguments = parse()
    guest.enter_private_network()
    report = Report(arguments.only, arguments.lose_guest)
    with guest.Lab() as lab:
        one = Rxe(lab, 1, arguments.rxe_peer)
        if arguments.sluice_peer:
            with SluiceProcess(arguments.sluice_peer) as other:
                run_all(report, one, other, arguments.quick)
            if not arguments.quick:
                with SluiceProcess(arguments.sluice_peer, "," + IMPAIRMENT) as other:
                    run_faulty(report, one, other, f", {IMPAIRMENT}")
        else:
            run_all(report, one, Rxe(lab, 2, arguments.rxe_peer), arguments.quick)
    print(f"{report.passed} scenarios as they should be, {len(report.failed)} not")
    return 1 if report.failed or not report.passed else 0


if __name__ == "__main__":
    guest.exit_with(main)
