"""`make agents`: Claude Code, Codex and opencode, headless and from an empty HOME, with the starter model.

Judged is that a session comes to its end: what they send is taken, what they get is understood. The
starter's wit is not. Their own instructions are replaced by short ones, for its context is 8,192 tokens.
Needs npm.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.conformance.environments import node_modules
from tests.fixtures.harness import Service
from tests.fixtures.starter import starter_model

MODEL = "smollm2-135m"
LIMIT_S = 600
ASKED = "Say hello."
BRIEF = "You are brief."


def claude(url: str, folder: Path) -> tuple[list[str], Mapping[str, str]]:
    """Through Anthropic's Messages."""
    command = ["claude", "-p", ASKED, "--model", MODEL, "--system-prompt", BRIEF, "--tools", "Read"]
    return [*command, "--output-format", "json"], {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


def codex(url: str, folder: Path) -> tuple[list[str], Mapping[str, str]]:
    """Through OpenAI's Responses."""
    (folder / "brief.md").write_text(BRIEF)
    home = folder / ".codex"
    home.mkdir()
    (home / "config.toml").write_text(
        f"""
model = {json.dumps(MODEL)}
model_provider = "here"
model_instructions_file = {json.dumps(str(folder / "brief.md"))}
web_search = "disabled"
[features]
multi_agent = false
[model_providers.here]
name = "here"
base_url = {json.dumps(url + "/v1")}
wire_api = "responses"
"""
    )
    return ["codex", "exec", "--skip-git-repo-check", "-s", "read-only", ASKED], {}


def opencode(url: str, folder: Path) -> tuple[list[str], Mapping[str, str]]:
    """Through OpenAI's chat completions."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {MODEL: {"limit": {"context": 8192, "output": 200}}},
    }
    agent = {"prompt": BRIEF, "tools": {"*": False, "read": True}}
    settings = {"provider": {"here": provider}, "agent": {"build": agent, "title": {"disable": True}}}
    (folder / "opencode.json").write_text(json.dumps(settings))
    return ["opencode", "run", "-m", f"here/{MODEL}", ASKED], {}


def main() -> int:
    programs = node_modules("agents") / "node_modules" / ".bin"
    failed = []
    with tempfile.TemporaryDirectory(prefix="a-") as scratch:
        config = f"""
[defaults]
sampling = {{ temperature = 0 }}
[models.{json.dumps(MODEL)}]
source = {json.dumps(str(starter_model()))}
preload = true
"""
        with Service(Path(scratch) / "home", config=config) as service:
            for agent in (claude, codex, opencode):
                folder = Path(scratch) / agent.__name__
                folder.mkdir()
                command, environ = agent(service.url, folder)
                path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
                began = time.monotonic()
                done = subprocess.run(
                    [programs / command[0], *command[1:]],
                    cwd=folder,
                    env={"PATH": path, "HOME": str(folder), **environ},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=LIMIT_S,
                    check=False,
                )
                ok = done.returncode == 0
                took_s = time.monotonic() - began
                print(f"{command[0]}: {'ok' if ok else 'FAILED'} in {took_s:.0f} s", flush=True)
                if not ok:
                    print(done.stdout[-3000:])
                    failed.append(command[0])
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
