"""The journal's format, without a shim: chunks of any size, damage, and long lines."""

import pytest

from activities.shim.client import JournalCorrupt, LineJoiner, Record, RecordParser


def encoded(*records: tuple[str, bytes, str]) -> bytes:
    return b"".join(
        b"%d %d %s %d %s\n%s\n" % (seq, 1000 + seq, stream.encode(), len(data), (ident or "-").encode(), data)
        for seq, (stream, data, ident) in enumerate(records, 1)
    )


WIRE = encoded(
    ("in", b"two\nlines\n", "id-1"),
    ("out", b"", ""),
    ("out+", b"\x00\xff" * 50, ""),
    ("out", b"1 2 out 3 -\nx\n", ""),
    ("err", "é".encode(), ""),
    ("eof", b"", "id-2"),
    ("exit", b"{}", ""),
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_chunks_of_any_size_make_the_same_records(size: int) -> None:
    parser = RecordParser()
    records = [record for at in range(0, len(WIRE), size) for record in parser.feed(WIRE[at : at + size])]
    assert [(record.seq, record.stream, record.id) for record in records] == [
        (1, "in", "id-1"),
        (2, "out", ""),
        (3, "out+", ""),
        (4, "out", ""),
        (5, "err", ""),
        (6, "eof", "id-2"),
        (7, "exit", ""),
    ]
    assert records[0] == Record(1, 1001, "in", b"two\nlines\n", "id-1")
    assert records[3].data == b"1 2 out 3 -\nx\n"


def test_records_that_were_read_before_are_passed_over() -> None:
    assert [record.seq for record in RecordParser(5).feed(WIRE)] == [6, 7]


@pytest.mark.parametrize(
    "damaged",
    [
        b"nonsense\n",
        b"1 2 out 3\nabc\n",
        b"1 2 out x -\nabc\n",
        b"1 2 sideways 3 -\nabc\n",
        b"1 2 out 3 -\nabcdef\n",
        b"2 2 out 3 -\nabc\n",
        b"x" * 1000,
    ],
)
def test_damage_is_an_error(damaged: bytes) -> None:
    with pytest.raises(JournalCorrupt):
        RecordParser().feed(damaged)


def joined(limit: int, *records: tuple[str, bytes, str]) -> list[tuple[int, int, str, bytes, bool]]:
    joiner = LineJoiner(limit)
    lines = [joiner.push(record) for record in RecordParser().feed(encoded(*records))]
    return [(line.first_seq, line.seq, line.stream, line.data, line.truncated) for line in lines if line]


def test_pieces_are_joined_with_the_other_stream_in_between() -> None:
    assert joined(
        100,
        ("out+", b"ab", ""),
        ("err+", b"12", ""),
        ("in", b"x", "id"),
        ("out+", b"cd", ""),
        ("err", b"34", ""),
        ("out", b"", ""),
        ("out", b"next", ""),
    ) == [(2, 5, "err", b"1234", False), (1, 6, "out", b"abcd", False), (7, 7, "out", b"next", False)]


def test_a_line_over_the_limit_is_cut_and_says_so() -> None:
    assert joined(5, ("out+", b"abc", ""), ("out+", b"def", ""), ("out", b"g", ""), ("out", b"1234567", "")) == [
        (1, 3, "out", b"abcde", True),
        (4, 4, "out", b"12345", True),
    ]
    assert joined(3, ("out+", b"abc", ""), ("out", b"", "")) == [(1, 2, "out", b"abc", False)]
