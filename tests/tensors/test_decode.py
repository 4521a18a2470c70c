import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.tensors.decode import LONGEST, Decoder, pieces


def of_bytes(ids):
    """As byte-level tokenizers do: half a character is the sign for one."""
    return bytes(ids).decode(errors="replace")


def of_words(ids):
    """As tokenizers with a sign for the space before a word do: the first of it is left out."""
    return " ".join(f"w{item}" for item in ids)


@pytest.mark.slow
@given(st.text(max_size=30).filter(lambda text: "\ufffd" not in text))
def test_the_pieces_of_a_text_make_up_the_text(text):
    ids = list(text.encode())
    result = pieces(ids, of_bytes)
    assert len(result) == len(ids)
    assert "".join(result) == text
    ends = np.cumsum([len(char.encode()) for char in text])
    assert [i + 1 for i, piece in enumerate(result) if piece] == ends.tolist()  # the last part of each has it


def test_a_space_that_a_decoder_leaves_out_at_the_beginning_is_there_all_the_same():
    assert pieces([3, 1, 2], of_words) == ["w3", " w1", " w2"]


@given(st.binary(max_size=40))
def test_bytes_that_are_no_text_are_shown_as_such_and_lose_nothing_after_them(data):
    result = pieces([*data, *b"end"], of_bytes)
    assert len(result) == len(data) + 3
    assert "".join(result).endswith("end")


def test_a_text_that_is_far_too_long_is_cut():
    assert [len(piece) for piece in pieces([1], lambda _: "x" * 10_000)] == [LONGEST]


def wanted(*sequences):
    return [(np.array(sequence), [range(len(sequence))]) for sequence in sequences]


def test_texts_come_when_they_are_made_and_are_not_made_twice():
    calls = []

    def decode(ids):
        calls.append(ids)
        return of_words(ids)

    decoder, asked = Decoder(decode), wanted([1, 2], [3])
    assert decoder.texts(asked) in ([None, None], [("w1", " w2"), None], [("w1", " w2"), ("w3",)])
    decoder.wait(60)
    assert not decoder.busy
    assert decoder.texts(asked) == [("w1", " w2"), ("w3",)]
    made = len(calls)
    assert decoder.texts(asked[:1]) == [("w1", " w2")]
    assert len(calls) == made
    assert decoder.errors() == []


def test_parts_that_are_not_asked_for_have_no_text():
    decoder = Decoder(of_words)
    asked = [(np.arange(8), [range(1, 3), range(5, 6)])]
    decoder.texts(asked)
    decoder.wait(60)
    assert decoder.texts(asked) == [("", "w1", " w2", "", "", "w5", "", "")]


@pytest.mark.parametrize("bad", [KeyError("no token -5"), 7, b"bytes", None])
def test_a_decoder_that_fails_leaves_out_that_text_alone(bad):
    def decode(ids):
        if -5 in ids:
            if isinstance(bad, Exception):
                raise bad
            return bad
        return of_words(ids)

    decoder, asked = Decoder(decode), wanted([1], [-5], [2])
    decoder.texts(asked)
    decoder.wait(60)
    assert decoder.texts(asked) == [("w1",), None, ("w2",)]
    (error,) = decoder.errors()
    assert isinstance(error, KeyError if isinstance(bad, Exception) else TypeError)
    assert decoder.errors() == []
    assert not decoder.busy


def test_a_decoder_that_hangs_is_waited_for_no_longer_than_said(monkeypatch):
    release = threading.Event()

    def decode(ids):
        if 13 in ids:
            release.wait(60)
        return of_words(ids)

    decoder, asked = Decoder(decode), wanted([1], [13], [2])
    try:
        decoder.texts(asked[:1])
        decoder.wait(60)
        assert decoder.texts(asked) == [("w1",), None, None]
        assert decoder.busy
        decoder.wait(0.01)
        (error,) = decoder.errors()
        assert str(error) == "decode: 2 sequences not decoded within 0 s"
        monkeypatch.setattr("tracker_diag.tensors.decode.HUNG", -1.0)
        assert not decoder.busy
    finally:
        release.set()
    decoder.wait(60)
    assert decoder.texts(asked) == [("w1",), ("w13",), ("w2",)]


def test_at_the_end_it_waits_for_all_and_its_thread_ends():
    before, decoder, asked = {*threading.enumerate()}, Decoder(of_words), wanted([1], [2])
    decoder.texts(asked)
    (thread,) = {*threading.enumerate()} - before
    decoder.close(60)
    assert decoder.texts(asked) == [("w1",), ("w2",)]
    thread.join(60)
    assert not thread.is_alive()
    Decoder(of_words).close(0)  # one that was never asked


def test_where_no_thread_can_be_started_there_is_no_text(monkeypatch):
    def none_starts(name):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr("tracker_diag.tensors.decode.Writer", none_starts)
    decoder = Decoder(of_words)
    assert decoder.texts(wanted([1])) == [None]
    assert not decoder.busy
    assert [str(error) for error in decoder.errors()] == ["can't create new thread at interpreter shutdown"]
