"""What two reliable connections must do to each other, whatever they are made of. Each scenario raises when something is wrong.

A scenario gets a Pair: `a` acts, `b` is acted upon; it is run both ways.
"""

import socket
import time

# ibv_wc_status
SUCCESS, LOCAL_LENGTH, LOCAL_OPERATION, FLUSHED = 0, 1, 2, 5
REMOTE_INVALID, REMOTE_ACCESS, REMOTE_OPERATION, RETRY_EXCEEDED, RNR_EXCEEDED = 9, 10, 11, 12, 13
LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC = 1, 2, 4, 8
EVERYTHING = 15
REGION = 4 << 20
HALF = REGION // 2
COMMAND_MS = 20_000  # for one command, unless it says otherwise
# Time-outs of the queue pairs (4.096 us * 2^n). The guest is emulated and the machine may be loaded: it can stand still for a good
# part of a second, and eight time-outs must be longer than that.
PATIENT = {"timeout": 17, "retry": 7, "rnr_retry": 7, "min_rnr": 1}  # 0.5 s; nothing is lost, so it never matters
PATIENT_UNDER_LOSS = PATIENT | {"timeout": 15}  # 0.13 s


class Wrong(Exception):
    """A peer said or did something else than it should."""


class Peer:
    """One endpoint (peer.h), over its TCP connection."""

    def __init__(self, name, address, port, roce_address=None):
        self.name = name
        self.where = (address, port)
        self.roce_address = roce_address or address
        self.facts = {}
        self.socket = None
        self.connect()

    def connect(self, seconds=60):
        """Also again, to a program that has been started anew."""
        self.close()
        end = time.monotonic() + seconds
        while True:
            try:
                self.socket = socket.create_connection(self.where, timeout=5)
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lines = self.socket.makefile("r")

    def begin(self, verb, **arguments):
        line = " ".join([verb, *(f"{k}={v}" for k, v in arguments.items())])
        self.said = line
        self.socket.settimeout(arguments.get("ms", COMMAND_MS) / 1000 + 20)
        self.socket.sendall(line.encode() + b"\n")

    def answer(self):
        try:
            return self.lines.readline().rstrip("\n")
        except TimeoutError as late:
            raise Wrong(f"{self.name}: `{self.said}`: no answer within {self.socket.gettimeout():.0f} s") from late

    def wait_for(self, word):
        line = self.answer()
        if line != word:
            raise Wrong(f"{self.name}: `{self.said}`: {line or 'the peer has gone'}")

    def finish(self):
        line = self.answer()
        if not line.startswith("ok"):
            raise Wrong(f"{self.name}: `{self.said}`: {line or 'the peer has gone'}")
        return dict(word.split("=", 1) for word in line.split()[1:])

    def do(self, verb, **arguments):
        self.begin(verb, **arguments)
        return self.finish()

    def open(self, **arguments):
        self.facts = self.do("open", **({"size": REGION, "access": EVERYTHING, "pair_access": EVERYTHING} | arguments))

    def completions(self, count, ms=COMMAND_MS):
        """[(id, status, length, immediate)] of the next `count` completions."""
        done = self.do("poll", count=count, ms=ms)["done"]
        parts = [d.split(":") for d in done.split(",")]
        return [(int(i), int(s), int(n), None if m == "-" else int(m, 16)) for i, s, n, m in parts]

    def expect(self, *expected, ms=COMMAND_MS):
        got = [status for _, status, _, _ in self.completions(len(expected), ms)]
        if got != list(expected):
            raise Wrong(f"{self.name}: statuses {got} instead of {list(expected)}")

    def close(self):
        if self.socket:
            self.socket.close()


class Pair:
    services = 7000  # RDMA-CM ports handed out so far, one a scenario

    def __init__(self, a, b):
        self.a, self.b = a, b

    def listen(self):
        Pair.services += 1
        self.b.do("cm_listen", service=Pair.services)
        return {"to": self.b.roce_address, "service": Pair.services, "size": REGION, "ms": 90_000}

    def connect(self, mtu=1024, psn=(0xFFFFF0, 0x000123), b_access=EVERYTHING, b_pair_access=EVERYTHING, **attributes):
        """New queue pairs on both sides, connected. The first PSN is close to where it wraps."""
        self.a.open(psn=psn[0])
        self.b.open(psn=psn[1], access=b_access, pair_access=b_pair_access)
        self.mtu = mtu
        for one, other in ((self.a, self.b), (self.b, self.a)):
            peer = {name: other.facts[name] for name in ("qpn", "psn", "gid")}
            one.do("connect", mtu=mtu, **peer, **(PATIENT | {"min_rnr": 12} | attributes))

    def at(self, offset=0):
        """The address of b's region, for a's one-sided operations."""
        return {"remote": int(self.b.facts["address"]) + offset, "rkey": self.b.facts["rkey"]}

    def sizes(self):
        m = self.mtu
        return [1, 7, 8, 63, m - 1, m, m + 1, 2 * m, 3 * m + 5, 65536, (1 << 20) + 3]


def sends(pair, mtu):
    pair.connect(mtu)
    for number, size in enumerate([0, *pair.sizes()]):
        pair.b.do("recv", id=number, offset=0, length=1 << 21)
        pair.a.do("fill", offset=0, length=size, seed=number)
        pair.a.do("send", id=number, offset=0, length=size)
        pair.a.expect(SUCCESS)
        if (got := pair.b.completions(1)) != [(number, SUCCESS, size, None)]:
            raise Wrong(f"SEND of {size} bytes arrived as {got}")
        pair.b.do("check", offset=0, length=size, seed=number)


def sends_with_immediate(pair, mtu):
    pair.connect(mtu)
    for number, size in enumerate([0, 5, mtu, 2 * mtu + 1]):
        immediate = 0x80000001 + number
        pair.b.do("recv", id=number, offset=0, length=1 << 20)
        pair.a.do("fill", offset=0, length=size, seed=number)
        pair.a.do("send_imm", id=number, offset=0, length=size, immediate=immediate)
        pair.a.expect(SUCCESS)
        if (got := pair.b.completions(1)) != [(number, SUCCESS, size, immediate)]:
            raise Wrong(f"SEND with immediate of {size} bytes arrived as {got}")
        pair.b.do("check", offset=0, length=size, seed=number)


def writes(pair, mtu):
    pair.connect(mtu)
    for number, size in enumerate(pair.sizes()):
        place = 4096 + number  # addresses need not be aligned
        pair.b.do("fill", offset=0, length=place + size + 64, seed=77)
        pair.a.do("fill", offset=0, length=size, seed=number)
        pair.a.do("write", id=number, offset=0, length=size, **pair.at(place))
        pair.a.expect(SUCCESS)
        pair.b.do("check", offset=place, length=size, seed=number)
        pair.b.do("check", offset=0, length=place, seed=77)  # and not a byte before


def writes_with_immediate(pair, mtu):
    pair.connect(mtu)
    for number, size in enumerate([0, 8, mtu, 5 * mtu + 3]):
        immediate = 0x01020304 + number
        pair.b.do("recv", id=number, offset=HALF, length=0)
        pair.a.do("fill", offset=0, length=size, seed=number)
        pair.a.do("write_imm", id=number, offset=0, length=size, immediate=immediate, **pair.at(100))
        pair.a.expect(SUCCESS)
        if (got := pair.b.completions(1)) != [(number, SUCCESS, size, immediate)]:
            raise Wrong(f"WRITE with immediate of {size} bytes completed as {got}")
        pair.b.do("check", offset=100, length=size, seed=number)


def reads(pair, mtu):
    pair.connect(mtu)
    for number, size in enumerate(pair.sizes()):
        place = 33 * number
        pair.b.do("fill", offset=place, length=size, seed=number)
        pair.a.do("fill", offset=0, length=size + 64, seed=99)
        pair.a.do("read", id=number, offset=0, length=size, **pair.at(place))
        pair.a.expect(SUCCESS)
        pair.a.do("check", offset=0, length=size, seed=number)


def atomics(pair, mtu):
    pair.connect(mtu)

    def word(peer, offset):
        return int(peer.do("word", offset=offset)["value"], 16)

    big = 0x1122334455667788
    pair.b.do("set", offset=64, value=big)
    steps = [  # operation, its arguments, the word afterwards
        ("cas", {"compare": big, "value": 5}, 5),
        ("cas", {"compare": big, "value": 6}, 5),  # compares unequal: unchanged
        ("faa", {"value": 0xFFFFFFFFFFFFFFFF}, 4),  # wraps
        ("faa", {"value": big}, big + 4),
    ]
    before = big
    for number, (op, arguments, after) in enumerate(steps):
        pair.a.do(op, id=number, offset=8, **arguments, **pair.at(64))
        pair.a.expect(SUCCESS)
        if word(pair.a, 8) != before or word(pair.b, 64) != after:
            raise Wrong(f"{op} {arguments}: saw {word(pair.a, 8):#x}, left {word(pair.b, 64):#x}")
        before = after


def many(pair, mtu, lossy=False):
    """Many operations in flight of every kind, each result checked, also under loss."""
    pair.connect(mtu, **(PATIENT_UNDER_LOSS if lossy else PATIENT))
    a, b = pair.a, pair.b
    count = 300 if lossy else 1000
    ms = 90_000
    for op, length, depth in (("write", 8, 32), ("write", 3 * mtu + 1, 16), ("read", 8, 16), ("read", 3 * mtu + 1, 8)):
        if op == "read":
            b.do("fill_slots", offset=0, length=length, depth=depth, seed=1000)
        a.do("flood", op=op, count=count, depth=depth, length=length, offset=HALF, seed=1000, ms=ms, **pair.at())
        if op == "write":
            for slot in range(depth):  # the last operation through each slot
                last = slot + (count - 1 - slot) // depth * depth
                b.do("check", offset=slot * length, length=length, seed=1000 + last)
    for op in ("faa", "cas"):
        b.do("set", offset=0, value=0)
        a.do("flood", op=op, count=count, depth=16, offset=HALF, ms=ms, **pair.at())
        if (value := int(b.do("word", offset=0)["value"], 16)) != count:
            raise Wrong(f"after {count} {op} the word is {value}")
    for op, length in (("send", 24), ("send_imm", 2 * mtu + 9), ("write_imm", mtu + 1)):
        b.begin("absorb", count=count, depth=32, length=length, offset=HALF, seed=7, ms=ms, write=int(op == "write_imm"))
        b.wait_for("begun")
        a.do("flood", op=op, count=count, depth=16, length=length, offset=HALF, seed=7, ms=ms, **pair.at())
        b.finish()


def many_both_ways(pair, mtu, lossy=False):
    """Both sides write to each other at once, so that ACKs and requests mix on one connection."""
    pair.connect(mtu, **(PATIENT_UNDER_LOSS if lossy else PATIENT))
    count, depth, length, ms = 300, 16, 2 * mtu + 1, 90_000
    for one, other in ((pair.a, pair.b), (pair.b, pair.a)):
        remote = {"remote": other.facts["address"], "rkey": other.facts["rkey"]}
        one.begin("flood", op="write", count=count, depth=depth, length=length, offset=HALF, seed=5, ms=ms, **remote)
    pair.a.finish()
    pair.b.finish()
    for one in (pair.a, pair.b):
        for slot in range(depth):
            one.do("check", offset=slot * length, length=length, seed=5 + slot + (count - 1 - slot) // depth * depth)


def waits_for_a_receive(pair, mtu):
    """RNR: a SEND without a receive posted waits, and goes through when there is one."""
    pair.connect(mtu, rnr_retry=7, min_rnr=14)  # 14: 1 ms
    pair.a.do("fill", offset=0, length=mtu + 1, seed=3)
    pair.a.do("send", id=1, offset=0, length=mtu + 1)
    time.sleep(0.2)
    pair.b.do("recv", id=2, offset=0, length=2 * mtu)
    pair.a.expect(SUCCESS)
    pair.b.expect(SUCCESS)
    pair.b.do("check", offset=0, length=mtu + 1, seed=3)


def gives_up_without_a_receive(pair, mtu):
    pair.connect(mtu, rnr_retry=2, min_rnr=10)
    pair.a.do("send", id=1, offset=0, length=8)
    pair.a.do("write", id=2, offset=0, length=8, **pair.at())
    pair.a.expect(RNR_EXCEEDED, FLUSHED)


def refused(pair, mtu, expected, op, offset=0, key_flip=0, b_access=EVERYTHING, b_pair_access=EVERYTHING, length=8):
    """One operation that b refuses: a sees `expected`, what follows is flushed, b's memory stays as it is."""
    pair.connect(mtu, b_access=b_access, b_pair_access=b_pair_access)
    pair.b.do("fill", offset=0, length=REGION, seed=11)
    key = int(pair.b.facts["rkey"]) ^ key_flip
    remote = int(pair.b.facts["address"]) + offset
    pair.a.do(op, id=1, offset=0, length=length, remote=remote, rkey=key, value=1)
    pair.a.do("write", id=2, offset=0, length=8, **pair.at())
    try:
        pair.a.expect(expected, FLUSHED)
        pair.b.do("check", offset=0, length=REGION, seed=11)
    except Wrong as wrong:
        raise Wrong(f"refusing a {op} at {offset}, key ^ {key_flip:#x}, rights {b_access}, {b_pair_access}: {wrong}") from wrong


def refuses_wrong_keys(pair, mtu):
    for op in ("write", "read", "faa"):
        refused(pair, mtu, REMOTE_ACCESS, op, key_flip=0x5500)
    refused(pair, mtu, REMOTE_ACCESS, "write", key_flip=0x5500, length=3 * mtu)


def refuses_what_is_outside_of_the_region(pair, mtu):
    for offset in (REGION - 4, REGION, -8, 1 << 40):
        for op in ("write", "read"):
            refused(pair, mtu, REMOTE_ACCESS, op, offset=offset)
    refused(pair, mtu, REMOTE_ACCESS, "write", offset=REGION - 2 * mtu, length=2 * mtu + 1)
    refused(pair, mtu, REMOTE_ACCESS, "faa", offset=REGION)


def refuses_rights_that_were_not_granted(pair, mtu):
    for op, right in (("write", REMOTE_WRITE), ("read", REMOTE_READ), ("faa", REMOTE_ATOMIC)):
        refused(pair, mtu, REMOTE_ACCESS, op, b_access=EVERYTHING & ~right)
        refused(pair, mtu, REMOTE_INVALID, op, b_pair_access=EVERYTHING & ~right)


def refuses_misaligned_atomics(pair, mtu):
    for op, offset in (("faa", 4), ("cas", 1)):
        try:
            refused(pair, mtu, REMOTE_INVALID, op, offset=offset)
        except Wrong as wrong:
            if "ibv_post_send: Invalid argument" not in str(wrong):  # rxe does not even post one
                raise


def refuses_a_send_longer_than_the_receive(pair, mtu):
    for size in (16, 2 * mtu):
        pair.connect(mtu)
        pair.b.do("recv", id=1, offset=0, length=size - 1)
        pair.a.do("send", id=1, offset=0, length=size)
        # The specification: invalid request and a local length error. rxe takes it for an error of its own.
        rxe = pair.b.name.startswith("rxe")
        pair.a.expect(REMOTE_OPERATION if rxe else REMOTE_INVALID)
        pair.b.expect(LOCAL_OPERATION if rxe else LOCAL_LENGTH)


def flushes_after_the_peer_has_gone(pair, mtu):
    """Nobody at that queue pair number: the retries run out, the rest is flushed."""
    pair.a.open(psn=5)
    pair.b.open(psn=6)
    peer = {name: pair.b.facts[name] for name in ("psn", "gid")}
    pair.a.do("connect", mtu=mtu, qpn=int(pair.b.facts["qpn"]) + 1000, timeout=10, retry=2, **peer)
    pair.a.do("write", id=1, offset=0, length=8, **pair.at())
    pair.a.do("write", id=2, offset=0, length=8, **pair.at())
    pair.a.expect(RETRY_EXCEEDED, FLUSHED, ms=20_000)


def connects_and_disconnects(pair, _mtu, lossy=False):
    """By RDMA-CM, with private data; then operations both ways; then one side or the other ends it."""
    where = pair.listen()
    for number in range(8 if lossy else 4):
        pair.b.begin("cm_accept", data=2000 + number, size=REGION, ms=90_000)
        pair.a.facts = pair.a.do("cm_connect", data=1000 + number, **where)
        pair.b.facts = pair.b.finish()
        if (told := (int(pair.a.facts["data"]), int(pair.b.facts["data"]))) != (2000 + number, 1000 + number):
            raise Wrong(f"private data {told}")
        for one, other in ((pair.a, pair.b), (pair.b, pair.a)):
            other.do("recv", id=5, offset=HALF, length=10_000)
            one.do("fill", offset=0, length=10_000, seed=number)
            remote = {"remote": other.facts["address"], "rkey": other.facts["rkey"]}
            one.do("write", id=1, offset=0, length=9_999, **remote)
            one.do("read", id=2, offset=HALF + 20_000, length=9_999, **remote)
            one.do("send", id=3, offset=0, length=10_000)
            one.expect(SUCCESS, SUCCESS, SUCCESS)
            other.expect(SUCCESS)
            other.do("check", offset=0, length=9_999, seed=number)
            other.do("check", offset=HALF, length=10_000, seed=number)
            one.do("check", offset=HALF + 20_000, length=9_999, seed=number)
        first, second = (pair.a, pair.b) if number % 2 else (pair.b, pair.a)
        first.do("cm_disconnect")
        second.do("cm_wait_until_disconnected", ms=90_000)
        first.do("cm_wait_until_disconnected", ms=90_000)


def expect_rejected(peer, reason, data, **where):
    try:
        peer.do("cm_connect", data=1, **where)
    except Wrong as wrong:
        if f"rejected reason={reason} data={data}" not in str(wrong):
            raise
    else:
        raise Wrong(f"{peer.name} was connected")


def is_rejected(pair, _mtu):
    where = pair.listen()
    pair.b.begin("cm_reject", data=4711)
    expect_rejected(pair.a, 28, 4711, **where)  # 28: the consumer's own reason
    pair.b.finish()
    expect_rejected(pair.a, 8, 0, **(where | {"service": 6999}))  # 8: nobody listens there


BY_CM = [connects_and_disconnects, is_rejected]
BY_CM_UNDER_LOSS = [connects_and_disconnects]
FAULTLESS = [sends, sends_with_immediate, writes, writes_with_immediate, reads, atomics, many, many_both_ways, waits_for_a_receive,
             gives_up_without_a_receive, refuses_wrong_keys, refuses_what_is_outside_of_the_region,
             refuses_rights_that_were_not_granted, refuses_misaligned_atomics, refuses_a_send_longer_than_the_receive,
             flushes_after_the_peer_has_gone]
UNDER_LOSS = [many, many_both_ways]
