"""Files of arrays: as safetensors lays them out, and nothing in them believed unchecked."""

from __future__ import annotations

import json
import os
import random
import struct
import tracemalloc
import zlib
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastnet.backend.archive import Archive, Block, write_archive
from fastnet.backend.tree import array_from, decode, encode

ARRAYS = {
    "half": np.arange(6, dtype="float16").reshape(2, 3),
    "nothing": np.zeros((0, 4), "int64"),
    "number": np.array(7, "uint8"),
    "complex": np.array([1 + 2j], "complex128"),
    "flags": np.array([True, False]),
}


def written(path: Path, arrays: Any = ARRAYS, told: Any = None) -> Path:
    blocks: dict[str, Block] = {}
    content = encode({"arrays": arrays, "told": told}, "x", blocks, lambda value: None)
    write_archive(str(path), content, blocks)
    return path


def read(path: Path) -> Any:
    with open(path, "rb") as file:
        archive = Archive(file)
        return decode(archive.content, {"array": lambda name: array_from(archive.read(name))})


def by_hand(path: Path) -> tuple[dict[str, Any], bytes]:
    """Read a file as the description of safetensors says."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def put_together(path: Path, header: Any, data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.ckpt"


def test_there_and_back(path: Path) -> None:
    found = read(written(path))["arrays"]
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_the_layout_is_that_of_safetensors(path: Path) -> None:
    header, data = by_hand(written(path))
    assert header.pop("__metadata__").keys() == {"fastnet", "crc32"}
    entry = header["x/arrays/half"]
    assert entry["dtype"] == "F16"
    first, last = entry["data_offsets"]
    array = np.frombuffer(data[first:last], "<f2").reshape(entry["shape"])
    np.testing.assert_array_equal(array, ARRAYS["half"])
    # without gaps, as safetensors demands
    ends = sorted(tuple(one["data_offsets"]) for one in header.values())
    assert [first for first, _ in ends] == [0, *[last for _, last in ends[:-1]]]
    assert ends[-1][1] == len(data)


TOLD = [
    None,
    True,
    3,
    10**30,
    -0.0,
    0.1 + 0.2,
    "a text",
    [1, [2]],
    (1, (2, None)),
    {1: "int", "1": "text", None: 0, (1, 2): "pair"},
    OrderedDict([("b", 1), ("a", 2)]),
    Counter({2: 3}),
    {3, 4},
    np.float32(0.1),
]


@pytest.mark.parametrize("told", TOLD, ids=repr)
def test_plain_values_keep_their_types(path: Path, told: Any) -> None:
    found = read(written(path, {}, told))["told"]
    assert type(found) is type(told)
    assert repr(found) == repr(told)


def test_floats_that_json_has_not(path: Path) -> None:
    found = read(written(path, {}, [float("nan"), float("inf"), -float("inf")]))["told"]
    assert list(map(repr, found)) == ["nan", "inf", "-inf"]


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (object(), "object"),
        (b"bytes", "bytes"),
        (np.array(["text"]), "ndarray of <U4"),
        (np.array([None]), "ndarray of object"),
    ],
)
def test_what_cannot_be_held(path: Path, value: Any, what: str) -> None:
    with pytest.raises(TypeError) as caught:
        written(path, {}, {"a": [value]})
    assert str(caught.value) == (
        f"'x/told/a/0' is of the type {what}, which a checkpoint does not hold. It holds None, "
        "bools, numbers, strings, lists, tuples, sets, dicts, arrays and tensors of numbers."
    )
    assert not path.exists()


class TestDamaged:
    def test_every_length(self, path: Path) -> None:
        good = written(path).read_bytes()
        for length in range(len(good)):
            path.write_bytes(good[:length])
            with pytest.raises(Exception):  # noqa: B017, PT011
                read(path)

    def test_every_byte_counts(self, path: Path) -> None:
        """Whatever flips, nothing else is read than what was written."""
        good = written(path).read_bytes()
        expected = repr(read(path))
        source = random.Random(0)
        for place in range(len(good)):
            bad = bytearray(good)
            bad[place] ^= 1 << source.randrange(8)
            path.write_bytes(bad)
            try:
                found = repr(read(path))
            except Exception:
                continue
            assert found == expected

    def test_more_behind_it(self, path: Path) -> None:
        with open(written(path), "ab") as file:
            file.write(b"more")
        with pytest.raises(ValueError, match="bytes, but has"):
            read(path)


HUGE = 300_000_000


class TestClaims:
    """Sizes that a file does not have are refused before there is memory for them."""

    def refused(self, path: Path, text: str) -> None:
        tracemalloc.start()
        try:
            with pytest.raises(ValueError, match=text):
                read(path)
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()

    def test_of_the_header(self, path: Path) -> None:
        data = bytearray(written(path).read_bytes())
        data[:8] = struct.pack("<Q", HUGE)
        path.write_bytes(data)
        self.refused(path, "its header claims 300000000 bytes, but the file has")

    @pytest.mark.parametrize("shape", [[HUGE], [1 << 40, 1 << 40]])
    def test_of_an_array(self, path: Path, shape: list[int]) -> None:
        """With all checksums right, as somebody would make it on purpose."""
        header, data = by_hand(written(path, {"a": np.ones(3, "float32")}))
        told = json.loads(header["__metadata__"]["fastnet"])
        ((name, fact),) = told["blocks"].items()
        fact[1] = shape
        text = json.dumps(told)
        size = 4 * int(np.prod(shape, dtype=object))
        put_together(
            path,
            {
                "__metadata__": {"fastnet": text, "crc32": str(zlib.crc32(text.encode()))},
                name: {"dtype": "F32", "shape": shape, "data_offsets": [0, size]},
            },
            data,
        )
        self.refused(path, "it claims [0-9]+ bytes, but has")

    @pytest.mark.parametrize("shape", [[-1], ["3"], [True], [1.0]])
    def test_of_no_shape(self, path: Path, shape: Any) -> None:
        header, data = by_hand(written(path, {"a": np.ones(3, "float32")}))
        told = json.loads(header["__metadata__"]["fastnet"])
        next(iter(told["blocks"].values()))[1] = shape
        text = json.dumps(told)
        header["__metadata__"] = {"fastnet": text, "crc32": str(zlib.crc32(text.encode()))}
        put_together(path, header, data)
        self.refused(path, "and the shape")

    def test_a_header_that_contradicts_itself(self, path: Path) -> None:
        header, data = by_hand(written(path))
        header["x/arrays/half"]["shape"] = [3, 2]
        put_together(path, header, data)
        self.refused(path, "its header contradicts itself")


def test_an_array_of_zeros_takes_no_memory() -> None:
    tracemalloc.start()
    array = array_from(Block("float64", (HUGE, HUGE), None))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert array.shape == (HUGE, HUGE)
    assert peak < 1_000_000


def test_names_that_meet(path: Path) -> None:
    arrays = {"a/b": np.zeros(1), "a": {"b": np.ones(1)}}
    found = read(written(path, arrays))["arrays"]
    assert found["a/b"].tolist() == [0]
    assert found["a"]["b"].tolist() == [1]
    assert os.path.getsize(path) > 0
