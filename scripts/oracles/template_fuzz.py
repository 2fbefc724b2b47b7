"""Random templates for templates.py: a grammar over everything the interpreter supports."""

VARIABLES = {
    "n": 7,
    "z": 0,
    "neg": -3,
    "f": 2.5,
    "g": -0.125,
    "t": True,
    "nil": None,
    "s": "Hello World",
    "e": "",
    "u": "Ünï 世界 ß 👋",
    "sp": "  a b\t c \n",
    "l": [3, 1, 2],
    "le": [],
    "ls": ["b", "A", "c", "a", "B"],
    "lm": [1, "x", None, True, 2.5, [1], {"k": 1}],
    "ld": [
        {"name": "bob", "age": 3, "ok": True},
        {"name": "Al", "age": 1, "ok": False},
        {"name": "bob", "age": 2},
    ],
    "d": {"b": 2, "a": 1, "items": "shadow", "C": {"x": [1, 2]}},
    "de": {},
}

NAMES = sorted(VARIABLES) + ["missing", "x", "y", "ns", "m"]
STRINGS = [
    "'a'",
    "'lo'",
    "' '",
    "''",
    "'A'",
    "'%s-%s'",
    "'{} {}'",
    "'a,b,,c'",
    "'é'",
    '"q\'"',
    "'\\n'",
]
NUMBERS = ["0", "1", "2", "-1", "3", "10", "1.5", "2.0", "1e3", "0.1", "-2.5", "100"]
FILTERS = [
    "tojson",
    "tojson(indent=2)",
    "trim",
    "string",
    "default('D')",
    "d('D', true)",
    "upper",
    "lower",
    "capitalize",
    "title",
    "replace('a', 'b')",
    "replace('l', 'L', 1)",
    "indent",
    "indent(2, true)",
    "indent(first=true, blank=true)",
    "safe",
    "escape",
    "e",
    "int",
    "int(5)",
    "float",
    "float(1)",
    "abs",
    "round",
    "round(1)",
    "round(1, 'floor')",
    "round(method='ceil')",
    "format(1)",
    "wordcount",
    "center(9)",
    "truncate(5)",
    "truncate(5, true, '')",
    "length",
    "count",
    "list",
    "first",
    "last",
    "reverse",
    "reverse|list",
    "join",
    "join(', ')",
    "join('-', attribute='name')",
    "items|list",
    "dictsort",
    "dictsort(true)",
    "dictsort(false, 'value')",
    "dictsort(reverse=true)",
    "sort",
    "sort(reverse=true)",
    "sort(case_sensitive=true)",
    "sort(attribute='age')",
    "sort(attribute='name,age')",
    "unique|list",
    "unique(true)|list",
    "unique(attribute='name')|list",
    "min",
    "max",
    "min(attribute='age')",
    "max(true)",
    "sum",
    "sum(attribute='age')",
    "sum(start=1)",
    "batch(2)|list",
    "batch(2, 'z')|list",
    "slice(2)|list",
    "slice(3, 0)|list",
    "groupby('name')",
    "groupby('ok', default=1)",
    "map('upper')|list",
    "map(attribute='name')|list",
    "map(attribute='ok', default='?')|list",
    "map('default', 'q')|join",
    "select|list",
    "select('odd')|list",
    "select('string')|list",
    "reject('none')|list",
    "reject|list",
    "selectattr('ok')|list",
    "selectattr('age', 'gt', 1)|list",
    "rejectattr('ok', 'defined')|list",
    "selectattr('name', 'equalto', 'bob')|map(attribute='age')|list",
    "attr('items')",
    "forceescape",
    "tojson(sort_keys=true)",
    "tojson(separators=(',', ':'))",
    "tojson(ensure_ascii=true)",
]
TESTS = [
    "defined",
    "undefined",
    "none",
    "string",
    "mapping",
    "sequence",
    "iterable",
    "number",
    "integer",
    "float",
    "boolean",
    "true",
    "false",
    "odd",
    "even",
    "lower",
    "upper",
    "callable",
    "divisibleby 3",
    "divisibleby(2)",
    "eq 1",
    "equalto('a')",
    "ne 1",
    "gt 1",
    "lt(2)",
    "ge 1",
    "le 1",
    "in l",
    "in(['a', 1])",
    "sameas true",
    "sameas none",
    "escaped",
    "filter",
    "test",
]
METHODS = [
    "upper()",
    "lower()",
    "title()",
    "capitalize()",
    "swapcase()",
    "strip()",
    "lstrip()",
    "rstrip()",
    "strip('Hd')",
    "lstrip('He ')",
    "rstrip('ld')",
    "split()",
    "split(' ')",
    "split('l', 1)",
    "rsplit(None, 1)",
    "rsplit('o', 1)",
    "split(maxsplit=1)",
    "splitlines()",
    "splitlines(true)",
    "startswith('H')",
    "endswith('d')",
    "startswith(('a', 'H'))",
    "replace('l', 'LL')",
    "replace('l', '', 1)",
    "find('o')",
    "rfind('o')",
    "find('zz')",
    "index('o')",
    "count('l')",
    "count('')",
    "join(['x', 'y'])",
    "join(ls)",
    "format(1, 2)",
    "format(n, k=2)",
    "isdigit()",
    "isalpha()",
    "isalnum()",
    "isspace()",
    "isupper()",
    "islower()",
    "istitle()",
    "zfill(6)",
    "center(20)",
    "ljust(14, '.')",
    "rjust(14)",
    "partition('o')",
    "rpartition('o')",
    "removeprefix('He')",
    "removesuffix('ld')",
    "find('o', 5)",
    "find('o', -4, -1)",
    "expandtabs(4)",
    "items()",
    "keys()",
    "values()",
    "get('a')",
    "get('zz', 9)",
    "get('zz')",
    "copy()",
    "index(1)",
    "count(1)",
    "append(1)",
    "pop()",
    "items()|list",
    "keys()|list",
    "nosuch()",
    "split('')",
    "isidentifier()",
    "casefold()",
    "endswith('')",
]
FORMATS = [
    "'%d' % n",
    "'%5.2f|%-5d|%05d' % (f, n, neg)",
    "'%s %r' % (s, s)",
    "'%x %X %o' % (255, 255, 8)",
    "'%(a)s' % d",
    "'%%'|format",
    "'%+d % d' % (n, n)",
    "'%e %g' % (f, f)",
    "'%c' % 'x'",
    "'%5s|' % u",
    "'{:>5}|{:<5}|{:^5}'.format(n, s, e)",
    "'{0} {1} {0}'.format(n, f)",
    "'{a} {b!r}'.format(a=1, b=s)",
    "'{:.2f} {:e} {:,}'.format(f, g, 1234567)",
    "'{:05d} {:+} {:x} {:#x}'.format(n, n, 255, 255)",
    "'{0.name} {0[age]}'.format(ld[0])",
    "'{:*^9}'.format(s)",
    "'{{}} {}'.format(l)",
    "'{:d}'.format(s)",
    "'{:.3}'.format(s)",
    "'{:%}'.format(f)",
    "'{:{w}}|'.format(s, w=14)",
    "'{:08.3f}'.format(neg)",
    "'{:b} {:o} {:c}'.format(n, n, 65)",
    "'{:.3g}'.format(f)",
    "'{} {}'.format(*l)",
    "'%s' % l",
    "'%s %s' % (1,)",
    "'%d' % s",
    "'{!s:>8}'.format(nil)",
    "'{:_}'.format(1234567)",
    "'%.3s|' % s",
]


class Grammar:
    def __init__(self, generator):
        self.random = generator

    def pick(self, options):
        return self.random.choice(options)

    def atom(self):
        kind = self.random.random()
        if kind < 0.5:
            return self.pick(NAMES)
        if kind < 0.65:
            return self.pick(STRINGS)
        if kind < 0.8:
            return self.pick(NUMBERS)
        if kind < 0.9:
            return self.pick(
                ["true", "false", "none", "True", "None", "[]", "{}", "()", "loop.index"]
            )
        return self.pick(FORMATS)

    def expression(self, depth):
        if depth <= 0:
            return self.atom()
        sub = lambda: self.expression(depth - 1)
        kind = self.random.randint(0, 21)
        if kind <= 3:
            return f"{sub()}|{self.pick(FILTERS)}"
        if kind <= 6:
            return f"{self.atom()}.{self.pick(METHODS)}"
        if kind == 7:
            return f"{sub()} is {self.pick(['', 'not '])}{self.pick(TESTS)}"
        if kind <= 9:
            operator = self.pick(["+", "-", "*", "/", "//", "%", "**", "~", "~", "+"])
            return f"{sub()} {operator} {sub()}"
        if kind == 10:
            operator = self.pick(["==", "!=", "<", "<=", ">", ">=", "in", "not in"])
            return f"{sub()} {operator} {sub()}"
        if kind == 11:
            return f"{sub()} {self.pick(['and', 'or'])} {sub()}"
        if kind == 12:
            return f"not {sub()}"
        if kind == 13:
            return f"({sub()} if {sub()} else {sub()})"
        if kind == 14:
            return f"({sub()} if {sub()})"
        if kind == 15:
            return f"{self.pick(['s', 'u', 'l', 'ls', 'd', 'ld', 'lm', 'x'])}[{sub()}]"
        if kind == 16:
            bounds = [
                self.pick(["", "0", "1", "-1", "2", "-2", "10", "z", "nil"]) for _ in range(3)
            ]
            step = self.pick(["", ":" + self.pick(["", "1", "2", "-1", "-2"])])
            return (
                f"{self.pick(['s', 'u', 'l', 'ls', 'lm', 'd', 'x'])}[{bounds[0]}:{bounds[1]}{step}]"
            )
        if kind == 17:
            return f"[{', '.join(sub() for _ in range(self.random.randint(0, 3)))}]"
        if kind == 18:
            keys = ["'k'", "1", "n", "s", "true"]
            pairs = (f"{self.pick(keys)}: {sub()}" for _ in range(self.random.randint(0, 3)))
            return "{" + ", ".join(pairs) + "}"
        if kind == 19:
            attribute = self.pick(["a", "name", "items", "C.x", "0", "x", "b", "C", "_x"])
            return f"{self.pick(['d', 'ld[0]', 'ns', 'missing', 'x', 's', 'nil'])}.{attribute}"
        if kind == 20:
            return self.pick(
                [
                    "range(3)|list",
                    "range(5, 1, -2)|list",
                    "range(n)",
                    "dict(a=1, b=n)",
                    "m(1)",
                    "m(n, b=s)",
                    "m()",
                    "namespace(a=1).a",
                    "dict([('a', 1)])",
                    "range(2)|sum",
                    "m(*l)",
                    "m(**{'a': 2})",
                    "(1, 2) + (3,)",
                    "-n",
                    "+f",
                    "-(2 ** 3)",
                    "(l, s)",
                    "cycler(1, 2).next()",
                ]
            )
        return f"({sub()})"

    def block(self, depth):
        count = self.random.randint(1, 3)
        return "".join(self.statement(depth) for _ in range(count))

    def tag(self, text):
        left = self.pick(["", "", "-", "+"])
        right = self.pick(["", "", "-", "+"])
        return "{%" + left + " " + text + " " + right + "%}"

    def output(self, depth):
        left = self.pick(["", "", "", "-"])
        right = self.pick(["", "", "", "-"])
        return "{{" + left + " " + self.expression(depth) + " " + right + "}}"

    def statement(self, depth):
        kind = self.random.randint(0, 24)
        if depth <= 0 or kind <= 8:
            return self.output(self.random.randint(0, 3))
        body = lambda: self.block(depth - 1)
        expression = lambda: self.expression(self.random.randint(0, 2))
        if kind <= 11:
            return self.pick(
                [
                    "text",
                    " \n",
                    "\n  ",
                    "  ",
                    "a\n\nb ",
                    "\n",
                    "{# note #}",
                    "{#- note -#}\n",
                    "\t",
                    " x\n   ",
                    "{% raw %} {{ no }} {% endraw %}",
                    "{# n #}\n",
                ]
            )
        if kind <= 13:
            middle = self.pick(
                ["", self.tag("else") + body(), self.tag("elif " + expression()) + body()]
            )
            return self.tag("if " + expression()) + body() + middle + self.tag("endif")
        if kind <= 16:
            target = self.pick(["x", "x", "x", "x, y", "y"])
            source = self.pick(
                [
                    "l",
                    "ls",
                    "ld",
                    "lm",
                    "d",
                    "d.items()",
                    "range(3)",
                    "s",
                    "le",
                    "missing",
                    "ls|sort",
                    "l|map('string')",
                    "d|dictsort",
                    expression(),
                ]
            )
            condition = self.pick(["", "", f" if {expression()}"])
            control = self.pick(
                [
                    "",
                    "",
                    self.tag("if " + expression())
                    + self.tag(self.pick(["break", "continue"]))
                    + self.tag("endif"),
                ]
            )
            extra = self.pick(
                [
                    "",
                    "{{ loop.index }}",
                    "{{ loop.last }}",
                    "{{ loop.previtem }}",
                    "{{ loop.nextitem }}",
                    "{{ loop.length }}",
                    "{{ loop.revindex }}",
                    "{{ loop.cycle('a', 'b') }}",
                    "{{ loop.changed(x) }}",
                    "{{ loop.first }}",
                ]
            )
            other = self.pick(["", "", self.tag("else") + body()])
            head = self.tag(f"for {target} in {source}{condition}")
            return head + extra + control + body() + other + self.tag("endfor")
        if kind <= 19:
            target = self.pick(["x", "y", "n", "s", "l", "x, y", "ns.a", "ns.b", "missing"])
            return self.tag(f"set {target} = {expression()}")
        if kind == 20:
            name = self.pick(["x", "y", "x|upper", "ns.a", "s|trim|length"])
            return self.tag(f"set {name}") + body() + self.tag("endset")
        if kind == 21:
            parameters = self.pick(["", "a", "a, b=2", "a=n, b=a", "x"])
            extra = self.pick(
                ["", "{{ caller() }}", "{{ varargs }}", "{{ kwargs }}", "{{ a }}{{ b }}"]
            )
            head = self.tag(f"macro m({parameters})")
            return head + extra + body() + self.tag("endmacro")
        if kind == 22:
            return self.tag("call m(" + self.pick(["", "1"]) + ")") + body() + self.tag("endcall")
        if kind == 23:
            name = self.pick(["upper", "trim", "replace('a', 'b')", "indent", "length"])
            return self.tag("filter " + name) + body() + self.tag("endfilter")
        if self.random.random() < 0.3:
            return self.tag("generation") + body() + self.tag("endgeneration")
        return self.tag(f"with x = {expression()}") + body() + self.tag("endwith")


def case(generator):
    grammar = Grammar(generator)
    head = generator.choice(
        ["", "{% set ns = namespace(a=1) %}", "{% macro m(a, b=3) %}<{{ a }}{{ b }}>{% endmacro %}"]
    )
    return head + grammar.block(generator.randint(1, 3)), VARIABLES
