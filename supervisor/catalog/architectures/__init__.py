"""What each architecture keeps in memory per token and per row, told from config.json alone."""

from supervisor.catalog.architectures.config import HEADS, HIDDEN, Config, ConfigError
from supervisor.catalog.architectures.families import architecture_of, layout_of, model_config
from supervisor.catalog.architectures.parts import CacheLayout, Keys, Layers, State

__all__ = [
    "HEADS",
    "HIDDEN",
    "CacheLayout",
    "Config",
    "ConfigError",
    "Keys",
    "Layers",
    "State",
    "architecture_of",
    "layout_of",
    "model_config",
]
