"""Runs every tool, or those named: `make conformance ARGS="sdks"`. Exits with 1 if one finds anything.

A supervisor of its own serves three models: the starter, which says sensible things; a tiny random one with a
short context, for testers that ask a thousand things; and one that makes vectors.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.conformance.environments import environment, node_modules
from tests.conformance.specification import specification
from tests.fixtures.harness import Service
from tests.fixtures.starter import starter_model
from tests.fixtures.tiny import Tiny, write_tiny

INSIDE = Path(__file__).parent / "inside"
STARTER, TINY, VECTORS = "smollm2-135m", "tiny", "vectors"
LIMIT_S = 900
CHECKS = "not_a_server_error,response_schema_conformance,content_type_conformance,negative_data_rejection"
# The starter reads no images: what these tests send is refused with 400, as it should be.
COMPLY = {
    "openai-chat": (
        "chat-basic-response,chat-system-prompt,chat-multi-turn,chat-tool-calling,chat-streaming-response,"
        "chat-streaming-usage,chat-reasoning-summary,chat-error-handling"
    ),
    "anthropic": (
        "anth-basic-response,anth-system-prompt,anth-multi-turn,anth-tool-calling,anth-streaming-response,"
        "anth-streaming-usage,anth-thinking-display,anth-error-handling"
    ),
}


def comply(url: str) -> Iterator[str]:
    """llm-comply: shapes and streams of each API, held against official schemas."""
    program = environment("llm-comply") / "llm-comply"
    for kind, tests in COMPLY.items():
        where = ["--base-url", f"{url}/v1", "--api-key", "none", "--model", STARTER, "--timeout", "120"]
        yield from run(kind, program, *where, "--format", kind, "--filter", tests)


def schemathesis(url: str) -> Iterator[str]:
    """schemathesis: requests made of the official specification, good ones and bad ones."""
    program = environment("schemathesis") / "schemathesis"
    routes = {
        TINY: ("/chat/completions", "/completions", "/models", "/models/{model}"),
        VECTORS: ("/embeddings",),
    }
    for model, paths in routes.items():
        with serving(fallback=model) as other, tempfile.TemporaryDirectory() as folder:
            spec = Path(folder) / "spec.json"
            spec.write_text(json.dumps(specification(*paths)))
            yield from run(
                ", ".join(paths),
                program,
                "run",
                spec,
                *("--url", f"{other}/v1", "--checks", CHECKS, "--phases", "examples,coverage,fuzzing"),
                *("--suppress-health-check", "all", "--max-examples", "40", "--request-timeout", "60"),
                *("--warnings", "off", "--continue-on-failure", "--no-color", "--seed", "1"),
            )


def sdks(url: str) -> Iterator[str]:
    """The official Python SDKs, newest as locked: every method that is served here."""
    python = environment("sdks") / "python"
    for script in ("openai_sdk.py", "anthropic_sdk.py"):
        yield from run(script, python, INSIDE / script, url, STARTER)


def langchain(url: str) -> Iterator[str]:
    """langchain-tests: the standard tests of chat models, through both integrations."""
    python = environment("langchain") / "python"
    yield from run(
        "standard chat tests",
        python,
        *(
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-c",
            INSIDE / "langchain.ini",
            "--rootdir",
            INSIDE,
        ),
        INSIDE / "langchain_chat.py",
        f"--served-at={url}",
        f"--model={STARTER}",
    )


def ai_sdk(url: str) -> Iterator[str]:
    """The AI SDK for Node, over four of its providers."""
    yield from run("four providers", "node", node_modules("node") / "ai_sdk.mjs", url, STARTER)


TOOLS: dict[str, Callable[[str], Iterator[str]]] = {
    "llm-comply": comply,
    "schemathesis": schemathesis,
    "sdks": sdks,
    "langchain": langchain,
    "ai-sdk": ai_sdk,
}


def run(what: str, program: str | Path, *arguments: str | Path) -> Iterator[str]:
    """Yields a line if the program found something, with the end of what it said on stdout before."""
    began = time.monotonic()
    done = subprocess.run(
        [program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    print(
        f"  {what}: {'ok' if done.returncode == 0 else 'FAILED'} in {time.monotonic() - began:.0f} s",
        flush=True,
    )
    if done.returncode != 0:
        print(done.stdout[-6000:])
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
        config = f"""
[server]
fallback_model = {json.dumps(fallback)}
[defaults]
sampling = {{ temperature = 0 }}
[models.{json.dumps(STARTER)}]
source = {json.dumps(str(starter_model()))}
context = 2048
aliases = ["claude-*"]
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
    asked = parser.parse_args(arguments).tools or list(TOOLS)
    if unknown := set(asked) - set(TOOLS):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    found = []
    with serving() as url:
        for name in asked:
            print(name, flush=True)
            found += [f"{name}: {what}" for what in TOOLS[name](url)]
    print("nothing found" if not found else "found something: " + "; ".join(found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
