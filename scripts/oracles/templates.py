#!/usr/bin/env python3
"""Oracle of the chat template interpreter: Jinja2 3.1.6 set up as Hugging Face sets it up.

Needs `pip install jinja2==3.1.6`. Without options it renders the cases of template_cases.py and
the templates in tests/data/templates and writes tests/data/templates/cases.jsonl. --gguf does the
same for the template inside SmolLM2-135M-Instruct (needs gguf==0.19.0 as well) and writes
smollm2.jsonl. With --templates or --fuzz it compares the interpreter (--render-tool, the program
render_template of the build) with Jinja2 on a folder of templates times random conversations, or
on random templates.
"""

import argparse
import functools
import json
import pathlib
import random
import re
import subprocess
import sys
from datetime import datetime

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

import template_cases
import template_conversations
import template_fuzz

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "templates"


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what the assistant wrote; it renders as its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_render", [])
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def strftime_now(format):
        return datetime.now().strftime(format)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    result = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, jinja2.ext.loopcontrols],
    )
    result.filters["tojson"] = tojson
    result.globals["raise_exception"] = raise_exception
    result.globals["strftime_now"] = strftime_now
    return result


ENVIRONMENT = environment()


@functools.lru_cache(maxsize=8)
def compiled(source):
    return ENVIRONMENT.from_string(source)


def expected(source, variables):
    """The output as bytes, or the exception."""
    try:
        return compiled(source).render(**variables).encode()
    except Exception as error:
        return error


class Tool:
    """The interpreter under test, fed through a pipe."""

    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def render(self, source, variables):
        request = {"template": source, "variables": variables}
        line = json.dumps(request, ensure_ascii=False) + "\n"
        self.process.stdin.write(line.encode())
        self.process.stdin.flush()
        answer = self.process.stdout.readline().decode().split()
        if len(answer) != 2:
            raise SystemExit("the render tool ended on:\n" + line)
        return answer[0] == "ok", self.process.stdout.read(int(answer[1]))


def differs(tool, source, variables):
    """None when both agree, else a description. Says "skipped" for what is beyond our limits."""
    reference = expected(source, variables)
    ok, output = tool.render(source, variables)
    if isinstance(reference, Exception):
        if not ok:
            return None
        return f"reference raises {reference!r}\nours gives {output!r}"
    if re.search(rb" [ab]t 0x|<generator", reference, re.IGNORECASE):
        return "skipped"
    if ok and output == reference:
        return None
    if not ok and (b"not supported" in output or b"more than" in output):
        return "skipped"
    return f"reference {reference!r}\nours      {output!r}"


def write_cases():
    shared = json.dumps({"variables": template_cases.VARIABLES}, ensure_ascii=False)
    lines = []
    names = set()
    for name, source, variables in template_cases.cases():
        assert name not in names, name
        names.add(name)
        lines.append(case_line({"name": name, "template": source}, source, variables))
    for path in sorted(DATA.glob("*.jinja")):
        generator = random.Random(path.name)
        source = path.read_text(encoding="utf-8")
        for index in range(12):
            variables = template_conversations.variables(generator)
            name = f"{path.stem} {index}"
            record = {"name": name, "file": path.name, "variables": variables}
            lines.append(case_line(record, source, variables))
    (DATA / "cases.jsonl").write_text(shared + "\n" + "".join(lines), encoding="utf-8")
    print(f"{len(lines)} cases")


def case_line(record, source, variables):
    """One line of cases.jsonl. A record without variables uses those of the first line."""
    result = expected(source, variables)
    if isinstance(result, Exception):
        record["raises"] = type(result).__name__
    else:
        assert b" at 0x" not in result, source
        record["expect"] = result.decode()
    return json.dumps(record, ensure_ascii=False) + "\n"


def write_model_cases(path):
    import gguf

    field = gguf.GGUFReader(path).fields["tokenizer.chat_template"]
    source = bytes(field.parts[field.data[0]]).decode()
    generator = random.Random("smollm2")
    lines = []
    for index in range(20):
        variables = template_conversations.variables(generator)
        record = {"name": f"smollm2 {index}", "variables": variables}
        lines.append(case_line(record, source, variables))
    (DATA / "smollm2.jsonl").write_text("".join(lines), encoding="utf-8")


def compare_folder(tool, folder, count, seed):
    failures = skipped = total = raised = 0
    for path in sorted(pathlib.Path(folder).glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        generator = random.Random(f"{seed} {path.name}")
        bad = 0
        for _ in range(count):
            variables = template_conversations.variables(generator)
            difference = differs(tool, source, variables)
            total += 1
            raised += isinstance(expected(source, variables), Exception)
            if difference == "skipped":
                skipped += 1
            elif difference is not None:
                bad += 1
                if bad <= 2:
                    print(f"{path.name}: {json.dumps(variables, ensure_ascii=False)}")
                    print(difference[:3000])
        failures += bad
    print(f"{total} renderings, {raised} raise in both, {skipped} skipped, {failures} differ")
    return failures


def compare_random(tool, count, seed):
    failures = skipped = raised = 0
    for index in range(count):
        generator = random.Random(f"{seed} {index}")
        for _ in range(4):
            source, variables = template_fuzz.case(generator)
            if not isinstance(expected(source, variables), Exception):
                break
        difference = differs(tool, source, variables)
        raised += isinstance(expected(source, variables), Exception)
        if difference == "skipped":
            skipped += 1
        elif difference is not None:
            failures += 1
            if failures <= 20:
                print(f"--- seed {seed} {index}\n{source}\n{difference[:1500]}")
    print(f"{count} templates, {raised} raise, {skipped} skipped, {failures} differ")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--templates", help="folder of *.jinja files to compare on")
    parser.add_argument("--fuzz", type=int, help="number of random templates to compare on")
    parser.add_argument("--gguf", help="SmolLM2-135M-Instruct-Q4_1.gguf, to write its cases")
    parser.add_argument("--render-tool", help="the program render_template")
    parser.add_argument("--count", type=int, default=50, help="conversations per template")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if jinja2.__version__ != "3.1.6":
        raise SystemExit(f"needs jinja2 3.1.6, this is {jinja2.__version__}")
    if options.gguf:
        write_model_cases(options.gguf)
        return
    if not options.templates and not options.fuzz:
        write_cases()
        return
    tool = Tool(options.render_tool)
    failures = 0
    if options.templates:
        failures += compare_folder(tool, options.templates, options.count, options.seed)
    if options.fuzz:
        failures += compare_random(tool, options.fuzz, options.seed)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
