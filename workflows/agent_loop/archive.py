"""All checkpoints of a loop, the old ones packed: continue-as-new carries them all."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import takewhile

from steersman.contracts import archive_codec
from steersman.contracts.loop_messages import CheckpointPage, Cleanup
from steersman.contracts.loop_state import Checkpoint
from workflows.agent_loop.carried_state import PackedCheckpoints

RECENT = 40
"""The least number of newest checkpoints that are not packed."""
PACK_SIZE = 100
"""Checkpoints that are packed together."""
NEWEST = 10
"""The newest checkpoints, which do not go where there is no room."""
FEW = 10
"""So many unpacked checkpoints go at once."""
MAX_PAGE_BYTES = 800_000
"""Bytes of a page, as JSON."""


class Archive:
    """Checkpoints by number, oldest first."""

    def __init__(self, chunks: tuple[PackedCheckpoints, ...] = (), recent: tuple[Checkpoint, ...] = ()) -> None:
        self._chunks = list(chunks)
        self._recent = list(recent)

    @property
    def chunks(self) -> tuple[PackedCheckpoints, ...]:
        """The packed checkpoints."""
        return tuple(self._chunks)

    @property
    def recent(self) -> tuple[Checkpoint, ...]:
        """The newest checkpoints, which are not packed."""
        return tuple(self._recent)

    def add(self, checkpoint: Checkpoint) -> None:
        """Add the newest checkpoint."""
        self._recent.append(checkpoint)
        if len(self._recent) >= RECENT + PACK_SIZE:
            self._chunks.append(_pack(self._recent[:PACK_SIZE]))
            del self._recent[:PACK_SIZE]

    def get(self, number: int) -> Checkpoint | None:
        """The checkpoint of that number; None if it was deleted."""
        chunk = next((each for each in self._chunks if each.first <= number <= each.last), None)
        among = archive_codec.decode(chunk.packed) if chunk else self._recent
        return next((each for each in among if each.number == number), None)

    def after_iteration(self, iteration: int) -> Checkpoint | None:
        """The newest checkpoint from which the next iteration can begin."""
        kinds = ("iteration", "failure", "baseline")
        return next((each for each in self._of_iteration(iteration) if each.kind in kinds), None)

    def baseline(self) -> Checkpoint | None:
        """The checkpoint from before the first iteration: number 0, or 1 where files were taken from another loop."""
        return next((each for number in (0, 1) if (each := self.get(number)) and each.kind == "baseline"), None)

    def amend(self, number: int, **changes: object) -> None:
        """Change one of the unpacked checkpoints, if it was not deleted."""
        self._recent = [each.model_copy(update=changes) if each.number == number else each for each in self._recent]

    def page(self, after: int, limit: int) -> CheckpointPage:
        """Checkpoints with a greater number than `after`: at most `limit`, and no more than fit into a page."""
        found: list[Checkpoint] = []
        size = 0
        for each in self._after(after):
            size += len(each.model_dump_json().encode())
            if len(found) == limit or (found and size > MAX_PAGE_BYTES):
                return CheckpointPage(checkpoints=tuple(found), more=True)
            found.append(each)
        return CheckpointPage(checkpoints=tuple(found))

    def matching(self, cleanup: Cleanup, now: datetime) -> tuple[int, ...]:
        """The numbers of the checkpoints that a cleanup names."""
        if cleanup.older_than_s is not None:
            limit = cleanup.older_than_s
            old = takewhile(lambda each: (now - each.time.astimezone(UTC)).total_seconds() > limit, self._after(-1))
            return tuple(each.number for each in old)
        numbers = self._numbers()
        if cleanup.oldest is not None:
            return tuple(numbers[: cleanup.oldest])
        wanted = set(cleanup.numbers)
        return tuple(number for number in numbers if cleanup.all or number in wanted)

    def oldest_packed(self) -> tuple[int, ...]:
        """The numbers of the oldest packed checkpoints, without the baseline: they go first where there is no room."""
        keep = self.baseline()
        for chunk in self._chunks:
            numbers = [
                number for number in archive_codec.numbers(chunk.packed) if keep is None or number != keep.number
            ]
            if numbers:
                return tuple(numbers)
        return ()

    def oldest(self, *, but: int) -> tuple[int, ...]:
        """The numbers of the oldest ones that are not packed, a few at a time, without the newest and the baseline.

        `but`: of one that stays, too.
        """
        keep = self.baseline()
        stay = {but, keep.number if keep else but}
        return tuple(each.number for each in self._recent[:-NEWEST] if each.number not in stay)[:FEW]

    def delete(self, numbers: tuple[int, ...]) -> None:
        """Delete the checkpoints of these numbers."""
        gone = set(numbers)
        chunks = []
        for chunk in self._chunks:
            if gone.isdisjoint(range(chunk.first, chunk.last + 1)):
                chunks.append(chunk)
            elif left := [each for each in archive_codec.decode(chunk.packed) if each.number not in gone]:
                chunks.append(_pack(left))
        self._chunks = chunks
        self._recent = [each for each in self._recent if each.number not in gone]

    def __len__(self) -> int:
        return sum(chunk.count for chunk in self._chunks) + len(self._recent)

    def _numbers(self) -> list[int]:
        packed = [number for chunk in self._chunks for number in archive_codec.numbers(chunk.packed)]
        return [*packed, *(each.number for each in self._recent)]

    def _after(self, number: int) -> Iterator[Checkpoint]:
        for chunk in self._chunks:
            if chunk.last > number:
                yield from (each for each in archive_codec.decode(chunk.packed) if each.number > number)
        yield from (each for each in self._recent if each.number > number)

    def _of_iteration(self, iteration: int) -> Iterator[Checkpoint]:
        """Newest first."""
        yield from (each for each in reversed(self._recent) if each.iteration == iteration)
        for chunk in reversed(self._chunks):
            if chunk.low <= iteration <= chunk.high:
                yield from (
                    each for each in reversed(archive_codec.decode(chunk.packed)) if each.iteration == iteration
                )


def _pack(checkpoints: list[Checkpoint]) -> PackedCheckpoints:
    iterations = [each.iteration for each in checkpoints]
    return PackedCheckpoints(
        count=len(checkpoints),
        first=checkpoints[0].number,
        last=checkpoints[-1].number,
        low=min(iterations),
        high=max(iterations),
        packed=archive_codec.encode(checkpoints),
    )
