"""Text that a client carries for us: `encrypted_content` of reasoning and compaction items.

It is packed, not secret: whoever holds it had the text before. The name is OpenAI's.
"""

import base64
import binascii
import zlib
from typing import Final

_MARK: Final = b"mlxs1"
_MAX_BYTES: Final = 20 * 2**20


def seal(text: str) -> str:
    """`text` as a client carries it."""
    return base64.b64encode(_MARK + zlib.compress(text.encode("utf-8", "surrogatepass"))).decode()


def unseal(sealed: str) -> str | None:
    """The text again; None for what `seal` did not write."""
    try:
        data = base64.b64decode(sealed, validate=True)
        if not data.startswith(_MARK):
            return None
        # A few bytes may unpack to gigabytes.
        unpack = zlib.decompressobj()
        text = unpack.decompress(data[len(_MARK) :], _MAX_BYTES)
        return None if unpack.unconsumed_tail or not unpack.eof else text.decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError, zlib.error):
        return None
