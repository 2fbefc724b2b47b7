"""Writes docs/ops.md from the contracts in src/ops/ops.h.

Usage: gen_ops_doc.py [--check]   (--check: fail when docs/ops.md is not up to date)
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src/ops/ops.h"
TARGET = ROOT / "docs/ops.md"


def comment_text(lines):
    """Comment lines as one paragraph."""
    return " ".join(re.sub(r"^///?<?\s?", "", line.strip()) for line in lines).strip()


def document(text):
    lines = text.splitlines()
    out = ["# Ops", "", "Generated from `src/ops/ops.h` by `scripts/gen_ops_doc.py`; edit there.", ""]
    head = [line for line in lines[1:] if line.startswith("//") and not line.startswith("///")]
    out += [re.sub(r"^// ?", "", line) for line in head]
    body = lines[next(i for i, line in enumerate(lines) if line.startswith("class Ops")):]
    comment = []
    index = 0
    while index < len(body):
        line = body[index].strip()
        if section := re.match(r"// ---- (.+) ----", line):
            out += ["", f"## {section.group(1).capitalize()}"]
            comment = []
        elif line.startswith("///"):
            comment.append(line)
        elif line.startswith("virtual") and "~" not in line:
            declaration = line
            while not declaration.endswith((";", "}")):
                index += 1
                declaration += " " + body[index].strip()
            fused = not declaration.endswith("= 0;")
            declaration = re.sub(r"^virtual | = 0;$|;$| \{.*\}$", "", declaration).replace("( ", "(")
            name = re.search(r"(\w+)\(", declaration).group(1)
            out += ["", f"### `{name}`" + (" (default body)" if fused else ""), "", "```cpp",
                    declaration, "```"]
            if comment:
                out += ["", comment_text(comment)]
            comment = []
        elif line and not line.startswith(("Tensor", "float", "int64_t", "RopeParams")):
            if not line.startswith("struct"):
                comment = [] if line != "};" else comment
        index += 1
    return "\n".join(out) + "\n"


def main():
    new = document(SOURCE.read_text())
    if "--check" in sys.argv[1:]:
        if TARGET.read_text() != new:
            sys.exit("docs/ops.md is not up to date: run scripts/gen_ops_doc.py")
        return
    TARGET.write_text(new)


main()
