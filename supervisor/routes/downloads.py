"""Downloads: `GET /downloads` shows them, `/api/downloads` starts and cancels them."""

from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Request

from shared.errors import PublicError, invalid
from shared.pulling import is_revision, parse_repo
from supervisor.routes.parts import Parts
from supervisor.routes.replies import READ, Json

_LONGEST_WAIT_S: Final = 30.0


class StartDownload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /api/downloads`. `repo` is ORG/NAME[@REVISION]; the token goes nowhere but to the hub."""

    repo: Annotated[str, msgspec.Meta(max_length=1000)]
    revision: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    include: Annotated[
        tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=500)], ...], msgspec.Meta(max_length=100)
    ] = ()
    token: Annotated[str, msgspec.Meta(min_length=1, max_length=1000, pattern=r"^[\x21-\x7e]*$")] | None = (
        None
    )


_decode = msgspec.json.Decoder(StartDownload).decode


def shown_downloads(parts: Parts) -> APIRouter:
    """What everybody may see."""
    router = APIRouter(redirect_slashes=False)

    @router.api_route("/downloads", methods=READ)
    async def downloads() -> Json:
        return Json(parts.downloads.views())

    return router


def downloads(parts: Parts) -> APIRouter:
    """What the command line and the console do with downloads."""
    router = APIRouter(prefix="/api/downloads", redirect_slashes=False)

    @router.api_route("", methods=READ)
    async def views() -> Json:
        return Json(parts.downloads.views())

    @router.post("")
    async def start(request: Request) -> Json:
        wanted = _read(await request.body())
        try:
            name = parse_repo(wanted.repo)
        except ValueError as error:
            raise invalid(f"'repo': {error}.", param="repo") from None
        if wanted.revision is not None:
            if not is_revision(wanted.revision):
                raise invalid("'revision' must be a branch, a tag or a commit.", param="revision")
            name = msgspec.structs.replace(name, revision=wanted.revision)
        view, new = parts.downloads.start(name, include=wanted.include, token=wanted.token)
        return Json(view, 202 if new else 200)

    @router.api_route("/{repo:path}", methods=READ)
    async def one(request: Request) -> Json:
        wait_s = _seconds(request.query_params.get("wait_s", "0"))
        return Json(await parts.downloads.watch(request.path_params["repo"], wait_s))

    @router.delete("/{repo:path}")
    async def cancel(request: Request) -> Json:
        return Json(await parts.downloads.cancel(request.path_params["repo"]))

    return router


def _read(body: bytes) -> StartDownload:
    try:
        return _decode(body)
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at `$.")
        param = where.rstrip("`") or None
        raise invalid(f"'{param}': {reason}." if param else f"{reason}.", param=param) from None
    except (msgspec.DecodeError, RecursionError):
        raise PublicError(400, "invalid_json", "The body is not valid JSON.") from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST_WAIT_S:
        raise invalid(f"'wait_s' must be a number of seconds up to {_LONGEST_WAIT_S:.0f}.", param="wait_s")
    return seconds
