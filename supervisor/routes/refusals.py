"""Answers to requests for what there is not, whoever finds it out."""

from shared.errors import PublicError


def not_found() -> PublicError:
    """404 for a path."""
    return PublicError(404, "not_found", "There is nothing at this path.")


def method_not_allowed(allow: str) -> PublicError:
    """405; `allow` is the value of the Allow header."""
    headers = ((b"allow", allow.encode()),)
    return PublicError(405, "method_not_allowed", f"This path takes {allow} only.", headers=headers)
