"""How much of the machine's memory this worker may take, and what that leaves for rows and prompts."""

from shared.launch import Options
from worker.engine.admission import Admission
from worker.engine.needs import Needs, Room, room
from worker.engine.prompt_state import PromptState


class Share:
    """Begins with what the launch record says; `limit` changes it. On the event loop."""

    def __init__(
        self,
        admission: Admission,
        needs: Needs,
        options: Options,
        *,
        weights_bytes: int,
        working_set_bytes: int,
        keeps_prompts: bool,
    ) -> None:
        """`weights_bytes` are the draft's too; `keeps_prompts` tells whether there is a prompt cache."""
        self._admission = admission
        self._needs = needs
        self._options = options
        self._weights_bytes = weights_bytes
        self._working_set_bytes = working_set_bytes
        self._keeps_prompts = keeps_prompts
        self.state: PromptState | None = None
        self.room = self.limit(options.memory_bytes)

    def limit(self, cap_bytes: int | None) -> Room:
        """Take no more than `cap_bytes` from now on; rows that run already go on."""
        left = self._left(cap_bytes)
        budget_bytes = self._options.budget_bytes
        most = left if budget_bytes is None else self._left(max(budget_bytes, cap_bytes or 0))
        if self.state is not None:
            self.state.resize(left.kv_bytes, left.prompt_bytes if self._keeps_prompts else 0)
        self._admission.limit(self._needs, left.kv_bytes, most_bytes=most.kv_bytes)
        self.room = left
        return left

    def _left(self, cap_bytes: int | None) -> Room:
        return room(
            weights_bytes=self._weights_bytes,
            working_set_bytes=self._working_set_bytes,
            cap_bytes=cap_bytes,
            prompt_bytes=self._options.prompt_cache_bytes,
        )

    @property
    def reserved_bytes(self) -> int:
        """What it will hold with the rows that it has let in."""
        return self._weights_bytes + self._admission.rows_bytes
