#!/usr/bin/env python3
"""Runs a program with the system calls that a unit of systemd's leaves it, without systemd.

usage: syscall_filter.py UNIT PROGRAM [ARGUMENT...]

Reads SystemCallFilter and SystemCallErrorNumber as systemd does: an allow-list first, then what is taken from it; what is not allowed kills, unless there
is an error number. What the sets (@system-service) are, systemd-analyze tells.
"""

import ctypes
import errno
import os
import pathlib
import re
import subprocess
import sys

ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def sets():
    """{"@name": [call or other set]}"""
    told = subprocess.run(["systemd-analyze", "syscall-filter"], capture_output=True, text=True, check=True).stdout
    found, name = {}, None
    for line in told.splitlines():
        if line.startswith("@"):
            name = line.strip()
            found[name] = []
        elif not line.strip():
            name = None
        elif name and line.startswith("    ") and not line.strip().startswith("#"):
            found[name].append(line.strip())
    return found


def expanded(word, known):
    if not word.startswith("@"):
        return {word}
    return set().union(*(expanded(inner, known) for inner in known[word]))


def filter_of(unit):
    """(names of the calls that it allows, action for all others)"""
    text = pathlib.Path(unit).read_text()
    known = sets()
    lines = [words.strip() for words in re.findall(r"^SystemCallFilter=(.*)$", text, re.MULTILINE)]
    if not lines or lines[0].startswith("~"):
        raise ValueError(f"{unit}: the first SystemCallFilter is no allow-list")
    allowed = expanded("@default", known)  # which systemd adds to every allow-list
    for line in lines:
        calls = set().union(*(expanded(word, known) for word in line.lstrip("~").split()))
        allowed = allowed - calls if line.startswith("~") else allowed | calls
    number = re.search(r"^SystemCallErrorNumber=(\w+)$", text, re.MULTILINE)
    return allowed, ERRNO | getattr(errno, number[1]) if number else KILL_PROCESS


def apply(allowed, otherwise):
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_rule_add.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint]
    library.seccomp_load.argtypes = [ctypes.c_void_p]
    context = library.seccomp_init(otherwise)
    for name in sorted(allowed):
        number = library.seccomp_syscall_resolve_name(name.encode())
        # Negative: no call of this architecture's.
        if number >= 0 and library.seccomp_rule_add(context, ALLOW, number, 0) != 0:
            raise OSError(f"seccomp refuses a rule for {name}")
    if (failed := library.seccomp_load(context)) != 0:
        raise OSError(-failed, "seccomp_load")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    apply(*filter_of(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
