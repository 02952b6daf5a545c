"""`GET /metrics`: what Prometheus scrapes, named as it is used to: base units, counters end in `_total`."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from fastapi import APIRouter, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from shared import __version__
from supervisor.routes.parts import Parts
from supervisor.routes.replies import READ
from supervisor.telemetry.tally import Histogram
from supervisor.workers.view import WorkerView

_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_STATES: Final = ("starting", "ready", "leased", "draining", "stopping", "restarting", "failed")


def metrics(parts: Parts) -> APIRouter:
    """The route that Prometheus reads."""
    router = APIRouter(redirect_slashes=False)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Everything(parts))

    @router.api_route("/metrics", methods=READ)
    async def scrape() -> Response:
        # On the loop, so that nothing changes meanwhile; it takes a few milliseconds.
        return Response(generate_latest(registry), media_type=_CONTENT_TYPE)

    return router


class _Everything(Collector):
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def collect(self) -> Iterable[Metric]:
        yield InfoMetricFamily("mlx_supervisor", "The program.", value={"version": __version__})
        yield GaugeMetricFamily(
            "mlx_supervisor_start_time_seconds", "When it started, since 1970.", self._parts.started_at
        )
        yield from self._counted()
        yield from self._workers()

    def _counted(self) -> Iterator[Metric]:
        tally = self._parts.tally
        requests = _counter("requests", "Requests that are over.", "route", "model", "status")
        for (route, model, status), count in tally.requests.items():
            requests.add_metric([route, model, str(status)], count)
        yield requests
        for name, text, counts in (
            ("prompt_tokens", "Tokens of prompts.", tally.prompt_tokens),
            ("cached_tokens", "Tokens of prompts that needed no computing.", tally.cached_tokens),
            ("completion_tokens", "Tokens that were generated.", tally.completion_tokens),
            ("worker_deaths", "Workers that ended though nobody had asked.", tally.deaths),
        ):
            counter = _counter(name, text, "model")
            for model, count in counts.items():
                counter.add_metric([model], count)
            yield counter
        unloads = _counter("unloads", "Workers that were ended, and why.", "model", "reason")
        for (model, reason), count in tally.unloads.items():
            unloads.add_metric([model, reason], count)
        yield unloads
        downloads = _counter("downloads", "Downloads that are over.", "result")
        for result, count in tally.downloads.items():
            downloads.add_metric([result], count)
        yield downloads
        leases = _counter("leases", "Leases of the whole machine that were granted.")
        leases.add_metric([], tally.leases)
        yield leases
        lost = _counter("lost_log_lines", "Lines that a log could not take; without a model, ours.", "model")
        for model, count in {"": 0, **self._parts.events.lost_lines}.items():
            lost.add_metric([model], count)
        yield lost
        yield _histograms("time_to_first_token_seconds", "From admission to the first token.", tally.ttft_s)
        yield _histograms(
            "time_between_tokens_seconds",
            "Between two tokens of an answer, as a mean of each answer.",
            tally.between_tokens_s,
        )
        yield _histograms("load_seconds", "From the spawn of a worker until it is ready.", tally.load_s)

    def _workers(self) -> Iterator[Metric]:
        engine = self._parts.pool.engine()
        states = _gauge("worker_state", "1 for the state that a model's worker is in.", "model", "state")
        for worker in engine.workers:
            for state in _STATES:
                states.add_metric([worker.id, state], float(worker.state == state))
        yield states
        gauges: tuple[tuple[str, str, Callable[[WorkerView], float | None]], ...] = (
            ("requests_in_flight", "Requests that a worker answers.", lambda worker: worker.in_flight),
            ("requests_queued", "Requests that wait for a worker.", lambda worker: worker.queued),
            ("worker_restarts", "Spawns that replaced a dead worker.", lambda worker: worker.restarts),
            ("worker_footprint_bytes", "What the process holds.", lambda worker: worker.footprint_bytes),
            (
                "worker_estimate_bytes",
                "What it was expected to hold before its first load.",
                lambda worker: worker.estimate_bytes,
            ),
            ("worker_idle_seconds", "Since the last answer.", lambda worker: worker.idle_s),
            (
                "worker_active_bytes",
                "What MLX holds.",
                lambda worker: worker.memory.active_bytes if worker.memory else None,
            ),
        )
        for name, text, read in gauges:
            gauge = _gauge(name, text, "model")
            for worker in engine.workers:
                if (value := read(worker)) is not None:
                    gauge.add_metric([worker.id], value)
            yield gauge
        waiting = _gauge("waiting", "Requests that wait for their model's turn.", "model")
        for line in engine.waiting:
            waiting.add_metric([line.id], line.count)
        yield waiting


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"mlx_supervisor_{name}", text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"mlx_supervisor_{name}", text, labels=labels)


def _histograms(name: str, text: str, by_model: dict[str, Histogram]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(f"mlx_supervisor_{name}", text, labels=["model"])
    for model, histogram in by_model.items():
        family.add_metric([model], histogram.cumulative(), histogram.total)
    return family
