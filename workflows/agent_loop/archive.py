"""All checkpoints of a loop, small enough to be carried through continue-as-new: the old ones packed."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import takewhile

from steersman.contracts.loop_messages import CheckpointPage, Cleanup
from steersman.contracts.loop_state import Checkpoint
from workflows.agent_loop import archive_codec as packing
from workflows.agent_loop.carried_state import Chunk

RECENT = 40
CHUNK = 100
MAX_PAGE_BYTES = 800_000


class Archive:
    """Checkpoints by number, oldest first."""

    def __init__(self, chunks: tuple[Chunk, ...] = (), recent: tuple[Checkpoint, ...] = ()) -> None:
        self._chunks = list(chunks)
        self._recent = list(recent)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """What is packed."""
        return tuple(self._chunks)

    @property
    def recent(self) -> tuple[Checkpoint, ...]:
        """What is not: the newest."""
        return tuple(self._recent)

    def add(self, checkpoint: Checkpoint) -> None:
        """One more, the newest."""
        self._recent.append(checkpoint)
        if len(self._recent) >= RECENT + CHUNK:
            self._chunks.append(_chunk(self._recent[:CHUNK]))
            del self._recent[:CHUNK]

    def get(self, number: int) -> Checkpoint | None:
        """The checkpoint of that number, if it was not deleted."""
        chunk = next((each for each in self._chunks if each.first <= number <= each.last), None)
        among = packing.unpacked(chunk.packed) if chunk else self._recent
        return next((each for each in among if each.number == number), None)

    def ended(self, iteration: int) -> Checkpoint | None:
        """The newest from which the iteration after this one can begin."""
        kinds = ("iteration", "failure", "baseline")
        return next((each for each in self._of(iteration) if each.kind in kinds), None)

    def baseline(self) -> Checkpoint | None:
        """How it was before the loop's first iteration: the first one, or the second where files were taken over."""
        return next((each for number in (0, 1) if (each := self.get(number)) and each.kind == "baseline"), None)

    def amend(self, number: int, **changes: object) -> None:
        """Change one of the newest, if it was not deleted."""
        self._recent = [each.model_copy(update=changes) if each.number == number else each for each in self._recent]

    def page(self, after: int, limit: int) -> CheckpointPage:
        """Those with a greater number than `after`: `limit` of them, or as many as an answer has room for."""
        found: list[Checkpoint] = []
        size = 0
        for each in self._after(after):
            size += len(each.model_dump_json().encode())
            if len(found) == limit or (found and size > MAX_PAGE_BYTES):
                return CheckpointPage(checkpoints=tuple(found), more=True)
            found.append(each)
        return CheckpointPage(checkpoints=tuple(found))

    def chosen(self, cleanup: Cleanup, now: datetime) -> tuple[int, ...]:
        """The numbers that a cleanup means."""
        if cleanup.older_than_s is not None:
            limit = cleanup.older_than_s
            old = takewhile(lambda each: (now - each.time.astimezone(UTC)).total_seconds() > limit, self._after(-1))
            return tuple(each.number for each in old)
        numbers = self._numbers()
        if cleanup.oldest is not None:
            return tuple(numbers[: cleanup.oldest])
        wanted = set(cleanup.numbers)
        return tuple(number for number in numbers if cleanup.all or number in wanted)

    def oldest(self) -> tuple[int, ...]:
        """The numbers of those that go first where there is no room; not the baseline."""
        keep = self.baseline()
        for chunk in self._chunks:
            numbers = [number for number in packing.numbers(chunk.packed) if keep is None or number != keep.number]
            if numbers:
                return tuple(numbers)
        return ()

    def delete(self, numbers: tuple[int, ...]) -> None:
        """Forget these."""
        gone = set(numbers)
        chunks = []
        for chunk in self._chunks:
            if gone.isdisjoint(range(chunk.first, chunk.last + 1)):
                chunks.append(chunk)
            elif left := [each for each in packing.unpacked(chunk.packed) if each.number not in gone]:
                chunks.append(_chunk(left))
        self._chunks = chunks
        self._recent = [each for each in self._recent if each.number not in gone]

    def __len__(self) -> int:
        return sum(chunk.count for chunk in self._chunks) + len(self._recent)

    def _numbers(self) -> list[int]:
        packed = [number for chunk in self._chunks for number in packing.numbers(chunk.packed)]
        return [*packed, *(each.number for each in self._recent)]

    def _after(self, number: int) -> Iterator[Checkpoint]:
        for chunk in self._chunks:
            if chunk.last > number:
                yield from (each for each in packing.unpacked(chunk.packed) if each.number > number)
        yield from (each for each in self._recent if each.number > number)

    def _of(self, iteration: int) -> Iterator[Checkpoint]:
        """Newest first."""
        yield from (each for each in reversed(self._recent) if each.iteration == iteration)
        for chunk in reversed(self._chunks):
            if chunk.low <= iteration <= chunk.high:
                yield from (each for each in reversed(packing.unpacked(chunk.packed)) if each.iteration == iteration)


def _chunk(checkpoints: list[Checkpoint]) -> Chunk:
    iterations = [each.iteration for each in checkpoints]
    return Chunk(
        count=len(checkpoints),
        first=checkpoints[0].number,
        last=checkpoints[-1].number,
        low=min(iterations),
        high=max(iterations),
        packed=packing.packed(checkpoints),
    )
