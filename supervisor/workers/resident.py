"""What the residency policy remembers of one model."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from supervisor.workers.actions import Stop, StopReason, Traits, WaitReason

Phase = Literal["absent", "starting", "ready", "stopping", "failed"]

FURTHER_TURNS: Final = 2
"""So many turns a resident model may begin while another one waits for its room."""


@dataclass(slots=True)
class Resident:
    """One model: its phase, who uses it and who waits for it. Times are monotonic seconds."""

    traits: Traits
    phase: Phase = "absent"
    booked_bytes: int = 0
    """What it counts for while it has a process: its cost, or what it holds where that is more."""
    cost_bytes: int = 0
    """Its cost at the spawn."""
    least_bytes: int = 0
    """What it holds without rows and without what it keeps of earlier prompts; its cost at least."""
    told_bytes: int = 0
    """What its worker was told last that it may take."""
    share_bytes: int = 0
    """What its worker takes for what it may take, at most: a smaller share counts when it has said so."""
    wanted_bytes: int = 0
    """The share that it asks for, for a row that waits or grows; 0 is none."""
    goes_on: bool = False
    """Whether that is for a request that has begun, which can't well be given back."""
    stalled: bool = False
    """Whether nothing of it runs until it has that."""
    asked_s: float = 0.0
    """Since when it asks."""
    granted: bool = False
    """What it asks for is kept free for it."""
    back: bool = False
    """What it asks for can't be given before it has left itself, so its row waits here for that."""
    cut: bool = False
    """Nor can what it needs to go on, and it has nothing left to give back: an answer ends as it is."""
    waiting: dict[int, float] = field(default_factory=dict)
    """Request -> when it came, first in first out."""
    admitted: set[int] = field(default_factory=set)
    turn: int = 0
    """Of those that wait, how many still belong to the turn that it has."""
    turn_s: float = 0.0
    """When that began."""
    further: int = 0
    """Turns that it began while another model waited for its room."""
    passed: int = 0
    """How often a model that came later got room before it."""
    used_s: float = 0.0
    """When it became ready or last finished a request."""
    retry_s: float = 0.0
    """Not loaded again before this moment."""
    deserted_s: float | None = None
    """When the last request that wanted its load went away."""
    served: bool = False
    """Whether it has been ready since the spawn."""
    yielding: bool = False
    """Another model waits for its room."""
    behind: tuple[str, ...] = ()
    """The models that have to leave before it can load."""
    leaving: bool = False
    """It is to end as soon as it rests."""
    retired: bool = False
    """It is to end as soon as nobody wants it, for it isn't configured any more."""
    leased: bool = False
    """Somebody has exclusive use of its worker."""
    ours: Literal["no", "asked", "held"] = "no"
    """Whether that is the holder of the machine."""
    trimmed: bool = False
    """Whether it was told to give back what it can since it was last used."""
    lean: bool = False
    """Whether it has."""

    @property
    def resident(self) -> bool:
        return self.phase in ("starting", "ready", "stopping")

    @property
    def claim_bytes(self) -> int:
        """What it may come to hold before anybody can hinder it."""
        return max(self.booked_bytes, self.share_bytes)

    @property
    def lack_bytes(self) -> int:
        """What it asks for beyond what it counts for; negative if it could give so much back for it."""
        return self.wanted_bytes - self.booked_bytes if self.wanted_bytes else 0

    @property
    def going(self) -> bool:
        """Its room comes free whatever happens."""
        return self.phase == "stopping" or self.leaving

    @property
    def staying(self) -> bool:
        """Nothing but its owner makes it leave."""
        return self.resident and self.traits.pinned and not self.going

    @property
    def unused(self) -> bool:
        return not self.admitted and not self.turn

    @property
    def at_rest(self) -> bool:
        """Ready, and nothing in hand. Whoever waits does so because it yields."""
        return self.phase == "ready" and self.unused and not self.leased

    @property
    def is_open(self) -> bool:
        """One who comes is let in at once."""
        if self.phase != "ready" or self.waiting or self.yielding or self.leaving or self.leased:
            return False
        running = len(self.admitted)
        return running < self.traits.max_concurrency or running < self.traits.window

    @property
    def movable(self) -> bool:
        """It may be made to leave, now or when it rests."""
        return self.phase == "ready" and not (self.traits.pinned or self.leased or self.leaving)

    @property
    def oldest_s(self) -> float:
        """When the first of those that wait came."""
        return next(iter(self.waiting.values()))

    def is_held(self, now: float, since_s: float = -math.inf) -> bool:
        """At rest, but it stays a moment: its user may come back, and who waits since `since_s` can wait.

        Not for one who came when it rested: there nobody takes turns with anybody, and most likely it is the
        very user, who has gone on to another model.
        """
        return self.further < FURTHER_TURNS and since_s < self.used_s and now < self.held_until_s

    @property
    def held_until_s(self) -> float:
        return self.used_s + self.traits.hold_s

    @property
    def abandoned_at_s(self) -> float | None:
        """When a load that nobody waits for ends; None while it has a reason to go on."""
        if self.phase != "starting" or self.deserted_s is None or self.served or self.traits.pinned:
            return None
        return self.deserted_s + self.traits.hold_s

    @property
    def expires_s(self) -> float | None:
        """When it will have been idle for too long; None if it is not idle or may stay for ever."""
        if self.at_rest and self.movable and not self.waiting:
            return self.used_s + self.traits.idle_unload_s
        return None

    def due_s(self, now: float) -> float | None:
        """When time alone changes what becomes of it; None if nothing else happens to it then."""
        match self.phase:
            case "ready":
                if self.admitted or not self.at_rest:
                    return None
                if self.yielding and self.is_held(now):
                    expires_s = self.expires_s
                    return self.held_until_s if expires_s is None else min(expires_s, self.held_until_s)
                return self.expires_s
            case "starting":
                return self.abandoned_at_s
            case "absent" if self.waiting and self.retry_s > now:
                return self.retry_s
            case _:
                return None

    def begin_turn(self, now: float) -> None:
        """Whoever waits now is served before it has to yield."""
        self.turn = len(self.waiting)
        self.turn_s = now

    def enter(self, request: int, now: float) -> None:
        """Let the request use the worker."""
        if self.turn:
            self.turn -= 1
        elif not self.admitted:
            self.turn_s = now
        self.trimmed = self.lean = False
        self.admitted.add(request)

    def let_in(self, now: float) -> Iterator[int]:
        """Let those use the worker who wait and belong to its turn, or to a further one that begins."""
        if self.phase != "ready" or self.leased or not self.waiting:
            return
        if self.yielding and not self.leaving and not self.turn:
            if self.unused:
                # At rest, and it need not leave yet: a further turn.
                if self.further < FURTHER_TURNS:
                    self.further += 1
                    self.begin_turn(now)
            elif now - self.turn_s < self.traits.hold_s:
                self.turn = len(self.waiting)
        while self.waiting and len(self.admitted) < self.traits.window:
            if (self.yielding or self.leaving) and not self.turn:
                break
            request = next(iter(self.waiting))
            del self.waiting[request]
            self.enter(request, now)
            yield request

    def end_turn(self) -> None:
        """Nothing more of what waits is taken in before it has left."""
        self.turn = 0
        self.turn_s = -math.inf
        self.further = FURTHER_TURNS

    def ask(self, wanted_bytes: int, now: float, *, goes_on: bool = False, stalled: bool = False) -> None:
        """Its worker wants to take so much, or is content with 0."""
        self.goes_on = goes_on and wanted_bytes > 0
        if self.goes_on and stalled and not self.stalled:
            # It keeps what it had computed.
            self.trimmed = self.lean = False
        self.stalled = self.goes_on and stalled
        if wanted_bytes and not self.wanted_bytes:
            self.asked_s = now
        self.wanted_bytes = wanted_bytes

    def launch(self) -> None:
        """A process of it begins, whose launch record says what it may take."""
        self.share_bytes = self.told_bytes = self.least_bytes = self.cost_bytes
        self.wanted_bytes = 0
        self.granted = self.back = self.cut = self.goes_on = self.stalled = False
        self.trimmed = self.lean = False

    def begin(self) -> None:
        """Its process is being started."""
        self.phase = "starting"
        self.booked_bytes = self.cost_bytes = self.traits.cost_bytes
        self.launch()
        self.served = False
        self.deserted_s = None
        self.further = self.passed = 0
        self.behind = ()

    def stop(self, reason: StopReason) -> Stop:
        """Its process is told to end."""
        self.phase = "stopping"
        self.turn = 0
        self.yielding = False
        return Stop(self.traits.id, reason)

    def end(self, phase: Phase) -> None:
        """Its process is gone."""
        self.phase = phase
        self.booked_bytes = self.share_bytes = self.told_bytes = self.wanted_bytes = 0
        self.granted = self.back = self.cut = self.goes_on = self.stalled = False
        self.leaving = self.leased = self.yielding = self.served = False
        self.deserted_s = None
        self.ours = "no"
        self.turn = self.further = 0

    def reason(self, now: float, *, leased: bool, pressed: bool) -> WaitReason:
        """Why its requests wait. `leased` and `pressed` are about the machine."""
        if leased:
            return "lease"
        if self.phase == "absent":
            return "retry" if self.retry_s > now else "pressure" if pressed else "room"
        if self.phase == "starting":
            return "loading"
        if self.going:
            return "unloading"
        if self.leased:
            return "leased"
        return "turn" if self.yielding else "busy"
