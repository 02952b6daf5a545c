"""`config.toml`, environment and flags, read into frozen structs."""

from supervisor.settings.loading import load_settings
from supervisor.settings.model import (
    CatalogSettings,
    HistorySettings,
    LogSettings,
    MemorySettings,
    ModelSettings,
    Origin,
    ServerSettings,
    Settings,
    SettingsError,
    StartOptions,
    WatchSettings,
)

__all__ = [
    "CatalogSettings",
    "HistorySettings",
    "LogSettings",
    "MemorySettings",
    "ModelSettings",
    "Origin",
    "ServerSettings",
    "Settings",
    "SettingsError",
    "StartOptions",
    "WatchSettings",
    "load_settings",
]
