"""All checkpoints of a loop, small enough to be carried through continue-as-new: the old ones in compressed chunks."""

import base64
import json
import zlib
from collections.abc import Iterator

from steersman.contracts.loop_messages import CheckpointPage, Cleanup
from steersman.contracts.loop_state import Checkpoint
from workflows.loops.clock import age_s

RECENT = 40
CHUNK = 100


class Archive:
    """Checkpoints by number, oldest first."""

    def __init__(self, chunks: tuple[str, ...] = (), recent: tuple[Checkpoint, ...] = ()) -> None:
        self._chunks = list(chunks)
        self._recent = list(recent)

    @property
    def chunks(self) -> tuple[str, ...]:
        """What is compressed."""
        return tuple(self._chunks)

    @property
    def recent(self) -> tuple[Checkpoint, ...]:
        """What is not: the newest."""
        return tuple(self._recent)

    def add(self, checkpoint: Checkpoint) -> None:
        """One more, the newest."""
        self._recent.append(checkpoint)
        if len(self._recent) >= RECENT + CHUNK:
            self._chunks.append(_packed(self._recent[:CHUNK]))
            del self._recent[:CHUNK]

    def get(self, number: int) -> Checkpoint | None:
        """The checkpoint of that number, if it was not deleted."""
        return next((each for each in self._backwards() if each.number == number), None)

    def ended(self, iteration: int) -> Checkpoint | None:
        """The newest from which the iteration after this one can begin."""
        kinds = ("iteration", "baseline")
        return next((each for each in self._backwards() if each.iteration == iteration and each.kind in kinds), None)

    def baseline(self) -> Checkpoint | None:
        """How it was before the loop's first iteration."""
        return next((each for each in self._backwards() if each.kind == "baseline"), None)

    def amend(self, **changes: object) -> None:
        """Change the newest."""
        self._recent[-1] = self._recent[-1].model_copy(update=changes)

    def page(self, after: int, limit: int) -> CheckpointPage:
        """Those with a greater number than `after`."""
        found: list[Checkpoint] = []
        for each in self:
            if each.number > after:
                if len(found) == limit:
                    return CheckpointPage(checkpoints=tuple(found), more=True)
                found.append(each)
        return CheckpointPage(checkpoints=tuple(found))

    def chosen(self, cleanup: Cleanup, now_s: float) -> tuple[int, ...]:
        """The numbers that a cleanup means."""
        numbers = [each.number for each in self]
        if cleanup.oldest is not None:
            return tuple(numbers[: cleanup.oldest])
        if cleanup.older_than_s is not None:
            limit = cleanup.older_than_s
            return tuple(each.number for each in self if age_s(each.time, now_s) > limit)
        return tuple(number for number in numbers if cleanup.all or number in cleanup.numbers)

    def delete(self, numbers: tuple[int, ...]) -> None:
        """Forget these."""
        gone = set(numbers)
        kept = [each for each in self if each.number not in gone]
        self._chunks, self._recent = [], []
        for each in kept:
            self.add(each)

    def __iter__(self) -> Iterator[Checkpoint]:
        for chunk in self._chunks:
            yield from _unpacked(chunk)
        yield from self._recent

    def __len__(self) -> int:
        return sum(int(chunk.partition(":")[0]) for chunk in self._chunks) + len(self._recent)

    def _backwards(self) -> Iterator[Checkpoint]:
        yield from reversed(self._recent)
        for chunk in reversed(self._chunks):
            yield from reversed(_unpacked(chunk))


def _packed(checkpoints: list[Checkpoint]) -> str:
    # Column by column: what repeats from one to the next then stands side by side.
    rows = [each.model_dump(mode="json", exclude_defaults=True) for each in checkpoints]
    names = sorted({name for row in rows for name in row})
    columns = {name: [row.get(name) for row in rows] for name in names}
    data = zlib.compress(json.dumps(columns, separators=(",", ":")).encode(), 9)
    return f"{len(rows)}:{base64.b85encode(data).decode()}"


def _unpacked(chunk: str) -> list[Checkpoint]:
    count, _, data = chunk.partition(":")
    columns = json.loads(zlib.decompress(base64.b85decode(data)))
    return [
        Checkpoint.model_validate({name: column[row] for name, column in columns.items() if column[row] is not None})
        for row in range(int(count))
    ]
