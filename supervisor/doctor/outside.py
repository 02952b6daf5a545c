"""What is around the program: the port, the service manager, the hub."""

import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from supervisor.doctor.finding import Finding, fail, ok, warn
from supervisor.settings import ServerSettings
from supervisor.system.commands import Output, ServiceError, run_command
from supervisor.system.listener import PortError, bind_public, holder_of
from supervisor.system.service import Running
from supervisor.system.service import Status as ServiceStatus

HUB: Final = "https://huggingface.co"
_HUB_S: Final = 5.0


def who_listens(
    port: int,
    system: str = sys.platform,
    run: Callable[[list[str]], Output] = run_command,
    look: Callable[[int], str | None] = holder_of,
) -> str | None:
    """`name (pid N)` of who listens on `port`; None where the system does not tell."""
    if system != "darwin":
        return look(port)
    try:
        # macOS shows other programs' connections to lsof, not to us. Fields by letter: p is pid, c the name.
        told = run(["lsof", "-nP", f"-iTCP:{port}", "-sTCP:LISTEN", "-Fpc"])
    except ServiceError:
        return None
    fields = {line[0]: line[1:] for line in reversed(told.stdout.splitlines()) if line}
    return f"{fields['c']} (pid {fields['p']})" if {"p", "c"} <= fields.keys() else None


def check_port(
    server: ServerSettings,
    running: Running | None,
    bind: Callable[..., socket.socket] = bind_public,
    who: Callable[[int], str | None] = who_listens,
) -> Finding:
    """The public port: free, or ours."""
    if running is not None:
        return ok("port", f"{running.url.rpartition(':')[2]} is held by the running supervisor")
    place = f"{server.host}:{server.port}"
    try:
        bind(server.host, server.port, find_holder=who).close()
    except PortError as error:
        sentence, _, mend = str(error).partition("; ")
        return fail("port", sentence, f"the supervisor can't start on {place}", mend or None)
    return ok("port", f"{place} is free")


def check_service(status: Callable[[], ServiceStatus]) -> list[Finding]:
    """launchd or systemd: each problem is a finding of its own."""
    try:
        told = status()
    except ServiceError as error:
        return [ok("service", f"none: {str(error).partition(': ')[0]}")]
    if not told.installed:
        return [
            ok(
                "service",
                f"not installed ({told.manager}); to have it always: mlx-supervisor service install",
            )
        ]
    if not told.problems:
        return [ok("service", f"{told.phase} ({told.manager})")]
    found = []
    for problem in told.problems:
        sentence, _, mend = problem.rpartition(": ")
        if not mend.startswith("mlx-supervisor "):
            sentence, mend = problem, "mlx-supervisor service logs"
        means = (
            "the service does not serve" if not told.serving else "the service serves, but not as it should"
        )
        found.append(warn("service", sentence, means, mend))
    return found


def reach(url: str, timeout_s: float = _HUB_S) -> int:
    """The status that a HEAD request gets, through the proxies of the environment. Raises OSError."""
    request = urllib.request.Request(url, method="HEAD", headers={"User-Agent": "mlx-supervisor"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310  # of our environment
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code  # whoever refuses is there


def check_hub(ask: Callable[[str], int] = reach, environ: Mapping[str, str] = os.environ) -> Finding:
    """Whether models can be downloaded."""
    url = (environ.get("HF_ENDPOINT") or HUB).rstrip("/")
    offline = environ.get("HF_HUB_OFFLINE", "")
    if offline.upper() in ("1", "ON", "YES", "TRUE"):
        return ok("hub", "not asked: HF_HUB_OFFLINE is set")
    means = "models can't be downloaded; those that are here work"
    if not url.startswith(("http://", "https://")):
        return warn("hub", f"HF_ENDPOINT is no address: {url}", means, "unset HF_ENDPOINT")
    try:
        status = ask(url)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        return warn("hub", f"{url} can't be reached: {reason}", means, f"curl -I {url}")
    if status >= 500:
        return warn("hub", f"{url} answers with status {status}", means, "try again later")
    return ok("hub", f"{url} answers" + (", and there is a login" if has_login(environ) else ""))


def has_login(environ: Mapping[str, str]) -> bool:
    """Whether the hub's tools have a token, by the variables and files that they read."""
    if environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN"):
        return True
    base = environ.get("HF_HOME") or f"{environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    return Path(environ.get("HF_TOKEN_PATH") or f"{base}/token").expanduser().is_file()
