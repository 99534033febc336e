"""Archives, whose layout is that of safetensors, and files that are written atomically."""

from __future__ import annotations

import json
import os
import random
import struct
import time
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastnet.backend.archive import Archive, Block, write_archive
from fastnet.backend.files import write_atomically
from fastnet.backend.tree import block_to_array, decode, encode

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
        return decode(archive.content, {"array": lambda name: block_to_array(archive.read(name))})


def header_and_data(path: Path) -> tuple[dict[str, Any], bytes]:
    """Read a file as the specification of safetensors says."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


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
    header, data = header_and_data(written(path))
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
    with pytest.raises(TypeError, match=f"'x/told/a/0' is of the type {what}, which"):
        written(path, {}, {"a": [value]})
    assert not path.exists()


class TestDamaged:
    def test_every_length_and_byte_counts(self, path: Path) -> None:
        good = written(path).read_bytes()
        source = random.Random(0)
        for place in range(len(good)):
            flipped = bytearray(good)
            flipped[place] ^= 1 << source.randrange(8)
            for bad in (good[:place], flipped):
                path.write_bytes(bad)
                with pytest.raises(Exception):  # noqa: B017, PT011
                    read(path)

    @pytest.mark.parametrize("change", ["shape", "checksum"])
    def test_headers_that_do_not_match(self, path: Path, change: str) -> None:
        header, data = header_and_data(written(path))
        if change == "shape":
            header["x/arrays/half"]["shape"] = [3, 2]
        else:
            header["__metadata__"]["crc32"] = "0"
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data)
        with pytest.raises(ValueError, match="its header does not match its checksum"):
            read(path)


def save(folder: Path) -> None:
    write_atomically(str(folder / "run.ckpt"), lambda path: Path(path).write_text("whole"))


def test_folders_of_killed_saves_are_removed_on_a_later_day(tmp_path: Path) -> None:
    long_ago = time.time() - 48 * 3600
    for name in (".saving-old", "saving-old", ".saving-new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.ckpt").write_text("half")
        if name.endswith("old"):
            os.utime(tmp_path / name, (long_ago, long_ago))
    save(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".saving-new", "run.ckpt", "saving-old"]


def test_saves_at_the_same_time(tmp_path: Path) -> None:
    """The last one that ends counts."""

    def write(path: str) -> None:
        save(tmp_path)
        assert (tmp_path / "run.ckpt").read_text() == "whole"
        Path(path).write_text("later")

    write_atomically(str(tmp_path / "run.ckpt"), write)
    assert os.listdir(tmp_path) == ["run.ckpt"]
    assert (tmp_path / "run.ckpt").read_text() == "later"


def test_a_link_and_the_mode_of_a_file_stay(tmp_path: Path) -> None:
    target, link = tmp_path / "disk" / "first", tmp_path / "run.ckpt"
    target.parent.mkdir()
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    save(tmp_path)
    assert link.is_symlink()
    assert target.read_text() == "whole"
    assert target.stat().st_mode & 0o777 == 0o640
    assert os.listdir(target.parent) == ["first"]


@pytest.mark.parametrize("error", [OSError("the disk is full"), KeyboardInterrupt()], ids=repr)
def test_an_error_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    save(tmp_path)

    def write(path: str) -> None:
        Path(path).write_text("half")
        raise error

    with pytest.raises(type(error)):
        write_atomically(str(tmp_path / "run.ckpt"), write)
    assert os.listdir(tmp_path) == ["run.ckpt"]
    assert (tmp_path / "run.ckpt").read_text() == "whole"
