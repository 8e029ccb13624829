#!/usr/bin/env python3
"""Our frames before oracles that no one here wrote: tshark dissects them, scapy computes their ICRC.

usage: wire_oracles.py ORACLE_FRAMES [CAPTURE...]

ORACLE_FRAMES is the program built from oracle_frames.cpp. It writes a capture of everything we can build; then, for that one and
for each CAPTURE of real traffic: tshark finds nothing malformed, every field that we read has the value that tshark reads, and
over IPv4 scapy's ICRC is the one in the frame. Exits with 77 after "skipped: why" when an oracle is missing.
"""

import ipaddress
import json
import os
import shutil
import subprocess
import sys
import tempfile

# Guesses about payloads that misfire on random bytes.
HEURISTICS = ["rpcordma", "smb_direct", "nvme-rdma", "lnet", "iser", "smc", "infiniband_sdp", "infiniband.eoib"]
# A vendor's opcode, and one beyond IBTA's table: tshark's view ends with the BTH.
UNKNOWN_TO_TSHARK = {0x18, 0x81}


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def import_scapy():
    try:
        import scapy.contrib.roce  # noqa: F401
    except ImportError:
        # Debian installs it for its own interpreter alone.
        debian = "/usr/bin/python3"
        if os.path.exists(debian) and os.environ.get("WIRE_ORACLES_REEXEC") is None:
            os.execve(debian, [debian, *sys.argv], {**os.environ, "WIRE_ORACLES_REEXEC": "1"})
        skip("scapy is not installed (apt-get install python3-scapy)")


def tshark(capture):
    command = ["tshark", "-r", capture, "-T", "json"]
    for protocol in HEURISTICS:
        command += ["--disable-protocol", protocol]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True)
    # One object may hold a name twice (reserved fields do): keep them all.
    return json.loads(done.stdout, object_pairs_hook=list)


def leaves(pairs):
    """Yields (name, value) for every string in tshark's nested lists of pairs."""
    for name, value in pairs:
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, list) and value and isinstance(value[0], tuple):
            yield from leaves(value)


def layers_of(packet):
    return dict(dict(packet)["_source"])["layers"]


def same(ours, theirs):
    if isinstance(ours, bool):
        return theirs.lower() in (("1", "true", "0x01") if ours else ("0", "false", "0x00"))
    if isinstance(ours, int):
        return int(theirs, 0) == ours
    try:
        return ipaddress.ip_address(ours) == ipaddress.ip_address(theirs)
    except ValueError:
        return ours == theirs


def check_dissection(name, ours, packets):
    """Returns complaints; ours and packets run in step."""
    if len(ours) != len(packets):
        return [f"{name}: we read {len(ours)} frames, tshark {len(packets)}"], 0
    complaints, compared = [], 0
    for number, (mine, packet) in enumerate(zip(ours, packets), 1):
        layers = layers_of(packet)
        seen = {}
        for key, value in leaves(layers):
            seen.setdefault(key, []).append(value)
        if not mine["ok"]:
            if "infiniband" in dict(layers):
                complaints.append(f"{name} frame {number}: tshark sees InfiniBand, we say {mine['verdict']}")
            continue
        if "_ws.malformed" in dict(layers):
            complaints.append(f"{name} frame {number}: malformed, says tshark")
        known = mine["fields"]["infiniband.bth.opcode"] not in UNKNOWN_TO_TSHARK
        for key, value in mine["fields"].items():
            if not known and not key.startswith("infiniband.bth."):
                continue
            compared += 1
            if not any(same(value, theirs) for theirs in seen.get(key, [])):
                complaints.append(f"{name} frame {number}: {key} is {value}, tshark reads {seen.get(key)}")
        if known and not any(int(v, 0) == mine["icrc"] for v in seen.get("infiniband.invariant.crc", [])):
            complaints.append(f"{name} frame {number}: ICRC {mine['icrc']:#x}, tshark finds {seen.get('infiniband.invariant.crc')}")
    return complaints, compared


def check_icrc(name, capture):
    from scapy.contrib.roce import BTH
    from scapy.layers.inet import IP
    from scapy.utils import rdpcap

    complaints, compared = [], 0
    for number, packet in enumerate(rdpcap(capture), 1):
        if IP not in packet or BTH not in packet:
            continue
        stated = bytes(packet[IP])[:packet[IP].len][-4:]
        computed = packet[BTH].compute_icrc(b"")  # from its own layers, not from the argument
        compared += 1
        if computed != stated:
            complaints.append(f"{name} frame {number}: scapy computes ICRC {computed}, the frame has {stated}")
    return complaints, compared


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    program, captures = sys.argv[1], sys.argv[2:]
    if shutil.which("tshark") is None:
        skip("tshark is not installed (apt-get install tshark)")
    import_scapy()

    complaints = []
    with tempfile.TemporaryDirectory() as folder:
        ours = os.path.join(folder, "everything.pcap")
        subprocess.run([program, "write", ours], check=True)
        for capture in [ours, *captures]:
            name = os.path.basename(capture)
            lines = subprocess.run([program, "read", capture], stdout=subprocess.PIPE, check=True).stdout.splitlines()
            read = [json.loads(line) for line in lines]
            bad, fields = check_dissection(name, read, tshark(capture))
            bad_icrc, icrcs = check_icrc(name, capture)
            complaints += bad + bad_icrc
            if capture == ours:
                complaints += [f"{name} frame {i}: {r['verdict']}" for i, r in enumerate(read, 1) if not r["ok"]]
            print(f"{name}: {len(read)} frames, {fields} fields as tshark reads them, {icrcs} ICRCs as scapy computes them, "
                  f"{len(bad) + len(bad_icrc)} complaints")
    for complaint in complaints[:20]:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
