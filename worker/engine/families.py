"""Rows with the same prompt: it is computed for the first, and the others begin from a copy of its cache.

Pure bookkeeping: the batch begins the rows.
"""

from typing import Any

from worker.engine.rows import Row


class _Family:
    def __init__(self, leader: int) -> None:
        self.leader: int | None = leader
        """The row that computes the prompt; None when it is computed."""
        self.waiting: dict[int, Row] = {}
        self.cache: list[Any] | None = None
        """Of the prompt but for its last token."""


class Families:
    """Those of one batch. A family is kept until it is forgotten, because rows may come late."""

    def __init__(self) -> None:
        self._families: dict[int, _Family] = {}
        self._of_row: dict[int, int] = {}
        """The family of each row that leads one or waits."""

    def __bool__(self) -> bool:
        return bool(self._of_row)

    @property
    def waiting(self) -> int:
        """Rows that wait for their prompt."""
        return sum(len(family.waiting) for family in self._families.values())

    @property
    def bytes(self) -> int:
        """What the caches take that are kept for rows to come."""
        caches = (family.cache for family in self._families.values() if family.cache is not None)
        return sum(layer.nbytes for cache in caches for layer in cache)

    def join(self, row: Row) -> list[Any] | None:
        """Take `row` in: it leads its family, waits, or begins at once from the cache that is returned."""
        assert row.family is not None
        family = self._families.get(row.family)
        if family is not None and family.cache is not None:
            return family.cache
        if family is None or family.leader is None:
            self._families[row.family] = _Family(row.id)
        else:
            family.waiting[row.id] = row
        self._of_row[row.id] = row.family
        return None

    def led_by(self, row: int) -> bool:
        """Whether `row` computes the prompt of a family."""
        number = self._of_row.get(row)
        return number is not None and self._families[number].leader == row

    def settle(self, leader: int, cache: list[Any]) -> list[Row]:
        """The prompt is computed; the rows that waited for it."""
        family = self._families[self._of_row.pop(leader)]
        family.leader, family.cache = None, cache
        waiting, family.waiting = list(family.waiting.values()), {}
        for row in waiting:
            del self._of_row[row.id]
        return waiting

    def leave(self, row: int) -> tuple[bool, Row | None]:
        """`row` is out: whether it had waited, and who computes the prompt now if `row` did until then."""
        number = self._of_row.pop(row, None)
        if number is None:
            return False, None
        family = self._families[number]
        if family.waiting.pop(row, None) is not None:
            return True, None
        family.leader = None
        if not family.waiting:
            del self._families[number]
            return False, None
        heir = family.waiting.pop(next(iter(family.waiting)))
        family.leader = heir.id
        return False, heir

    def forget(self, family: int) -> None:
        """No more rows of it will come."""
        gone = self._families.pop(family, None)
        if gone is not None:
            for row in (gone.leader, *gone.waiting):
                if row is not None:
                    self._of_row.pop(row, None)

    def reset(self) -> list[int]:
        """Forget all; the rows that waited."""
        waiting = [row for family in self._families.values() for row in family.waiting]
        self._families.clear()
        self._of_row.clear()
        return waiting
