#!/usr/bin/env python3
"""What `cmake --install` leaves behind, used as its user would: pages, completions, programs of one's own on libcowbird and libsluice.

    install_test.py BUILD             the installed tree
    install_test.py BUILD --packages  the Debian packages too, installed and tried in a fresh Debian (needs root, debootstrap, a mirror)
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import live_rack  # noqa: E402

BUILD = pathlib.Path()
PREFIX = pathlib.Path()


def run(*words, **more):
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=300, check=False, **more)


class Case(unittest.TestCase):
    def done(self, *words, **more):
        """Runs a command that must succeed; returns what it printed."""
        ended = run(*words, **more)
        self.assertEqual(ended.returncode, 0, f"{words}\n{ended.stdout}\n{ended.stderr}")
        return ended.stdout

    def need(self, program):
        if shutil.which(program) is None:
            self.skipTest(f"{program} is not installed; scripts/install-packages does it")


class Program(Case):
    def test_runs_from_where_it_was_installed(self):
        program = PREFIX / "bin/sluice"
        self.assertRegex(self.done(program, "--version"), r"^sluice \d+\.\d+\.\d+\n$")
        self.assertIn("fig11", self.done(program, "experiment", "--list", cwd="/"))

    def test_finds_its_verbs_library(self):
        folder = tempfile.mkdtemp(prefix="sluice-install-", dir="/tmp")
        self.addCleanup(shutil.rmtree, folder)
        ended = run(PREFIX / "bin/sluice", "run", "--dir", folder, "--", "true")
        self.assertNotIn("libsluice-verbs.so is not in", ended.stderr)


class Pages(Case):
    def test_one_for_each_command_and_none_that_troff_warns_of(self):
        self.need("groff")
        pages = sorted((PREFIX / "share/man/man1").glob("*.1"))
        names = {page.stem for page in pages}
        self.assertLessEqual({"sluice", "sluice-rack", "sluice-rack-up", "sluice-bench-clover", "sluice-switch"}, names)
        for page in pages:
            self.assertEqual(run("groff", "-man", "-ww", "-z", page).stderr, "", page)
        text = self.done("groff", "-man", "-Tascii", "-P-cbou", PREFIX / "share/man/man1/sluice-bench-clover.1")
        self.assertIn("--workload VALUE", text)
        self.assertIn("sluice bench clover", text)

    def test_the_reference_has_every_flag_of_the_help(self):
        program = PREFIX / "bin/sluice"
        chapter = self.done(program, "reference").split("## sluice switch\n")[1].split("\n## ")[0]
        flags = re.findall(r"^  (?:-h,)?(--[a-z-]+)", self.done(program, "switch", "--help"), re.MULTILINE)
        self.assertGreater(len(flags), 20)
        for flag in flags:
            self.assertIn(flag, chapter)


class Completions(Case):
    def words(self, *typed):
        return [line.split("\t")[0] for line in self.done(PREFIX / "bin/sluice", "__complete", *typed).splitlines()]

    def test_commands_flags_and_values(self):
        self.assertIn("rack", self.words(""))
        self.assertEqual(self.words("bench", "cl"), ["clover"])
        self.assertEqual(self.words("bench", "clover", "--worklo"), ["--workload"])
        self.assertEqual(self.words("bench", "clover", "--workload", "--threads", "2", "--pha"), ["--phase"])
        self.assertEqual(self.words("bench", "clover", "--phase", "l"), ["load"])
        self.assertEqual(self.words("bench", "clover", "--phase", ""), ["all", "load", "run"])
        self.assertEqual(self.words("dance", "xyz"), [])
        self.assertEqual(self.words(), self.words(""))

    def test_bash(self):
        script = f"""
            PATH={PREFIX}/bin:$PATH
            source {PREFIX}/share/bash-completion/completions/sluice
            COMP_WORDS=(sluice bench clover --pha); COMP_CWORD=3; _sluice; echo "${{COMPREPLY[*]}}"
            COMP_WORDS=(sluice rack ""); COMP_CWORD=2; _sluice; echo "${{COMPREPLY[*]}}"
            complete -p sluice
        """
        first, second, third = self.done("bash", "--norc", "-c", script).splitlines()
        self.assertEqual(first, "--phase")
        self.assertEqual(second.split(), ["up", "down", "status", "init", "invite", "revoke", "join", "leave", "drain"])
        self.assertIn("-F _sluice sluice", third)

    def test_zsh_and_fish_can_read_theirs(self):
        for shell, path in (("zsh", "share/zsh/site-functions/_sluice"),
                            ("fish", "share/fish/vendor_completions.d/sluice.fish")):
            with self.subTest(shell=shell):
                self.need(shell)
                self.done(shell, "-n", PREFIX / path)

    def test_fish(self):
        self.need("fish")
        script = f"source {PREFIX}/share/fish/vendor_completions.d/sluice.fish; complete -C 'sluice bench clover --pha'"
        environment = {**os.environ, "PATH": f"{PREFIX}/bin:{os.environ['PATH']}", "HOME": "/nonexistent"}
        self.assertIn("--phase", self.done("fish", "--no-config", "-c", script, env=environment))


class Services(Case):
    def test_start_what_was_installed(self):
        units = sorted((PREFIX / "lib/systemd/system").glob("*.service"))
        self.assertEqual(len(units), 3)
        for unit in units:
            text = unit.read_text()
            self.assertIn(f"ExecStart={PREFIX}/bin/sluice ", text)
            self.assertIn(f"={PREFIX}/share/sluice/rack.toml\n", text)
        self.assertTrue((PREFIX / "share/sluice/rack.toml").exists())

    def test_come_back_with_the_machine(self):
        self.need("systemctl")
        root = pathlib.Path(tempfile.mkdtemp(prefix="sluice-root-", dir="/tmp"))
        self.addCleanup(shutil.rmtree, root)
        shutil.copytree(PREFIX / "lib/systemd/system", root / "usr/lib/systemd/system")
        self.done("systemctl", f"--root={root}", "enable", "sluice-switch", "sluice-memory@memory1")
        wants = root / "etc/systemd/system"
        self.assertTrue((wants / "sluice.target.wants/sluice-memory@memory1.service").is_symlink())
        self.assertTrue((wants / "multi-user.target.wants/sluice-memory@memory1.service").is_symlink())
        self.done("systemctl", f"--root={root}", "disable", "sluice-memory@memory1")
        self.assertFalse((wants / "multi-user.target.wants/sluice-memory@memory1.service").is_symlink())
        self.assertTrue((wants / "multi-user.target.wants/sluice-switch.service").is_symlink())

    def test_the_licence_goes_along(self):
        for package in ("sluice", "sluice-verbs", "libsluice1", "libsluice-dev", "libcowbird1", "libcowbird-dev"):
            self.assertIn("Apache License", (PREFIX / "share/doc" / package / "copyright").read_text())


class OnesOwnProgram(live_rack.LiveRack, Case):
    """The examples, built outside the tree in both ways, and run."""

    def built(self, example, library, program):
        """An example's program, built with pkg-config and with CMake, and the environment in which it finds its library."""
        source = pathlib.Path(self.folder) / example
        shutil.copytree(ROOT / "examples" / example, source)
        environment = {**os.environ, "PKG_CONFIG_PATH": ":".join(map(str, PREFIX.glob("lib*/**/pkgconfig")))}
        flags = self.done("pkg-config", "--cflags", "--libs", library, env=environment).split()
        self.done("cc", "-Wall", "-Wextra", "-Werror", source / f"{program}.c", "-o", source / program, *flags)
        self.done("cmake", "-S", source, "-B", source / "build", f"-DCMAKE_PREFIX_PATH={PREFIX}")
        self.done("cmake", "--build", source / "build")
        libraries = {"LD_LIBRARY_PATH": os.pathsep.join({str(p.parent) for p in PREFIX.glob(f"lib*/**/lib{library}.so")})}
        return (source / program, source / "build" / program), {**os.environ, **libraries, "SLUICE_DIR": self.dir}

    def test_hello(self):
        programs, environment = self.built("cowbird", "cowbird", "hello")
        alone = run(programs[0], env=environment)
        self.assertEqual(alone.returncode, 1)
        self.assertIn("sluice cowbird engine", alone.stderr)
        self.sluice("rack", "up", "--no-metadata", "--memory-size", "64MiB", code=0)
        with open(self.folder + "/engine.log", "wb") as log:
            engine = subprocess.Popen([live_rack.SLUICE, "cowbird", "engine", "--dir", self.dir], stderr=log)
        self.children.append(engine)
        live_rack.wait_until(lambda: os.path.exists(self.dir + "/cowbird.sock"), "an engine")
        for program in programs:
            self.assertEqual(self.done(program, env=environment), "hello\n")

    def test_counter(self):
        programs, environment = self.built("remote", "sluice", "counter")
        alone = run(programs[0], env=environment)
        self.assertEqual(alone.returncode, 1)
        self.assertIn("is the rack up?", alone.stderr)
        self.sluice("rack", "up", "--no-metadata", "--memory-size", "64MiB", code=0)
        self.assertEqual(self.done(programs[0], "1000", env=environment), "1000\n")
        self.assertEqual(self.done(programs[1], "234", env=environment), "1234\n")

    def test_the_example_is_the_one_in_the_docs(self):
        program = (ROOT / "docs/cowbird.md").read_text().split("```c\n")[1].split("```")[0]
        self.assertIn(program, (ROOT / "examples/cowbird/hello.c").read_text())
        program = (ROOT / "docs/guides/c-client.md").read_text().split("```c\n")[1].split("```")[0]
        self.assertIn(program, (ROOT / "examples/remote/counter.c").read_text())


class Packages(Case):
    def test_in_a_fresh_debian(self):
        self.need("debootstrap")
        folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-packages-", dir="/tmp"))
        self.addCleanup(shutil.rmtree, folder)
        self.done("cpack", "--config", BUILD / "CPackConfig.cmake", "-G", "DEB", "-B", folder / "packages")
        names = sorted(p.name.split("_")[0] for p in (folder / "packages").glob("*.deb"))
        self.assertEqual(names, ["libcowbird-dev", "libcowbird1", "libsluice-dev", "libsluice1", "sluice", "sluice-verbs"])
        for library in ("libcowbird1", "libsluice1"):
            package = next((folder / "packages").glob(f"{library}_*.deb"))
            self.done("dpkg-deb", "--control", package, folder / library)
            self.assertIn(library, (folder / library / "shlibs").read_text())
        verbs = next((folder / "packages").glob("sluice-verbs_*.deb"))
        self.done("dpkg-deb", "--control", verbs, folder / "verbs")
        self.assertFalse((folder / "verbs/shlibs").exists(), "its libraries have names of others")
        root = folder / "root"
        self.done("debootstrap", "--variant=minbase", "bookworm", root)
        for path in ("etc/apt/sources.list", "etc/apt/apt.conf.d", "etc/apt/sources.list.d"):
            if pathlib.Path("/", path).is_dir():
                shutil.copytree(pathlib.Path("/", path), root / path, dirs_exist_ok=True)
            elif pathlib.Path("/", path).exists():
                shutil.copy(pathlib.Path("/", path), root / path)
        for package in (folder / "packages").glob("*.deb"):
            shutil.copy(package, root / "tmp")
        shutil.copytree(ROOT / "examples", root / "tmp/examples")
        inside = ("chroot", root, "env", "DEBIAN_FRONTEND=noninteractive")
        self.done(*inside, "apt-get", "update")
        self.done(*inside, "sh", "-c", "apt-get install -y --no-install-recommends /tmp/*.deb gcc libc6-dev pkg-config python3 ibverbs-utils")
        self.assertRegex(self.done(*inside, "sluice", "--version"), r"^sluice ")
        self.done(*inside, "sh", "-c", "cc /tmp/examples/cowbird/hello.c -o /tmp/hello $(pkg-config --cflags --libs cowbird)")
        self.assertIn("sluice cowbird engine", run(*inside, "/tmp/hello").stderr)
        self.done(*inside, "sh", "-c", "cc /tmp/examples/remote/counter.c -o /tmp/counter $(pkg-config --cflags --libs sluice)")
        self.assertIn("is the rack up?", run(*inside, "/tmp/counter").stderr)
        self.guides_run(root)
        self.done(*inside, "apt-get", "purge", "-y", *names)
        self.assertFalse((root / "usr/bin/sluice").exists())
        self.assertFalse((root / "usr/lib/sluice").exists())

    def guides_run(self, root):
        """All that need no more than the packages, in there, with processes of its own: what they leave behind ends with them."""
        guides = ["docs/tutorial.md", "docs/guides/c-client.md", "docs/guides/new-experiment.md", "docs/guides/new-rule.md"]
        for path in [*guides, "tests/integration/guides_test.py"]:
            (root / "tmp/guides" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, root / "tmp/guides" / path)
        mount = f"mount -t proc proc {root}/proc && mount -t tmpfs shm {root}/dev/shm && cd /"
        test = f"chroot {root} env PYTHONUNBUFFERED=1 python3 /tmp/guides/tests/integration/guides_test.py /usr/bin/sluice"
        paths = " ".join(f"/tmp/guides/{guide}" for guide in guides)
        print(self.done("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", f"{mount} && {test} {paths}"))


def main():
    global BUILD, PREFIX
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    packages = "--packages" in sys.argv
    if packages:
        sys.argv.remove("--packages")
    with tempfile.TemporaryDirectory(prefix="sluice-prefix-", dir="/tmp") as prefix:
        PREFIX = pathlib.Path(prefix)
        live_rack.SLUICE = str(PREFIX / "bin/sluice")
        installed = run("cmake", "--install", BUILD, "--prefix", PREFIX)
        if installed.returncode != 0:
            sys.exit(installed.stdout + installed.stderr)
        if not packages:
            del globals()["Packages"]
        unittest.main(verbosity=2)


if __name__ == "__main__":
    main()
