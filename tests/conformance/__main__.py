"""Runs every tool, or those named: `make conformance ARGS="sdks"`. Exits with 1 if one finds anything.

A supervisor of its own serves the starter, which says sensible things, and tiny random models: one that talks
in sentences, one with a short context for testers that ask a thousand things, and one that makes vectors.
`--quick` is what CI runs: most of it with the tiny one that talks, fewer made-up requests, and no npm.
"""

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.conformance.environments import BUILT, environment, node_modules
from tests.conformance.specification import specification
from tests.fixtures.harness import Service
from tests.fixtures.starter import starter_model
from tests.fixtures.tiny import Tiny, write_tiny

INSIDE = Path(__file__).parent / "inside"
STARTER, TALKER, TINY, VECTORS = "smollm2-135m", "talker", "tiny", "vectors"
CALLER = "caller"
"""`caller-chat` and `caller-messages` always call a tool."""
LIMIT_S = 3600
"""For a tool that hangs; the slowest takes five minutes on a quiet machine."""
SPECIFIED: Final = {
    TINY: ("/chat/completions", "/completions", "/models", "/models/{model}", "/responses"),
    VECTORS: ("/embeddings",),
}
CHECKS = "not_a_server_error,response_schema_conformance,content_type_conformance,negative_data_rejection"
# None of these models reads images: what those tests send is refused with 400, as it should be.
COMPLY = {
    "openai-chat": (
        "chat-basic-response,chat-system-prompt,chat-multi-turn,chat-tool-calling,chat-streaming-response,"
        "chat-streaming-usage,chat-reasoning-summary,chat-error-handling"
    ),
    "open-responses": (
        "basic-response,system-prompt,multi-turn,tool-calling,streaming-response,streaming-usage,"
        "assistant-phase,response-output-phase-schema,compact-response,compact-missing-model,"
        "reasoning-summary,error-handling"
    ),
    "anthropic": (
        "anth-basic-response,anth-system-prompt,anth-multi-turn,anth-tool-calling,anth-streaming-response,"
        "anth-streaming-usage,anth-thinking-display,anth-error-handling"
    ),
}


@dataclass(frozen=True)
class Asked:
    """What a tool is to do: at which address, with which model that talks, and how much of it."""

    url: str
    model: str
    quick: bool
    """Fewer made-up requests: one in a hundred."""


def comply(asked: Asked) -> Iterator[str]:
    """llm-comply: shapes and streams of each API, held against official schemas."""
    program = environment("llm-comply") / "llm-comply"
    for kind, tests in COMPLY.items():
        where = ["--base-url", f"{asked.url}/v1", "--api-key", "none", "--model", asked.model]
        yield from run(kind, program, *where, "--timeout", "600", "--format", kind, "--filter", tests)


def schemathesis(asked: Asked) -> Iterator[str]:
    """schemathesis: requests made of the official specification, good ones and bad ones."""
    program = environment("schemathesis") / "schemathesis"
    phases, examples = ("examples,fuzzing", "10") if asked.quick else ("examples,coverage,fuzzing", "40")
    for model, paths in SPECIFIED.items():
        with serving(fallback=model) as other, tempfile.TemporaryDirectory() as folder:
            spec = Path(folder) / "spec.json"
            spec.write_text(json.dumps(specification(*paths)))
            yield from run(
                f"schemathesis of {model}",
                program,
                "run",
                spec,
                *("--url", f"{other}/v1", "--checks", CHECKS, "--phases", phases),
                *("--suppress-health-check", "all", "--max-examples", examples),
                *("--request-timeout", "300", "--warnings", "off", "--continue-on-failure"),
                *("--no-color", "--seed", "1", "--generation-deterministic"),
            )


def sdks(asked: Asked) -> Iterator[str]:
    """The official Python SDKs, newest as locked: every method that is served here."""
    python = environment("sdks") / "python"
    for script in ("openai_sdk.py", "anthropic_sdk.py"):
        yield from run(script, python, INSIDE / script, asked.url, asked.model)


def langchain(asked: Asked) -> Iterator[str]:
    """langchain-tests: the standard tests of chat models, through both integrations."""
    python = environment("langchain") / "python"
    # Without the starter those are left out that want something sensible said.
    starter = "" if asked.quick else STARTER
    yield from run(
        "standard chat tests",
        python,
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", INSIDE / "langchain.ini"),
        *("--rootdir", INSIDE, INSIDE / "langchain_chat.py"),
        *(f"--url={asked.url}", f"--talker={TALKER}", f"--starter={starter}", f"--caller={CALLER}"),
    )


def ai_sdk(asked: Asked) -> Iterator[str]:
    """The AI SDK for Node, over four of its providers."""
    yield from run("four providers", "node", node_modules("node") / "ai_sdk.mjs", asked.url, asked.model)


TOOLS: dict[str, Callable[[Asked], Iterator[str]]] = {
    "llm-comply": comply,
    "schemathesis": schemathesis,
    "sdks": sdks,
    "langchain": langchain,
    "ai-sdk": ai_sdk,
}
QUICK: Final = tuple(name for name in TOOLS if name != "ai-sdk")


def run(what: str, program: str | Path, *arguments: str | Path) -> Iterator[str]:
    """Yields a line if the program found something; what it said is kept, and its end printed."""
    began = time.monotonic()
    said = BUILT / f"{what.replace(' ', '-')}.log"
    with said.open("wb") as log:
        done = subprocess.run(
            [program, *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=BUILT,
            timeout=LIMIT_S,
            check=False,
        )
    print(
        f"  {what}: {'ok' if done.returncode == 0 else 'FAILED'} in {time.monotonic() - began:.0f} s",
        flush=True,
    )
    if done.returncode != 0:
        print(said.read_text(errors="replace")[-6000:], f"(all of it is in {said})", sep="\n", flush=True)
        yield what


@contextlib.contextmanager
def serving(fallback: str = "") -> Iterator[str]:
    """A supervisor's address. With `fallback` that model answers whatever name is asked for."""
    with tempfile.TemporaryDirectory(prefix="c-") as folder:
        base = Path(folder)
        vectors = write_tiny(base / "vectors", Tiny(context=512))
        prompts = {"prompts": {"query": "Query: ", "document": ""}}
        (vectors / "config_sentence_transformers.json").write_text(json.dumps(prompts))
        tiny = write_tiny(base / "tiny", Tiny(speaks="all", context=256))
        talker = write_tiny(base / "talker", Tiny(speaks="sentences", seed=1, context=4096))
        config = f"""
[server]
fallback_model = {json.dumps(fallback)}
[models.{json.dumps(STARTER)}]
source = {json.dumps(str(starter_model()))}
context = 2048
sampling = {{ temperature = 0 }}
[models.{TALKER}]
source = {json.dumps(str(talker))}
aliases = ["claude-*"]
[models.{CALLER}-chat]
source = {json.dumps(str(talker))}
set = {{ tool_choice = "required", parallel_tool_calls = false }}
[models.{CALLER}-messages]
source = {json.dumps(str(talker))}
set = {{ tool_choice = {{ type = "any", disable_parallel_tool_use = true }} }}
[models.{TINY}]
source = {json.dumps(str(tiny))}
context = 200
[models.{VECTORS}]
source = {json.dumps(str(vectors))}
"""
        with Service(base / "home", config=config) as service:
            yield service.url


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make conformance")
    parser.add_argument(
        "tools", nargs="*", metavar="TOOL", help=f"of {', '.join(TOOLS)}; all if none is named"
    )
    parser.add_argument("--quick", action="store_true", help=f"what CI runs: {', '.join(QUICK)}")
    options = parser.parse_args(arguments)
    names = options.tools or (QUICK if options.quick else TOOLS)
    if unknown := set(names) - set(TOOLS):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    # Ended by a time limit, say: the supervisor below is stopped then as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    found = []
    with serving() as url:
        asked = Asked(url, TALKER if options.quick else STARTER, options.quick)
        for name in names:
            print(name, flush=True)
            found += [f"{name}: {what}" for what in TOOLS[name](asked)]
    print("nothing found" if not found else "found something: " + "; ".join(found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
