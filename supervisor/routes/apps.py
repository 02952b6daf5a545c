"""The two FastAPI applications. Importing this takes most of a second: see `loading`."""

from fastapi import FastAPI

from supervisor.routes.control import control
from supervisor.routes.discovery import discovery
from supervisor.routes.downloads import downloads, shown_downloads
from supervisor.routes.fit import fit
from supervisor.routes.leasing import leasing
from supervisor.routes.metrics import metrics
from supervisor.routes.parts import Parts
from supervisor.routes.replies import answer_errors
from supervisor.routes.stats import stats
from supervisor.routes.storage import storage
from supervisor.routes.watching import watching


def build_public_app(parts: Parts) -> FastAPI:
    """What the public listener answers by itself."""
    app = _bare_app(parts)
    app.include_router(discovery(parts))
    app.include_router(shown_downloads(parts))
    app.include_router(watching(parts))
    app.include_router(metrics(parts))
    app.include_router(stats(parts))
    app.include_router(control(parts))
    app.include_router(leasing(parts))
    app.include_router(downloads(parts))
    app.include_router(storage(parts))
    app.include_router(fit(parts))
    return app


def build_control_app(parts: Parts) -> FastAPI:
    """What the control socket answers."""
    app = _bare_app(parts)
    app.include_router(watching(parts))
    app.include_router(stats(parts))
    app.include_router(control(parts))
    app.include_router(leasing(parts))
    app.include_router(downloads(parts))
    app.include_router(storage(parts))
    app.include_router(fit(parts))
    return app


def _bare_app(parts: Parts) -> FastAPI:
    # A description of the API for programs is a later matter; FastAPI's pages load scripts from elsewhere.
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    answer_errors(app, parts.events)
    return app
