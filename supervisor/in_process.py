"""`start --in-process`: becomes a worker that serves the public port by itself.

Settings, catalog, lock and port are settled here, as for a supervisor; then the worker's program takes the
place of this one and gets what it needs as a launch record and as open descriptors. So nothing of it is
imported here.
"""

import os
import secrets
import tempfile
from collections.abc import Sequence
from typing import NoReturn

from shared.errors import PublicError
from shared.launch import RECORD_FD_ARGUMENT, LaunchRecord, Public
from supervisor.catalog.catalog import Catalog, ModelEntry
from supervisor.catalog.machine import detect
from supervisor.home import Home, HomeError
from supervisor.server import Refused
from supervisor.settings import Settings, SettingsError, StartOptions, load_settings
from supervisor.system.descriptors import raise_limit
from supervisor.system.listener import PortError, bind_public, public_url
from supervisor.workers.books import budget_of
from supervisor.workers.environment import worker_environment
from supervisor.workers.options import options_of
from supervisor.workers.pool import WORKER_COMMAND


def become_worker(options: StartOptions, *, command: Sequence[str] = WORKER_COMMAND) -> NoReturn:
    """Serve the one model that `options` names, in this very process. Raises Refused."""
    (name,) = options.models
    try:
        home = Home.open(options.home)
        settings = load_settings(
            options.config or home.config,
            environ=os.environ,
            flags=options.flags,
            required=options.config is not None,
        )
        lock = home.lock()
        entry = _chosen(name, home, settings)
        listener = bind_public(settings.server.host, settings.server.port)
    except (HomeError, SettingsError, PortError) as error:
        raise Refused(str(error)) from error
    raise_limit()
    listener.set_inheritable(True)
    server = settings.server
    record = LaunchRecord(
        socket="",
        model=entry.id,
        directory=str(entry.directory),
        generation=1,
        options=options_of(
            entry.settings,
            settings.memory,
            home.saved_state,
            entry.draft,
            entry.shards,
            memory_bytes=budget_of(settings.memory.budget, detect()),
        ),
        public=Public(
            listener=listener.fileno(),
            lock=lock.hand_over(),
            url=public_url(listener),
            host=server.host,
            allowed_hosts=server.allowed_hosts,
            cors_origins=server.cors_origins,
            max_body_bytes=server.max_body_bytes,
            drain_s=settings.watch.drain_s,
            names=Catalog(home, settings).names,
            set=dict(entry.settings.set),
            strip=entry.settings.strip,
        ),
    )
    program, *arguments = command
    try:
        with tempfile.TemporaryFile(dir=home.path / "run") as file:
            file.write(record.line())
            file.seek(0)  # flushes, too
            os.set_inheritable(file.fileno(), True)
            os.execve(  # noqa: S606  # no shell is wanted
                program,
                [program, *arguments, RECORD_FD_ARGUMENT, str(file.fileno())],
                worker_environment(os.environ, secrets.token_hex(16)),
            )
    except OSError as error:
        raise Refused(f"can't become a worker: {error}") from error


def _chosen(name: str, home: Home, settings: Settings) -> ModelEntry:
    """The model with this id or alias, and no fallback for it. Raises Refused."""
    try:
        entry = Catalog(home, settings).resolve(name, fallback=False)
    except PublicError as error:
        raise Refused(f"--model {name}: {error.message}") from error
    if entry.problem is not None:
        raise Refused(f"--model {name}: {entry.problem}")
    return entry
