"""A throw-away QEMU guest with Linux Soft-RoCE (rdma_rxe), and the network it shares with us.

    enter_private_network()                 # once, first thing in main
    with Lab() as lab, lab.boot("rxe1", "10.77.0.11") as guest:
        guest.run("rdma link")

Everything happens in a network, process and mount namespace of our own, as root or not: nothing of the machine's network is
touched, and when this process ends, however it ends, the kernel ends the guests and takes the network away.
"""

import base64
import hashlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import kernel
from kernel import Unavailable
from relay import Relay

HERE = pathlib.Path(__file__).resolve().parent
HOST_ADDRESS = "10.77.0.1"
PREFIX = 24
FOLDER = "/mnt"  # within our mount namespace: sockets, logs, initramfs
NIC_INTERFACE = "nic0"  # our end of the veth pair: for an AF_PACKET port; the kernel has no address there
PROGRAMS = ["ip", "tc", "rdma", "nft"]
BOOT_SECONDS = 180
BOOT_SECONDS_KVM = 15
MARK = "SLUICE_INTEROP_KERNEL"  # set within the namespaces: the folder of the kernel, fetched while there was a network


def enter_private_network():
    """Runs this program again in namespaces of its own, unless it already is there."""
    if os.environ.get(MARK):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the first process of a namespace has no default action
        return
    if shutil.which("qemu-system-x86_64") is None:
        raise Unavailable("QEMU is not installed; scripts/install-packages does it")
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        command += ["--user", "--map-root-user"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        raise Unavailable("no namespaces of our own here (neither root nor unprivileged user namespaces)")
    os.execvpe(command[0], [*command, sys.executable, *sys.argv], os.environ | {MARK: str(kernel.kernel())})


def exit_with(main):
    """Ends this program with what main returns; with 77, after a line that says why, where no guest can be had."""
    try:
        sys.exit(main())
    except Unavailable as why:
        print(f"skipped: {why}")
        sys.exit(77)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()}")


def ip(*arguments):
    run("ip", *arguments)


class GuestDied(RuntimeError):
    pass


class Lab:
    """A bridge, our address on it, and the veth pair whose end NIC_INTERFACE is for our NIC."""

    def __init__(self, mtu=9000):
        self.mtu = mtu
        self.guests = []
        # KVM is there on some virtual machines, but does not work: tried once for each kernel of the machine, then remembered.
        self.no_kvm = kernel.cache_folder() / f"no-kvm-{os.uname().release}"
        self.kvm = os.access("/dev/kvm", os.R_OK | os.W_OK) and not self.no_kvm.exists()

    def __enter__(self):
        run("mount", "-t", "tmpfs", "tmpfs", FOLDER)  # in our mount namespace alone
        for setting in pathlib.Path("/proc/sys/net/ipv6/conf").glob("*/disable_ipv6"):
            setting.write_text("1\n")
        ip("link", "set", "lo", "up")
        ip("link", "add", "br0", "type", "bridge", "forward_delay", "0")
        ip("link", "set", "br0", "mtu", str(self.mtu), "up")
        ip("addr", "add", f"{HOST_ADDRESS}/{PREFIX}", "dev", "br0")
        ip("link", "add", NIC_INTERFACE, "mtu", str(self.mtu), "type", "veth", "peer", "name", "nic0-br", "mtu", str(self.mtu))
        ip("link", "set", "nic0-br", "master", "br0", "up")
        ip("link", "set", NIC_INTERFACE, "up")
        self.kernel = pathlib.Path(os.environ[MARK])
        return self

    def __exit__(self, *_):
        for guest in self.guests:
            guest.stop()
        ip("link", "del", "br0")
        ip("link", "del", NIC_INTERFACE)
        run("umount", FOLDER)

    def forgo_kvm(self):
        self.kvm = False
        self.no_kvm.touch()

    def boot(self, name, address, files=None, mtu=1500):
        """A guest; `files` {path in the guest: file here} go into it with the libraries they need."""
        guest = RxeVm(self, name, address, files or {}, mtu)
        self.guests.append(guest)
        guest.start()
        return guest


class RxeVm:
    def __init__(self, lab, name, address, files, mtu):
        self.lab, self.name, self.address, self.files, self.mtu = lab, name, address, files, mtu
        self.place = pathlib.Path(FOLDER)
        self.interface = f"tap-{name}"
        self.relay = None
        self.qemu = None
        self.channel = None
        self.received = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        netdev = self.join_bridge()
        image = self.place / f"{self.name}.cpio"
        image.write_bytes(kernel.initramfs(self.lab.kernel, HERE / "guest_init.sh", PROGRAMS, self.files))
        began = time.monotonic()
        try:
            self.launch(netdev, image)
        except GuestDied:
            if not self.lab.kvm:
                raise
            self.lab.forgo_kvm()
            self.end()
            self.launch(netdev, image)
        self.boot_seconds = time.monotonic() - began

    def join_bridge(self):
        """QEMU's -netdev: a tap on the bridge, or where there is none to be had a veth pair and a relay."""
        mtu = str(self.lab.mtu)
        try:
            ip("tuntap", "add", "dev", self.interface, "mode", "tap")
            ip("link", "set", self.interface, "mtu", mtu, "master", "br0", "up")
            return f"tap,id=n0,ifname={self.interface},script=no,downscript=no"
        except Unavailable:
            far = f"{self.interface}-br"
            ip("link", "add", self.interface, "mtu", mtu, "type", "veth", "peer", "name", far, "mtu", mtu)
            ip("link", "set", far, "master", "br0", "up")
            ip("link", "set", self.interface, "up")
            for one in ("br0", self.interface, far):  # what is read from a veth must have its checksums
                run("ethtool", "-K", one, "tx", "off")
            self.relay = Relay(self.place, self.name, self.interface)
            return self.relay.netdev

    def launch(self, netdev, image):
        with open(self.said, "wb") as log:
            self.qemu = subprocess.Popen(self.command(netdev, image), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.wait_until_ready()

    def command(self, netdev, image):
        number = int(self.address.rsplit(".", 1)[1])
        arguments = {"name": self.name, "address": f"{self.address}/{PREFIX}", "mtu": self.mtu}
        # no_timer_check: on a busy machine an emulated guest can fail the kernel's test of its timer; panic=-1 with -no-reboot
        # turns a panic into the end of QEMU
        append = "console=ttyS0 quiet no_timer_check panic=-1 mitigations=off nokaslr " + " ".join(
            f"sluice.{k}={v}" for k, v in arguments.items())
        return ["qemu-system-x86_64", "-name", self.name, "-nodefaults", "-no-user-config", "-nographic", "-no-reboot",
                "-machine", "q35", "-accel", "kvm" if self.lab.kvm else "tcg,thread=multi",
                "-cpu", "max,arch-capabilities=off", "-smp", "1", "-m", "384",
                "-kernel", str(self.lab.kernel / "vmlinux"), "-initrd", str(image), "-append", append,
                "-netdev", netdev,
                # no offloads: whole frames with whole checksums on the bridge
                "-device", f"virtio-net-pci,netdev=n0,mac=52:54:00:4d:00:{number:02x},romfile=,csum=off,guest_csum=off,gso=off",
                "-chardev", f"file,id=console,path={self.console}", "-serial", "chardev:console",
                "-chardev", f"socket,id=channel,path={self.control},server=on,wait=off", "-serial", "chardev:channel"]

    @property
    def said(self):
        return self.place / f"{self.name}.qemu"

    @property
    def console(self):
        return self.place / f"{self.name}.console"

    @property
    def control(self):
        return self.place / f"{self.name}.control"

    def wait_until_ready(self):
        deadline = time.monotonic() + (BOOT_SECONDS_KVM if self.lab.kvm else BOOT_SECONDS)
        while not self.connect():
            self.check_alive(deadline)
            time.sleep(0.02)
        self.read_until(rb"READY\r?\n", deadline)

    def connect(self):
        channel = socket.socket(socket.AF_UNIX)
        try:
            channel.connect(str(self.control))
        except (FileNotFoundError, ConnectionRefusedError):  # QEMU is not that far yet
            channel.close()
            return False
        self.channel = channel
        return True

    def check_alive(self, deadline):
        broken = "KVM internal error" in self.said.read_text(errors="replace")  # it then only stops
        if self.qemu.poll() is None and time.monotonic() < deadline and not broken:
            return
        what = "does not answer" if self.qemu.poll() is None else f"has ended ({self.qemu.returncode})"
        raise GuestDied(f"the guest {self.name} {what}\n{self.console_end()}")

    def console_end(self):
        """The last that QEMU and the guest's kernel said."""
        said = [p.read_text(errors="replace")[-3000:] for p in (self.said, self.console) if p.exists()]
        return "".join(f"    | {line}\n" for line in "\n".join(said).splitlines() if line.strip())

    def read_until(self, pattern, deadline):
        """What the channel said, as a match of `pattern`; the rest stays for the next time."""
        while not (match := re.search(pattern, self.received, re.S)):
            self.check_alive(deadline)
            self.channel.settimeout(1)
            try:
                got = self.channel.recv(65536)
            except TimeoutError:
                continue
            except ConnectionError:
                got = b""
            if not got:  # QEMU ends
                self.qemu.wait(10)
            self.received += got
        self.received = self.received[match.end():]
        return match

    def run(self, command, seconds=120, check=True):
        """Runs a shell command in the guest; its output, or with check=False (exit status, output)."""
        line = base64.b64encode(command.encode()) + b"\n"
        match = None
        while match is None or match[2] == b"AGAIN":
            try:
                self.channel.sendall(hashlib.md5(line).hexdigest()[:8].encode() + b" " + line)
            except OSError:  # QEMU has ended, or ends
                self.qemu.wait(10)
                self.check_alive(0)
            match = self.read_until(rb"BEGIN\r?\n(.*?)END (\d+|AGAIN)\r?\n", time.monotonic() + seconds)
        output, status = base64.b64decode(match[1]).decode(errors="replace"), int(match[2])
        if not check:
            return status, output
        if status:
            raise RuntimeError(f"{self.name}: `{command}` ends with {status}: {output}")
        return output

    def put(self, source, target):
        """Copies a file into the running guest (without the libraries it may need)."""
        with socket.create_server((HOST_ADDRESS, 0)) as server:
            port = server.getsockname()[1]
            self.run(f"(nc {HOST_ADDRESS} {port} </dev/null >{target}.new; mv {target}.new {target}) &")
            server.settimeout(30)
            connection, _ = server.accept()
            with connection:
                connection.sendall(pathlib.Path(source).read_bytes())
        self.run(f"n=0; while [ ! -e {target} ] && [ $n -lt 100 ]; do sleep 0.1; n=$((n+1)); done; chmod 755 {target}")

    def lose(self, percent):
        """Drops RoCE packets from now on as they come in and as they leave; 0: none. Nothing else is touched."""
        self.run("nft flush ruleset; tc qdisc del dev eth0 root 2>/dev/null; true")
        if not percent:
            return
        # Going out: netem. (A drop by nft would be an error that rxe sees, and answers with an RNR NAK of its own making.)
        self.run("tc qdisc add dev eth0 root handle 1: prio bands 4 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 && "
                 f"tc qdisc add dev eth0 parent 1:4 netem limit 100000 loss {percent}% && "
                 "tc filter add dev eth0 parent 1: protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff flowid 1:4")
        rule = f"udp dport 4791 numgen random mod 1000 < {round(percent * 10)} counter drop"
        self.run(f"nft 'table ip loss {{\nchain input {{ type filter hook input priority 0; {rule}; }}\n}}'")

    def lost(self):
        """(coming in, going out): how many packets lose() has dropped so far."""
        incoming = re.search(r"packets (\d+)", self.run("nft list ruleset"))
        outgoing = re.search(r"netem.*?dropped (\d+)", self.run("tc -s qdisc show dev eth0"), re.S)
        return int(incoming[1]) if incoming else 0, int(outgoing[1]) if outgoing else 0

    def stop(self):
        if self.qemu is None:
            return
        if self.channel:
            try:
                self.channel.sendall(b"OFF\n")
                self.qemu.wait(5)
            except (OSError, subprocess.TimeoutExpired):
                pass
        self.end()
        self.qemu = None
        if self.relay:
            self.relay.close()
        ip("link", "del", self.interface)

    def end(self):
        if self.channel:
            self.channel.close()
            self.channel = None
        self.qemu.kill()
        self.qemu.wait()
        self.control.unlink(missing_ok=True)
        self.received = b""
