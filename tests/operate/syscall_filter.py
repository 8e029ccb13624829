#!/usr/bin/env python3
"""Runs a program with the system calls that a unit of systemd's leaves it, without systemd.

usage: syscall_filter.py UNIT PROGRAM [ARGUMENT...]

Understands what our units say: SystemCallFilter= lines of names and sets, first what is allowed, then what is taken from it (~) or added; and one
SystemCallErrorNumber=, without which other calls kill. Refuses what systemd knows besides: an empty filter, a deny-list alone, an error number
of a single call (CALL:EPERM). Reads the unit alone, no drop-ins. What the sets (@system-service) are, systemd-analyze tells.
"""

import ctypes
import errno
import os
import pathlib
import re
import subprocess
import sys

ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
MOST_ERRNO = 4095
NO_SUCH_CALL = -1  # others below zero: a call of another architecture's


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
    if word not in known:
        raise ValueError(f"{word}: no set that systemd-analyze knows")
    return set().union(*(expanded(inner, known) for inner in known[word]))


def words_of(line):
    """What one line of a unit names; of a misspelled name systemd only warns, and leaves it out."""
    words = line.removeprefix("~").split()
    if not words:
        raise ValueError("SystemCallFilter= without a name: it would take back what is above, which is not understood here")
    library = seccomp()
    for word in words:
        if not word.startswith("@") and library.seccomp_syscall_resolve_name(word.encode()) == NO_SUCH_CALL:
            raise ValueError(f"{word}: no system call")
    return words


def action_of(text):
    """What happens to a call that is not allowed."""
    numbers = re.findall(r"^[ \t]*SystemCallErrorNumber[ \t]*=(.*)$", text, re.MULTILINE)
    if not numbers or numbers[-1].strip() in ("", "kill"):
        return KILL_PROCESS
    word = numbers[-1].strip()
    number = int(word) if word.isascii() and word.isdigit() else getattr(errno, word, 0)
    if not 0 < number <= MOST_ERRNO:
        raise ValueError(f"SystemCallErrorNumber={word}: no error number")
    return ERRNO | number


def filter_of(unit):
    """(names of the calls that it allows, action for all others)"""
    text = pathlib.Path(unit).read_text()
    known = sets()
    lines = [line.strip() for line in re.findall(r"^[ \t]*SystemCallFilter[ \t]*=(.*)$", text, re.MULTILINE)]
    if not lines or lines[0].startswith("~"):
        raise ValueError(f"{unit}: the first SystemCallFilter is no allow-list")
    allowed = expanded("@default", known)  # which systemd adds to every allow-list
    for line in lines:
        calls = set().union(*(expanded(word, known) for word in words_of(line)))
        allowed = allowed - calls if line.startswith("~") else allowed | calls
    return allowed, action_of(text)


def seccomp():
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_rule_add.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint]
    library.seccomp_load.argtypes = [ctypes.c_void_p]
    return library


def apply(allowed, otherwise):
    library = seccomp()
    context = library.seccomp_init(otherwise)
    for name in sorted(allowed):
        number = library.seccomp_syscall_resolve_name(name.encode())
        # Negative: no call of this architecture's, or one that systemd's sets name and this libseccomp does not know yet.
        if number >= 0 and library.seccomp_rule_add(context, ALLOW, number, 0) != 0:
            raise OSError(f"seccomp refuses a rule for {name}")
    if (failed := library.seccomp_load(context)) != 0:
        raise OSError(-failed, "seccomp_load")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    apply(*filter_of(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
