"""Writes what makes a shared library a drop-in for another: its exported names, each with its versions, as jumps through a table.

usage: drop_in.py LIBRARY ASSEMBLER_OUT MAP_OUT

LIBRARY is the one to stand in for, as this machine has it. The table is filled when the drop-in is loaded (src/drop_in/drop_in.cpp);
what the programs behind it ask for by name and version, also by dlvsym, is then there. x86-64.
"""

import re
import subprocess
import sys


def exported(library):
    """(name, "@" or "@@", version, is a function) of all that the library exports."""
    listing = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", library], check=True, capture_output=True, text=True).stdout
    for line in listing.splitlines():
        kind, symbol = line.split()[1:3]
        found = re.fullmatch(r"(\w+)(@@?)([\w.]+)", symbol)
        if found and kind != "A":
            yield found[1], found[2], found[3], kind in "TtWi"


def main():
    library, assembler_out, map_out = sys.argv[1:]
    symbols = sorted(set(exported(library)))
    functions = sorted({name for name, _, _, is_function in symbols if is_function})
    place = {name: i for i, name in enumerate(functions)}
    lines = [".text"]
    for i, (name, at, version, is_function) in enumerate(symbols):
        local = f"sluice_{i}"
        if is_function:
            lines += [f".globl {local}", f".type {local}, @function", f"{local}: jmp *sluice_drop_in_table+{8 * place[name]}(%rip)",
                      f".size {local}, . - {local}"]
        else:  # a flag
            lines += [".bss", f".globl {local}", f".type {local}, @object", f".size {local}, 8", f"{local}: .zero 8", ".text"]
        lines.append(f".symver {local}, {name}{at}{version}, remove")
    lines += [".bss", ".balign 8", ".globl sluice_drop_in_table", f"sluice_drop_in_table: .zero {8 * len(functions)}"]
    lines += [".section .rodata", ".globl sluice_drop_in_names", "sluice_drop_in_names:"]
    lines += [f'.asciz "{name}"' for name in functions]
    lines += ['.asciz ""', '.section .note.GNU-stack,"",@progbits', ""]
    with open(assembler_out, "w", encoding="utf-8") as out:
        out.write("\n".join(lines))
    with open(map_out, "w", encoding="utf-8") as out:
        before = ""
        for version in sorted({version for _, _, version, _ in symbols}, key=lambda text: [int(n) for n in re.findall(r"\d+", text)]):
            names = " ".join(sorted({f"{name};" for name, _, of, _ in symbols if of == version}))
            out.write(f"{version} {{ global: {names} {'local: *; ' if not before else ''}}}{before};\n")
            before = f" {version}"


if __name__ == "__main__":
    main()
