"""What happened since the start, as numbers: for `GET /metrics`. Counting costs next to nothing."""

import bisect
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from shared.activity import Activity, FirstToken, RequestFinished
from supervisor.telemetry.events import FINISHED, Event

__all__ = ["Histogram", "Tally"]

TTFT_S: Final = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)
BETWEEN_TOKENS_S: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1)
LOAD_S: Final = (0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320)


class Histogram:
    """Counts of values by upper bounds, which are inclusive; above the last there is infinity."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, as often as it was seen."""
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> list[tuple[str, int]]:
        """Bounds as Prometheus writes them, with how many values are at most that."""
        pairs: list[tuple[str, int]] = []
        so_far = 0
        for bound, count in zip((*map(str, map(float, self.bounds)), "+Inf"), self.counts, strict=True):
            so_far += count
            pairs.append((bound, so_far))
        return pairs


class Tally:
    """Everything that is counted. Times are in seconds."""

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, str, int], int] = defaultdict(int)
        """By route, model and status; 499 is a client that left. The model is empty for a name that nobody
        has: a client must not be able to make up series."""
        self.prompt_tokens: defaultdict[str, int] = defaultdict(int)
        self.cached_tokens: defaultdict[str, int] = defaultdict(int)
        self.completion_tokens: defaultdict[str, int] = defaultdict(int)
        self.ttft_s: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(TTFT_S))
        self.between_tokens_s: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(BETWEEN_TOKENS_S))
        self.load_s: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(LOAD_S))
        self.deaths: defaultdict[str, int] = defaultdict(int)
        self.unloads: defaultdict[tuple[str, str], int] = defaultdict(int)
        """By model and reason."""
        self.downloads: defaultdict[str, int] = defaultdict(int)
        """By how they ended."""
        self.leases = 0

    def answered(self, route: str, model: str, status: int) -> None:
        """A request is over."""
        self.requests[route, model, status] += 1

    def hear(self, model: str, activity: Activity) -> None:
        """A worker tells of a request."""
        match activity:
            case FirstToken():
                self.ttft_s[model].observe(activity.ttft_s)
            case RequestFinished():
                self.prompt_tokens[model] += activity.prompt_tokens
                self.cached_tokens[model] += activity.cached_tokens
                self.completion_tokens[model] += activity.completion_tokens
                if activity.decode_tps:
                    times = max(1, activity.completion_tokens - 1)
                    self.between_tokens_s[model].observe(1 / activity.decode_tps, times)
            case _:
                pass

    def take(self, event: Event) -> None:
        """Something happened. A subscriber of `Events`."""
        if event.kind == FINISHED:
            return  # counted by `answered`
        model = str(event.fields.get("model", ""))
        match event.kind:
            case "worker.ready":
                load_s = event.fields.get("load_s")
                if isinstance(load_s, int | float):
                    self.load_s[model].observe(load_s)
            case "worker.died":
                self.deaths[model] += 1
            case "worker.stopping":
                self.unloads[model, str(event.fields.get("reason", ""))] += 1
            case "lease.granted":
                self.leases += 1
            case "download.finished" | "download.failed" | "download.cancelled":
                self.downloads[event.kind.removeprefix("download.")] += 1
            case _:
                pass
