"""Two ranks of Open MPI over UCX's rc_verbs, each on a NIC of its own: mpi_exchange.c, which checks every byte that it sends, puts or gets."""

import os
import pathlib
import shutil
import subprocess

SOURCE = pathlib.Path(__file__).with_name("mpi_exchange.c")
ALL_RIGHT = "all right\n"  # what a run prints
PROGRAMS = ("mpicc", "mpirun")


def is_installed():
    return all(shutil.which(program) for program in PROGRAMS)


def build(directory):
    program = str(pathlib.Path(directory) / "mpi_exchange")
    subprocess.run(["mpicc", "-O2", "-o", program, str(SOURCE)], check=True, timeout=60)
    return program


def run(launcher, program, seconds):
    """`launcher` is what gives each rank its NIC: `sluice run … --`."""
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    ucx = ["--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "btl", "^openib,vader,tcp,uct", "-x", "UCX_TLS=rc_v", "-x", "UCX_NET_DEVICES=sluice0:1",
           "-x", "UCX_RC_TIMEOUT=100ms"]  # its own is a second: what a loss at the end of a message costs
    alone = ["--mca", "oob_tcp_if_include", "lo"]  # a namespace may have no other
    return subprocess.run(["mpirun", *root, "--oversubscribe", "-np", "2", *alone, *ucx, *launcher, program], capture_output=True, text=True, timeout=seconds,
                          check=False)
