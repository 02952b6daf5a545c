"""Client bytes to typed values, as all of `worker/api` does it."""

from shared.validation import check_range, convert, decode, given

__all__ = ["check_range", "convert", "decode", "given"]
