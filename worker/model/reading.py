"""Reads a tokenizer on a thread of its own: beside the weights, or ahead of them."""

import threading
from concurrent.futures import Future
from pathlib import Path

from worker.model.folder import states_of
from worker.model.writing import Writing, read_writing


class Reading:
    """Begins at once, or when the reading before it is over."""

    def __init__(self, directory: Path, chat_template: str | None) -> None:
        """`chat_template` is the path of a file that takes the place of the folder's own."""
        self._of = directory, chat_template
        self._files = states_of(directory, chat_template, weights=False)
        self._writing: Future[Writing] = Future()
        # Nothing waits for it at the end of the process.
        threading.Thread(target=self._read, args=(self._writing,), name="tokenizer", daemon=True).start()

    def _read(self, reading: Future[Writing]) -> None:
        try:
            writing = read_writing(*self._of)
        except BaseException as error:
            reading.set_exception(error)
        else:
            reading.set_result(writing)

    def is_of(self, directory: Path, chat_template: str | None) -> bool:
        """Whether this is what reading it now would give, as far as that can be told already."""
        return (
            self._of == (directory, chat_template)
            and self._files == states_of(directory, chat_template, weights=False)
            and not (self._writing.done() and self._writing.exception() is not None)
        )

    def forget(self) -> None:
        """It is not wanted: let go of the tokenizer, whoever still holds this."""
        self._writing = Future()

    def result(self) -> Writing:
        """Wait for it. Raises LoadError."""
        return self._writing.result()
