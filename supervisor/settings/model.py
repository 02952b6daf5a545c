"""The settings as the supervisor reads them: frozen, resolved, in bytes and seconds.

A field's `Meta` is the one place that says what a key means, what it may be and how it is written;
the loader, the reference in deploy/config.md and the error messages all read it. A field's encoded
name is its key in `config.toml`: people write `idle_unload = "30m"`, code reads `idle_unload_s`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from shared.launch import Sampling
from supervisor.telemetry.appendfile import LogLimits

YEAR_S: Final = 365 * 86400.0

SIZE: Final = {"form": "size"}
"""Written as `64MiB`, or as a whole number of bytes."""
DURATION: Final = {"form": "duration"}
"""Written as `90s`."""
DURATION_OR_NEVER: Final = {"form": "duration", "never": True}
"""Written as `30m`, or `never` for infinity."""
THINKING: Final = {"form": "thinking"}
"""Written as true, false or an effort."""
BUDGET: Final = {"form": "budget"}
"""Written as `48GiB`, `60%` or `auto`."""
ONE_MODEL: Final = {"one_model": True}
"""Belongs to one model: not inherited, so not allowed in `[defaults]`."""


class ServerSettings(msgspec.Struct, frozen=True, rename={"max_body_bytes": "max_body", "ping_s": "ping"}):
    """The public listener: `[server]`."""

    host: Annotated[
        str,
        Meta(description="Address to listen on. Anything beyond loopback also needs `insecure`."),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        Meta(description="TCP port to listen on; 0 lets the system choose a free one.", ge=0, le=65535),
    ] = 8080
    insecure: Annotated[
        bool,
        Meta(description="Allow a `host` that other machines can reach although nobody has to log in."),
    ] = False
    allowed_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="Names beyond loopback and `host` that a request's Host header may carry, "
            "such as the name a reverse proxy passes on."
        ),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        Meta(
            description="Origins of web pages that may call the API from a browser, "
            'such as `"https://chat.example"`.'
        ),
    ] = ()
    max_body_bytes: Annotated[
        int,
        Meta(description="Largest request body that is accepted.", ge=1024, le=2**40, extra=SIZE),
    ] = 64 * 2**20
    ping_s: Annotated[
        float,
        Meta(
            description="A stream on which nothing came for so long gets a ping, also while its model loads.",
            ge=1,
            le=YEAR_S,
            extra=DURATION_OR_NEVER,
        ),
    ] = 15.0
    ping_kind: Annotated[
        Literal["auto", "comment", "event"],
        Meta(
            description="What a ping is: a comment, which some clients ignore, or an event that means "
            "nothing. `auto` is an event for Anthropic's API, which has one, and else a comment."
        ),
    ] = "auto"
    fallback_model: Annotated[
        str,
        Meta(description="Model that answers for names that nobody knows; empty answers 404."),
    ] = ""


class MemorySettings(
    msgspec.Struct,
    frozen=True,
    rename={"prompt_cache_bytes": "prompt_cache", "saved_state_bytes": "saved_state"},
):
    """What models may take together, and what is kept of their prompts: `[memory]`."""

    spare: Annotated[
        bool,
        Meta(
            description="Keep one worker process ready with everything imported, "
            "so that the next load starts at the weights."
        ),
    ] = True
    budget: Annotated[
        str,
        Meta(
            description="What the models that are loaded may take together. `auto` is what the GPU may hold, "
            "or 75 % of the memory where there is no GPU. For one more model, idle ones leave, the least "
            "recently used first. The spare worker (about 0.2 GiB) is not counted.",
            extra=BUDGET,
        ),
    ] = "auto"
    max_waiting: Annotated[
        int,
        Meta(
            description="Requests that may wait, over all models; one more gets 429.",
            ge=1,
            le=100_000,
        ),
    ] = 1024
    # The bounds stand at the number: msgspec refuses them on a union.
    prompt_cache_bytes: (
        Annotated[
            int,
            Meta(
                description="Memory of each worker for the state of earlier prompts, so that the next turn "
                "computes its new tokens alone. 0 keeps none. Absent means a quarter of what the weights "
                "leave, at most 16 GiB.",
                ge=0,
                le=2**50,
                extra=SIZE,
            ),
        ]
        | None
    ) = None
    saved_state_bytes: (
        Annotated[
            int,
            Meta(
                description="Disk for such state of all models, so that a conversation is found warm "
                "after its model was unloaded. 0 saves none. Absent means a quarter of what is free, "
                "at most 16 GiB.",
                ge=0,
                le=2**50,
                extra=SIZE,
            ),
        ]
        | None
    ) = None


class CatalogSettings(msgspec.Struct, frozen=True):
    """Where models are looked for, beside the state folder's own `models`: `[catalog]`."""

    folders: Annotated[
        tuple[str, ...],
        Meta(
            description="Folders of model folders, which are found as `NAME` or `ORG/NAME` in them. One that "
            "does not begin with / or ~ is inside the state folder."
        ),
    ] = ()
    hub: Annotated[
        bool,
        Meta(description="Whether to list what is in the local Hugging Face cache."),
    ] = True
    lm_studio: Annotated[
        bool,
        Meta(description="Whether to list what LM Studio has in MLX format."),
    ] = True


class WatchSettings(
    msgspec.Struct,
    frozen=True,
    rename={
        "silence_s": "silence",
        "stall_s": "stall",
        "drain_s": "drain",
        "kill_grace_s": "kill_grace",
    },
):
    """When a worker counts as hung, and how long it gets to leave: `[watch]`."""

    silence_s: Annotated[
        float,
        Meta(
            description="A worker that does not answer for so long is killed and started anew.",
            ge=1,
            le=3600,
            extra=DURATION,
        ),
    ] = 10.0
    stall_s: Annotated[
        float,
        Meta(
            description="So is a worker that has requests running but makes no step for so long.",
            ge=1,
            le=86400,
            extra=DURATION,
        ),
    ] = 120.0
    drain_s: Annotated[
        float,
        Meta(
            description="At the stop, answers that are under way get so long to finish.",
            ge=0,
            le=3600,
            extra=DURATION,
        ),
    ] = 10.0
    kill_grace_s: Annotated[
        float,
        Meta(
            description="A worker that was told to leave is killed after so long.",
            ge=0,
            le=3600,
            extra=DURATION,
        ),
    ] = 3.0


class LogSettings(msgspec.Struct, frozen=True, rename={"max_size_bytes": "max_size"}):
    """What `supervisor.log` looks like, and how large the logs may grow: `[log]`."""

    format: Annotated[
        Literal["text", "json"],
        Meta(
            description="How `supervisor.log` is written, an event to a line: for people, or an object for "
            "programs. What workers print is kept as it is."
        ),
    ] = "text"
    max_size_bytes: Annotated[
        int,
        Meta(
            description="A log that reaches this size begins anew; the full one is kept as `NAME.1`.",
            ge=64 * 2**10,
            le=2**40,
            extra=SIZE,
        ),
    ] = 16 * 2**20
    keep: Annotated[
        int,
        Meta(description="Full logs that are kept of each name; the oldest goes first.", ge=0, le=1000),
    ] = 5

    @property
    def limits(self) -> LogLimits:
        return LogLimits(self.max_size_bytes, self.keep)


class HistorySettings(msgspec.Struct, frozen=True, rename={"keep_s": "keep", "max_bytes": "max_size"}):
    """What is kept of responses and conversations: `[history]`."""

    keep_s: Annotated[
        float,
        Meta(
            description="What nobody used for so long is forgotten.",
            ge=60,
            le=100 * YEAR_S,
            extra=DURATION_OR_NEVER,
        ),
    ] = 30 * 86400.0
    max_bytes: Annotated[
        int,
        Meta(
            description="All of it together takes no more; what was used least recently goes first.",
            ge=2**16,
            le=2**50,
            extra=SIZE,
        ),
    ] = 2**30


class ModelSettings(msgspec.Struct, frozen=True, rename={"idle_unload_s": "idle_unload", "hold_s": "hold"}):
    """One model: `[models."ID"]` over `[defaults]`."""

    source: Annotated[
        str | None,
        Meta(
            description="Where the model is: a folder, the id of a model that `mlx-supervisor list` shows, "
            "or a hub id in the local Hugging Face cache, with `@REVISION` where it should not be the one "
            "that was downloaded last. Absent means the model of that very id.",
            extra=ONE_MODEL,
        ),
    ] = None
    aliases: Annotated[
        tuple[str, ...],
        Meta(
            description="Other names under which requests may ask for it. One that ends in `*` stands "
            "for all names that begin like it: `claude-*`.",
            extra=ONE_MODEL,
        ),
    ] = ()
    pin: Annotated[
        bool,
        Meta(description="Never unload it to make room or because it is idle.", extra=ONE_MODEL),
    ] = False
    preload: Annotated[
        bool,
        Meta(description="Load it when the supervisor starts.", extra=ONE_MODEL),
    ] = False
    adapters: Annotated[
        Mapping[str, str],
        Meta(
            description="Folders of LoRA adapters in mlx-lm's format, by the names that requests ask for.",
            extra=ONE_MODEL,
        ),
    ] = {}
    draft: Annotated[
        str | None,
        Meta(
            description="A small model of the same family that proposes what this one says, which makes a "
            "single answer faster and changes no text: a folder, a hub id or a model's id, as in `source`.",
            extra=ONE_MODEL,
        ),
    ] = None
    draft_tokens: Annotated[
        int,
        Meta(
            description="Tokens that `draft` proposes at a time, at most; fewer where it is often wrong.",
            ge=1,
            le=64,
            extra=ONE_MODEL,
        ),
    ] = 4
    hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="Machines that compute it together, this one first, when it is too large for one: "
            "`NAME=IP` each, where NAME is what ssh calls it, or the one file that `mlx.distributed_config` "
            "wrote. The model and this program are at the same paths on all of them.",
            extra=ONE_MODEL,
        ),
    ] = ()
    # The bounds stand at the number: msgspec refuses them on a union.
    context: (
        Annotated[
            int,
            Meta(
                description="Most tokens that prompt and completion may have together. "
                "Absent means what the model was made for.",
                ge=16,
                le=2**31 - 1,
            ),
        ]
        | None
    ) = None
    sampling: Annotated[
        Sampling,
        Meta(
            description="What a request that doesn't say gets. "
            "Absent means the model's own `generation_config.json`."
        ),
    ] = Sampling()
    thinking: (
        Annotated[
            bool | str,
            Meta(
                description="Whether, or how much, a model that can thinks for requests that don't say. "
                "Absent means what its chat template does by itself.",
                extra=THINKING,
            ),
        ]
        | None
    ) = None
    chat_template: (
        Annotated[
            str,
            Meta(
                description="File with a chat template in Jinja, to be used in place of the model's own.",
                extra=ONE_MODEL,
            ),
        ]
        | None
    ) = None
    chat_template_kwargs: Annotated[
        Mapping[str, object],
        Meta(description="Arguments for the chat template; those of a request count before them."),
    ] = {}
    set: Annotated[
        Mapping[str, object],
        Meta(description="Fields that every request for it gets, whatever it says itself."),
    ] = {}
    strip: Annotated[
        tuple[str, ...],
        Meta(description="Fields that are dropped from every request for it."),
    ] = ()
    idle_unload_s: Annotated[
        float,
        Meta(
            description="Unload it after so long without a request.",
            ge=1,
            le=YEAR_S,
            extra=DURATION_OR_NEVER,
        ),
    ] = 1800.0
    hold_s: Annotated[
        float,
        Meta(
            description="Keep it for so long after its last answer although another model waits for its "
            "room, so that two agents on two models don't make them change places at every turn. At most two "
            "further turns. It is not kept from who comes when it rests, such as the one client there is, "
            "who goes on to another model.",
            ge=0,
            le=3600,
            extra=DURATION,
        ),
    ] = 5.0
    priority: Annotated[
        int,
        Meta(
            description="Of several models that wait for room, the one with the highest loads first; it may "
            "pass over another one twice.",
            ge=-100,
            le=100,
        ),
    ] = 0
    exclusive: Annotated[
        bool,
        Meta(description="Load it only when no other model is loaded, and no other one beside it."),
    ] = False
    max_concurrency: Annotated[
        int,
        Meta(description="Requests that are answered at the same time, in one batch.", ge=1, le=1024),
    ] = 8
    queue: Annotated[
        int,
        Meta(description="Requests that may wait beyond those; one more gets 429.", ge=0, le=100_000),
    ] = 64


class Origin(msgspec.Struct, frozen=True):
    """Where a value came from. `where` is `FILE:LINE`, the variable's name, or empty."""

    source: Literal["file", "environment", "flag"]
    where: str = ""


class Settings(msgspec.Struct, frozen=True):
    """All settings, resolved. `models` holds the models that the configuration names, by id."""

    server: ServerSettings = ServerSettings()
    memory: MemorySettings = MemorySettings()
    catalog: CatalogSettings = CatalogSettings()
    watch: WatchSettings = WatchSettings()
    log: LogSettings = LogSettings()
    history: HistorySettings = HistorySettings()
    defaults: ModelSettings = ModelSettings()
    models: Mapping[str, ModelSettings] = {}
    preload: tuple[str, ...] = ()
    """Ids that the command line wants loaded at the start, beside those whose table says so."""
    origins: Mapping[str, Origin] = {}
    """By dotted key; what is not in here is a default."""

    def for_model(self, model_id: str) -> ModelSettings:
        """The model's own settings, or the defaults for one that the configuration does not name."""
        return self.models.get(model_id, self.defaults)


class StartOptions(msgspec.Struct, frozen=True):
    """What `mlx-supervisor start` was asked for."""

    home: Path
    config: Path | None = None
    """None is `config.toml` in the state folder, which may be absent; a file named here may not."""
    flags: Mapping[str, object] = {}
    """Dotted key of a setting -> its value; see `load_settings`."""
    models: tuple[str, ...] = ()
    """Model ids or aliases to load at the start."""


class SettingsError(Exception):
    """Raised when the configuration can't be used.

    The message is for people: a line for each problem, with file and line (or the variable, or the
    flag), the key, and what is allowed.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
