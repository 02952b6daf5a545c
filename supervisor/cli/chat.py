"""Talk to a model in the terminal."""

import contextlib
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from supervisor.cli.errors import RefusedError
from supervisor.cli.options import HomeOption, supervisor_of
from supervisor.cli.terminal import clean, say

if TYPE_CHECKING:
    from supervisor.cli.client import Client

_INTERRUPTED = 130
"""Exit code of a program that Ctrl-C ended, as shells have it."""

Message = dict[str, str]


def chat(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Model id or alias; else the one that is loaded."),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="Ask this once and leave.", show_default=False),
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System message.", show_default=False)
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2, show_default=False)] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, show_default=False)] = None,
    home: HomeOption = None,
) -> None:
    """Talk to a model. Ctrl-C stops an answer, Ctrl-D leaves; without a terminal, stdin is the prompt.

    \b
    Example:
      mlx-supervisor chat smollm2-135m -p "What is the capital of France?" --temperature 0
    """
    from supervisor.cli.own_lease import refuse_within_lease

    client = supervisor_of(home)
    refuse_within_lease(client)
    settings = {"temperature": temperature, "max_tokens": max_tokens}
    conversation = _Conversation(
        str(client.get("/api/status")["url"]),
        model or _likely_model(client),
        system,
        {name: value for name, value in settings.items() if value is not None},
    )
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read()
    if prompt is None:
        _talk(conversation)
    elif not conversation.answer(prompt):
        raise typer.Exit(_INTERRUPTED)


def _talk(conversation: "_Conversation") -> None:
    """Prompt and answer in turns, until the end of the input."""
    with contextlib.suppress(ImportError):  # a Python without it still reads lines
        import readline  # noqa: F401  # gives `input` a history and editing keys
    say(f"{conversation.model} · Ctrl-C stops an answer, Ctrl-D leaves, /clear starts over")
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            say("")
            return
        except KeyboardInterrupt:
            say("")
            continue
        if text == "/clear":
            conversation.clear()
        elif text:
            try:
                conversation.answer(text)
            except RefusedError as refused:
                # A model that can't answer now may well answer the next time.
                sys.stderr.write(f"{clean(str(refused))}\n")


class _Conversation:
    """The messages so far, and the model that answers them."""

    def __init__(self, url: str, model: str, system: str | None, settings: dict[str, float]) -> None:
        self._url = url
        self.model = model
        self._system = system
        self._settings = settings
        self._messages: list[Message] = []
        self.clear()

    def clear(self) -> None:
        self._messages = [{"role": "system", "content": self._system}] if self._system else []

    def answer(self, text: str) -> bool:
        """Print the answer to `text` as it comes; False when Ctrl-C stopped it. Raises RefusedError."""
        asked: Message = {"role": "user", "content": text}
        body = {"model": self.model, "messages": [*self._messages, asked], "stream": True, **self._settings}
        said: list[str] = []
        try:
            # Closing the iteration closes the connection, so that the worker stops.
            with contextlib.closing(_pieces(self._url, body)) as pieces:
                for piece in pieces:
                    said.append(piece)
                    sys.stdout.write(clean(piece) if sys.stdout.isatty() else piece)
                    sys.stdout.flush()
            finished = True
        except KeyboardInterrupt:
            finished = False
        finally:
            if said:
                sys.stdout.write("\n")
                sys.stdout.flush()
        # What was said counts, also when it was stopped: the next question may be about it.
        self._messages += [asked, {"role": "assistant", "content": "".join(said)}]
        return finished


def _pieces(url: str, body: dict[str, Any]) -> Generator[str, None, None]:
    """The texts of a streamed answer."""
    import json

    from supervisor.cli.streaming import stream

    with contextlib.closing(stream(url, "/v1/chat/completions", body)) as events:
        for data in events:
            if data == b"[DONE]":
                return
            event = json.loads(data)
            if "error" in event:
                raise RefusedError(str(event["error"]["message"]))
            for choice in event["choices"]:
                if text := choice["delta"].get("content"):
                    yield text
    raise RefusedError("the answer ended too early")


def _likely_model(client: "Client") -> str:
    """The model that is meant when none is named: the only one loaded, or the only one there is."""
    models = client.get("/api/models")["models"]
    for candidates in (
        [model["id"] for model in models if model["state"] == "ready"],
        [model["id"] for model in models if not model["problem"]],
    ):
        if len(candidates) == 1:
            return str(candidates[0])
        if candidates:
            raise RefusedError(f"say which model: {', '.join(candidates)}")
    raise RefusedError("there is no model yet; get one with: mlx-supervisor pull ORG/NAME")
