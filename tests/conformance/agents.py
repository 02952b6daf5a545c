"""`make agents`: Claude Code, Codex and opencode, headless and from an empty HOME, with the starter model.

Judged is that a session comes to its end: what they send is taken, what they get is understood. The
starter's wit is not. Their own instructions are replaced by short ones, for its context is 8,192 tokens, and
its answers end with their first sentence, for it would go on and on. Needs npm. ARGS names the agents.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.conformance.environments import node_modules
from tests.fixtures.harness import Service
from tests.fixtures.starter import starter_model

MODEL = "smollm2-135m"
LIMIT_S = 900
ASKED = "Say hello."
BRIEF = "You are brief."


class Session(NamedTuple):
    """A command and what it needs of the environment."""

    command: Sequence[str]
    environ: Mapping[str, str] = {}


def claude(url: str, folder: Path) -> Session:
    """Through Anthropic's Messages."""
    command = ["claude", "-p", ASKED, "--model", MODEL, "--system-prompt", BRIEF, "--tools", "Read"]
    return Session(
        [*command, "--output-format", "json"],
        {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "32768",
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "256",
        },
    )


def codex(url: str, folder: Path) -> Session:
    """Through OpenAI's Responses, without the tools that take most of its prompt."""
    (folder / "brief.md").write_text(BRIEF)
    home = folder / ".codex"
    home.mkdir()
    (home / "config.toml").write_text(
        f"""
model = {json.dumps(MODEL)}
model_provider = "here"
model_instructions_file = {json.dumps(str(folder / "brief.md"))}
[model_providers.here]
name = "here"
base_url = {json.dumps(url + "/v1")}
wire_api = "responses"
[features]
goals = false
[agents]
enabled = false
"""
    )
    return Session(["codex", "exec", "--skip-git-repo-check", "-s", "read-only", ASKED])


def opencode(url: str, folder: Path) -> Session:
    """Through OpenAI's chat completions."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {MODEL: {"limit": {"context": 8192, "output": 200}}},
    }
    agent = {"prompt": BRIEF, "tools": {"*": False, "read": True}}
    settings = {"provider": {"here": provider}, "agent": {"build": agent, "title": {"disable": True}}}
    (folder / "opencode.json").write_text(json.dumps(settings))
    return Session(["opencode", "run", "-m", f"here/{MODEL}", ASKED])


AGENTS: dict[str, Callable[[str, Path], Session]] = {"claude": claude, "codex": codex, "opencode": opencode}


def run(session: Session, programs: Path, folder: Path) -> tuple[int | None, str]:
    """The exit status, None past the limit, and what it said. None of its processes is left."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    name, *arguments = session.command
    log = folder / "output"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [programs / name, *arguments],
            cwd=folder,
            env={"PATH": path, "HOME": str(folder), **session.environ},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        code: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return code, log.read_text(errors="replace")


def main(names: Sequence[str]) -> int:
    if unknown := set(names) - set(AGENTS):
        raise SystemExit(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(AGENTS)}")
    programs = node_modules("agents") / "node_modules" / ".bin"
    failed = []
    with tempfile.TemporaryDirectory(prefix="a-", ignore_cleanup_errors=True) as scratch:
        config = f"""
[defaults]
sampling = {{ temperature = 0 }}
[models.{json.dumps(MODEL)}]
source = {json.dumps(str(starter_model()))}
preload = true
set = {{ stop = ["."], stop_sequences = ["."] }}
"""
        with Service(Path(scratch) / "home", config=config) as service:
            for name in names or AGENTS:
                folder = Path(scratch) / name
                folder.mkdir()
                began = time.monotonic()
                code, output = run(AGENTS[name](service.url, folder), programs, folder)
                took_s = time.monotonic() - began
                if code == 0:
                    print(f"{name}: ok in {took_s:.0f} s", flush=True)
                    continue
                ending = f"no end after {LIMIT_S} s" if code is None else f"exit {code} after {took_s:.0f} s"
                print(f"{name}: FAILED, {ending}\n{output[-3000:]}", flush=True)
                failed.append(name)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
