"""Checkpoints in a loop's memory: found again, paged, deleted, and small."""

import base64
import hashlib
import lzma
import random
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from steersman.contracts import archive_codec
from steersman.contracts.loop_messages import Cleanup
from steersman.contracts.loop_state import Checkpoint, ItemCount, Totals
from steersman.contracts.run import Usage
from workflows.agent_loop.archive import Archive

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def real(count: int, *, fresh: bool = False) -> list[Checkpoint]:
    """As a loop makes them: what is random in life is random here."""
    chance = random.Random(1)
    made, totals = [], Totals()
    for number in range(count):
        usage = Usage(
            input_tokens=chance.randint(1, 300),
            output_tokens=chance.randint(100, 9000),
            cache_read_tokens=chance.randint(1000, 900_000),
            cache_write_tokens=chance.randint(100, 90_000),
        )
        took, cost = round(chance.random() * 300, 3), round(chance.random(), 8)
        totals = Totals(
            iterations=number,
            usage=totals.usage + usage,
            cost_usd=totals.cost_usd + cost,
            active_s=round(totals.active_s + took, 3),
        )
        made.append(
            Checkpoint(
                number=number,
                kind="iteration" if number else "baseline",
                time=NOW + timedelta(seconds=totals.active_s, microseconds=chance.randint(0, 999_999)),
                iteration=number,
                run=f"loop-0198f9a0-1111-7222-8333-123456789abc-{number}" if number else None,
                session_id=str(uuid.UUID(int=chance.getrandbits(128) if fresh else 7)),
                plan_hash="0123456789abcdef",
                commit=sha(chance),
                head=sha(chance) if number % 3 else "a" * 40,
                files=sha(chance),
                items=ItemCount(open=50, closed=number % 50),
                verification="failed",
                usage=usage,
                cost_usd=cost,
                took_s=took,
                totals=totals,
                feedback=(f"feedback-{number}",) if number % 20 == 7 else (),
            )
        )
    return made


def sha(chance: random.Random) -> str:
    return hashlib.sha1(chance.randbytes(8), usedforsecurity=False).hexdigest()


def archived(checkpoints: Iterable[Checkpoint]) -> Archive:
    archive = Archive()
    for each in checkpoints:
        archive.add(each)
    # As the next execution has it.
    return Archive(archive.chunks, archive.recent)


@pytest.mark.exhaustive
@pytest.mark.parametrize("fresh", [False, True])
def test_ten_thousand_fit_into_one_payload_and_none_is_lost(*, fresh: bool) -> None:
    made = real(10_000, fresh=fresh)
    archive = archived(made)
    assert sum(len(chunk.model_dump_json()) for chunk in archive.chunks) < 1_500_000
    assert len(archive) == 10_000
    found: list[Checkpoint] = []
    while True:
        page = archive.page(found[-1].number if found else -1, 500)
        assert len(page.model_dump_json()) < 1_000_000
        found += page.checkpoints
        if not page.more:
            break
    assert found == made


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"commit": "not a hash", "files": "f1", "session_id": "s-1"},
        {"commit": "A" * 40, "head": "0" * 64, "session_id": "not-a-uuid"},
        {"time": NOW + timedelta(microseconds=1), "kind": "pause", "error": "boom\n\0\U0001f600", "note": "é" * 300},
        {"totals": Totals(iterations=7, cost_usd=1e-9, active_s=0.1), "cost_usd": 0.1},
        {"items": ItemCount(), "phase": "02-api", "plan_version": 3, "feedback": ("a", "b")},
        {"run": None, "verification": "missing", "took_s": 1e6},
    ],
)
def test_what_is_packed_is_what_is_unpacked(odd: dict[str, Any]) -> None:
    made = real(5)
    made[2] = made[2].model_copy(update=odd)
    assert archive_codec.decode(archive_codec.encode(made)) == made
    assert archive_codec.decode(archive_codec.encode([made[2]])) == [made[2]]
    assert archive_codec.numbers(archive_codec.encode(made)) == [0, 1, 2, 3, 4]


def test_a_bomb_is_not_unpacked() -> None:
    form: Any = {"format": lzma.FORMAT_RAW, "filters": [{"id": lzma.FILTER_LZMA2}]}
    bomb = base64.b85encode(lzma.compress(bytes(archive_codec.MAX_BYTES + 1), **form)).decode()
    assert len(bomb) < 10_000
    with pytest.raises(ValueError, match="larger than any"):
        archive_codec.decode(bomb)


def test_one_is_found_by_its_number() -> None:
    archive = archived(real(500))
    for number in (0, 99, 100, 321, 499):
        found = archive.get(number)
        assert found is not None
        assert found.number == number
    assert archive.get(500) is None
    assert archive.get(-1) is None


def test_where_an_iteration_can_begin() -> None:
    made = real(300)
    kinds = {7: "failure", 8: "pause", 9: "rescue"}
    made = [each.model_copy(update={"kind": kinds.get(each.number, each.kind)}) for each in made]
    again = made[5].model_copy(update={"number": 300})
    archive = archived([*made, again])
    found = {iteration: archive.after_iteration(iteration) for iteration in (0, 5, 7, 8, 9, 299, 300)}
    numbers = {iteration: each.number if each else None for iteration, each in found.items()}
    assert numbers == {0: 0, 5: 300, 7: 7, 8: None, 9: None, 299: 299, 300: None}


def test_the_baseline() -> None:
    made = real(300)
    assert archived(made).baseline() == made[0]
    forked = [made[0].model_copy(update={"kind": "rescue"}), made[1].model_copy(update={"kind": "baseline"}), *made[2:]]
    assert archived(forked).baseline() == forked[1]
    assert archived(made[2:]).baseline() is None


def test_deleted_ones_are_gone_and_the_others_are_not() -> None:
    made = real(450)
    archive = archived(made)
    gone = {*range(100, 200), 0, 5, 350, 449}
    archive.delete(tuple(gone))
    left = [each for each in made if each.number not in gone]
    assert list(archive.page(-1, 500).checkpoints) == left
    assert len(archive) == len(left)
    assert archive.get(150) is None
    assert archive.get(349) == made[349]


def test_what_a_cleanup_means() -> None:
    archive = archived(real(300))
    third = archive.get(2)
    assert third is not None
    assert archive.matching(Cleanup(all=True), NOW) == tuple(range(300))
    assert archive.matching(Cleanup(oldest=3), NOW) == (0, 1, 2)
    assert archive.matching(Cleanup(oldest=999), NOW) == tuple(range(300))
    assert archive.matching(Cleanup(numbers=(250, 7, 999)), NOW) == (7, 250)
    assert archive.matching(Cleanup(older_than_s=60), third.time + timedelta(seconds=60.5)) == (0, 1, 2)
    assert archive.matching(Cleanup(older_than_s=60), NOW) == ()


def test_one_is_amended_while_it_is_new() -> None:
    archive = archived(real(150))
    archive.amend(149, verification="passed")
    archive.amend(7, verification="passed")
    archive.amend(999, verification="passed")
    passed = [each.number for each in archive.page(-1, 500).checkpoints if each.verification == "passed"]
    assert passed == [149]


def test_the_oldest_go_first_and_the_baseline_stays() -> None:
    archive = archived(real(300))
    oldest = archive.oldest_packed()
    assert oldest == tuple(range(1, 100))
    archive.delete(oldest)
    assert archive.oldest_packed() == tuple(range(100, 200))
    assert archived(real(10)).oldest_packed() == ()


def test_those_that_are_not_packed_go_last_and_the_newest_never() -> None:
    archive = archived(real(30))
    assert archive.oldest(but=3) == (1, 2, *range(4, 12))
    archive.delete(tuple(range(1, 18)))
    assert archive.oldest(but=-1) == (18, 19)
    archive.delete((18, 19))
    assert archive.oldest(but=-1) == ()
    assert [each.number for each in archive.page(-1, 500).checkpoints] == [0, *range(20, 30)]


def test_a_page_has_only_so_much_room() -> None:
    archive = archived([each.model_copy(update={"error": "界" * 1000}) for each in real(500)])
    found: list[int] = []
    pages = 0
    while True:
        page = archive.page(found[-1] if found else -1, 500)
        assert len(page.model_dump_json().encode()) < 1_000_000
        found += [each.number for each in page.checkpoints]
        pages += 1
        if not page.more:
            break
    assert found == list(range(500))
    assert pages > 1


def test_pages() -> None:
    archive = archived(real(250))
    page = archive.page(98, 3)
    assert ([each.number for each in page.checkpoints], page.more) == ([99, 100, 101], True)
    page = archive.page(246, 3)
    assert ([each.number for each in page.checkpoints], page.more) == ([247, 248, 249], False)
    assert Archive().page(-1, 5).checkpoints == ()
