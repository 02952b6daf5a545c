"""How much of the machine's memory this worker may take, and what that leaves for rows and prompts."""

from collections.abc import Callable, Mapping

from shared.launch import Options
from worker.engine.admission import Admission
from worker.engine.needs import LEAST_BYTES, Needs, Room, cap_for, room
from worker.engine.prompt_state import PromptState
from worker.engine.turns import Terms


class Share:
    """Begins with what the launch record says; `limit` changes it. On the event loop.

    With a budget beside it the share is all there is for now: whoever decides about the others can be asked
    for more. Without one it is all there ever will be, and one row alone may go beyond it. Whoever has all
    there ever will be has room for a short row, even if the model itself takes more than that.
    """

    def __init__(
        self,
        admission: Admission,
        needs: Needs,
        options: Options,
        *,
        weights_bytes: int,
        working_set_bytes: int,
        keeps_prompts: bool,
        process_bytes: int = 0,
    ) -> None:
        """`weights_bytes` are the draft's too, `process_bytes` what the process holds beside them;
        `keeps_prompts` tells whether there is a prompt cache."""
        self._admission = admission
        self._needs = needs
        self._options = options
        self._fixed_bytes = weights_bytes + process_bytes
        self._working_set_bytes = working_set_bytes
        self._keeps_prompts = keeps_prompts
        self._asks = options.budget_bytes is not None
        self._most_bytes: int | None = None
        self.state: PromptState | None = None
        self.on_room: Callable[[Room], None] = lambda room: None
        """Called with what it leaves whenever that may have changed."""
        self.room = self.limit(options.memory_bytes)

    def limit(
        self,
        cap_bytes: int | None,
        *,
        most_bytes: int | None = None,
        pinned: Mapping[str, int] | None = None,
        back: bool = False,
        cut: bool = False,
    ) -> Room:
        """Take no more than `cap_bytes` from now on; rows that run already go on.

        There will be `most_bytes` at most, beside models that are `pinned`. With `back`, rows that need more
        than there is are given back and do not wait, with `cut` also those of requests that have begun.
        """
        if most_bytes is None:
            most_bytes = self._options.budget_bytes
        if most_bytes is None or cap_bytes is None or cap_bytes >= most_bytes:
            self._most_bytes = cap_bytes
            left = most = self._left(cap_bytes)
        else:
            self._most_bytes = most_bytes
            left, most = self._left(cap_bytes, least_bytes=0), self._left(most_bytes)
        if self.state is not None:
            self.state.resize(left.kv_bytes, left.prompt_bytes if self._keeps_prompts else 0)
            # Rows that run may be more than what is left.
            self.state.make_room(self._admission.rows_bytes)
        self.room = left
        self.on_room(left)
        self._admission.limit(
            self._needs,
            Terms(
                left.kv_bytes, most.kv_bytes, asks=self._asks, back=back, cut=cut, pinned=dict(pinned or {})
            ),
        )
        return left

    def _left(self, cap_bytes: int | None, *, least_bytes: int = LEAST_BYTES) -> Room:
        return room(
            weights_bytes=self._fixed_bytes,
            working_set_bytes=self._working_set_bytes,
            cap_bytes=cap_bytes,
            prompt_bytes=self._options.prompt_cache_bytes,
            least_bytes=least_bytes,
        )

    @property
    def reserved_bytes(self) -> int:
        """What it will hold with the rows that run, as far as they were let."""
        return self._fixed_bytes + self._admission.rows_bytes

    @property
    def wanted_bytes(self) -> int:
        """What it would have to be allowed to take for the row that waits for that, or will need it soon; 0
        without one."""
        wanted = self._admission.wanted_bytes
        if not wanted:
            return 0
        needed = cap_for(wanted, self._fixed_bytes)
        return needed if self._most_bytes is None else min(needed, self._most_bytes)
