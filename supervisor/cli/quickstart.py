"""What to paste to talk to the models from somewhere else."""

from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlencode

import typer

from supervisor.cli.errors import NotRunningError
from supervisor.cli.looking import looked_at
from supervisor.cli.options import HomeOption, JsonOption, complete_model, supervisor_of
from supervisor.cli.terminal import say, say_json

if TYPE_CHECKING:
    from supervisor.cli.client import Client

DEFAULT_URL: Final = "http://127.0.0.1:8080"
STARTER: Final = "smollm2-135m"

SNIPPETS: Final[dict[str, str]] = {
    "curl": """\
curl $url/v1/chat/completions -H 'content-type: application/json' -d '{
  "model": "$model",
  "messages": [{"role": "user", "content": "What is the capital of France?"}]
}'""",
    "Python, openai": """\
from openai import OpenAI

client = OpenAI(base_url="$url/v1", api_key="none")
answer = client.chat.completions.create(
    model="$model", messages=[{"role": "user", "content": "What is the capital of France?"}]
)
print(answer.choices[0].message.content)""",
    "Python, anthropic": """\
from anthropic import Anthropic

client = Anthropic(base_url="$url", api_key="none")
message = client.messages.create(
    model="$model", max_tokens=200, messages=[{"role": "user", "content": "What is the capital of France?"}]
)
print(message.content[0].text)""",
    "JavaScript, openai": """\
import OpenAI from "openai";

const client = new OpenAI({ baseURL: "$url/v1", apiKey: "none" });
const answer = await client.chat.completions.create({
  model: "$model",
  messages: [{ role: "user", content: "What is the capital of France?" }],
});
console.log(answer.choices[0].message.content);""",
    "Claude Code": """\
ANTHROPIC_BASE_URL=$url ANTHROPIC_AUTH_TOKEN=none ANTHROPIC_MODEL=$model claude""",
}


def quickstart(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="Its id or an alias; else one that is loaded.",
            autocompletion=complete_model,
        ),
    ] = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Print what to paste into a shell, a program or an agent to use a model here.

    \b
    Example:
      mlx-supervisor quickstart smollm2-135m
    """
    try:
        url, found = _served(supervisor_of(home), model)
        hint = "" if found else "there are no models yet; get one with: mlx-supervisor pull REPO"
    except NotRunningError as missing:
        url, found = _to_be_served(home, model, missing)
        hint = "no supervisor runs; start one with: mlx-supervisor start"
    values = {"url": url, "model": found or STARTER}
    snippets = {name: Template(text).substitute(values) for name, text in SNIPPETS.items()}
    if json:
        say_json({**values, "snippets": snippets})
        return
    for name, text in snippets.items():
        say(f"# {name}\n{text}\n")
    if hint:
        say(f"# {hint}")


def _served(client: "Client", model: str | None) -> tuple[str, str | None]:
    """The address, and a name that is answered there. Raises RefusedError for one that is not."""
    if model is not None:
        # It knows what every name means, and says what is like one that means nothing.
        client.get(f"/fit?{urlencode({'model': model})}")
    return client.get("/api/status")["url"], model or _chosen(client.get("/api/models")["models"])


def _to_be_served(home: Path | None, model: str | None, missing: NotRunningError) -> tuple[str, str | None]:
    """As `_served`, of the supervisor that is not started yet. Raises RefusedError."""
    import msgspec

    from supervisor.routes.views import models_of
    from supervisor.system.listener import url_of

    try:
        with looked_at(home, missing) as here:
            if model is not None:
                here.catalog.resolve(model)
            found = model or _chosen(msgspec.to_builtins(models_of(here.catalog, None))["models"])
            return url_of(here.settings.server.host, here.settings.server.port), found
    except NotRunningError:
        # The first start makes the state folder, and has models to look for.
        return DEFAULT_URL, model


def _chosen(models: list[dict[str, Any]]) -> str | None:
    """The id of one that can chat, of those that are loaded if there is one."""
    able = [entry for entry in models if not entry["problem"] and "chat" in entry["capabilities"]]
    loaded = [entry for entry in able if entry["state"] == "ready"]
    return next((str(entry["id"]) for entry in [*loaded, *able]), None)
