"""Debian's kernel with rdma_rxe, fetched once and kept: vmlinux and the modules that the guest loads, in order.

Nothing is installed: the package is downloaded with apt-get and taken apart. Kept in $XDG_CACHE_HOME/sluice/kernel-VERSION.
"""

import io
import lzma
import os
import pathlib
import re
import shutil
import struct
import subprocess
import tarfile
import tempfile

PACKAGE = "linux-image-amd64"
# What the guest uses. What these need is found in the modules themselves; crc32 and crc32c are asked of the crypto layer by
# name (the ICRC; nf_tables), which no module says.
WANTED = """virtio_pci virtio_net crc32_generic crc32c_generic rdma_rxe ib_uverbs rdma_ucm
            nf_tables nft_numgen sch_netem sch_prio cls_u32""".split()
LAYOUT = 2  # of the kept folder; raise it when what is written there changes


class Unavailable(Exception):
    """The guest cannot be had on this machine; the message says why and what to do."""


def cache_folder():
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "sluice"


def kernel():
    """The folder with vmlinux, modules/*.ko and modules/order of Debian's current kernel."""
    name = kernel_package()
    kept = sorted(cache_folder().glob(f"kernel-{LAYOUT}-*"), key=lambda p: p.stat().st_mtime)
    if name is None:
        if kept:
            return kept[-1]
        raise Unavailable(f"apt does not know {PACKAGE}; as root: apt-get update")
    folder = cache_folder() / f"kernel-{LAYOUT}-{name}"
    if not folder.exists():
        fetch(name, folder)
    return folder


def kernel_package():
    """linux-image-VERSION behind the meta package, or None where apt does not know it."""
    for attempt in range(2):
        known = subprocess.run(["apt-cache", "depends", PACKAGE], capture_output=True, text=True, check=False).stdout
        if found := re.search(r"Depends: (linux-image-\S+)", known):
            return found[1]
        if attempt == 0 and os.geteuid() == 0:
            subprocess.run(["apt-get", "-q", "update"], capture_output=True, check=False)
    return None


def fetch(name, folder):
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        download(name, work)
        package = next(pathlib.Path(work).glob("*.deb"))
        made = pathlib.Path(work, "made")
        take_apart(package, made)
        try:
            made.rename(folder)
        except OSError:  # another run was quicker
            if not folder.exists():
                raise


def download(name, work):
    command = ["apt-get", "-q", "-o", "APT::Sandbox::User=", "download", name]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode and os.geteuid() == 0:  # the lists may be older than the archive
        subprocess.run(["apt-get", "-q", "update"], capture_output=True, check=False)
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"apt-get download {name} fails: {done.stderr.strip().splitlines()[-1:]}; as root: apt-get update")


def take_apart(package, folder):
    (folder / "modules").mkdir(parents=True)
    files = {}
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as unpack:
        with tarfile.open(fileobj=unpack.stdout, mode="r|") as archive:
            for member in archive:
                base = os.path.basename(member.name)
                if member.isfile() and (base.startswith("vmlinuz") or re.search(r"\.ko(\.xz)?$|^modules\.builtin$", base)):
                    files[base] = archive.extractfile(member).read()
    image = next(data for base, data in files.items() if base.startswith("vmlinuz"))
    (folder / "vmlinux").write_bytes(uncompressed(image))
    builtin = {module_name(pathlib.PurePath(line)) for line in files["modules.builtin"].decode().split()}
    modules = {module_name(pathlib.PurePath(base)): data for base, data in files.items() if ".ko" in base}
    write_modules(modules, builtin, folder / "modules")


def uncompressed(image):
    """The ELF kernel inside a bzImage: it boots through its PVH entry and spares an emulated guest the unpacking."""
    start = (image[0x1F1] + 1) * 512 + struct.unpack_from("<I", image, 0x248)[0]
    payload = image[start : start + struct.unpack_from("<I", image, 0x24C)[0] - 4]
    if payload.startswith(b"\xfd7zXZ"):
        return lzma.decompress(payload)
    return image


def module_name(path):
    return re.sub(r"\.ko(\.xz)?$", "", path.name).replace("-", "_")


def write_modules(modules, builtin, folder):
    order = []

    def add(name):
        if name in builtin or name in order:
            return
        if name not in modules:
            raise Unavailable(f"Debian's kernel has no module {name}")
        data = modules[name]
        code = lzma.decompress(data) if data.startswith(b"\xfd7zXZ") else data
        needs = re.search(rb"\0depends=([^\0]*)\0", code)
        for need in (needs[1].decode() if needs else "").split(","):
            if need:
                add(need.replace("-", "_"))
        order.append(name)
        (folder / f"{name}.ko").write_bytes(code)

    for name in WANTED:
        add(name.replace("-", "_"))
    (folder / "order").write_text("".join(f"{name}.ko\n" for name in order))


class Cpio:
    """An initramfs (cpio newc) in memory."""

    def __init__(self):
        self.out = io.BytesIO()
        self.made = set()
        self.inode = 0

    def folder(self, path):
        path = path.strip("/")
        if path and path not in self.made:
            self.folder(os.path.dirname(path))
            self._entry(path, 0o040755, b"")

    def file(self, path, data, mode=0o755):
        path = path.strip("/")
        if path not in self.made:
            self.folder(os.path.dirname(path))
            self._entry(path, 0o100000 | mode, data)

    def link(self, path, target):
        path = path.strip("/")
        if path not in self.made:
            self.folder(os.path.dirname(path))
            self._entry(path, 0o120777, target.encode())

    def finish(self):
        self._entry("TRAILER!!!", 0, b"")
        return self.out.getvalue()

    def _entry(self, path, mode, data):
        self.made.add(path)
        self.inode += 1
        name = path.encode() + b"\0"
        fields = (self.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
        self.out.write(b"070701" + b"".join(b"%08x" % f for f in fields) + name)
        self.out.write(b"\0" * (-self.out.tell() % 4) + data)
        self.out.write(b"\0" * (-self.out.tell() % 4))


def initramfs(kernel_folder, init, programs, extra):
    """busybox, `programs` of this machine with their libraries, the rxe driver, the modules, and `extra` {path: file}."""
    image = Cpio()
    for folder in ("proc", "sys", "dev", "tmp", "run"):
        image.folder(folder)
    for name in ("bin", "sbin", "lib", "lib64"):
        image.folder("usr/" + name)
        image.link(name, "usr/" + name)
    image.file("init", pathlib.Path(init).read_bytes())
    libraries = add_programs(image, programs, extra)
    image.file("etc/libibverbs.d/rxe.driver", b"driver rxe\n", 0o644)
    for driver in pathlib.Path("/usr/lib").glob("*/libibverbs/librxe-rdmav*.so"):
        image.file(str(driver), driver.read_bytes())
        libraries.append(driver)
    for library in closure(libraries):
        image.file(merged(library), pathlib.Path(library).read_bytes())
    busybox = shutil.which("busybox") or "/bin/busybox"
    image.file("usr/bin/busybox", pathlib.Path(busybox).read_bytes())
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    for applet in applets:
        image.link("usr/bin/" + applet, "busybox")
    for module in (kernel_folder / "modules").iterdir():
        image.file("modules/" + module.name, module.read_bytes(), 0o644)
    return image.finish()


def add_programs(image, programs, extra):
    found = []
    for program in programs:
        path = shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin")
        if path is None:
            raise Unavailable(f"there is no program {program} here; scripts/install-packages names what to install")
        image.file("usr/bin/" + program, pathlib.Path(path).read_bytes())
        image.link("usr/sbin/" + program, "../bin/" + program)
        found.append(path)
    for target, source in extra.items():
        image.file(target, pathlib.Path(source).read_bytes())
        found.append(source)
    return found


def closure(files):
    """The shared libraries that these need, and the loader; libgcc_s besides, which pthread_exit opens by name."""
    needed = set()
    for file in files:
        listed = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=False).stdout
        if missing := re.search(r"(\S+) => not found", listed):
            raise Unavailable(f"{file} needs {missing[1]}, which is not installed")
        needed.update(re.findall(r"=> (/\S+)", listed) + re.findall(r"^\s*(/\S+) \(", listed, re.M))
    needed.update(str(p) for p in pathlib.Path("/usr/lib").glob("*-linux-gnu/libgcc_s.so.1"))
    return sorted(needed)


def merged(path):
    return re.sub(r"^/(lib|lib64|bin|sbin)/", r"/usr/\1/", str(path))
