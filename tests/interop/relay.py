"""Joins a QEMU guest to the bridge where there is no tap device to be had: Ethernet frames between QEMU's datagram socket and one
end of a veth pair, whose other end is on the bridge. Works in a user namespace without /dev/net/tun."""

import os
import pathlib
import selectors
import socket
import threading

ETH_P_ALL = 3
SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23
LONGEST = 65536


class Relay:
    """`interface` is our end of the pair. netdev is QEMU's argument; close() ends it."""

    def __init__(self, folder, name, interface):
        ours, theirs = pathlib.Path(folder, f"{name}.relay"), pathlib.Path(folder, f"{name}.nic")
        self.netdev = f"dgram,id=n0,local.type=unix,local.path={theirs},remote.type=unix,remote.path={ours}"
        self.guest_path = str(theirs)
        self.guest = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        ours.unlink(missing_ok=True)
        self.guest.bind(str(ours))
        self.wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.wire.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        self.wire.bind((interface, 0))
        for one in (self.guest, self.wire):
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.ended, self.end = os.pipe()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        with selectors.DefaultSelector() as selector:
            for source in (self.guest, self.wire, self.ended):
                selector.register(source, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj == self.ended:
                        return
                    self.pass_on(key.fileobj)

    def pass_on(self, source):
        for _ in range(64):
            try:
                frame = source.recv(LONGEST)
            except BlockingIOError:
                return
            try:
                if source is self.guest:
                    self.wire.send(frame)
                else:
                    self.guest.sendto(frame, self.guest_path)
            except OSError:
                pass  # as on any wire: full, or nobody there yet; the frame is lost

    def close(self):
        os.close(self.end)
        self.thread.join()
        os.close(self.ended)
        self.guest.close()
        self.wire.close()
