"""Whether a model fits this machine, and which Macs it would fit: fit."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from shared.sizes import format_size
from supervisor.cli.errors import NotRunningError, RefusedError
from supervisor.cli.looking import looked_at, recalled
from supervisor.cli.options import HomeOption, JsonOption, supervisor_of
from supervisor.cli.terminal import say, say_json, say_table

if TYPE_CHECKING:
    from supervisor.catalog.catalog import ModelEntry
    from supervisor.catalog.costs import Costs
    from supervisor.catalog.machine import Machine

_PARTS = {
    "weights_bytes": "weights",
    "adapters_bytes": "adapters",
    "draft_bytes": "draft model",
    "kv_bytes": "keys and values",
    "state_bytes": "recurrent state",
    "working_bytes": "room to compute",
    "prompt_cache_bytes": "prompt cache",
    "slack_bytes": "allocator slack",
    "process_bytes": "the process",
}


def fit(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model id or alias, or a folder such as ./qwen3-8b.")
    ],
    ctx: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Tokens of prompt and answer. [default: all]", show_default=False
        ),
    ] = None,
    rows: Annotated[
        int, typer.Option(metavar="N", min=1, max=1024, help="Requests of that length at the same time.")
    ] = 1,
    machines: Annotated[bool, typer.Option("--machines", help="Show it for every Mac too.")] = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Tell whether a model fits into memory, how long its texts may be and how fast it will be.

    Nothing is loaded. A folder, and any model while no supervisor runs, is looked at by this command itself.

    \b
    Example:
      mlx-supervisor fit smollm2-135m --ctx 4096 --machines
    """
    found = _report(model, ctx, rows, machines, home)
    if json:
        say_json(found)
        return
    if found["problem"] is not None:
        raise RefusedError(f"{found['model']}: {found['problem']}")
    _show(found)
    if machines:
        _show_machines(found["machines"])


def _report(model: str, ctx: int | None, rows: int, machines: bool, home: Path | None) -> Any:
    if model.startswith(("/", "~", "./", "../")):
        return _looked_at(
            lambda machine: _of_folder(Path(model).expanduser().absolute(), home, machine),
            ctx,
            rows,
            machines,
        )
    asked: dict[str, object] = {"model": model, "rows": rows, "machines": str(machines).lower()}
    if ctx is not None:
        asked["ctx"] = ctx
    try:
        return supervisor_of(home).get(f"/fit?{urlencode(asked)}")
    except NotRunningError as error:
        missing = error
        return _looked_at(lambda machine: _of_home(model, home, machine, missing), ctx, rows, machines)
    except RefusedError as error:
        if error.param == "ctx":
            raise _wrong_ctx(str(error)) from None
        raise


def _wrong_ctx(reason: str) -> typer.BadParameter:
    return typer.BadParameter(reason, param_hint="'--ctx'")


def _looked_at(
    find: "Callable[[Machine], tuple[ModelEntry, Costs, str]]", ctx: int | None, rows: int, machines: bool
) -> Any:
    """The report by this process itself. `find` gives the model, what is known of it, and `memory.budget`."""
    import msgspec

    from supervisor.catalog.fit import ContextError, report
    from supervisor.catalog.machine import detect, lineup
    from supervisor.workers.books import budget_of

    machine = detect()
    entry, costs, budget = find(machine)
    others = lineup() if machines else None
    try:
        found = report(
            entry,
            machine,
            budget_bytes=budget_of(budget, machine),
            context=ctx,
            rows=rows,
            cost=costs.cost(entry),
            machines=others,
        )
    except ContextError as error:
        raise _wrong_ctx(str(error)) from None
    return msgspec.to_builtins(found)


def _of_folder(folder: Path, home: Path | None, machine: "Machine") -> "tuple[ModelEntry, Costs, str]":
    """With the budget of the state folder that there is. Raises RefusedError."""
    from supervisor.catalog.catalog import ModelEntry
    from supervisor.catalog.costs import Costs
    from supervisor.catalog.scan import Scanner
    from supervisor.settings import MemorySettings, ModelSettings

    budget = MemorySettings().budget
    with contextlib.suppress(NotRunningError), looked_at(home, NotRunningError("")) as here:
        budget = here.settings.memory.budget
    found = Scanner().scan(folder)
    entry = ModelEntry(
        folder.name,
        folder,
        ModelSettings(),
        architecture=found.architecture,
        context=found.context,
        problem=found.problem,
        identity=found.identity,
    )
    return entry, Costs(machine), budget


def _of_home(
    model: str, home: Path | None, machine: "Machine", missing: NotRunningError
) -> "tuple[ModelEntry, Costs, str]":
    """From the state folder of a supervisor that does not run. Raises RefusedError."""
    import asyncio

    with looked_at(home, missing) as here:
        entry = here.catalog.resolve(model, fallback=False)
    return entry, asyncio.run(recalled(here.home, machine)), here.settings.memory.budget


def _show(found: Any) -> None:
    here, parts = found["here"], found["here"]["parts"]
    verdict = "fits" if here["fits"] else "does not fit"
    rows = "" if here["rows"] == 1 else f" in each of {here['rows']} requests"
    say(
        f"{found['model']} {verdict} with {here['context']} tokens{rows} on this {here['machine']}, "
        f"where models may take {format_size(here['budget_bytes'])}"
    )
    if not found["known"]:
        say(
            f"its architecture, {found['architecture']}, is not one we know: what it keeps is a careful guess"
        )
    for name, title in _PARTS.items():
        if parts[name]:
            say(f"  {title:<17}{format_size(parts[name]):>10}")
    say(f"  {'in all':<17}{format_size(here['total_bytes']):>10}")
    if found["measured_bytes"] is not None:
        say(f"  {'measured':<17}{format_size(found['measured_bytes']):>10}, the most it was seen to hold")
    if found["cost_bytes"] is not None:
        say(f"  {'counts for':<17}{format_size(found['cost_bytes']):>10} when models are loaded beside it")
    longest = here["largest_context"]
    say(f"longest context here: {f'{longest} tokens' if longest else 'none, even a short text is too much'}")
    say(f"speed: {_speed(here['speed'])}")


def _speed(speed: Any) -> str:
    if speed["decode_tokens_s"] is None:
        return "not known for this machine"
    said = f"about {speed['decode_tokens_s']:.0f} tokens/s at first"
    said += f", {speed['decode_full_tokens_s']:.0f} when the context is full"
    if speed["prefill_tokens_s"] is not None:
        said += f"; prompts at about {speed['prefill_tokens_s']:.0f} tokens/s"
    return said


def _show_machines(machines: Any) -> None:
    rows = [
        (
            fit["machine"],
            format_size(fit["memory_bytes"]),
            "yes" if fit["fits"] else "no",
            str(fit["largest_context"] or "-"),
            _whole(fit["speed"]["decode_tokens_s"]),
            _whole(fit["speed"]["decode_full_tokens_s"]),
            _whole(fit["speed"]["prefill_tokens_s"]),
        )
        for fit in machines
    ]
    columns = ("machine", "memory", "fits", "longest context", "tokens/s", "when full", "prompt")
    styles = ["good" if fit["fits"] else "bad" for fit in machines]
    say_table(columns, rows, right=("memory", *columns[3:]), styles=styles)  # type: ignore[arg-type]


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
