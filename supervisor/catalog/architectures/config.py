"""config.json as the estimates read it: typed, bounded, and flat where it is nested.

The file comes from the internet: every value may be missing, null, of another type or absurd.
"""

from collections.abc import Mapping
from typing import Final

from shared.encoders import positions_before_text
from shared.limits import LENGTH_KEYS

_LARGEST: Final = 2**40
_MOST_LAYERS: Final = 4096

_LAYERS: Final = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_transformer_layers",
)
HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS: Final = ("num_key_value_heads", "n_kv_heads", "num_kv_heads")
HIDDEN: Final = ("hidden_size", "n_embd", "d_model", "model_dim", "hidden_dim")


class ConfigError(Exception):
    """Raised when config.json lacks a number that an estimate needs; the message names it."""


class Config:
    """Fields of one model. Whatever is not of the asked type counts as missing."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = fields

    @classmethod
    def of_model(cls, fields: Mapping[str, object]) -> "Config":
        """The language model's fields: those of `text_config` over the outer ones."""
        text = fields.get("text_config")
        return cls({**fields, **text} if isinstance(text, dict) else fields)

    def with_defaults(self, **defaults: object) -> "Config":
        """The same with values for fields that are missing or null."""
        given = {name: value for name, value in self._fields.items() if value is not None}
        return Config({**defaults, **given})

    def whole(self, *names: str, default: int | None = None) -> int:
        """The first of `names` that holds a whole number of at least 0. Raises ConfigError."""
        for name in names:
            value = self._fields.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                if 0 <= value <= _LARGEST:
                    return value
                raise ConfigError(f"config.json: {name} = {value} is out of range")
        if default is None:
            raise ConfigError(f"config.json names no {names[0]}")
        return default

    def optional(self, *names: str) -> int | None:
        """Like `whole`, but None when there is none."""
        found = self.whole(*names, default=-1)
        return None if found < 0 else found

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._fields.get(name)
        return value if isinstance(value, bool) else default

    def text(self, name: str) -> str | None:
        value = self._fields.get(name)
        return value if isinstance(value, str) else None

    def texts(self, name: str) -> list[str] | None:
        """A list of strings, such as `layer_types`."""
        return [item for item in self._list(name) if isinstance(item, str)] or None

    def wholes(self, name: str) -> list[int] | None:
        """A list of whole numbers, one a layer; booleans count as 0 and 1."""
        return [int(item) for item in self._list(name) if isinstance(item, int) and item >= 0] or None

    def part(self, name: str) -> "Config":
        """A nested object; empty when there is none."""
        value = self._fields.get(name)
        return Config(value if isinstance(value, dict) else {})

    def parts(self, name: str) -> list["Config"]:
        """A list of nested objects."""
        return [Config(item) for item in self._list(name) if isinstance(item, dict)]

    def count(self, name: str) -> int:
        """Entries of a list; 0 when there is none."""
        return len(self._list(name))

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def _list(self, name: str) -> list[object]:
        value = self._fields.get(name)
        if not isinstance(value, list):
            return []
        if len(value) > _MOST_LAYERS:
            raise ConfigError(f"config.json: {name} has {len(value)} entries")
        return value

    @property
    def layers(self) -> int:
        found = self.whole(*_LAYERS)
        if not 0 < found <= _MOST_LAYERS:
            raise ConfigError(f"config.json: {found} layers is out of range")
        return found

    @property
    def heads(self) -> int:
        return max(1, self.whole(*HEADS))

    @property
    def kv_heads(self) -> int:
        return self.whole(*_KV_HEADS, default=self.heads)

    @property
    def hidden(self) -> int:
        return self.whole(*HIDDEN)

    @property
    def head_dim(self) -> int:
        found = self.optional("head_dim", "kv_channels", "hidden_size_per_head")
        return found or self.hidden // self.heads

    @property
    def context(self) -> int | None:
        """Tokens that the model was made for; None when it names no length."""
        for name in LENGTH_KEYS:
            found = self.optional(name)
            if found:
                return found - positions_before_text(self._fields)
        return None
