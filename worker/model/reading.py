"""Reads a tokenizer on a thread of its own: beside the weights, or ahead of the launch record."""

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from worker.model.writing import Writing, read_writing

_WEIGHTS: Final = (".safetensors", ".gguf")


class Reading:
    """Begins at once, or when the reading before it is over."""

    def __init__(self, directory: Path, chat_template: str | None) -> None:
        """`chat_template` is the path of a file that takes the place of the folder's own."""
        self._of = directory, chat_template
        self._files = _files(directory, chat_template)
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
            and self._files == _files(directory, chat_template)
            and not (self._writing.done() and self._writing.exception() is not None)
        )

    def forget(self) -> None:
        """It is not wanted: let go of the tokenizer, whoever still holds this."""
        self._writing = Future()

    def result(self) -> Writing:
        """Wait for it. Raises LoadError."""
        return self._writing.result()


def reading_of(directory: Path, chat_template: str | None, ahead: Reading | None) -> Reading:
    """`ahead` if it was begun for the same and still holds, or else a new one."""
    if ahead is not None:
        if ahead.is_of(directory, chat_template):
            return ahead
        ahead.forget()
    return Reading(directory, chat_template)


def _files(directory: Path, chat_template: str | None) -> dict[str, tuple[int, int]] | None:
    """When the files that it depends on were written, in ns, and their bytes; None if that can't be told."""
    try:
        paths = [path for path in directory.iterdir() if path.suffix not in _WEIGHTS]
        if chat_template is not None:
            paths.append(Path(chat_template))
        states = {str(path): path.stat() for path in paths}
    except OSError:
        return None
    return {path: (state.st_mtime_ns, state.st_size) for path, state in states.items()}
