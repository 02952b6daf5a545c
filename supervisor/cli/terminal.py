"""What verbs print: JSON, and tables that are coloured on a terminal and plain in a pipe."""

import os
import sys
from collections.abc import Sequence
from typing import Literal

Style = Literal["", "good", "busy", "bad", "faint"]
_RICH_STYLES: dict[Style, str] = {"": "", "good": "green", "busy": "yellow", "bad": "red", "faint": "dim"}


def clean(text: str) -> str:
    """`text` without control characters that would act on the terminal; line breaks and tabs stay."""
    return "".join(character if character.isprintable() or character in "\n\t" else "�" for character in text)


_COLOURS: dict[Style, str] = {"good": "32", "busy": "33", "bad": "31", "faint": "2"}


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


def say_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    styles: Sequence[Style] = (),
) -> None:
    """Print a table. Columns named in `right` hold numbers; `styles` colours each row's second cell."""
    cleaned = [[clean(cell).replace("\n", " ") for cell in row] for row in rows]
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        _say_rich_table(columns, cleaned, right, styles)
    else:
        _say_plain_table(columns, cleaned, right)


def _say_plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    lines = [[column.upper() for column in columns], *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        cells = (
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, cell, width in zip(columns, line, widths, strict=True)
        )
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def _say_rich_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str], styles: Sequence[Style]
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.upper(), justify="right" if column in right else "left")
    for number, row in enumerate(rows):
        style = _RICH_STYLES[styles[number]] if styles else ""
        # Text, because a plain str would be read as markup.
        table.add_row(*(Text(cell, style=style if index == 1 else "") for index, cell in enumerate(row)))
    Console().print(table)
