"""What the settings mean for a worker: the options of its launch record."""

from pathlib import Path

from shared.launch import Options
from supervisor.settings import MemorySettings, ModelSettings


def options_of(model: ModelSettings, memory: MemorySettings, saved_state: Path) -> Options:
    """Options of a worker for such a model; `saved_state` is the folder of all prompt state."""
    return Options(
        context=model.context,
        max_concurrency=model.max_concurrency,
        queue=model.queue,
        prompt_cache_bytes=memory.prompt_cache_bytes,
        saved_state=None if memory.saved_state_bytes == 0 else str(saved_state),
        saved_state_bytes=memory.saved_state_bytes,
        sampling=model.sampling,
        thinking=model.thinking,  # type: ignore[arg-type]  # the settings take nothing else
        adapters={name: str(Path(folder).expanduser()) for name, folder in model.adapters.items()},
    )
