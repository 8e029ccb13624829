"""Two machines for tests of real processes: this script's network namespace and another, joined by veth pairs."""

import os
import subprocess
import sys


def enter_namespace():
    """Runs this script again in a network namespace of its own, unless it is in one; exits with 77 where none can be had."""
    if "SLUICE_IN_NAMESPACE" in os.environ:
        return
    as_root = [] if os.geteuid() == 0 else ["--map-root-user", "--user"]
    if subprocess.run(["unshare", *as_root, "--net", "ip", "link", "add", "here", "type", "veth", "peer", "name", "there"], check=False,
                      capture_output=True).returncode:
        print("skipped: no network namespaces, or no ip")
        sys.exit(77)
    os.environ["SLUICE_IN_NAMESPACE"] = "1"
    os.execvp("unshare", ["unshare", *as_root, "--net", sys.executable, *sys.argv])


class Neighbor:
    """The other namespace, as long as this lasts: `here` and `there` are the two ends of a wire, with these addresses; commands there begin with `prefix`."""

    def __init__(self, here, there):
        self.holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo there; exec sleep 3600"], stdout=subprocess.PIPE, text=True)
        self.holder.stdout.readline()
        self.prefix = ["nsenter", "-t", str(self.holder.pid), "-n"]
        self.run_there("ip link set lo up")
        self.run_here("ip link set lo up")
        self.join("here", "there")
        self.run_here(f"ip address add {here}/24 dev here")
        self.run_there(f"ip address add {there}/24 dev there")

    def join(self, near, far, *options):
        """One more wire, without addresses."""
        self.run_here(" ".join(["ip link add", near, *options, "type veth peer name", far, *options]))
        self.run_here(f"ip link set {far} netns {self.holder.pid}")
        self.run_here(f"ip link set {near} up")
        self.run_there(f"ip link set {far} up")

    @staticmethod
    def run_here(command):
        subprocess.run(command.split(), check=True)

    def run_there(self, command):
        subprocess.run([*self.prefix, *command.split()], check=True)

    def end(self):
        self.holder.kill()
        self.holder.communicate()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
