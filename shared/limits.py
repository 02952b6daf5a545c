"""What a worker does by itself, and the supervisor reckons with before there is one."""

from typing import Final

SHARE_FOR_FLOAT32: Final = 0.5
"""A worker on the CPU unpacks weights to float32 when they take up to this share of the free memory."""

# Names under which configurations of different families keep the length that a model was made for, in the
# order in which they are looked at.
LENGTH_KEYS: Final = (
    "max_position_embeddings",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "n_positions",
    "n_ctx",
)

UNBOUNDED_CONTEXT: Final = 131_072
"""Context in tokens of a model that names none, and has none configured."""
