"""The wire format: what was sent is what is read, and nothing else is ever read."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fuzz import Fuzz, mutated
from kinfolk import InputError
from kinfolk.engine.wire import HEAD, TYPES, Blob, Expected, Key, Slot, WireError, read, written

SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
ANY_ARRAY = st.sampled_from(TYPES).flatmap(lambda dtype: arrays.arrays(dtype, SHAPES))
ANY_BLOB = st.builds(
    Blob,
    st.sampled_from(["request", "answer"]),
    st.builds(Key, st.binary(min_size=16, max_size=16), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)),
    st.text(max_size=40),
    st.dictionaries(st.text(min_size=1, max_size=20), ANY_ARRAY, max_size=4),
)


def expected_of(blob: Blob) -> Expected:
    slots = {name: Slot(values.dtype.name, values.shape, values.ndim) for name, values in blob.arrays.items()}
    return Expected((blob.kind,), slots, len(blob.text.encode()))


@given(ANY_BLOB)
def test_what_was_sent_is_what_is_read(blob):
    content = blob.encode()
    again = Blob.decode(content, expected_of(blob))
    assert (again.kind, again.key, again.text, list(again.arrays)) == (
        blob.kind,
        blob.key,
        blob.text,
        list(blob.arrays),
    )
    for name, values in blob.arrays.items():
        assert again.arrays[name].dtype == values.dtype
        np.testing.assert_array_equal(again.arrays[name], values)
        assert again.arrays[name].flags.writeable
    assert len(content) == expected_of(blob).largest


@settings(max_examples=200)
@given(ANY_BLOB, st.randoms(use_true_random=False))
def test_other_bytes_are_refused_or_are_what_is_expected(blob, random):
    expected = expected_of(blob)
    try:
        found = Blob.decode(mutated(blob.encode(), random), expected)
    except WireError:
        return
    for name, values in found.arrays.items():
        assert expected.slots[name].admits(values.dtype.name, values.shape)


@pytest.mark.parametrize(
    ("slot", "sentence"),
    [
        (Slot("float32", (2, 3)), r"Expected 'w' as float32 of shape \(2, 3\) at most, got float64 of shape \(2, 3\)"),
        (
            Slot("float64", (3, 3), 1),
            r"Expected 'w' as float64 of shape \(3, 3\) at most, got",
        ),
        (Slot("float64", (2, 2)), r"at most, got float64 of shape \(2, 3\)"),
        (Slot("float64", (6,)), r"Expected 'w' as float64 of shape \(6,\)"),
    ],
)
def test_arrays_that_were_not_expected_get_a_sentence(slot, sentence):
    content = Blob("letter", arrays={"w": np.zeros((2, 3))}).encode()
    with pytest.raises(WireError, match=sentence):
        Blob.decode(content, Expected(("letter",), {"w": slot}))
    with pytest.raises(WireError, match="Expected 'v' in this message, got 'w'"):
        Blob.decode(content, Expected(("letter",), {"v": slot}))
    with pytest.raises(WireError, match="Expected a message of the kind 'request', got 'letter'"):
        Blob.decode(content, Expected(("request",), {"w": slot}))


def test_cut_and_padded_messages_get_a_sentence():
    blob = Blob("letter", arrays={"w": np.zeros((2, 3))})
    expected = expected_of(blob)
    for end in range(len(blob.encode())):
        with pytest.raises(WireError, match="Expected a"):
            Blob.decode(blob.encode()[:end], expected)
    with pytest.raises(WireError, match="Expected a message of 107 bytes by its table, got 108"):
        Blob.decode(blob.encode() + b"x", expected)


def test_a_table_that_lies_about_sizes_costs_no_memory():
    """A table may announce any size; only what is there is ever made."""
    shape = (2**31, 2**31)
    lie = bytearray(Blob("letter", arrays={"w": np.zeros((1, 1))}).encode())
    at = HEAD.size + 1 + 1 + 2
    lie[at : at + 16] = np.array(shape, dtype="<u8").tobytes()
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="Expected a message of"):
            Blob.decode(bytes(lie), Expected(("letter",), {"w": Slot("float64", shape)}))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert math.prod(shape) > 2**60


def test_what_cannot_travel_is_refused_where_it_is():
    with pytest.raises(InputError, match="Expected an array of numbers for 'w', got object"):
        Blob("letter", arrays={"w": np.array([print], dtype=object)}).encode()
    with pytest.raises(InputError, match="Expected a name of at most 200 bytes"):
        Blob("letter", arrays={"w" * 201: np.zeros(1)}).encode()


@pytest.mark.parametrize(
    "text", ["", "[]", "1", "{", '{"round": 3, "more": 1}', '{"round": 3.0}', '{"round": true}', "[" * 100_000]
)
def test_texts_that_were_not_expected_get_a_sentence(text):
    with pytest.raises(WireError, match="Expected"):
        read(text, {"round": int})
    assert read(written(round=3), {"round": int}) == {"round": 3}


def test_messages_of_all_kinds_do_no_harm_whatever_happens_to_them(tmp_path):
    """A short course of ``make fuzz``."""
    pytest.importorskip("cryptography", reason="the package cryptography is not installed")
    counts = Fuzz(tmp_path).run(1_500, seed=0)
    assert counts["refused"] > 500
    assert counts["accepted"] > 50
