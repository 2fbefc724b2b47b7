"""The hand-written cases of templates.py: every line of hand_written.txt is one template.

Lines that begin with == name a topic. All templates see VARIABLES.
"""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]

VARIABLES = {
    "name": "World",
    "text": "  Hello, Wörld! \n",
    "n": 7,
    "f": 2.5,
    "yes": True,
    "no": False,
    "nothing": None,
    "items_": [3, 1, 2],
    "words": ["pear", "Apple", "fig", "apple"],
    "people": [
        {"name": "Bob", "age": 30, "city": {"zip": 1}},
        {"name": "alice", "age": 25, "city": {"zip": 2}},
        {"name": "Bob", "age": 20},
    ],
    "d": {"b": 1, "a": 2, "items": "shadowed", "nested": {"k": [1, 2]}},
    "tree": [{"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": [{"v": 4, "kids": []}]}]}],
    "args": {"q": "a\"b'c<&>", "u": "é世👋", "x": 1.0, "big": 1e22, "e": [], "o": {}, "z": None},
    "tools": ["given"],
}


def cases():
    path = ROOT / "tests" / "data" / "templates" / "hand_written.txt"
    group, index = "", 0
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.startswith("== "):
            group, index = line[3:], 0
        elif line:
            index += 1
            # Elsewhere escapes stand in strings and are Jinja's.
            if group == "white space":
                line = line.replace("\\n", "\n").replace("\\r", "\r")
            yield f"{group} {index}", line, VARIABLES
