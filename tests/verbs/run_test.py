#!/usr/bin/env python3
"""`sluice run` on a live rack: hosts that several programs share, drop-in libraries, names, injected faults.

usage: run_test.py SLUICE [TEST...]

SLUICE is the program. Exits with 77 when the RDMA programs are not installed.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import live_rack  # noqa: E402
import open_mpi  # noqa: E402
from live_rack import free_port, processes_of, wait_until  # noqa: E402

PROGRAMS = ("ibv_asyncwatch", "ibv_devices", "ibv_devinfo", "ibv_rc_pingpong", "ib_send_bw", "ib_write_bw", "rping")
# Asks for the first device as NCCL does, by name and version; prints its name.
BY_DLVSYM = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.dlvsym.restype = ctypes.c_void_p
libc.dlvsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
library = ctypes.CDLL("libibverbs.so.1")
def verb(name, version, result, *arguments):
    return ctypes.CFUNCTYPE(result, *arguments)(libc.dlvsym(library._handle, name, version))
get_list = verb(b"ibv_get_device_list", b"IBVERBS_1.1", ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int))
get_name = verb(b"ibv_get_device_name", b"IBVERBS_1.1", ctypes.c_char_p, ctypes.c_void_p)
status = verb(b"ibv_wc_status_str", b"IBVERBS_1.1", ctypes.c_char_p, ctypes.c_int)
verb(b"ibv_query_ece", b"IBVERBS_1.10", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
count = ctypes.c_int(0)
devices = get_list(ctypes.byref(count))
rate = verb(b"mbps_to_ibv_rate", b"IBVERBS_1.1", ctypes.c_int, ctypes.c_int)(10000)
print(count.value, get_name(devices[0]).decode(), status(10).decode(), rate)
"""

# An rsocket to port 7000 of the given address; waits for its server. And the server, which sends back what it gets once.
RSOCKETS = """
import ctypes, socket, sys, time
rsockets = ctypes.CDLL("librdmacm.so.1", use_errno=True)
address = socket.AF_INET.to_bytes(2, "little") + (7000).to_bytes(2, "big") + socket.inet_aton(sys.argv[1]) + bytes(8)
def made():
    made = rsockets.rsocket(socket.AF_INET, socket.SOCK_STREAM, 0)
    assert made >= 0, ctypes.get_errno()
    return made
buffer = ctypes.create_string_buffer(100)
"""
RSOCKET_CALL = RSOCKETS + """
for _ in range(100):
    call = made()
    if rsockets.rconnect(call, address, len(address)) == 0:
        break
    rsockets.rclose(call)
    time.sleep(0.2)
assert rsockets.rsend(call, b"hello", 5, 0) == 5, ctypes.get_errno()
assert rsockets.rrecv(call, buffer, 5, socket.MSG_WAITALL) == 5, ctypes.get_errno()
print(buffer.value.decode())
rsockets.rclose(call)
"""
RSOCKET_ECHO = RSOCKETS + """
door = made()
assert rsockets.rbind(door, address, len(address)) == 0, ctypes.get_errno()
assert rsockets.rlisten(door, 1) == 0, ctypes.get_errno()
call = rsockets.raccept(door, None, None)
assert rsockets.rrecv(call, buffer, 5, socket.MSG_WAITALL) == 5, ctypes.get_errno()
assert rsockets.rsend(call, buffer, 5, 0) == 5, ctypes.get_errno()
rsockets.rclose(call)
rsockets.rclose(door)
"""


def listens(port):
    return any(f":{port:04X} " in line and line.split()[3] == "0A"
               for table in ("/proc/net/tcp", "/proc/net/tcp6")
               for line in pathlib.Path(table).read_text().splitlines()[1:])


def is_child(pid, parent):
    """Of a process that has ended, not."""
    try:
        state, its_parent = (pathlib.Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[:2]
    except OSError:
        return False
    return state != "Z" and int(its_parent) == parent


class RunTest(live_rack.LiveRack):
    def end(self, child):
        if child.poll() is None:
            child.terminate()  # it passes that on to its program
        child.communicate(timeout=20)

    def left_over(self):
        # What it passes on takes a moment.
        wait_until(lambda: not super(RunTest, self).left_over(), "all processes have ended", 20)
        return []

    def up(self):
        subprocess.run([live_rack.SLUICE, "rack", "up", "--memory-nodes", "1", "--memory-size", "64MiB", "--metadata=false", "--dir", self.dir],
                       check=True, capture_output=True, timeout=60)

    def start(self, *words):
        child = subprocess.Popen([live_rack.SLUICE, "run", "--dir", self.dir, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.children.append(child)
        return child

    def run_program(self, *words, timeout=60):
        return subprocess.run([live_rack.SLUICE, "run", "--dir", self.dir, *words], capture_output=True, text=True, timeout=timeout, check=False)

    def serve(self, flags, *command):
        """A server that listens on a TCP port of its own; returns it and the port."""
        port = free_port()
        server = self.start(*flags, "--", *command, "-p", str(port))
        wait_until(lambda: listens(port) or server.poll() is not None, f"{command} listens")
        self.assertIsNone(server.poll(), server.communicate()[0] if server.poll() is not None else "")
        return server, str(port)

    def pingpong(self, server_flags, client_flags):
        server, port = self.serve(server_flags, "ibv_rc_pingpong", "-g", "1", "-n", "200")
        done = self.run_program(*client_flags, "--", "ibv_rc_pingpong", "-g", "1", "-n", "200", "-p", port, "127.0.0.1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        said = server.communicate(timeout=20)[0]
        self.assertEqual(server.returncode, 0, said)
        return [re.search(r"local address:.*GID (\S+)", text)[1] for text in (said, done.stdout)]

    # --- hosts ---

    def test_programs_of_one_host_have_one_address_and_reach_each_other_and_others(self):
        self.up()
        gids = self.pingpong(["--host", "a"], ["--host", "a"])
        self.assertEqual(gids[0], gids[1])
        # Several at a time: a server of another pair must not get what is for this one.
        servers = [self.serve(["--host", "a"], "ibv_rc_pingpong", "-g", "1", "-n", "2000") for _ in range(3)]
        clients = [self.start("--", "ibv_rc_pingpong", "-g", "1", "-n", "2000", "-p", port, "127.0.0.1") for _, port in servers]
        for process in clients + [server for server, _ in servers]:
            said = process.communicate(timeout=60)[0]
            self.assertEqual(process.returncode, 0, said)
        self.assertNotEqual(*self.pingpong(["--host", "a"], ["--host", "b"]))

    def test_rdma_cm_finds_the_program_of_a_host_that_listens_at_the_port(self):
        self.up()
        address = re.search(r"GID\[.*::ffff:([\d.]+)", self.run_program("--host", "a", "--", "ibv_devinfo", "-v").stdout)[1]
        servers = [self.start("--host", "a", "--", "rping", "-s", "-a", address, "-p", str(port), "-C", "5", "-v") for port in (7001, 7002)]
        for port, flags in ((7001, ["--host", "a"]), (7002, [])):
            done = None
            for _ in range(10):  # until the server listens
                time.sleep(1)
                done = self.run_program(*flags, "--", "rping", "-c", "-a", address, "-p", str(port), "-C", "5", "-v")
                if "ping data: rdma-ping-4" in done.stdout:
                    break
            self.assertIn("ping data: rdma-ping-4", done.stdout, done.stderr)
        for server in servers:
            server.communicate(timeout=20)
        twice = [self.start("--host", "a", "--verbose", "--", "rping", "-s", "-a", address, "-p", "7003", "-C", "1") for _ in range(2)]
        wait_until(lambda: any(child.poll() is not None for child in twice), "the second to listen at a port is refused")
        refused = next(child for child in twice if child.poll() is not None)
        self.assertIn("another id or program of this host listens at that port", refused.communicate()[0])

    def test_a_host_goes_when_its_last_program_has_gone_also_one_that_was_killed(self):
        self.up()
        server, _ = self.serve(["--host", "a"], "ibv_rc_pingpong", "-g", "1")
        host = pathlib.Path(self.dir) / "host-a"
        self.assertTrue(host.exists())
        program = next(pid for pid in processes_of("ibv_rc_pingpong") if is_child(pid, server.pid))
        os.kill(program, signal.SIGKILL)
        self.assertEqual(server.wait(timeout=10), 128 + signal.SIGKILL)
        wait_until(lambda: not host.exists(), "the host has gone", 10)
        self.pingpong(["--host", "a"], ["--host", "a"])

    def test_a_host_that_runs_is_given_no_other_address(self):
        self.up()
        server, _ = self.serve(["--host", "a", "--ip", "10.77.9.9"], "ibv_rc_pingpong", "-g", "1")
        for flags, told in ((["--ip", "10.77.9.8"], '--ip = "10.77.9.8": host a runs already, with 10.77.9.9'),
                            (["--mac", "02:00:0a:4d:00:0a"], '--mac = "02:00:0a:4d:00:0a": host a runs already, with '),
                            (["--switch", "udp:127.0.0.1:9", "--ip", "10.77.9.9"], '--switch = "udp:127.0.0.1:9": host a runs already, with shm:')):
            refused = self.run_program("--host", "a", *flags, "--", "true")
            self.assertEqual(refused.returncode, 1, refused.stdout + refused.stderr)
            self.assertIn(told, refused.stderr)
        self.assertEqual(self.run_program("--host", "a", "--ip", "10.77.9.9", "--", "true").returncode, 0)
        server.kill()

    def test_a_host_that_could_not_start_is_none_of_the_racks_daemons(self):
        self.up()
        failed = self.run_program("--host", "memory1", "--", "true")
        self.assertEqual(failed.returncode, 1, failed.stdout + failed.stderr)
        self.assertFalse((pathlib.Path(self.dir) / "host-memory1.pid").exists())
        status = subprocess.run([live_rack.SLUICE, "rack", "status", "--dir", self.dir], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(status.returncode, 0, status.stdout + status.stderr)

    def test_a_signal_for_sluice_run_is_for_its_program_which_ends_as_it_would_alone(self):
        self.up()
        for sent in (signal.SIGTERM, signal.SIGHUP):
            server, _ = self.serve([], "ibv_rc_pingpong", "-g", "1")
            program = next(pid for pid in processes_of("ibv_rc_pingpong") if is_child(pid, server.pid))
            server.send_signal(sent)
            self.assertEqual(server.wait(timeout=20), 128 + sent)
            self.assertNotIn(program, processes_of("ibv_rc_pingpong"))
        # Ctrl-C is for the whole group; the program decides what comes of it.
        shell = ("-c", "trap 'echo caught; exit 7' INT; echo there; while :; do sleep 0.1; done")
        group = subprocess.Popen([live_rack.SLUICE, "run", "--dir", self.dir, "--", "sh", *shell], stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.children.append(group)
        self.assertEqual(group.stdout.readline(), "there\n")
        os.killpg(group.pid, signal.SIGINT)
        self.assertEqual(group.communicate(timeout=20)[0], "caught\n")
        self.assertEqual(group.returncode, 7)

    def test_a_program_goes_with_the_sluice_run_that_was_killed(self):
        self.up()
        server, _ = self.serve([], "ibv_rc_pingpong", "-g", "1")
        program = next(pid for pid in processes_of("ibv_rc_pingpong") if is_child(pid, server.pid))
        server.kill()  # who has its address next would share it with the program otherwise
        server.wait()
        wait_until(lambda: program not in processes_of("ibv_rc_pingpong"), "the program has ended", 10)

    def test_a_second_program_with_an_address_is_told_of_the_first(self):
        self.up()
        self.serve(["--ip", "10.77.200.9"], "ibv_rc_pingpong", "-g", "1")
        log = self.watch("second", "--ip", "10.77.200.9")
        self.await_said(log, "another NIC on this network has our address 10.77.200.9")

    # --- other switches ---

    def test_programs_reach_a_switch_of_another_machine_by_udp(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", 0))
            where = f"udp:127.0.0.1:{free.getsockname()[1]}"
        switch = subprocess.Popen([live_rack.SLUICE, "switch", "--dir", self.dir, "--listen", where], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.children.append(switch)
        wait_until(lambda: (pathlib.Path(self.dir) / "switch.sock").exists(), "the switch is there", 20)
        gids = self.pingpong(["--switch", where, "--ip", "10.77.200.1"], ["--switch", where, "--ip", "10.77.200.2"])
        self.assertEqual(gids, ["::ffff:10.77.200.1", "::ffff:10.77.200.2"])
        self.assertIn("needs --ip", self.run_program("--switch", where, "--", "true").stderr)

    def test_what_no_nic_could_use_is_refused_before_a_program_is_started(self):
        for flags, what in ((["--trace", "/nowhere/t.pcap"], "cannot be written"), (["--trace", self.folder], "is a directory"),
                            (["--trace", f"{self.folder}/a,b.pcap"], "must have no comma"), (["--switch", "nowhere", "--ip", "10.77.0.9"], "expected KIND:ADDRESS"),
                            (["--switch", "tcp:127.0.0.1:7471", "--ip", "10.77.0.9"], "no switch is reached by tcp"),
                            (["--switch", "udp:127.0.0.1", "--ip", "10.77.0.9"], "the port number is missing")):
            with self.subTest(flags=flags):
                done = self.run_program(*flags, "--", "true")
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(what, done.stderr)

    def test_a_trace_is_where_it_was_meant_to_be_though_the_program_goes_elsewhere(self):
        self.up()
        os.mkdir(self.folder + "/elsewhere")
        done = subprocess.run([live_rack.SLUICE, "run", "--dir", self.dir, "--trace", "t.pcap", "--", "sh", "-c", f"cd {self.folder}/elsewhere && ibv_devinfo"],
                              cwd=self.folder, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(os.path.exists(self.folder + "/t.pcap"))
        self.assertEqual(os.listdir(self.folder + "/elsewhere"), [])

    # --- names ---

    def test_the_device_has_the_name_that_was_asked_for(self):
        self.up()
        self.assertIn("mlx5_0", self.run_program("--device", "mlx5_0", "--", "ibv_devices").stdout)

    def test_devinfo_tells_the_truth(self):
        self.up()
        said = self.run_program("--", "ibv_devinfo", "-v").stdout
        told = dict(re.findall(r"^\s*([\w ]+):\s+(.+?)\s*$", said, re.MULTILINE))
        expected = {"hca_id": "sluice0", "vendor_id": "0xffffff", "atomic_cap": "ATOMIC_HCA (1)", "max_sge": "32", "max_qp_wr": "16384",
                    "max_qp_rd_atom": "16", "max_qp_init_rd_atom": "128", "max_mw": "0", "max_mcast_grp": "0", "phys_port_cnt": "1", "state": "PORT_ACTIVE (4)",
                    "max_mtu": "4096 (5)", "link_layer": "Ethernet", "max_srq_sge": "32", "num_comp_vectors": "1",
                    "maximum available device memory": "262144Bytes", "gid_tbl_len": "4", "active_speed": "25.0 Gbps (32)"}
        for name, value in expected.items():
            self.assertEqual(told.get(name), value, said)
        gids = re.findall(r"GID\[\s*(\d)\]:\s+(\S+?),? (RoCE v2)", said)
        self.assertEqual([index for index, _, _ in gids], ["0", "1", "2", "3"], said)
        self.assertEqual([gid.startswith("::ffff:") for _, gid, _ in gids], [False, True, False, True])

    # --- drop-in libraries ---

    def test_a_program_that_opens_libibverbs_by_name_and_asks_by_version_finds_the_device(self):
        self.up()
        drop_in = self.folder + "/drop-in"
        without = self.run_program("--", sys.executable, "-c", BY_DLVSYM)
        self.assertNotIn("1 sluice0", without.stdout, "preloading does not reach it")
        done = self.run_program("--drop-in", drop_in, "--", sys.executable, "-c", BY_DLVSYM)
        self.assertEqual(done.stdout, "1 sluice0 remote access error 3\n", done.stderr)
        # Everything that links libibverbs, librdmacm and the drivers' libraries still starts.
        for program in ("ib_write_bw", "rping", "ibv_devices"):
            self.assertNotIn("symbol", self.run_program("--drop-in", drop_in, "--", program, "--help").stderr)

    def container(self, ip, *flags):
        """What a container's environment is told to be."""
        done = self.run_program("--drop-in", self.folder + "/drop-in", "--ip", ip, *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return dict(os.environ) | dict(line.split("=", 1) for line in done.stdout.splitlines() if not line.startswith("#"))

    def test_a_container_needs_no_preloading(self):
        self.up()
        said = subprocess.run(["ibv_devinfo", "-v"], env=self.container("10.77.9.9"), capture_output=True, text=True, timeout=30, check=False).stdout
        self.assertIn("::ffff:10.77.9.9", said)
        told = self.container("10.77.9.9", "--mac", "02:00:00:00:00:09", "--mtu", "1024", "--trace", "t.pcap", "--impair", "drop=1%", "--rnr", "1%", "--verbose", "--counters", "c.json", "--dcqcn")
        self.assertEqual({name: told[f"SLUICE_{name}"] for name in ("MAC", "MTU", "TRACE", "IMPAIR", "RNR", "VERBOSE", "COUNTERS", "DCQCN", "LINE_RATE")},
                         {"MAC": "02:00:00:00:00:09", "MTU": "1024", "TRACE": "t.pcap", "IMPAIR": "drop=1%", "RNR": "1%", "VERBOSE": "1", "COUNTERS": "c.json", "DCQCN": "1",
                          "LINE_RATE": "40000"})
        self.assertEqual(self.run_program().returncode, 2)

    def test_rsockets_work_in_drop_in_libraries_also_for_who_opens_them_by_name(self):
        self.up()
        server = self.start("--drop-in", self.folder + "/drop-in", "--ip", "10.77.200.1", "--", sys.executable, "-c", RSOCKET_ECHO, "10.77.200.1")
        # Filled once more meanwhile: the server keeps what it has loaded.
        done = subprocess.run([sys.executable, "-c", RSOCKET_CALL, "10.77.200.1"], env=self.container("10.77.200.2"), capture_output=True, text=True,
                              timeout=60, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, "hello\n"), done.stderr)
        said = server.communicate(timeout=20)[0]
        self.assertEqual(server.returncode, 0, said)

    # --- MPI ---

    @unittest.skipIf(not open_mpi.is_installed(), "no Open MPI")
    def test_two_ranks_of_open_mpi_over_ucx_exchange_messages_and_access_each_others_memory(self):
        self.up()
        program = open_mpi.build(self.folder)
        for faults in ([], ["--impair", "drop=1%,seed=7"]):
            done = open_mpi.run([live_rack.SLUICE, "run", "--dir", self.dir, *faults, "--"], program, 120)
            self.assertEqual((done.returncode, done.stdout), (0, open_mpi.ALL_RIGHT), done.stderr)

    # --- other people's CI ---

    def test_the_steps_of_the_documented_actions_job_run(self):
        text = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "verbs.md").read_text()
        job = text[text.index("```yaml"):]
        job = job[:job.index("```", 7)]
        variables = dict(os.environ) | dict(re.findall(r"^      ([A-Z]+): (.+)$", job, re.MULTILINE))
        variables |= {"SLUICE": live_rack.SLUICE, "XDG_RUNTIME_DIR": self.folder}
        self.dir = self.folder + "/sluice"  # where a rack is without --dir
        steps = re.findall(r"- name: (.+)\n(?:        (?!run).+\n)*        run: (?:\|\n((?:          .+\n)+)|(.+)\n)", job)
        steps = [(name, block or line) for name, block, line in steps if "$SLUICE" in block + line]
        self.assertEqual(len(steps), 5)
        for name, script in steps:
            done = subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script], env=variables, cwd=self.folder, capture_output=True,
                                  text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 0, f"{name}\n{done.stdout}\n{done.stderr}")
        self.assertGreater((pathlib.Path(self.folder) / "server.pcap").stat().st_size, 10_000)

    # --- counters and congestion ---

    def counted(self, name):
        """What a NIC has counted into this file; nothing while there is none."""
        path = pathlib.Path(self.folder) / name
        return json.loads(path.read_text()) if path.exists() else {}

    def test_counters_are_there_while_a_program_runs_and_at_its_end_however_it_ends(self):
        self.up()
        command = ("ib_write_bw", "-F", "-x", "1", "-u", "10", "-D", "50")
        server, port = self.serve(["--counters", self.folder + "/server.json"], *command)
        client = self.start("--counters", self.folder + "/client.json", "--", *command, "-p", port, "127.0.0.1")
        wait_until(lambda: self.counted("client.json").get("nic", {}).get("rx_responses", 0) > 100, "the client counts while it runs", 10)
        wait_until(lambda: self.counted("server.json")["nic"]["rx_requests"] > 100, "the server does, which calls no verb", 10)
        before = self.counted("client.json")
        self.assertIs(before["complete"], False)
        wait_until(lambda: self.counted("client.json")["port"]["tx_bytes"] > before["port"]["tx_bytes"], "it goes on", 10)
        killed = next(pid for pid in processes_of("ib_write_bw") if is_child(pid, server.pid))
        os.kill(killed, signal.SIGKILL)
        said = client.communicate(timeout=60)[0]
        self.assertIn("Failed status 12", said)  # and it calls exit()
        self.assertIs(self.counted("client.json")["complete"], True)
        self.assertGreater(self.counted("client.json")["nic"]["timeouts"], 0)
        self.assertEqual(server.wait(timeout=20), 128 + signal.SIGKILL)
        left = self.counted("server.json")
        self.assertEqual((left["process"], left["program"], left["complete"]), (killed, "ib_write_bw", False))
        self.assertGreater(left["nic"]["rx_requests"], 100)
        self.assertEqual(sorted(os.listdir(self.folder)), ["client.json", "run", "server.json"])

    def test_no_program_writes_over_the_counters_of_another(self):
        self.up()
        file = self.folder + "/c.json"
        self.run_program("--counters", file, "--", "ibv_devinfo")
        done = self.run_program("--counters", file, "--", "sh", "-c", "ibv_devinfo; ibv_devinfo")
        first, second = self.counted("c.json")["process"], int(re.search(r"the counters of process (\d+) are in", done.stderr)[1])
        self.assertNotEqual(first, second)
        self.assertEqual(self.counted(f"c.json.{second}")["process"], second)
        alive = self.watch("alive", "--counters", file)
        owner = self.counted("c.json")["process"]
        self.assertNotIn(owner, (first, second))
        self.assertNotIn("is there already", alive.read_text())
        self.assertIn("is there already", self.run_program("--counters", file, "--", "ibv_devinfo").stderr)
        self.assertEqual(self.counted("c.json")["process"], owner)
        self.run_program("--counters", self.folder + "/p-%p.json", "--", "sh", "-c", "ibv_devinfo; ibv_devinfo")
        self.assertEqual(len([name for name in os.listdir(self.folder) if re.fullmatch(r"p-\d+.json", name)]), 2)

    def test_counters_are_shown_to_people_also_those_of_a_program_that_was_killed(self):
        self.up()
        _, port = self.serve([], "ibv_rc_pingpong", "-g", "1")
        told = self.run_program("--counters", "-", "--", "sh", "-c", f"ibv_rc_pingpong -g 1 -p {port} 127.0.0.1; exit 3")
        self.assertEqual(told.returncode, 3)
        self.assertRegex(told.stderr, r"the NIC of ibv_rc_pingpong \(process \d+, [\d.]+\) has counted:\n(?s:.*)  rx_requests +4000  request packets executed\n")
        self.assertNotIn(" 0  ", told.stderr)
        self.assertIn("no program has opened the device", self.run_program("--counters", "-", "--", "true").stderr)
        server, _ = self.serve(["--counters", "-"], "ibv_rc_pingpong", "-g", "1")
        server.terminate()
        self.assertRegex(server.communicate(timeout=20)[0], r"the NIC of ibv_rc_pingpong .* has counted, but for its last second:")
        other = pathlib.Path(self.folder) / "results.txt"
        other.write_text("mine\n")
        for flags, what in ((["--counters", "/nowhere/c.json"], "cannot be written"), (["--counters", str(other)], "no NIC has written it"), (["--counters", self.folder], "is a directory"),
                            (["--counters", "/dev/null"], "must be a file"), (["--line-rate", "25000"], "needs --dcqcn")):
            refused = self.run_program(*flags, "--", "true")
            self.assertEqual(refused.returncode, 2, refused.stderr)
            self.assertIn(what, refused.stderr)
        self.assertEqual(other.read_text(), "mine\n")

    def congest(self, name, *flags):
        """Two senders to one receiver, whose way out of the switch is congested; what the NICs of receivers and senders have counted."""
        command = ("ib_write_bw", "-F", "-x", "1", "-u", "18", "-D", "2")
        servers = [self.serve(["--host", "receiver", "--counters", f"{self.folder}/{name}-r{i}.json", *flags], *command) for i in range(2)]
        clients = [self.start("--counters", f"{self.folder}/{name}-s{i}.json", *flags, "--", *command, "-p", port, "127.0.0.1")
                   for i, (_, port) in enumerate(servers)]
        for process in clients + [server for server, _ in servers]:
            said = process.communicate(timeout=60)[0]
            self.assertEqual(process.returncode, 0, said)
        return [{counter: sum(self.counted(f"{name}-{side}{i}.json")["nic"][counter] for i in range(2)) for counter in ("rx_ecn_marked", "tx_cnp", "rx_cnp")}
                for side in "rs"]

    def test_programs_send_congestion_notifications_and_obey_them_if_they_shall(self):
        self.start_switch("--ecn-threshold", "64KiB")
        wait_until(lambda: self.run_program("--", "true").returncode == 0, "the switch is there", 20)
        receivers, senders = self.congest("with", "--dcqcn", "--line-rate", "25000")
        self.assertGreater(receivers["rx_ecn_marked"], 0)
        self.assertGreater(receivers["tx_cnp"], 0)
        self.assertGreater(senders["rx_cnp"], 0)
        self.assertEqual((receivers["rx_cnp"], senders["tx_cnp"]), (0, 0))
        without = self.congest("without")
        self.assertEqual({value for counted in without for value in counted.values()}, {0})

    def test_a_port_has_the_line_rate_that_congestion_control_goes_by(self):
        self.up()
        for flags, told in (([], "4X (2) 25.0 Gbps (32)"), (["--dcqcn"], "4X (2) 10.0 Gbps (8)"), (["--dcqcn", "--line-rate", "25000"], "1X (1) 25.0 Gbps (32)")):
            said = self.run_program(*flags, "--", "ibv_devinfo", "-v").stdout
            self.assertEqual(" ".join(re.findall(r"active_(?:width|speed):\s+(.+)", said)), told)

    # --- faults ---

    def test_a_link_that_is_killed_ends_a_program_in_its_configured_time(self):
        self.up()
        # ib_write_bw always has something under way: who only waits for a receive cannot notice, on no NIC.
        command = ("ib_write_bw", "-F", "-x", "1", "-u", "10", "-D", "50")
        _, port = self.serve([], *command)
        began = time.monotonic()
        done = self.run_program("--kill-link-after", "1s", "--", *command, "-p", port, "127.0.0.1")
        self.assertIn("Failed status 12", done.stdout + done.stderr)
        self.assertLess(time.monotonic() - began, 15)
        wrong = self.run_program("--kill-link-after", "soon", "--", "true")
        self.assertIn("a time such as 5s", wrong.stderr)

    def await_said(self, log, text):
        wait_until(lambda: text in log.read_text(), f"{text!r} is said", 20)

    def watch(self, name, *flags):
        """A program that prints its device's async events; the file that it prints to."""
        log = pathlib.Path(self.folder) / name
        with log.open("w") as out:
            self.children.append(subprocess.Popen([live_rack.SLUICE, "run", "--dir", self.dir, *flags, "--", "stdbuf", "-oL", "ibv_asyncwatch"],
                                                  stdout=out, stderr=subprocess.STDOUT))
        self.await_said(log, "async event FD")
        return log

    def start_switch(self, *flags):
        switch = subprocess.Popen([live_rack.SLUICE, "switch", "--dir", self.dir, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.children.append(switch)
        return switch

    def test_a_link_that_goes_down_and_comes_back_is_told(self):
        switch = self.start_switch()
        wait_until(lambda: self.run_program("--", "true").returncode == 0, "the switch is there", 20)
        cut = self.watch("cut", "--kill-link-after", "1s")
        whole = self.watch("whole")
        self.await_said(cut, "IBV_EVENT_PORT_ERR (10), port 1")
        self.assertNotIn("PORT_ERR", whole.read_text())
        switch.kill()
        switch.wait()
        self.await_said(whole, "IBV_EVENT_PORT_ERR (10), port 1")
        self.start_switch()
        self.await_said(whole, "IBV_EVENT_PORT_ACTIVE (9), port 1")
        self.assertNotIn("PORT_ACTIVE", cut.read_text())

    def test_receivers_that_feign_not_to_be_ready_hold_a_program_up_and_do_not_break_it(self):
        self.up()
        trace = self.folder + "/rnr.pcap"
        server, port = self.serve(["--rnr", "5%", "--trace", trace], "ib_send_bw", "-F", "-x", "1", "-n", "500", "-u", "18")
        done = self.run_program("--", "ib_send_bw", "-F", "-x", "1", "-n", "500", "-u", "18", "-p", port, "127.0.0.1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(server.wait(timeout=20), 0)
        shown = subprocess.run([live_rack.SLUICE, "pcap", "show", trace], capture_output=True, text=True, timeout=60, check=False).stdout
        self.assertRegex(shown, r"(?i)rnr")


if __name__ == "__main__":
    live_rack.SLUICE = os.path.abspath(sys.argv[1])
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        print("skipped: not installed:", ", ".join(missing))
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
