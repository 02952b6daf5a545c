"""What the settings mean for a worker: the options of its launch record."""

from pathlib import Path

from shared.launch import Options, Preview, Shards
from supervisor.catalog.catalog import ModelEntry
from supervisor.settings import MemorySettings, ModelSettings


def options_of(
    model: ModelSettings,
    memory: MemorySettings,
    saved_state: Path,
    draft: Path | None = None,
    shards: Shards | None = None,
    *,
    memory_bytes: int | None = None,
    budget_bytes: int | None = None,
) -> Options:
    """Options of a worker for such a model.

    `saved_state` is the folder of all prompt state, `draft` that of the model's draft, if it has one;
    `shards` are the machines that it is spread over, `memory_bytes` is what it may take for now, and
    `budget_bytes` what all models may take together.
    """
    return Options(
        context=model.context,
        max_concurrency=model.max_concurrency,
        queue=model.queue,
        memory_bytes=memory_bytes,
        budget_bytes=budget_bytes,
        prompt_cache_bytes=memory.prompt_cache_bytes,
        saved_state=None if memory.saved_state_bytes == 0 else str(saved_state),
        saved_state_bytes=memory.saved_state_bytes,
        sampling=model.sampling,
        thinking=model.thinking,  # type: ignore[arg-type]  # the settings take nothing else
        draft=None if draft is None else str(draft),
        draft_tokens=model.draft_tokens,
        chat_template=_chat_template(model),
        chat_template_kwargs=dict(model.chat_template_kwargs),
        shards=shards,
        adapters={name: str(Path(folder).expanduser()) for name, folder in model.adapters.items()},
    )


def preview_of(entry: ModelEntry) -> Preview:
    """What a spare may read before it is told to load `entry`."""
    return Preview(str(entry.directory), _chat_template(entry.settings))


def _chat_template(model: ModelSettings) -> str | None:
    return str(Path(model.chat_template).expanduser()) if model.chat_template else None
