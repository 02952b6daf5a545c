"""The launch record: the one line of JSON that tells a worker what it is.

A worker loads exactly what the record names: it never searches, downloads or guesses.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from shared import __version__
from shared.names import Names

RECORD_FD_ARGUMENT: Final = "--record-fd"
"""The only argument of a worker that serves in public: the descriptor of a file with its launch record."""

Effort = Literal["minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model thinks, in OpenAI's words; which of them a model tells apart is its own matter."""


# Of a chat template: they choose what the function returns, or the template itself; nobody has a say in that.
RESERVED_ARGUMENTS: Final = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Sampling defaults of a model; None leaves it to the model's generation_config.json.

    The settings read the `Meta` too: what a key means and what it may be is said here alone.
    """

    # The bounds stand at the number: msgspec refuses them on a union.
    temperature: (
        Annotated[float, Meta(description="0 always takes the likeliest token.", ge=0, le=2)] | None
    ) = None
    top_p: (
        Annotated[
            float,
            Meta(
                description="Take from the likeliest tokens that together have this probability.", ge=0, le=1
            ),
        ]
        | None
    ) = None
    top_k: (
        Annotated[
            int,
            Meta(description="Take from so many of the likeliest tokens; 0 is all.", ge=0, le=2**31 - 1),
        ]
        | None
    ) = None
    min_p: (
        Annotated[
            float,
            Meta(
                description="Leave out tokens below this share of the likeliest one's probability.",
                ge=0,
                le=1,
            ),
        ]
        | None
    ) = None
    xtc_probability: (
        Annotated[
            float,
            Meta(
                description="How often to leave out all of the likeliest tokens but the last of them.",
                ge=0,
                le=1,
            ),
        ]
        | None
    ) = None
    xtc_threshold: (
        Annotated[
            float,
            Meta(
                description="The probability from which on a token counts as one of the likeliest.",
                ge=0,
                le=0.5,
            ),
        ]
        | None
    ) = None
    repetition_penalty: (
        Annotated[
            float,
            Meta(
                description="Divides the logits of tokens that were there before; 1 is none.", ge=0.01, le=10
            ),
        ]
        | None
    ) = None
    repetition_context_size: (
        Annotated[
            int, Meta(description="So many of the last tokens are looked at for it.", ge=1, le=2**31 - 1)
        ]
        | None
    ) = None
    presence_penalty: (
        Annotated[
            float, Meta(description="Taken off the logits of tokens that were there before.", ge=-2, le=2)
        ]
        | None
    ) = None
    presence_context_size: (
        Annotated[
            int, Meta(description="So many of the last tokens are looked at for it.", ge=1, le=2**31 - 1)
        ]
        | None
    ) = None
    frequency_penalty: (
        Annotated[
            float,
            Meta(
                description="Taken off the logits of tokens, once for each time they were there.", ge=-2, le=2
            ),
        ]
        | None
    ) = None
    frequency_context_size: (
        Annotated[
            int, Meta(description="So many of the last tokens are looked at for it.", ge=1, le=2**31 - 1)
        ]
        | None
    ) = None

    def over(self, other: "Sampling") -> "Sampling":
        """These values, and those of `other` where there is none."""
        own = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(other, **own)


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One machine that computes a part of a model."""

    ssh: str
    """What `ssh` calls it; a loopback address is this machine."""
    ips: tuple[str, ...] = ()
    """Its addresses that the others reach it by."""
    rdma: tuple[str | None, ...] = ()
    """Its RDMA devices to each of the machines; None for itself."""

    @property
    def local(self) -> bool:
        return self.ssh in ("localhost", "127.0.0.1", "::1")


class Shards(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The machines that compute one model together; the first is the worker's own."""

    hosts: tuple[Host, ...]
    backend: Literal["ring", "jaccl", "jaccl-ring"] = "ring"
    environment: dict[str, str] = {}
    """Variables that mlx reads, for all of them."""

    @property
    def here(self) -> float:
        """The share of the model that is computed on this machine."""
        return (1 + sum(host.local for host in self.hosts[1:])) / len(self.hosts)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Resolved options of one worker. Sizes are bytes, lengths are tokens."""

    context: int | None = None
    """Upper bound on prompt plus completion, in tokens; None is the model's own."""
    max_concurrency: int = 8
    """Rows that decode in one batch."""
    queue: int = 64
    """Requests that may wait for a row beyond those that run."""
    prefill_step: int = 512
    """Prompt tokens per engine step: bounds how long running rows stall."""
    prompt_cache_bytes: int | None = None
    """Cap of the prompt cache in memory; None lets the worker choose, 0 keeps nothing."""
    memory_bytes: int | None = None
    """What weights, running rows and prompt cache may take together; None is what the GPU or RAM allow."""
    budget_bytes: int | None = None
    """What it may take at most, when others leave it all: a row that needs more is refused. None is
    `memory_bytes`, which may be changed while it serves."""
    saved_state: str | None = None
    """Absolute path of the folder for prompt state on disk, shared by all models; None saves nothing."""
    saved_state_bytes: int | None = None
    """Cap of all prompt state on disk; None lets the worker choose."""
    sampling: Sampling = Sampling()
    thinking: bool | Effort | None = None
    """Whether, and how much, it thinks for requests that don't say; None leaves it to the template."""
    draft: str | None = None
    """Absolute path of the folder of a small model that proposes what this one says; None is none."""
    draft_tokens: int = 4
    """Tokens that it proposes at a time, at most."""
    chat_template: str | None = None
    """Absolute path of a file with the template to use in place of the model's own."""
    chat_template_kwargs: dict[str, object] = {}
    """Arguments for the chat template; those of a request count before them."""
    shards: Shards | None = None
    """The machines that the model is spread over; None is this one alone."""
    adapters: dict[str, str] = {}
    """Absolute paths of LoRA folders in mlx-lm's format, by the names that requests ask for."""


class Public(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a worker must know that serves on the public port by itself. Descriptors are inherited ones."""

    listener: int
    """Descriptor of the listening TCP socket."""
    lock: int
    """Descriptor that locks the state folder for as long as it is open."""
    url: str
    """What to type into a client on this machine, without a path."""
    host: str
    """The address that it listens on."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names that a Host header may carry."""
    cors_origins: tuple[str, ...] = ()
    """Origins of web pages that may ask."""
    max_body_bytes: int = 64 * 2**20
    drain_s: float = 10.0
    """What answers under way get at the stop."""
    names: Names = Names()
    """Those of all models: another one's are not answered to."""
    set: dict[str, object] = {}
    """Fields that every request gets."""
    strip: tuple[str, ...] = ()
    """Fields that are taken out of every request."""


class LaunchRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`protocol` is the package version on both sides: a mixed pair after an upgrade must not run."""

    socket: str
    """Absolute path of the Unix socket to bind; not used by one that serves in public."""
    model: str
    """The public model id; answers carry it."""
    directory: str
    """Absolute path of the mlx-lm model folder."""
    generation: int = 0
    """Counts this model's spawns, from 1."""
    options: Options = Options()
    public: Public | None = None
    """For a worker that nobody supervises; None is one that serves its supervisor."""
    protocol: str = __version__

    def line(self) -> bytes:
        """The record as it goes through the pipe, with its line end."""
        return msgspec.json.encode(self) + b"\n"


class Preview(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="preview", tag_field="only"):
    """What a spare's launch record is likely to name: it may get ready what takes no model's memory.

    Nothing follows from it. The record may name another model.
    """

    directory: str | None
    """Absolute path of the mlx-lm model folder; None is none, and lets go of the files of the one before."""
    chat_template: str | None = None
    """As in `Options`."""
    protocol: str = __version__

    def line(self) -> bytes:
        """The preview as it goes through the pipe, with its line end."""
        return msgspec.json.encode(self) + b"\n"


class RecordError(Exception):
    """Raised when a launch record can't be used: malformed, or of another version."""


class _Kind(msgspec.Struct):
    protocol: str = ""
    only: str | None = None


def parse_record(line: bytes) -> LaunchRecord:
    """The record in `line`. Raises RecordError with a sentence for the log."""
    record = parse_line(line)
    if not isinstance(record, LaunchRecord):
        raise RecordError("there is no launch record")
    return record


def parse_line(line: bytes) -> LaunchRecord | Preview:
    """What a worker without a model is told. Raises RecordError with a sentence for the log."""
    try:
        kind = msgspec.json.decode(line, type=_Kind)
        # Before the fields: another version may have others, and the mismatch is the better message.
        if kind.protocol != __version__:
            raise RecordError(
                f"this worker is version {__version__}, the supervisor that started it is "
                f"{kind.protocol or 'unknown'}; restart the supervisor to use one version for both"
            )
        return msgspec.json.decode(line, type=LaunchRecord if kind.only is None else Preview)
    except msgspec.MsgspecError as error:
        raise RecordError(f"the launch record is not valid: {error}") from None
