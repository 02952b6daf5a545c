"""What is ready of a model before it is told to be loaded: all that takes no memory worth mentioning."""

import contextlib
from pathlib import Path
from typing import Any

from mlx_lm.utils import load_config

from worker.model.embedding import Embedding, check_architecture, embedding_of
from worker.model.folder import States, states_of
from worker.model.network import load_network
from worker.model.reading import Reading


class Ahead:
    """Nothing at first. What is ready counts as long as the folder's files are what they were."""

    def __init__(self) -> None:
        self._reading: Reading | None = None
        self._skeleton: Skeleton | None = None

    def read(self, directory: Path, chat_template: str | None) -> None:
        """Begin to read this tokenizer, unless that is what is read already."""
        self._reading = self.reading(directory, chat_template)

    def build(self, directory: Path) -> None:
        """Build the network whose weights are in `directory`. On the engine's thread; what is wrong with the
        folder is for the load to tell."""
        if self._skeleton is None or not self._skeleton.is_of(directory):
            self._skeleton = None
            with contextlib.suppress(Exception):
                self._skeleton = Skeleton(directory)

    def reading(self, directory: Path, chat_template: str | None) -> Reading:
        """The tokenizer that is read already, or else one that is begun now. `chat_template` is the path of
        a file that takes the place of the folder's own."""
        if (ahead := self._reading) is not None:
            if ahead.is_of(directory, chat_template):
                return ahead
            ahead.forget()
        return Reading(directory, chat_template)

    def network(self, directory: Path, embedding: Embedding | None) -> tuple[Any, dict[str, Any]]:
        """The network and its configuration, as `load_network` gives them, for once. On the engine's thread.

        Raises LoadError.
        """
        skeleton, self._skeleton = self._skeleton, None
        if skeleton is not None and skeleton.is_of(directory):
            return skeleton.network, skeleton.config
        return load_network(directory, embedding)

    def forget(self) -> None:
        """Let go of everything. On the engine's thread."""
        if self._reading is not None:
            self._reading.forget()
        self._reading = self._skeleton = None


class Skeleton:
    """A network without its weights, which come from the files when they are evaluated."""

    def __init__(self, directory: Path) -> None:
        """Raises LoadError, and what mlx-lm raises for a folder that it can't read."""
        self._of = directory
        self._files = self._states()
        config = load_config(directory)
        check_architecture(config)
        self.network, self.config = load_network(directory, embedding_of(directory, config))

    def is_of(self, directory: Path) -> bool:
        """Whether building it now would give this."""
        return self._of == directory and self._files is not None and self._files == self._states()

    def _states(self) -> States | None:
        return states_of(self._of, weights=True)
