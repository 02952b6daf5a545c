"""Client bytes to typed values, as all of `worker/api` does it."""

from shared.validation import check_range, decode, given

__all__ = ["check_range", "decode", "given"]
