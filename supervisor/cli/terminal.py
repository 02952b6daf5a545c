"""What verbs print: JSON, and tables that are coloured on a terminal and plain in a pipe."""

import os
import sys
from collections.abc import Sequence
from typing import Literal

Style = Literal["", "good", "busy", "bad", "faint", "head"]


def clean(text: str) -> str:
    """`text` without control characters that would act on the terminal; line breaks and tabs stay."""
    return "".join(character if character.isprintable() or character in "\n\t" else "�" for character in text)


_COLOURS: dict[Style, str] = {"good": "32", "busy": "33", "bad": "31", "faint": "2", "head": "1"}


def styled(text: str, style: Style) -> str:
    """`text` in the colour of `style` on a terminal that has colours, else as it is."""
    code = _COLOURS.get(style)
    if (
        code is None
        or not sys.stdout.isatty()
        or os.environ.get("TERM") == "dumb"
        or "NO_COLOR" in os.environ
    ):
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def say(text: str) -> None:
    """Print one line, or several, cleaned."""
    sys.stdout.write(clean(text) + "\n")


def say_json(value: object) -> None:
    """Print `value` for a program to read."""
    import json

    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def say_json_line(value: object) -> None:
    """Print `value` as one line, at once, for a program that reads along."""
    import json

    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def say_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    styles: Sequence[Style] = (),
) -> None:
    """Print a table. Columns named in `right` hold numbers; `styles` colours each row's second cell.

    A table wider than the terminal is wrapped by it: names stay whole, to be copied.
    """
    lines = [[column.upper() for column in columns], *([_cell(cell) for cell in row] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    last = len(columns) - 1
    for number, line in enumerate(lines):
        shown = []
        for index, (column, cell, width) in enumerate(zip(columns, line, widths, strict=True)):
            padding = "" if index == last and column not in right else " " * (width - len(cell))
            style: Style = "head" if number == 0 else ""
            if number > 0 and index == 1 and styles:
                style = styles[number - 1]
            text = styled(cell, style)
            shown.append(padding + text if column in right else text + padding)
        sys.stdout.write("  ".join(shown).rstrip() + "\n")


def _cell(text: str) -> str:
    return clean(text).replace("\n", " ")
