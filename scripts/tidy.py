#!/usr/bin/env python3
"""Checks the rules of docs/design.md and the style that a script can check; prints one line a violation.

File length, function length, line length, include direction, words that stand for unfinished work, getenv and
printing outside tools/, formatting by clang-format 14 (skipped with a notice where it is not installed).
"""
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_FILE, MAX_FUNCTION, MAX_KERNEL, MAX_LINE = 600, 70, 150, 100
CODE = {".cpp", ".h", ".cu", ".cuh"}

# What each folder of src/ may include besides itself, by first path component.
ALLOWED = {
    "core": set(),
    "ops": {"core"},
    "gguf": {"core"},
    "text": {"core"},
    "hf": {"gguf", "text", "core"},
    "backends": {"ops", "core"},
    "models": {"ops", "gguf", "core"},
    "engine": {"models", "hf", "text", "ops", "gguf", "core"},
    "server": {"engine", "models", "hf", "text", "ops", "gguf", "core"},
}
FACTORY = "src/engine/backends.cpp"  # the one file that may name backends
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
OUTSIDE_TOOLS = re.compile(r"\b(getenv|printf|std::cout|std::cerr|puts)\b")
PRINT_OK = {"src/core/error.cpp"}  # check() prints before it aborts


def tracked_files():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.splitlines()]


def strip_code(text):
    """Blanks comments, strings and character literals, keeping line breaks."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))
    pattern = r'R"(\w*)\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
    return re.sub(pattern, blank, text, flags=re.S)


def function_lengths(code):
    """Yields (line, length) of every brace block that follows ')' at namespace or class scope."""
    depth_stack, line = [], 1
    tail = ""
    for char in code:
        if char == "\n":
            line += 1
        if char == "{":
            head = tail.rstrip()
            scope = re.search(r"\b(namespace|class|struct|enum|union)\b[^;(){}]*$", head) is not None
            extern = re.search(r"extern\s*$", head) is not None
            in_function = any(kind == "function" for kind, _ in depth_stack)
            is_function = not scope and not extern and not in_function and re.search(
                r"\)\s*(const|noexcept|override|final|->[^;{}]*|:[^;{}]*|\s)*$", head) is not None
            depth_stack.append(("function" if is_function else "other", line))
            tail = ""
        elif char == "}":
            if depth_stack:
                kind, start = depth_stack.pop()
                if kind == "function":
                    yield start, line - start + 1
            tail = ""
        elif char == ";":
            tail = ""
        else:
            tail += char


def check_includes(name, text, report):
    parts = name.split("/")
    if parts[0] != "src" or len(parts) < 3:
        return
    folder = parts[1]
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if not match:
            continue
        target = match.group(1).split("/")
        if target[0] == "backends":
            same = folder == "backends" and parts[2] == target[1]
            if not same and name != FACTORY:
                report(name, number, f'includes "{match.group(1)}": only the factory may name a backend')
        elif target[0] != folder and target[0] not in ALLOWED.get(folder, set()):
            report(name, number, f'{folder}/ may not include "{match.group(1)}"')


def check_file(path, report):
    name = str(path.relative_to(ROOT))
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    if len(lines) > MAX_FILE:
        report(name, len(lines), f"{len(lines)} lines, at most {MAX_FILE}")
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE and "http" not in line and 'R"' not in line:
            report(name, number, f"{len(line)} columns, at most {MAX_LINE}")
        if UNFINISHED.search(line) and name != "scripts/tidy.py":
            report(name, number, "unfinished-work marker")
    code = strip_code(text)
    if "using namespace" in code:
        report(name, 1, "using namespace")
    limit = MAX_KERNEL if path.suffix in {".cu", ".cuh"} or "/isa/" in name else MAX_FUNCTION
    for start, length in function_lengths(code):
        if length > limit:
            report(name, start, f"function of {length} lines, at most {limit}")
    if name.startswith("src/") and name not in PRINT_OK:
        for number, line in enumerate(code.split("\n"), 1):
            if OUTSIDE_TOOLS.search(line):
                report(name, number, "getenv or printing outside tools/")
    check_includes(name, text, report)


def check_format(files, report):
    tool = shutil.which("clang-format-14") or shutil.which("clang-format")
    if tool is None:
        print("tidy: clang-format is not installed, formatting not checked", file=sys.stderr)
        return
    result = subprocess.run([tool, "--dry-run", "-Werror", "--ferror-limit=1", *map(str, files)],
                            cwd=ROOT, capture_output=True, text=True, check=False)
    for line in result.stderr.splitlines():
        match = re.match(r"(.*?):(\d+):\d+: error:", line)
        if match:
            report(str(pathlib.Path(match.group(1)).relative_to(ROOT)), int(match.group(2)), "clang-format")


def main():
    violations = []

    def report(name, line, message):
        violations.append(f"{name}:{line}: {message}")

    files = [p for p in tracked_files() if p.suffix in CODE and p.is_file()]
    for path in files:
        check_file(path, report)
    check_format(files, report)
    print("\n".join(violations) if violations else f"tidy: {len(files)} files, no violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
