"""What a request is called."""

import re

import pytest

from shared.request_ids import request_id


def test_fresh_ones_are_all_different() -> None:
    names = [request_id(None) for _ in range(2000)]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(rb"req_[0-9a-f]{24}", name) for name in names)


@pytest.mark.parametrize(
    ("offered", "taken"),
    [
        (b"mine", True),
        (b"a" * 128, True),
        (b"a" * 129, False),
        (b"a b", False),
        (b"", False),
        (b"a\n", False),
    ],
)
def test_a_clients_own_is_taken_if_it_is_short_and_harmless(offered: bytes, taken: bool) -> None:
    assert (request_id(offered) == offered) is taken
