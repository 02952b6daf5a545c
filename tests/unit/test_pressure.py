"""Memory pressure: what the systems say, and how calmly we believe that it is over."""

from pathlib import Path

import pytest

from supervisor.system.pressure import (
    CALM_S,
    Level,
    Pressure,
    level_of_psi,
    linux_source,
    macos_source,
    system_source,
)

NORMAL, WARN, CRITICAL = Level.NORMAL, Level.WARN, Level.CRITICAL


def psi(some: float, full: float) -> str:
    return (
        f"some avg10={some:.2f} avg60=0.00 avg300=0.00 total=123\n"
        f"full avg10={full:.2f} avg60=99.00 avg300=99.00 total=45\n"
    )


@pytest.mark.parametrize(
    ("value", "level"), [(1, NORMAL), (2, WARN), (4, CRITICAL), (0, None), (3, None), (None, None)]
)
def test_macos_says_it_in_one_number(value: int | None, level: Level | None) -> None:
    asked = []

    def read(name: str) -> int | None:
        asked.append(name)
        return value

    assert macos_source(read)() is level
    assert asked == ["kern.memorystatus_vm_pressure_level"]


@pytest.mark.parametrize(
    ("text", "level"),
    [
        (psi(0, 0), NORMAL),
        (psi(9.99, 0), NORMAL),
        (psi(10, 9.99), WARN),
        (psi(60, 10), CRITICAL),
        ("some avg10=12.00 avg60=0.00 avg300=0.00 total=1\n", WARN),
        ("", None),
        ("nothing of the kind", None),
        ("full avg10=50.00 avg60=0.00 avg300=0.00 total=1\n", None),
    ],
)
def test_linux_says_how_long_tasks_waited(text: str, level: Level | None) -> None:
    assert level_of_psi(text) is level


def test_linux_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "memory"
    source = linux_source(file)
    assert source() is None
    file.write_text(psi(20, 0))
    assert source() is WARN
    file.write_bytes(b"\xff\xfe")
    assert source() is None


def test_this_system_has_a_source() -> None:
    assert system_source()() in (NORMAL, WARN, CRITICAL, None)
    assert system_source("plan9")() is None


class Mood:
    """A source that says what it is told to."""

    def __init__(self, level: Level | None = NORMAL) -> None:
        self.level = level

    def __call__(self) -> Level | None:
        return self.level


def test_it_rises_at_once_and_falls_calmly() -> None:
    mood = Mood()
    pressure = Pressure(mood)
    assert pressure.read(0) is NORMAL
    mood.level = CRITICAL
    assert pressure.read(1) is CRITICAL
    mood.level = NORMAL
    assert pressure.read(2) is CRITICAL
    assert pressure.read(2 + CALM_S - 0.1) is CRITICAL
    assert pressure.read(2 + CALM_S) is NORMAL


def test_the_way_down_ends_at_the_worst_that_was_seen_on_it() -> None:
    mood = Mood(CRITICAL)
    pressure = Pressure(mood, calm_s=10)
    pressure.read(0)
    mood.level = NORMAL
    pressure.read(1)
    mood.level = WARN
    pressure.read(5)
    mood.level = NORMAL
    assert pressure.read(11) is WARN
    assert pressure.read(12) is WARN
    assert pressure.read(22) is NORMAL


def test_a_relapse_begins_the_wait_anew() -> None:
    mood = Mood(WARN)
    pressure = Pressure(mood, calm_s=10)
    pressure.read(0)
    mood.level = NORMAL
    pressure.read(1)
    mood.level = WARN
    pressure.read(9)
    mood.level = NORMAL
    assert pressure.read(12) is WARN
    assert pressure.read(21) is WARN
    assert pressure.read(22) is NORMAL


def test_a_machine_that_does_not_tell_is_normal() -> None:
    assert Pressure(Mood(None)).read(0) is NORMAL


def test_levels_compare_and_print() -> None:
    assert NORMAL < WARN < CRITICAL
    assert [str(level) for level in Level] == ["normal", "warn", "critical"]
