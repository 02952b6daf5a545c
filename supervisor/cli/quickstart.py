"""What to paste to talk to the models from somewhere else."""

from string import Template
from typing import Annotated, Final

import typer

from supervisor.cli.errors import NotRunningError, RefusedError
from supervisor.cli.options import HomeOption, JsonOption, complete_model, supervisor_of
from supervisor.cli.terminal import say, say_json

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
            metavar="[MODEL]", help="Model id; else one that is loaded.", autocompletion=complete_model
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
    url, found = DEFAULT_URL, model
    hint = "no supervisor runs; start one with: mlx-supervisor start"
    try:
        client = supervisor_of(home)
        url = client.get("/api/status")["url"]
        models = [entry for entry in client.get("/api/models")["models"] if not entry["problem"]]
        hint = ""
        names = {name: entry["id"] for entry in models for name in (entry["id"], *entry["aliases"])}
        if model is not None and model not in names:
            raise RefusedError(_unknown(model, names))
        loaded = [entry["id"] for entry in models if entry["state"] == "ready"]
        found = model or next(iter([*loaded, *(entry["id"] for entry in models)]), None)
        if found is None:
            hint = "there are no models yet; get one with: mlx-supervisor pull REPO"
    except NotRunningError:
        pass
    values = {"url": url, "model": found or STARTER}
    snippets = {name: Template(text).substitute(values) for name, text in SNIPPETS.items()}
    if json:
        say_json({**values, "snippets": snippets})
        return
    for name, text in snippets.items():
        say(f"# {name}\n{text}\n")
    if hint:
        say(f"# {hint}")


def _unknown(model: str, names: dict[str, str]) -> str:
    import difflib

    near = difflib.get_close_matches(model, list(names), n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(names)}" if names else ""
    return f"there is no model {model}{hint}"
