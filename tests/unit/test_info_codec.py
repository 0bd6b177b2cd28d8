"""Infos that are numbers, packed into memory and read back: equal in value and in type.

What does not fit there goes into files of plain values, which are read back likewise.
"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from envpool_py.env import info_codec as codecs
from envpool_py.record import plain_codec
from tests.support import examples
from tests.support.reference import same

NUMBERS = st.one_of(
    st.floats(),
    st.integers(-(2**80), 2**80),
    st.booleans(),
    st.builds(np.bool_, st.booleans()),
    st.floats().map(np.float64),
    st.floats(width=32).map(np.float32),
    st.floats(width=16).map(np.float16),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.integers(0, 2**64 - 1).map(np.uint64),
    st.integers(-128, 127).map(np.int8),
    st.lists(st.floats(), max_size=4).map(np.array),
    st.integers(0, 9).map(np.array),
)
OTHERS = st.sampled_from([None, "text", [1], np.array(["a"]), {"deep": 1}])
ARRAYS = of_numpy.arrays(
    st.one_of(
        of_numpy.scalar_dtypes(),
        of_numpy.byte_string_dtypes(),
        of_numpy.unicode_string_dtypes(),
    ),
    of_numpy.array_shapes(min_dims=0, min_side=0, max_side=3),
)
SCALARS = ARRAYS.map(lambda array: np.zeros((), array.dtype)[()])  # with the unit of a time
PARTS = st.one_of(ARRAYS, SCALARS, NUMBERS, OTHERS)
NESTED = st.recursive(
    PARTS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=4,
)
INFOS = st.dictionaries(st.text(max_size=3), st.one_of(PARTS, NESTED), max_size=6)


def codec():
    """Return a packer and a reader of the same memory for three envs, and its tables."""
    rows = memoryview(bytearray(3 * codecs.ROW_BYTES))
    tables = memoryview(bytearray(3 * codecs.TABLE_BYTES))
    return codecs.Packer(rows, tables), codecs.Reader(rows, tables), tables


@examples.same(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 2), INFOS), max_size=12))
def test_what_is_packed_is_read_back(rows):
    packer, reader, _ = codec()
    latest = {}
    for i, info in rows:
        latest[i] = packer.pack(i, info), info
        for other, (form, written) in latest.items():
            assert not form or same(reader.read(other, form), written | {"env_id": other})


def test_what_has_no_room_is_not_packed():
    packer, reader, tables = codec()
    assert packer.pack(0, {"n": 2**63 - 1}) == 1
    assert reader.read(0, 1) == {"n": 2**63 - 1, "env_id": 0}
    assert packer.pack(0, {"n": 2**63}) == 0
    assert packer.pack(1, {"values": np.zeros(codecs.ROW_BYTES)}) == 0
    before = bytes(tables[: codecs.TABLE_BYTES])
    numbers = [packer.pack(1, {f"key {n}": n}) for n in range(200)]  # too many forms
    assert (numbers[0], numbers[-1]) == (1, 0)
    assert bytes(tables[: codecs.TABLE_BYTES]) == before  # the neighbour's
    assert packer.pack(1, {"key 0": 7}) == 1
    assert reader.read(1, 1) == {"key 0": 7, "env_id": 1}


@examples.same(max_examples=50)
@given(NESTED)
def test_what_is_written_to_a_file_is_read_back(value):
    data = plain_codec.encode(value)
    back = plain_codec.decode(data)
    assert (repr(back), plain_codec.encode(back)) == (repr(value), data)
