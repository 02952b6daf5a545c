"""Which model a name means: the same for the supervisor and for a worker that serves by itself."""

import msgspec


class Names(msgspec.Struct, frozen=True):
    """All names that are answered to, by the id of the model that each means."""

    exact: dict[str, str] = {}
    """Ids and aliases."""
    beginnings: tuple[tuple[str, str], ...] = ()
    """What names may begin with, the longest first: the alias `claude-*` is here as `claude-`."""
    fallback: str | None = None
    """The model that answers for names which nobody knows."""

    def find(self, name: str) -> str | None:
        """The id of the model that answers to it."""
        return self.meant(name) or self.fallback

    def meant(self, name: str) -> str | None:
        """The id of the model that is meant; the fallback never is."""
        if (found := self.exact.get(name)) is not None:
            return found
        return next((model for start, model in self.beginnings if name.startswith(start)), None)
