#!/usr/bin/env python3
"""The architecture as a test: the floor table, and that nothing below the line touches the world.

usage: architecture_test.py [--self-test] [TREE]

Checks the repository at TREE (default: the one this file lies in) against tests/floors.toml. Prints one line a violation,
`path:line: what is wrong and what to do`, and exits with 1 when there is any. --self-test checks the checks: each must find the
violation planted in a tiny tree, and find nothing in a clean one.
"""

import dataclasses
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib

SOURCES = {".h", ".cpp", ".c", ".cc", ".hpp"}
MAX_README_LINES = 30

# What the world looks like in source text, and what to use instead. Applied below the line to code without comments and strings.
WORLD = [
    (r"\b(?:system|steady|high_resolution|utc|file)_clock\b", "reads a clock; take `Time now` as the first parameter"),
    (r"\b(?:clock_gettime|gettimeofday|timespec_get|__rdtscp?|_rdtsc|rdtscp?)\b", "reads a clock; take `Time now` as the first parameter"),
    (r"(?<![\w.>])time\s*\(\s*(?:0|NULL|nullptr)\s*\)|\bstd::clock\s*\(", "reads a clock; take `Time now` as the first parameter"),
    (r"\bthis_thread\b|\b(?:usleep|nanosleep)\b", "sleeps; return a deadline instead"),
    (r"#\s*include\s*<(?:sys/socket|netinet/\w+|net/\w+|linux/\w+|sys/epoll|sys/eventfd|poll|sys/un)\.h>", "uses sockets; that belongs in ports/ or above"),
    (r"(?<![\w.>])(?:socket|socketpair|epoll_create1?|eventfd)\s*\(", "uses sockets; that belongs in ports/ or above"),
    (r"#\s*include\s*<(?:thread|mutex|shared_mutex|condition_variable|future|semaphore|latch|barrier|stop_token|pthread\.h)>", "uses threads; a machine has one owner"),
    (r"\bpthread_\w+", "uses threads; a machine has one owner"),
    (r"\bstd::(?:jthread|thread|mutex|async)\b", "uses threads; a machine has one owner"),
    (r"\b(?:secure_)?getenv\b", "reads the environment; take a parameter"),
    (r"\brandom_device\b|\bgetrandom\b|\bgetentropy\b", "draws unseeded chance; take a seeded base/rng.h Rng"),
    (r"(?<![\w.:>])(?:std::)?s?rand\s*\(|\b[de]rand48\s*\(", "draws chance from a global; take a seeded base/rng.h Rng"),
    (r"#\s*include\s*<random>", "uses <random>, whose distributions differ between libraries; use base/rng.h"),
    (r"\bunordered_(?:map|set|multimap|multiset)\s*<[^<>;,]*\*\s*[,>]", "hashes pointers; key by a number"),
    (r"\bstd::(?:map|set|multimap|multiset)\s*<\s*(?:const\s+)?[\w:]+\s*\*", "orders by pointer; key by a number"),
]
HEAVY_IN_HEADERS = (r"#\s*include\s*<CLI/\w+\.hpp>", "costs each file that includes this header ten seconds of compiling; declare what it names")
SLEEP_IN_TESTS = (r"\bthis_thread::sleep\w+|\b(?:usleep|nanosleep)\b", "sleeps in a unit test; drive the time instead")

# Spelled in pieces, so that this file does not violate itself.
MACHINE_PATH = re.compile(r"(?<![\w.$}~)*/-])/(?:" + "|".join(["wo" + "rk", "ho" + "me", "ro" + "ot"]) + r")(?![\w.-])")
REGISTRY = re.compile("|".join(re.escape(h + d) for h, d in [("deb.", "debian.org"), ("security.", "debian.org"),
                                                           ("registry.", "npmjs.org"), ("py", "pi.org"), ("proxy.", "golang.org")]))


@dataclasses.dataclass(order=True, frozen=True)
class Violation:
    path: str
    line: int
    text: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.text}"


def strip(code):
    """The code with comments and the insides of strings blanked, line for line. Include lines keep their quotes."""
    token = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])*\'', re.S)

    def blank(match):
        text = match.group()
        line = code[code.rfind("\n", 0, match.start()) + 1 : match.start()]
        if text.startswith('"') and re.match(r"\s*#\s*include\s*$", line):
            return text
        return re.sub(r"[^\n]", " ", text) if text.startswith("/") else '""' + "\n" * text.count("\n")

    return token.sub(blank, code)


def line_of(code, position):
    return code.count("\n", 0, position) + 1


def namespace_scope_statements(code):
    """Yields (position, text) of each statement at namespace scope, up to its `;` or to the `{` that opens something else."""
    code = re.sub(r"^\s*#(?:[^\n\\]|\\.|\\\n)*", lambda m: re.sub(r"[^\n]", " ", m.group()), code, flags=re.M)
    depth, start, i, opaque = 0, 0, 0, []
    while i < len(code):
        c = code[i]
        if c == "{":
            text = code[start:i]
            if depth == 0 and re.search(r"\bnamespace\b[\w\s:]*$|\bextern\s*\"\"\s*$", text):
                opaque.append(False)
                start = i + 1
            else:
                if depth == 0:
                    yield start, text + "{"
                opaque.append(True)
                depth += 1
        elif c == "}" and opaque:
            if opaque.pop():
                depth -= 1
            if depth == 0:
                start = i + 1
        elif c == ";" and depth == 0:
            yield start, code[start:i]
            start = i + 1
        i += 1


NO_VARIABLE = re.compile(
    r"^\s*(?:(?:public|private|protected)\s*:|using\b|typedef\b|friend\b|static_assert\b|namespace\b|extern\b|concept\b|"
    r"template\b(?!.*\binline\b)|return\b|requires\b|asm\b|class\b|struct\b|union\b|enum\b|operator\b|inline\s+namespace\b|\[\[)"
)
CONSTANT = re.compile(r"\b(?:const|constexpr|consteval)\b")


def named_types(code):
    """(line, qualified name) of each type that a header of this tree defines in a named namespace: at the start of a line, as the formatter has it."""
    namespace = ""
    for number, text in enumerate(code.splitlines(), 1):
        if match := re.match(r"namespace ([\w:]+) \{", text):
            namespace = match[1]
        elif match := re.match(r"(?:class|struct|union|enum class|enum) (?:alignas\([^)]*\) )?(\w+)\b(?!::|.*;\s*$)", text):
            yield number, f"{namespace}::{match[1]}"


def declares_mutable(text):
    """Whether a declaration is a variable, and one that can change."""
    text = re.sub(r"\boperator\s*[^\s\w(]+", "operator_", text).replace("__extension__", "")
    head = re.split(r"[={(\[]", text, maxsplit=1)
    if not head[0].strip() or NO_VARIABLE.search(text) or CONSTANT.search(head[0]):
        return False
    if len(head) > 1 and text[len(head[0])] == "(":
        return False  # a function
    return re.search(r"[\w>*&]\s+[*&]*[\w:]+\s*$", head[0]) is not None


def mutable_globals(code):
    for position, text in namespace_scope_statements(code):
        if declares_mutable(text):
            start = position + len(text) - len(text.lstrip())
            yield start, " ".join(text.split())
    for match in re.finditer(r"\b(?:static|thread_local)\s+(?!_)(?P<text>[^;{}=(]*[;{=(])", code):
        text = match["text"]
        if re.search(r"\boperator\b", text):
            continue
        if declares_mutable(text.rstrip(";")):
            yield match.start(), " ".join(match.group().split())


def hash_order_loops(code, sibling_code):
    """Loops over unordered containers that this file or its sibling header declares."""
    names = set(re.findall(r"\bunordered_(?:map|set|multimap|multiset)\s*<[^;{}()]*>\s+(\w+)\s*[;={]", code + sibling_code))
    for name in names:
        for match in re.finditer(r"\bfor\s*\([^;()]*:\s*(?:this->)?%s\s*\)" % name, code):
            yield match.start(), name


class Tree:
    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        table = tomllib.loads((self.root / "tests/floors.toml").read_text())
        self.line = table["first_floor_that_touches_the_world"]
        self.floor = {folder: int(floor) for floor, folders in table["floors"].items() for folder in folders}
        self.parts = table.get("parts", {})
        self.stateful = table.get("stateful", {})
        self.found = set()
        self.types = {}  # that headers define at the scope of a namespace: where

    def report(self, path, line, text):
        self.found.add(Violation(str(path.relative_to(self.root)), line, text))

    def check(self):
        for folder in sorted(p for p in (self.root / "src").iterdir() if p.is_dir()):
            sources = sorted(p for p in folder.rglob("*") if p.suffix in SOURCES)
            if not sources:
                continue
            if folder.name not in self.floor:
                self.report(folder, 1, "is on no floor; give it one in tests/floors.toml")
                continue
            self.check_readme(folder)
            for path in sources:
                if folder.name in self.parts and path.relative_to(folder).parts[0] not in self.parts[folder.name]:
                    self.report(path, 1, f"lies in no part of {folder.name}: {', '.join(self.parts[folder.name])} (tests/floors.toml)")
                self.check_source(path, folder.name)
        for path in self.files():
            self.check_names(path)
        return sorted(self.found)

    def check_readme(self, folder):
        readme = folder / "README.md"
        if not readme.exists():
            self.report(folder, 1, f"has no README.md (at most {MAX_README_LINES} lines: what it is, where to start, invariants, sources)")
        elif (lines := len(readme.read_text().splitlines())) > MAX_README_LINES:
            self.report(readme, lines, f"has {lines} lines; at most {MAX_README_LINES}")

    def check_source(self, path, folder):
        raw = path.read_text(errors="replace")
        code = strip(raw)
        if path.suffix in {".h", ".hpp"}:
            if not raw.startswith("//"):
                self.report(path, 1, "does not start with a comment that says what it is")
            if not re.search(r"^#pragma once$", code, re.M):
                self.report(path, 1, "has no #pragma once")
            self.check_types(path, code)
            self.search(path, code, [HEAVY_IN_HEADERS])
        self.check_includes(path, folder, code)
        is_test = path.stem.endswith("_test")
        if is_test:
            self.search(path, code, [SLEEP_IN_TESTS])
        elif self.floor[folder] < self.line:
            self.search(path, code, WORLD)
            self.check_state(path, code)

    def check_types(self, path, code):
        """Two types of one name are one to the linker, which takes a function of either for that of both."""
        for line, name in named_types(code):
            other, at = self.types.setdefault(name, (path, line))
            if other != path:
                self.report(path, line, f"defines {name}, as {other.relative_to(self.root)}:{at} does; give it another name or namespace")

    def check_includes(self, path, folder, code):
        for match in re.finditer(r'^\s*#\s*include\s*"([^"]+)"', code, re.M):
            line, name = line_of(code, match.start(1)), match[1]
            other = name.split("/")[0]
            if "/" not in name or other not in self.floor:
                self.report(path, line, f'"{name}" names no folder of src/; write "folder/file.h", and <> for libraries')
            elif other != folder and self.floor[other] >= self.floor[folder]:
                self.report(path, line, f'{folder} (floor {self.floor[folder]}) includes "{name}" (floor {self.floor[other]}); only lower floors are known')
            elif other == folder and folder in self.parts:
                self.check_part(path, folder, line, name)

    def check_part(self, path, folder, line, name):
        parts, part = self.parts[folder], path.relative_to(self.root / "src" / folder).parts[0]
        included = name.split("/")[1]
        if "_test" not in path.name and part in parts and included in parts and parts.index(included) > parts.index(part):
            self.report(path, line, f'{folder}/{part} includes "{name}"; of {folder} only {", ".join(parts[: parts.index(part) + 1])} are known here')

    def search(self, path, code, patterns):
        for pattern, text in patterns:
            for match in re.finditer(pattern, code):
                self.report(path, line_of(code, match.start()), f"`{' '.join(match.group().split())}` {text}")

    def check_state(self, path, code):
        state = list(mutable_globals(code))
        excused = str(path.relative_to(self.root)) in self.stateful
        if excused and not state:
            self.report(path, 1, "has no global state any more; take it off the [stateful] list of tests/floors.toml")
        for position, text in [] if excused else state:
            self.report(path, line_of(code, position), f"`{text[:60]}` is state that outlives its owner; make it const or a member")
        sibling = path.with_suffix(".h")
        sibling_code = strip(sibling.read_text(errors="replace")) if path.suffix != ".h" and sibling.exists() else ""
        for position, name in hash_order_loops(code, sibling_code):
            self.report(path, line_of(code, position), f"loops over `{name}` in hash order; sort first, or keep it in order")

    def files(self):
        listed = subprocess.run(["git", "-C", self.root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                                capture_output=True, check=False)
        if listed.returncode == 0:
            paths = (self.root / name for name in listed.stdout.decode().split("\0") if name)
        else:  # an unpacked release
            paths = (p for p in self.root.rglob("*") if not any(part.startswith(("build", ".")) for part in p.relative_to(self.root).parts))
        return sorted(p for p in paths if p.is_file())

    def check_names(self, path):
        data = path.read_bytes()
        if b"\0" in data:
            return
        for number, text in enumerate(data.decode(errors="replace").splitlines(), 1):
            if match := MACHINE_PATH.search(text):
                self.report(path, number, f"`{match.group()}` is a path of one machine")
            if match := REGISTRY.search(text):
                self.report(path, number, f"`{match.group()}` names a package registry; the user's own configuration does that")


# ---- the checks, checked -------------------------------------------------------------------------------------------------------

HEADER = "// A thing.\n#pragma once\n"
CLEAN = {
    "tests/floors.toml": 'first_floor_that_touches_the_world = 3\n[floors]\n1 = ["base"]\n2 = ["wire", "port"]\n3 = ["nic"]\n'
                         '[parts]\nnic = ["first", "second"]\n'
                         '[stateful]\n"src/base/check.cpp" = "for the message of a failed check"\n',
    "src/base/check.cpp": "namespace {\nthread_local char text[160] = \"\";\n}\n",
    "src/base/README.md": "# base\n",
    "src/base/time.h": HEADER + "namespace a {\n// a clock: steady_clock, std::thread\ninline constexpr int kTicks = 1'000;\nstruct T {\n"
                       "  static T parse(int x);\n  static constexpr int kMax = 3;\n  friend bool operator==(T, T) = default;\n  T& operator=(const T&) = default;\n"
                       "  int value_ = 0;\n  T time() const;\n};\nenum class E : int { kA, kB };\ntemplate <typename X = int>\nconcept C = requires(X x) { x; };\n"
                       "inline auto operator<=>(T a, T b) { return a.time().value_ <=> b.time().value_; }\n}\n",
    "src/wire/README.md": "# wire\n",
    "src/wire/icrc.cpp": '#include "base/time.h"\n\n#include <vector>\n\nnamespace a::b {\nnamespace {\nconst std::vector<int> kTable = {1, 2};\n'
                         'constexpr int kShift{3};\nint twice(int x) { static const int kTwo = 2; return kTwo * x; }\n}  // namespace\n'
                         '__extension__ using Wide = unsigned __int128;\nconst char* name() { return "getenv(rand())"; }\nint T::*member();\nT::T(int a) : value_{a} {}\n}\n',
    "src/wire/icrc_test.cpp": '#include "base/time.h"\n#include <thread>\nstatic int g_runs = 0;\n',
    "src/nic/README.md": "# nic\n",
    "src/nic/second/a.cpp": '#include "nic/first/a.h"\n',
    "src/nic/first/a_test.cpp": '#include "nic/second/a.h"\n',
    "src/nic/first/loop.cpp": '#include <thread>\n#include "wire/icrc.h"\nint g = 0;\nauto t = std::chrono::steady_clock::now();\n',
}
# (what it is, file, its content, a part of the message)
PLANTED = [
    ("an include of a higher floor", "src/base/a.cpp", '#include "wire/icrc.h"\n', "only lower floors"),
    ("an include of the same floor", "src/wire/a.cpp", '#include "port/port.h"\n', "only lower floors"),
    ("an include of a higher floor by a test", "src/wire/a_test.cpp", '#include "nic/loop.h"\n', "only lower floors"),
    ("an include without a folder", "src/wire/a.cpp", '#include "icrc.h"\n', "names no folder"),
    ("an include of a later part", "src/nic/first/a.cpp", '#include "nic/second/a.h"\n', "only first are known here"),
    ("a file in no part", "src/nic/third/a.cpp", "\n", "lies in no part"),
    ("a folder without a floor", "src/misc/a.cpp", "\n", "is on no floor"),
    ("a folder without README", "src/port/a.cpp", "\n", "has no README.md"),
    ("a long README", "src/base/README.md", "x\n" * 31, "at most 30"),
    ("a header without a comment", "src/base/a.h", "#pragma once\n", "does not start with a comment"),
    ("a header without a guard", "src/base/a.h", "// A thing.\n", "has no #pragma once"),
    ("the command line's parser in a header", "src/nic/loop.h", HEADER + "#include <CLI/CLI.hpp>\n", "ten seconds of compiling"),
    ("a clock of chrono", "src/wire/a.cpp", "auto t() { return std::chrono::steady_clock::now(); }\n", "reads a clock"),
    ("a clock of POSIX", "src/wire/a.cpp", "void f(timespec* t) { clock_gettime(CLOCK_MONOTONIC, t); }\n", "reads a clock"),
    ("a clock of C", "src/wire/a.cpp", "long f() { return time(nullptr); }\n", "reads a clock"),
    ("a cycle counter", "src/wire/a.cpp", "auto f() { return __rdtsc(); }\n", "reads a clock"),
    ("a sleep", "src/wire/a.cpp", "void f() { usleep(3); }\n", "sleeps"),
    ("a sleep in a test", "src/nic/a_test.cpp", "void f() { std::this_thread::sleep_for(1ms); }\n", "sleeps in a unit test"),
    ("a socket", "src/wire/a.cpp", "#include <sys/socket.h>\n", "uses sockets"),
    ("a socket without its header", "src/wire/a.cpp", "int f() { return ::socket(2, 3, 0); }\n", "uses sockets"),
    ("a thread", "src/wire/a.h", HEADER + "#include <thread>\n", "uses threads"),
    ("a mutex", "src/wire/a.h", HEADER + "struct S { std::mutex m; };\n", "uses threads"),
    ("the environment", "src/wire/a.cpp", 'auto f() { return std::getenv("X"); }\n', "reads the environment"),
    ("chance from the system", "src/wire/a.cpp", "std::random_device d();\n", "unseeded chance"),
    ("chance from C", "src/wire/a.cpp", "int f() { return rand(); }\n", "chance from a global"),
    ("chance from <random>", "src/wire/a.cpp", "#include <random>\n", "<random>"),
    ("a global", "src/wire/a.cpp", "namespace a {\nint counter = 0;\n}\n", "outlives its owner"),
    ("a global without initialiser", "src/wire/a.cpp", "namespace a {\nnamespace {\nstd::vector<int> seen;\n}\n}\n", "outlives its owner"),
    ("a global with braces", "src/wire/a.cpp", "void f() {}\nstd::array<int, 3> seen{};\n", "outlives its owner"),
    ("an inline global", "src/wire/a.h", HEADER + "inline std::atomic<int> count{0};\n", "outlives its owner"),
    ("a function's static", "src/wire/a.cpp", "int f() {\n  static int calls = 0;\n  return ++calls;\n}\n", "outlives its owner"),
    ("a class's static", "src/wire/a.h", HEADER + "class A {\n  static inline int calls = 0;\n};\n", "outlives its owner"),
    ("a thread's static", "src/wire/a.cpp", "int f() {\n  thread_local int calls = 0;\n  return ++calls;\n}\n", "outlives its owner"),
    ("an excuse that is not needed", "src/base/check.cpp", "\n", "any more"),
    ("a loop in hash order", "src/wire/a.cpp", "void f() {\n  std::unordered_map<int, int> m;\n  for (auto& [k, v] : m) g(k);\n}\n", "hash order"),
    ("pointer order", "src/wire/a.h", HEADER + "struct S { std::map<Node*, int> m; };\n", "orders by pointer"),
    ("a type of another's name", "src/wire/a.h", HEADER + "namespace a {\nstruct T {\n  int x;\n};\n}\n", "defines a::T"),
    ("a machine's path", "docs/a.md", "see /" + "home/someone/x\n", "path of one machine"),
    ("a registry", "docs/a.md", "from https://registry." + "npmjs.org/x\n", "package registry"),
]


def check_in(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return Tree(folder).check()


def self_test():
    failures = [f"a clean tree: {v}" for v in check_in(CLEAN)]
    for what, name, content, expected in PLANTED:
        found = check_in(CLEAN | {name: content})
        if not any(expected in v.text and v.path in (name, str(pathlib.Path(name).parent)) for v in found):
            failures.append(f"{what}: not found; found {[str(v) for v in found]}")
    print("\n".join(failures) or f"found all {len(PLANTED)} planted violations, and none in a clean tree")
    return 1 if failures else 0


def main(arguments):
    if arguments and arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    if arguments and arguments[0] == "--self-test":
        return self_test()
    tree = Tree(arguments[0] if arguments else pathlib.Path(__file__).parent.parent)
    violations = tree.check()
    for violation in violations:
        print(violation)
    print(f"{len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
