#!/usr/bin/env python3
"""Guides are run as they stand: every ```console block of a Markdown file, in one shell, and what it says is printed must be printed.

usage: guides_test.py SLUICE GUIDE...

Behind `$ ` stands a command; the lines behind it must be found among what it prints (stdout and stderr), in their order; `…` stands for anything. A command
that ends with an error fails the guide, unless a `not …` is what it shows. A block behind "`NAME`:" is the file of that name. Headers and libraries are
the build's.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATIENCE_S = 120  # of a command
END = "--end-of-command--"


def commands_of(text):
    """[command, [expected lines]] of all console blocks."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.M | re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif found:
                found[-1][1].append(line)
    return found


def files_of(text):
    """{name: contents} of the blocks that are files."""
    return dict(re.findall(r"`([\w.-]+)`:\n\n```\w+\n(.*?)^```", text, re.M | re.S))


def pattern_of(line):
    return re.compile(".*".join(re.escape(part) for part in line.split("…")))


def missing(expected, printed):
    """The first expected line that is not there, or None."""
    lines = iter(printed.splitlines())
    for wanted in expected:
        if wanted.strip() == "…":
            continue
        if not any(pattern_of(wanted).search(line) for line in lines):
            return wanted
    return None


class Shell:
    """One bash, so that jobs and files live from one command to the next."""

    def __init__(self, folder, sluice):
        build = pathlib.Path(sluice).resolve().parent
        environment = {**os.environ, "PATH": f"{build}:{build}/integrations/rocksdb:{os.environ['PATH']}", "XDG_RUNTIME_DIR": folder,
                       "CPATH": f"{ROOT}/src/libsluice:{ROOT}/src/libcowbird", "LIBRARY_PATH": str(build), "LD_LIBRARY_PATH": str(build)}
        self.process = subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
                                        env=environment, start_new_session=True)

    def run(self, command):
        """(its exit code, what it printed)."""
        self.process.stdin.write(f"{command}\nprintf '\\n%s %s\\n' {END} $?\n")
        self.process.stdin.flush()
        printed = []

        def late(_signal, _frame):
            raise TimeoutError(f"no end within {PATIENCE_S} s:\n$ {command}\n{''.join(printed)}")

        signal.signal(signal.SIGALRM, late)
        signal.alarm(PATIENCE_S)
        try:
            for line in self.process.stdout:
                if line.startswith(END):
                    return int(line.split()[1]), "".join(printed)
                printed.append(line)
        finally:
            signal.alarm(0)
        raise EOFError(f"the shell has gone:\n$ {command}\n{''.join(printed)}")

    def end(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def run_guide(sluice, guide):
    """What is wrong, or ""."""
    steps = commands_of(guide.read_text())
    if not steps:
        return "there is no command in it"
    folder = tempfile.mkdtemp(prefix="sluice-guide-", dir="/tmp")
    for name, contents in files_of(guide.read_text()).items():
        pathlib.Path(folder, name).write_text(contents)
    shell = Shell(folder, sluice)
    before = ""  # the command before, and what it printed: where a cause is said that shows later
    try:
        for command, expected in steps:
            code, printed = shell.run(command)
            gone = missing(expected, printed)
            if gone is not None:
                return f"{before}$ {command}\nprinted no line like\n{gone}\nbut\n{printed}"
            if code != 0 and not any(line.startswith("not ") for line in expected):
                return f"{before}$ {command}\nended with {code}:\n{printed}"
            before = f"$ {command}\n{printed}"
        return ""
    except (TimeoutError, EOFError) as error:
        return str(error)
    finally:
        shell.end()
        subprocess.run([sluice, "rack", "down", "--dir", f"{folder}/sluice"], capture_output=True, timeout=60, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def main():
    sluice, guides = sys.argv[1], [pathlib.Path(g) for g in sys.argv[2:]]
    failed = 0
    for guide in guides:
        wrong = run_guide(sluice, guide)
        print(f"{guide.name}: {'FAILED' if wrong else 'ok'}, {len(commands_of(guide.read_text()))} commands", flush=True)
        if wrong:
            print(wrong)
        failed += bool(wrong)
    print(f"{len(guides) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
