"""What single values can't tell: settings that contradict each other."""

import ipaddress
import re
from collections.abc import Iterator
from typing import Final

from shared.launch import RESERVED_ARGUMENTS
from supervisor.settings.keys import dotted
from supervisor.settings.model import ModelSettings, Settings

Problem = tuple[tuple[str, ...], str]
"""The key that is to blame, and a sentence."""

MAX_NAME_BYTES: Final = 256
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@]+")


def check(settings: Settings) -> list[Problem]:
    """Every contradiction in `settings`; empty when it is fine."""
    checks = (_server, _names, _adapters, _hosts, _requests)
    return [problem for one in checks for problem in one(settings)]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`. A name other than localhost counts as reachable."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_host(host: str) -> bool:
    if _NAME.fullmatch(host):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _server(settings: Settings) -> Iterator[Problem]:
    server = settings.server
    if not _is_host(server.host):
        yield (
            ("server", "host"),
            f'server.host must be an address or a name such as "127.0.0.1", "::1" or "mac.local", '
            f"not {server.host!r}; the port goes into server.port",
        )
    elif not is_loopback(server.host) and not server.insecure:
        yield (
            ("server", "host"),
            f"server.host {server.host} lets other machines in, and nobody would have to log in; "
            "if that is what you want, add --insecure (or server.insecure = true)",
        )
    for host in server.allowed_hosts:
        if not _is_host(host):
            yield (
                ("server", "allowed_hosts"),
                f'server.allowed_hosts takes host names such as "mac.local", without scheme, port or '
                f"path, not {host!r}",
            )
    for origin in server.cors_origins:
        if not _ORIGIN.fullmatch(origin):
            yield (
                ("server", "cors_origins"),
                f'server.cors_origins takes origins such as "https://chat.example", without a path, '
                f"not {origin!r}",
            )


def _names(settings: Settings) -> Iterator[Problem]:
    owners: dict[str, str] = {}
    for model_id, model in settings.models.items():
        table = ("models", model_id)
        if not _is_name(model_id):
            yield table, f"{model_id!r} can't be a model id; {_NAMES_ARE}"
        for alias in model.aliases:
            key = (*table, "aliases")
            if not _is_name(alias):
                yield key, f"{alias!r} can't be an alias; {_NAMES_ARE}"
            elif alias in settings.models:
                yield key, f"the alias {alias!r} of {model_id!r} is the id of a model; choose another"
            elif alias in owners:
                by = "" if owners[alias] == model_id else f", by {owners[alias]!r} and {model_id!r}"
                yield key, f"the alias {alias!r} is used twice{by}"
            owners.setdefault(alias, model_id)


_NAMES_ARE: Final = f"names have 1 to {MAX_NAME_BYTES} bytes, and no control characters or spaces around them"


def _is_name(name: str) -> bool:
    return (
        0 < len(name.encode("utf-8", "replace")) <= MAX_NAME_BYTES
        and name.isprintable()
        and name == name.strip()
    )


def _adapters(settings: Settings) -> Iterator[Problem]:
    for model_id, model in settings.models.items():
        for name, folder in model.adapters.items():
            key = ("models", model_id, "adapters", name)
            if not _is_name(name) or name == "none":
                yield key, f"{name!r} can't be an adapter's name; {_NAMES_ARE}, and \"none\" is none"
            elif not folder.startswith(("/", "~/")):
                yield key, f'the adapter {name!r} must be a folder such as "~/adapters/sql", not {folder!r}'


def _requests(settings: Settings) -> Iterator[Problem]:
    """What is done to requests, and to how they are written out."""
    tables: dict[tuple[str, ...], ModelSettings] = {("defaults",): settings.defaults}
    tables |= {("models", model_id): model for model_id, model in settings.models.items()}
    for table, model in tables.items():
        for key, names in (("set", model.set), ("strip", model.strip)):
            for name in _FOUND_BY & {*names}:
                place = (*table, key)
                yield place, f"{dotted(place)} can't have {name!r}: a request is looked at by it before"
        for name in model.chat_template_kwargs:
            if name in RESERVED_ARGUMENTS or not name.isidentifier():
                place = (*table, "chat_template_kwargs")
                yield place, f"{dotted(place)} can't have {name!r}: no chat template can be given that"
        file = model.chat_template
        if file is not None and not file.startswith(("/", "~/")):
            place = (*table, "chat_template")
            yield place, f'{dotted(place)} must be a file such as "~/templates/mine.jinja", not {file!r}'
    for folder in settings.catalog.folders:
        if not folder:
            yield ("catalog", "folders"), "catalog.folders has an empty name"


_FOUND_BY: Final = frozenset({"model", "stream"})
"""Fields that the supervisor itself has read before."""


def _hosts(settings: Settings) -> Iterator[Problem]:
    for model_id, model in settings.models.items():
        if not model.hosts:
            continue
        key = ("models", model_id, "hosts")
        if len(model.hosts) == 1 and not model.hosts[0].endswith(".json"):
            yield key, f"{model_id!r} has one machine in `hosts`; name two or more, or a hostfile (.json)"
        if model.draft is not None or model.adapters:
            what = "a draft" if model.draft is not None else "adapters"
            yield key, f"{model_id!r} is spread over several machines and can't have {what}"
