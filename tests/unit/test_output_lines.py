"""Cutting byte streams into pieces and composing them for a screen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.launcher.output.lines import Cursor, LineSplitter, complete_length, compose, pack

EURO = "€".encode()


def split(*chunks: bytes, limit: int = 1 << 20) -> list[bytes]:
    splitter = LineSplitter(limit)
    return [piece for chunk in chunks for piece in splitter.feed(chunk)] + splitter.flush(final=True)


@pytest.mark.parametrize(
    ("chunks", "pieces"),
    [
        ([b"a\nb\n"], [b"a\n", b"b\n"]),
        ([b"a", b"b", b"\nc"], [b"ab\n", b"c"]),
        ([b"10%\r20%\r", b"30%\n"], [b"10%\r", b"20%\r", b"30%\n"]),
        ([b"dos\r", b"\nnext"], [b"dos\r\n", b"next"]),
        ([b"a\r\nb\r\n"], [b"a\r\n", b"b\r\n"]),
        ([b"a\r", b"\r", b"\n"], [b"a\r", b"\r\n"]),
        ([b"\n\n"], [b"\n", b"\n"]),
        ([b""], []),
        ([b"\xff" + EURO[:2], EURO[2:] + b"\nok\n"], [b"\xff" + EURO + b"\n", b"ok\n"]),
        # Only these two end a piece: not form feed, not the Unicode line separator.
        (["a\x0cb\u2028c\x85\n".encode()], ["a\x0cb\u2028c\x85\n".encode()]),
    ],
)
def test_pieces_end_at_line_feeds_and_carriage_returns(chunks: list[bytes], pieces: list[bytes]) -> None:
    assert split(*chunks) == pieces


@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"\r", b"\n", b"\r\n", b"\xe2\x82\xac", b"x" * 30])))
def test_nothing_is_lost_or_changed_however_the_stream_is_cut(chunks: list[bytes]) -> None:
    pieces = split(*chunks, limit=16)
    assert b"".join(pieces) == b"".join(chunks)
    assert all(pieces)


@given(st.binary(max_size=60), st.integers(0, 60))
def test_pieces_do_not_depend_on_where_chunks_end(data: bytes, cut: int) -> None:
    assert split(data[:cut], data[cut:]) == split(data)


def test_a_long_line_comes_in_parts_that_do_not_cut_characters() -> None:
    splitter = LineSplitter(limit=8)
    parts = splitter.feed(EURO * 5 + b"\n")
    assert parts == [EURO * 5 + b"\n"] or all(len(part) <= 8 for part in parts[:-1])
    parts = [piece for _ in range(6) for piece in splitter.feed(EURO)]
    assert parts == [EURO * 2, EURO * 2]
    assert splitter.flush(final=True) == [EURO * 2]


def test_an_idle_flush_keeps_half_a_character_back() -> None:
    splitter = LineSplitter()
    splitter.feed(b"price: " + EURO[:2])
    assert splitter.flush(final=False) == [b"price: "]
    assert splitter.flush(final=False) == []
    assert splitter.pending
    assert splitter.feed(EURO[2:] + b"5\n") == [EURO + b"5\n"]
    assert not splitter.pending


@pytest.mark.parametrize(
    ("data", "length"),
    [(b"abc", 3), (EURO, 3), (EURO[:2], 0), (b"a" + EURO[:1], 1), (b"\x80\x80\x80\x80", 4), (b"\xff", 1), (b"", 0)],
)
def test_complete_length(data: bytes, length: int) -> None:
    assert complete_length(data, len(data)) == length


def shown(cursor: Cursor, *output: tuple[str, bytes]) -> bytes:
    return b"".join(b"".join(compose(cursor, who, f"[{who}]:".encode(), [piece])) for who, piece in output)


def test_each_line_gets_a_prefix() -> None:
    assert shown(Cursor(), ("0", b"a\n"), ("1", b"b\n"), ("0", b"\n")) == b"[0]:a\n[1]:b\n[0]:\n"


def test_a_part_of_a_line_is_continued_without_a_second_prefix() -> None:
    assert shown(Cursor(), ("0", b"prompt> "), ("0", b"answer\n")) == b"[0]:prompt> answer\n"


def test_another_rank_does_not_write_into_an_unfinished_line() -> None:
    output = shown(Cursor(), ("0", b"prompt> "), ("1", b"hi\n"), ("0", b"answer\n"))
    assert output == b"[0]:prompt> \n[1]:hi\n[0]:answer\n"


def test_a_progress_bar_stays_in_its_line() -> None:
    output = shown(Cursor(), ("0", b"10%\r"), ("0", b"20%\r"), ("0", b"\n"), ("0", b"done\n"))
    assert output == b"[0]:10%\r[0]:20%\r\n[0]:done\n"


def test_another_rank_does_not_overwrite_a_progress_bar() -> None:
    assert shown(Cursor(), ("0", b"10%\r"), ("1", b"hi\n")) == b"[0]:10%\r\n[1]:hi\n"


def test_the_carriage_return_before_a_progress_bar_gets_no_prefix() -> None:
    assert shown(Cursor(), ("0", b"\r"), ("0", b"10%"), ("0", b"\r"), ("0", b"20%")) == b"\r[0]:10%\r[0]:20%"


@given(st.lists(st.binary(min_size=1, max_size=20)), st.integers(1, 30))
def test_blocks_hold_whole_pieces(pieces: list[bytes], limit: int) -> None:
    blocks = pack(pieces, limit)
    assert b"".join(blocks) == b"".join(pieces)
    assert all(len(block) <= limit or block in pieces for block in blocks)
