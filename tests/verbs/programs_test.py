#!/usr/bin/env python3
"""Unmodified RDMA programs of Debian on Sluice's NIC: two processes each, over a shared-memory cable, libsluice-verbs.so preloaded.

usage: programs_test.py LIBRARY [--all] [--only TEXT] [--list] [--impair SPEC] [--box SLUICE]

Without --all only what finds most in little time: each verb and way of waiting once. Exits with 77 when perftest or the ibv_ tools are not installed.
--impair puts losses on the cable of each case. --box runs each program that has a reliable connection, or UCX's ud_verbs, on a rack of SLUICE (the
program) instead, as two hosts with SwordBox between them.

Runs in a network namespace of its own, whose loopback has the NICs' addresses too: some programs talk TCP to the address of their peer.
"""

import argparse
import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import open_mpi  # noqa: E402
from live_rack import free_port  # noqa: E402

TIMEOUT_S = 60
ALL_SIZES_TIMEOUT_S = 240  # perftest measures the clock's frequency anew for each size
RDMA_CM_TRIES = 8  # a second apart: nobody listened yet
LOSSES = "drop=1%,seed=7"
ADDRESSES = ("10.77.0.1", "10.77.0.2")  # server, client
SUBNET, BOX_SUBNET = "10.77.0.", "10.77.200."  # a rack gives its own nodes the addresses of the first
NOBODY_LISTENS = re.compile("rejected|nothing is at|unreachable|connection refused|error -8$", re.IGNORECASE | re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Case:
    """One program as server and client. `expect` must appear in what the client prints."""

    command: str  # the program and its options, the same on both sides
    expect: str = ""
    impair: str = ""
    server: str = ""  # what only the server's command has
    client: str = "127.0.0.1"  # what only the client's command has
    variables: str = ""  # NAME=VALUE … for both
    by_tcp: bool = True  # the server listens on a TCP port, not by rdma_cm
    server_must_succeed: bool = True
    excuse: str = ""  # either side that says this may end as it likes
    left_behind: str = ""  # one side may end with this, if the other did all that is expected of both
    port_option: str = "-p"  # empty: it has a port of its own
    client_port_option: str = ""  # where it is another
    client_command: str = ""  # likewise
    server_ends: bool = True

    @property
    def name(self):
        asks = self.client if " " in self.client else ""
        return " ".join(filter(None, [self.variables, self.command, asks, f"[{self.impair}]" if self.impair else ""]))


def pingpong(options, impair=""):
    return Case(f"ibv_{options} -g 1", "usec/iter", impair)


def first_to_go(case):
    """One side may be gone before the other learns that its last message has arrived, as with any NIC."""
    return dataclasses.replace(case, left_behind="Failed status transport retry counter exceeded (12)")


def perftest(options, impair=""):
    # -u: time-outs for a loaded machine; 4 us * 2^n, seven retries
    return Case(f"ib_{options} -F -x 1 -u {16 if impair else 18}", "#bytes", impair)


def by_rdma_cm(options, impair=""):
    return Case(f"ib_{options} -F -R -u {16 if impair else 18}", "#bytes", impair, client="10.77.0.1", by_tcp=False)


def rping(options, impair=""):
    # Its thread for events may be on its way back to the channel that its main thread closes at the end, on any NIC.
    return Case(f"rping {options} -v", "ping data: rdma-ping-9", impair, server="-s -a 10.77.0.1", client="-c -a 10.77.0.1",
                by_tcp=False, excuse="rdma_get_cm_event: Bad file descriptor")


def ucx(transports, test, impair=""):
    return Case(f"ucx_perftest -t {test} -n 1000 -w 10", "Final:", impair, variables=f"UCX_TLS={transports}")


def uct(test, impair=""):
    """By the NIC's own operations, where UCX's protocols above might do with messages instead. The transport asks for a NIC that says IBV_ATOMIC_HCA."""
    return Case(f"ucx_perftest -d sluice0:1 -x rc_verbs -t {test} -n 1000 -w 10", "Final:", impair, variables="UCX_RC_TIMEOUT=100ms" if impair else "")


def libfabric(provider, endpoint, impair=""):
    # All its exchanges are over when it prints. Then the one that ends first ends the connection, and libfabric 1.17 throws away what has
    # completed at the other side if it hears of that before it has looked: rarely, on any NIC, more often after a loss.
    return Case(f"fi_pingpong -p {provider} -e {endpoint} -I 100 -S 4096", "=100", impair, port_option="-B", client_port_option="-P",
                server_must_succeed=False, excuse="Work Request Flushed Error")


def qperf(tests, impair=""):
    return Case("qperf", "=", impair, client=f"10.77.0.1 -t 1 -cm 1 {tests}", port_option="-lp", server_ends=False)


def cmtime(options, impair=""):
    return Case(f"cmtime {options}", "destroy ", impair, server="-b 10.77.0.1", client="-s 10.77.0.1", by_tcp=False, server_ends=False)


def fio(verb, impair=""):
    # The receiver has a buffer for each of the 64 messages: fio asks for no RNR retries, and hangs after the error.
    receiver = "--rw=read" + (" --verb=recv --iodepth=64" if verb == "send" else "")  # which is how fio is told that it is the server
    return Case("fio --name=job --ioengine=rdma --size=4m --bs=64k --iodepth=8", "io=4096KiB", impair, server=receiver,
                client=f"--hostname=10.77.0.1 --verb={verb} --rw=write --iodepth=2", by_tcp=False, port_option="--port",
                server_must_succeed=False)


def ucmatose(options, impair=""):
    return Case(f"ucmatose {options}", "return status 0", impair, server="-b 10.77.0.1", client="-s 10.77.0.1", by_tcp=False)


def udaddy(options, impair=""):
    return Case(f"udaddy {options}", "return status 0", impair, server="-b 10.77.0.1", client="-s 10.77.0.1", by_tcp=False, port_option="")


def rsockets(command, impair=""):
    # Not -T a: its poll() takes the hang-up that follows the last bytes for an error.
    return Case(command, "Gb/sec", impair, server="-b 10.77.0.1", client="-s 10.77.0.1", by_tcp=False)


QUICK = [
    pingpong("rc_pingpong"),
    pingpong("rc_pingpong -e"),
    pingpong("rc_pingpong -N"),
    first_to_go(pingpong("rc_pingpong -n 200", LOSSES)),
    pingpong("uc_pingpong -e"),
    pingpong("ud_pingpong -s 1024"),
    pingpong("srq_pingpong -q 4 -e"),
    perftest("write_bw -q 8 -n 500"),
    perftest("write_bw -s 8 -I 220 -n 1000"),
    perftest("write_bw -c UC -n 1000"),
    perftest("write_bw -n 500", LOSSES),
    perftest("write_lat -n 100"),
    perftest("read_bw -b -n 500"),
    perftest("read_bw -n 500", LOSSES),
    perftest("read_lat -e -n 500"),
    perftest("send_bw -q 8 --use-srq -n 500"),
    # No more datagrams than receives: one that finds none is lost, and the server waits for it for ever.
    perftest("send_bw -c UD -s 1024 -n 1000 -r 1000"),
    perftest("send_bw -e -n 1000"),
    perftest("send_bw -n 500", LOSSES),
    perftest("send_lat -c UD -s 1024 -n 200"),
    perftest("atomic_bw -A CMP_AND_SWAP -n 1000"),
    perftest("atomic_bw -n 500", LOSSES),
    perftest("atomic_lat -A FETCH_AND_ADD -n 500"),
    rping("-C 10"),
    rping("-C 10", LOSSES),
    by_rdma_cm("send_bw -n 500"),
    by_rdma_cm("read_lat -n 200"),
    by_rdma_cm("send_bw -c UD -s 1024 -n 500 -r 500"),
    ucmatose("-C 4"),
    udaddy("-C 10 -c 3"),
    cmtime("-c 20"),
    qperf("rc_lat rc_rdma_write_bw"),
    fio("write"),
    Case("rdma_server", "rdma_client: end 0", client_command="rdma_client", client="-s 10.77.0.1", by_tcp=False),
    rsockets("rstream -T v -S 65536 -C 200"),
    libfabric("verbs;ofi_rxm", "rdm"),
    ucx("rc_v,tcp", "tag_lat"),
    ucx("rc,ud", "tag_lat"),
    ucx("rc_v,tcp", "ucp_fadd"),
    uct("fadd"),
    ucx("ud_v,tcp", "tag_lat", LOSSES),
]

REST = [
    pingpong("rc_pingpong -c"),
    pingpong("rc_pingpong -s 100000 -m 4096 -n 200"),
    pingpong("uc_pingpong"),
    pingpong("ud_pingpong -s 1024 -e"),
    pingpong("srq_pingpong -q 4"),
    perftest("write_bw -n 1000"),
    perftest("write_bw -a -n 200"),
    perftest("write_bw -b -n 1000"),
    perftest("write_lat -s 8 -I 220 -n 500"),
    perftest("write_lat -c UC -n 500"),
    perftest("write_lat -n 200", LOSSES),
    perftest("read_bw -a -n 200"),
    perftest("read_bw -b -q 8 -n 500"),
    perftest("read_lat -n 500"),
    perftest("send_bw -n 1000"),
    perftest("send_bw -a -n 200"),
    perftest("send_bw -b -n 1000"),
    perftest("send_bw -c UC -n 1000"),
    perftest("send_lat -n 500"),
    perftest("send_lat -e -n 500"),
    perftest("send_lat -n 200", LOSSES),
    perftest("atomic_bw -A FETCH_AND_ADD -n 1000"),
    perftest("atomic_lat -A CMP_AND_SWAP -n 500"),
    by_rdma_cm("write_bw -n 500"),
    by_rdma_cm("atomic_lat -n 200"),
    by_rdma_cm("send_bw -n 200", LOSSES),
    perftest("read_bw -e -n 500"),
    perftest("read_lat -n 200", LOSSES),
    perftest("send_bw -I 220 -s 8 -n 1000"),
    perftest("send_bw -q 8 -n 500"),
    perftest("send_bw -c UD -q 4 -s 1024 -n 500 -r 500"),
    perftest("send_lat -a -n 100"),
    perftest("send_lat -c UC -n 200"),
    perftest("write_lat -a -n 50"),
    perftest("write_bw -c UC -q 8 -n 500"),
    perftest("atomic_bw -b -q 8 -n 500"),
    perftest("atomic_bw -e -n 500"),
    perftest("atomic_lat -n 200", LOSSES),
    by_rdma_cm("read_bw -n 500"),
    by_rdma_cm("write_lat -n 200"),
    by_rdma_cm("send_lat -n 200"),
    by_rdma_cm("atomic_bw -n 500"),
    by_rdma_cm("write_bw -n 200", LOSSES),
    by_rdma_cm("read_bw -n 200", LOSSES),
    by_rdma_cm("write_lat -n 200", LOSSES),
    by_rdma_cm("read_lat -n 200", LOSSES),
    by_rdma_cm("send_lat -n 200", LOSSES),
    by_rdma_cm("atomic_bw -n 200", LOSSES),
    by_rdma_cm("atomic_lat -n 200", LOSSES),
    by_rdma_cm("send_lat -c UD -s 1024 -n 200"),
    by_rdma_cm("write_bw -q 8 -n 200"),
    by_rdma_cm("send_bw -q 8 --use-srq -n 200"),
    by_rdma_cm("send_bw -e -b -n 200"),
    perftest("write_bw -q 8 -n 200", LOSSES),
    perftest("read_bw -q 8 -n 200", LOSSES),
    perftest("send_bw -q 8 --use-srq -n 200", LOSSES),
    perftest("send_bw -e -b -n 200", LOSSES),
    perftest("atomic_bw -b -q 8 -n 200", LOSSES),
    perftest("atomic_lat -e -n 200"),
    perftest("read_lat -a -n 100"),
    perftest("send_bw --use-srq -b -n 500"),
    perftest("send_lat --use-srq -n 200"),
    perftest("send_lat -I 220 -s 8 -n 200"),
    perftest("write_bw -c UC -a -n 100"),
    perftest("write_bw -c UC -b -I 220 -s 8 -n 500"),
    perftest("send_bw -c UC -e -q 8 -n 200"),
    perftest("send_bw -c UC -b --use-srq -n 200"),
    perftest("send_lat -c UC -e -I 220 -s 8 -n 200"),
    perftest("send_bw -c UD -a -n 200 -r 200"),
    perftest("send_bw -c UD -b -e -s 1024 -n 200 -r 400"),
    perftest("send_bw -c UD --use-srq -s 1024 -n 200 -r 200"),
    perftest("send_lat -c UD -e -I 220 -s 8 -n 200"),
    qperf("rc_bw rc_bi_bw rc_rdma_write_lat rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_poll_lat rc_compare_swap_mr rc_fetch_add_mr"),
    qperf("rc_lat rc_rdma_read_bw", LOSSES),
    fio("read"),
    fio("send"),
    fio("write", LOSSES),
    fio("read", LOSSES),
    fio("send", LOSSES),
    ucmatose("-C 4", LOSSES),
    udaddy("-C 0 -c 3", LOSSES),
    cmtime("-c 20", LOSSES),
    Case("rdma_server", "rdma_client: end 0", LOSSES, client_command="rdma_client", client="-s 10.77.0.1", by_tcp=False),
    rsockets("rstream"),
    rsockets("rstream -T n -S 4096 -C 500"),
    rsockets("rstream -T v -S 65536 -C 200", LOSSES),
    rsockets("riostream -T v -S 65536 -C 200"),
    rsockets("riostream -T v -S 65536 -C 200", LOSSES),
    first_to_go(pingpong("srq_pingpong -q 4 -n 100", LOSSES)),
    first_to_go(pingpong("srq_pingpong -q 4 -n 100 -e", LOSSES)),
    first_to_go(pingpong("rc_pingpong -n 200 -e", LOSSES)),
    first_to_go(pingpong("rc_pingpong -n 200 -N", LOSSES)),
    first_to_go(pingpong("rc_pingpong -n 200 -c", LOSSES)),
    libfabric("verbs", "msg"),
    libfabric("verbs", "msg", LOSSES),
    libfabric("verbs;ofi_rxm", "rdm", LOSSES),
    ucx("rc_v,tcp", "ucp_put_bw"),
    uct("cswap"),
    uct("fadd", LOSSES),
    ucx("rc_v,tcp", "ucp_get"),
    ucx("ud_v,tcp", "tag_lat"),
    ucx("rc_v,tcp UCX_RC_TIMEOUT=100ms", "tag_lat", LOSSES),  # a second is what a loss costs otherwise
    ucx("rc_v,tcp UCX_RC_TIMEOUT=100ms", "ucp_fadd", LOSSES),
    ucx("rc_v,tcp UCX_RC_TIMEOUT=100ms", "ucp_put_bw", LOSSES),
    ucx("rc_v,tcp UCX_RC_TIMEOUT=100ms", "ucp_get", LOSSES),
    ucx("ud_v,tcp", "ucp_put_bw", LOSSES),
]


def listens(port):
    wanted = f":{port:04X} "
    return any(
        wanted in line and line.split()[3] == "0A"
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in pathlib.Path(table).read_text().splitlines()[1:]
    )


class Cable:
    """Two NICs on one shared-memory cable; which end makes it is the server's."""

    def __init__(self, library, directory, impair):
        self.library, self.directory, self.impair = library, directory, impair

    def launch(self, case, tcp, command, server):
        losses = f",impair({self.impair or case.impair})" if self.impair or case.impair else ""
        variables = dict(variable.split("=", 1) for variable in case.variables.split())
        port = f"{'cable' if server else 'shm'}:{self.path(tcp)}{losses}"
        return command, dict(os.environ, LD_PRELOAD=self.library, SLUICE_PORT=port, SLUICE_IP=ADDRESSES[0 if server else 1], SLUICE_VERBOSE="1", **variables)

    def path(self, tcp):
        return self.directory / f"{tcp}.sock"

    def is_there(self, tcp):
        # An rdma_cm listener cannot be seen from outside; its NIC's cable can, and the listener comes soon after.
        return self.path(tcp).exists()


class Box:
    """Two hosts of a rack with SwordBox in its switch."""

    def __init__(self, program, directory, impair):
        self.program, self.directory, self.impair = program, directory, impair

    def __enter__(self):
        self.rack("up", "--box", "words", "--memory-nodes", "1", "--memory-size", "64MiB", "--metadata=false")
        return self

    def __exit__(self, *_):
        self.rack("down")

    def rack(self, *words):
        subprocess.run([self.program, "rack", *words, "--dir", str(self.directory / "run")], check=True, capture_output=True, timeout=60)

    def launcher(self, impair, *flags):
        losses = self.impair or impair
        return [self.program, "run", "--dir", str(self.directory / "run"), "--verbose", *flags, *(["--impair", losses] if losses else []), "--"]

    def launch(self, case, _tcp, command, server):
        address = ADDRESSES[0 if server else 1].replace(SUBNET, BOX_SUBNET)
        command = [word.replace(SUBNET, BOX_SUBNET) for word in command]
        variables = dict(variable.split("=", 1) for variable in case.variables.split())
        return [*self.launcher(case.impair, "--ip", address), *command], dict(os.environ, **variables)

    def is_there(self, _tcp):
        return True


@dataclasses.dataclass(frozen=True)
class Ranks:
    """Two ranks of MPI: messages and one-sided access. Only on a rack."""

    impair: str = ""

    @property
    def name(self):
        return " ".join(filter(None, ["Open MPI, UCX_TLS=rc_v: send and receive, put, get, fetch-and-op", f"[{self.impair}]" if self.impair else ""]))

    def run(self, box, directory):
        try:
            done = open_mpi.run(box.launcher(self.impair), open_mpi.build(directory), ALL_SIZES_TIMEOUT_S)
        except subprocess.TimeoutExpired as late:
            return f"no end in time\n{late.stdout}\n{late.stderr}"
        return "" if (done.returncode, done.stdout) == (0, open_mpi.ALL_RIGHT) else f"mpirun ended with {done.returncode}\n{done.stdout}\n{done.stderr}"


RANKS = [Ranks(), Ranks(LOSSES)]


def is_reliable(case):
    return not re.match(r"ibv_u[cd]|udaddy|.* -c U[CD]", case.command)


def await_listening(server, ready, deadline):
    while not ready():
        if server.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def excused(case, said):
    return case.excuse != "" and case.excuse in said


def was_left_behind(case, status, said, other_status, other_said):
    return case.left_behind != "" and status != 0 and case.left_behind in said and other_status == 0 and case.expect in other_said


def run_client(words, variables, deadline):
    """Its exit code and what it printed. One that is late is killed, with all that it started."""
    client = subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, errors = client.communicate(timeout=max(deadline - time.monotonic(), 1))
    except subprocess.TimeoutExpired as late:
        os.killpg(client.pid, signal.SIGKILL)
        out, errors = client.communicate()
        raise subprocess.TimeoutExpired(late.cmd, late.timeout, out, errors) from None
    return client.returncode, out + errors


def await_end(server, deadline):
    return server.wait(timeout=max(deadline - time.monotonic(), 1))


def judge(case, client, client_says, server, server_log, deadline):
    """What is wrong with how the two ended, or "". `client` is an exit code, `server` a process."""
    if client != 0 and case.left_behind and was_left_behind(case, client, client_says, await_end(server, deadline), server_log.read_text()):
        return ""
    if client != 0 and not excused(case, client_says):
        return f"the client ended with {client}"
    if case.expect not in client_says:
        return f"the client did not print {case.expect!r}"
    if not case.server_ends or await_end(server, deadline) == 0 or not case.server_must_succeed:
        return ""
    server_says = server_log.read_text()
    if excused(case, server_says) or was_left_behind(case, server.returncode, server_says, client, client_says):
        return ""
    return f"the server ended with {server.returncode}"


def run_case(case, link, directory):
    """Returns what went wrong, or ""."""
    tcp = free_port()
    command = case.command.split() + ([case.port_option, str(tcp)] if case.port_option else [])
    client_port_option = case.client_port_option or case.port_option
    client_command = (case.client_command or case.command).split() + ([client_port_option, str(tcp)] if client_port_option else [])
    server_log = directory / "server.log"
    deadline = time.monotonic() + (ALL_SIZES_TIMEOUT_S if "-a" in command or case.command == "rstream" else TIMEOUT_S)
    with server_log.open("w") as log:
        words, variables = link.launch(case, tcp, command + case.server.split(), server=True)
        server = subprocess.Popen(words, env=variables, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    client_says = ""
    wrong = ""
    try:
        if not await_listening(server, (lambda: listens(tcp)) if case.by_tcp else (lambda: link.is_there(tcp)), deadline):
            wrong = "the server does not listen"
        else:
            words, variables = link.launch(case, tcp, client_command + case.client.split(), server=False)
            status = 0
            for _ in range(1 if case.by_tcp else RDMA_CM_TRIES):
                time.sleep(0 if case.by_tcp else 1)
                status, client_says = run_client(words, variables, deadline)
                if not NOBODY_LISTENS.search(client_says):
                    break
            wrong = judge(case, status, client_says, server, server_log, deadline)
    except subprocess.TimeoutExpired as late:
        wrong = "no end in time"
        client_says += (late.stdout or "") + (late.stderr or "")
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    if wrong:
        wrong += f"\n--- client\n{client_says}\n--- server\n{server_log.read_text()}"
    return wrong


def enter_namespace():
    """Runs this script again in a network namespace, unless it is in one."""
    if "SLUICE_IN_NAMESPACE" not in os.environ:
        os.environ["SLUICE_IN_NAMESPACE"] = "1"
        as_root = [] if os.geteuid() == 0 else ["--map-root-user", "--user"]
        os.execvp("unshare", ["unshare", *as_root, "--net", sys.executable, *sys.argv])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in ADDRESSES:
        for own in (address, address.replace(SUBNET, BOX_SUBNET)):
            subprocess.run(["ip", "address", "add", f"{own}/32", "dev", "lo"], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--impair", default="")
    parser.add_argument("--box", default="")
    arguments = parser.parse_args()
    cases = [case for case in QUICK + (REST if arguments.all else []) if arguments.only in case.name]
    if arguments.box:
        cases = [case for case in cases if is_reliable(case)]
    ranks = [case for case in RANKS if arguments.box and arguments.all and arguments.only in case.name]
    if arguments.list:
        print("\n".join(case.name for case in cases + ranks))
        return 0
    programs = {command.split()[0] for case in cases for command in (case.command, case.client_command) if command}
    programs |= set(open_mpi.PROGRAMS if ranks else ())
    missing = {program for program in programs if shutil.which(program) is None}
    if missing:
        print(f"skipped: not installed: {', '.join(sorted(missing))}")
        return 77
    enter_namespace()
    failed = 0
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-verbs-")))
        if arguments.box:
            link = stack.enter_context(Box(str(pathlib.Path(arguments.box).resolve()), directory, arguments.impair))
        else:
            link = Cable(str(arguments.library.resolve()), directory, arguments.impair)
        for case in cases + ranks:
            start = time.monotonic()
            wrong = case.run(link, directory) if case in ranks else run_case(case, link, directory)
            if wrong and case in cases and case.by_tcp and NOBODY_LISTENS.search(wrong):  # fi_pingpong says over TCP that it is ready just before it listens
                wrong = run_case(case, link, directory)
            failed += wrong != ""
            print(f"{'FAILED' if wrong else 'ok':6} {time.monotonic() - start:5.1f} s  {case.name}", flush=True)
            if wrong:
                print("  " + wrong.replace("\n", "\n  "), flush=True)
    print(f"{len(cases + ranks) - failed} of {len(cases + ranks)} passed in {time.monotonic() - began:.0f} s")
    return 1 if failed or not cases + ranks else 0


if __name__ == "__main__":
    sys.exit(main())
