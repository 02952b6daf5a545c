"""Lines of keys: TOML texts made at random, with known lines."""

import json
import tomllib

from hypothesis import given
from hypothesis import strategies as st

from supervisor.settings.lines import key_lines, line_of

_Table = dict[str, object]
_Lines = dict[tuple[str, ...], int]
_names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=6)
_values = st.one_of(
    st.integers(-9, 9),
    st.booleans(),
    st.text(max_size=8),
    st.lists(st.one_of(st.integers(0, 9), st.text(max_size=3)), max_size=3),
)
_tables: st.SearchStrategy[_Table] = st.recursive(
    st.dictionaries(_names, _values, max_size=4),
    lambda inner: st.dictionaries(_names, st.one_of(_values, inner), max_size=4),
    max_leaves=12,
)


class _Writer:
    """Writes a table as TOML in a style drawn at random, and notes where each key went."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self.text = ""
        self.lines: _Lines = {}

    def table(self, content: _Table, path: tuple[str, ...]) -> None:
        """Values first: after a header everything belongs to that table."""
        later: list[tuple[str, _Table]] = []
        for name, value in content.items():
            if isinstance(value, dict) and self._draw(st.booleans()):
                later.append((name, value))
                continue
            self._noise()
            self._pair((name,), path, value)
            self.text += self._draw(st.sampled_from(["\n", " # note = 1\n", "\r\n"]))
        for name, value in later:
            self._noise()
            self._note((*path, name))
            self.text += f"[{self._draw(st.sampled_from(['', ' ']))}"
            self.text += ".".join(self._key(part) for part in (*path, name)) + "]\n"
            self.table(value, (*path, name))

    def _noise(self) -> None:
        self.text += self._draw(st.sampled_from(["", "\n", "# x = [\n", "  \n\t", "# 'a\n"]))

    def _pair(self, names: tuple[str, ...], path: tuple[str, ...], value: object) -> None:
        """`names` is what is written before the equals sign: more than one for a dotted key."""
        self._note((*path, *names))
        if isinstance(value, dict) and len(value) == 1 and len(names) < 4 and self._draw(st.booleans()):
            [(name, inner)] = value.items()
            self._pair((*names, name), path, inner)
            return
        self.text += " . ".join(self._key(name) for name in names) + self._draw(st.sampled_from(["=", " = "]))
        self._value((*path, *names), value)

    def _value(self, path: tuple[str, ...], value: object) -> None:
        if isinstance(value, dict):
            self.text += "{"
            for index, (name, inner) in enumerate(value.items()):
                self.text += ", " if index else " "
                self._pair((name,), path, inner)
            self.text += "}"
        elif isinstance(value, list):
            self.text += "["
            for item in value:
                self.text += self._draw(st.sampled_from(["", "\n", " # ]\n"]))
                self._value(path, item)
                self.text += ","
            self.text += "]"
        elif isinstance(value, str):
            self.text += self._string(value)
        else:
            self.text += json.dumps(value)

    def _string(self, value: str) -> str:
        plain = all(sign.isprintable() for sign in value)
        styles = ["basic"]
        if plain and "'" not in value:
            styles += ["literal", "long literal"]
        if plain and '"' not in value and "\\" not in value:
            styles.append("long basic")
        match self._draw(st.sampled_from(styles)):
            case "literal":
                return f"'{value}'"
            case "long literal":
                return f"'''\n{value}'''"
            case "long basic":
                return f'"""\n{value}"""'
        return _basic(value)

    def _key(self, name: str) -> str:
        if name.isascii() and name.isalnum() and self._draw(st.booleans()):
            return name
        if name.isprintable() and "'" not in name and self._draw(st.booleans()):
            return f"'{name}'"
        return _basic(name)

    def _note(self, path: tuple[str, ...]) -> None:
        line = self.text.count("\n") + 1
        for length in range(1, len(path) + 1):
            self.lines.setdefault(path[:length], line)


def _basic(text: str) -> str:
    # JSON lets the delete character stand as it is, TOML does not.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


@st.composite
def _documents(draw: st.DrawFn) -> tuple[_Table, str, _Lines]:
    content = draw(_tables)
    writer = _Writer(draw)
    writer.table(content, ())
    return content, writer.text, writer.lines


@given(_documents())
def test_every_key_is_found_on_its_line(document: tuple[_Table, str, _Lines]) -> None:
    content, text, lines = document
    assert tomllib.loads(text) == content
    assert key_lines(text) == lines


def test_lines_of_arrays_of_tables_and_of_what_is_missing() -> None:
    lines = key_lines('a = 1\n[[t]]\nx = """\n"""\n[[t]]\ny = 2\n["q.r".s]\n')
    assert lines == {
        ("a",): 1,
        ("t",): 2,
        ("t", "x"): 3,
        ("t", "y"): 6,
        ("q.r",): 7,
        ("q.r", "s"): 7,
    }
    assert line_of(lines, ("t", "z", "deep")) == 2
    assert line_of(lines, ("nowhere",)) is None
