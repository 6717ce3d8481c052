"""The engine at one moment, as plain data: for metrics, for a list of slots.

Owns the choice of what is shown; never a token. Taking one waits for nothing and changes nothing.
"""

from dataclasses import dataclass

from caldrix.engine.scheduler import Limits, Scheduler
from caldrix.engine.sequence import SequenceStatus


@dataclass(slots=True, frozen=True)
class SlotState:
    """One slot; of an idle one, only the tokens that it keeps for a prompt that shares them."""

    index: int
    status: SequenceStatus | None  # None: idle
    label: str
    n_prompt: int
    n_cached: int
    n_computed: int  # tokens of prompt and reply whose rows are computed
    n_completion: int
    n_held: int  # tokens in the slot's memory


@dataclass(slots=True, frozen=True)
class Snapshot:
    n_waiting: int  # requests, not replies: several of one request wait in one place
    n_running: int  # slots in use
    queue_depth: int
    context: int  # tokens that a slot can hold
    slots: tuple[SlotState, ...]

    @property
    def kv_tokens_used(self) -> int:
        return sum(slot.n_held for slot in self.slots)

    @property
    def kv_tokens_capacity(self) -> int:
        return self.context * len(self.slots)


def snapshot_of(scheduler: Scheduler, limits: Limits, context: int) -> Snapshot:
    by_slot = {sequence.slot: sequence for sequence in scheduler.running}
    slots = []
    for index, n_held in enumerate(scheduler.n_held):
        sequence = by_slot.get(index)
        if sequence is None:
            slots.append(SlotState(index, None, "", 0, 0, 0, 0, n_held))
            continue
        slots.append(
            SlotState(
                index,
                sequence.status,
                sequence.label,
                sequence.n_prompt,
                sequence.n_cached,
                sequence.n_computed,
                sequence.n_completion,
                n_held,
            )
        )
    return Snapshot(
        scheduler.n_waiting, scheduler.n_running, limits.queue_depth, context, tuple(slots)
    )
