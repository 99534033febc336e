"""Weights files: good ones, and everything else that a path may lead to."""

from __future__ import annotations

import collections
import io
import os
import pickle
import random
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fastnet.backend.torch.names import unwrap
from fastnet.backend.torch.weights import load_weights, read_state
from tests.network.programs import Image, line, mlp, raising, same_weights, seeded, weights


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights.pt"


def saved(data: Any, **kwargs: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(data, buffer, **kwargs)
    return buffer.getvalue()


class TestGood:
    @pytest.mark.parametrize("make", [line, mlp, Image])
    @pytest.mark.parametrize("zipped", [True, False])
    @pytest.mark.parametrize("kind", [str, Path])
    def test_are_loaded(self, path: Path, make: Any, zipped: bool, kind: Any) -> None:
        other = seeded(make, 1)
        path.write_bytes(saved(other.state_dict(), _use_new_zipfile_serialization=zipped))
        model = make()
        load_weights(model, kind(path))
        assert same_weights(model, other)

    def test_the_models_parameters_stay_the_same_objects(self, path: Path) -> None:
        path.write_bytes(saved(line().state_dict()))
        model = line()
        before = list(model.parameters())
        load_weights(model, path)
        assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
        assert all(parameter.requires_grad for parameter in before)

    @pytest.mark.parametrize("from_wrapper", [True, False])
    @pytest.mark.parametrize("into_wrapper", [True, False])
    def test_to_and_from_parallel_wrappers(
        self, path: Path, from_wrapper: bool, into_wrapper: bool
    ) -> None:
        other = seeded(mlp, 1)
        source = nn.DataParallel(other) if from_wrapper else other
        path.write_bytes(saved(source.state_dict()))
        model = mlp()
        load_weights(nn.DataParallel(model) if into_wrapper else model, path)
        assert same_weights(model, other)

    @pytest.mark.parametrize("alone", [True, False])
    def test_of_a_model_with_a_layer_called_module(self, path: Path, alone: bool) -> None:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.module = nn.Linear(2, 2)
                if not alone:
                    self.head = nn.Linear(2, 1)

        other, model = Model(), Model()
        for source in (other, nn.DataParallel(other)):
            path.write_bytes(saved(source.state_dict()))
            load_weights(model, path)
            assert same_weights(model, other)
            model = Model()

    def test_an_ordered_dict_with_metadata(self, path: Path) -> None:
        state = Image().state_dict()
        assert isinstance(state, collections.OrderedDict)
        path.write_bytes(saved(dict(state)))
        model = Image()
        load_weights(model, path)
        assert same_weights(model, dict(state))

    def test_reading(self, path: Path) -> None:
        other = line()
        path.write_bytes(saved(other.state_dict()))
        state = read_state(path)
        assert set(state) == {"weight", "bias"}
        assert torch.equal(state["weight"], other.weight)


class TestPath:
    @pytest.mark.parametrize("what", ["none.pt", "none/none.pt"])
    def test_that_leads_nowhere(self, tmp_path: Path, what: str) -> None:
        path = str(tmp_path / what)
        with raising(
            ValueError,
            f"There is no weights file '{path}'. Check the path, or leave weights_path out.",
        ):
            load_weights(line(), path)

    @pytest.mark.parametrize("path", [3, None, ["w.pt"], b"w.pt"])
    def test_that_is_none(self, path: Any) -> None:
        with raising(
            ValueError,
            f"A weights path is a string, or None for no weights, not {path!r} of type "
            f"{type(path).__name__}.",
        ):
            load_weights(line(), path)


class TestAnotherModel:
    def refused(self, path: Path, state: Any, complaint: str) -> None:
        path.write_bytes(saved(state))
        model = line()
        before = weights(model)
        with raising(
            ValueError,
            f"The weights file '{path}' is of another model than Linear: it {complaint}. Load it "
            "into the model that it was saved from.",
        ):
            load_weights(model, path)
        assert same_weights(model, before)

    def test_weights_that_are_missing(self, path: Path) -> None:
        self.refused(path, {"weight": torch.ones(1, 2)}, "lacks 'bias'")
        self.refused(path, {}, "lacks 'weight', 'bias'")

    def test_weights_that_are_not_the_models(self, path: Path) -> None:
        state = {**line().state_dict(), **{f"layer{n}": torch.ones(1) for n in range(5)}}
        self.refused(
            path, state, "has 'layer0', 'layer1', 'layer2' and 2 more, which the model has not"
        )

    def test_shapes(self, path: Path) -> None:
        self.refused(
            path,
            nn.Linear(3, 1).state_dict(),
            "has 'weight' of shape (1, 3) where the model's is (1, 2)",
        )

    def test_all_at_once(self, path: Path) -> None:
        self.refused(
            path,
            {"weight": torch.ones(7), "other": torch.ones(1)},
            "lacks 'bias'; it has 'other', which the model has not; it has 'weight' of shape (7,) "
            "where the model's is (1, 2)",
        )

    def test_what_is_no_tensor(self, path: Path) -> None:
        self.refused(
            path,
            {"weight": 3, "bias": torch.zeros(1)},
            "has int as 'weight', which is no tensor",
        )

    def test_a_checkpoint_that_holds_the_weights_somewhere_inside(self, path: Path) -> None:
        self.refused(
            path,
            {"model": line().state_dict(), "epoch": 3},
            "lacks 'weight', 'bias'; it has 'model', 'epoch', which the model has not",
        )


class TestNoWeights:
    @pytest.mark.parametrize(
        ("data", "held"),
        [
            (3, "int"),
            ([torch.ones(1)], "list"),
            (torch.ones(1), "Tensor"),
            (None, "NoneType"),
            ({1: torch.ones(1)}, "a dict without names"),
        ],
    )
    def test_other_data(self, path: Path, data: Any, held: str) -> None:
        path.write_bytes(saved(data))
        with raising(
            ValueError,
            f"The weights file '{path}' holds {held}, not weights by name. Save "
            "model.state_dict(), not the model or a part of it.",
        ):
            load_weights(line(), path)

    def test_a_whole_model(self, path: Path) -> None:
        path.write_bytes(saved(line()))
        with raising(ValueError, executable(path)):
            load_weights(line(), path)


def executable(path: Path) -> str:
    return (
        f"The weights file '{path}' is damaged, or holds more than weights, which is not executed. "
        "Save it anew with torch.save(model.state_dict(), path)."
    )


class Evil:
    """Runs a command where a pickle of it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
class TestCode:
    @pytest.mark.parametrize("how", ["torch", "torch before 1.6", "pickle"])
    def test_is_not_executed(self, path: Path, tmp_path: Path, how: str) -> None:
        mark = tmp_path / "mark"
        evil = {"weight": Evil(mark), "bias": torch.zeros(1)}
        if how == "pickle":
            path.write_bytes(pickle.dumps(Evil(mark)))
        else:
            path.write_bytes(saved(evil, _use_new_zipfile_serialization=how == "torch"))
        model = line()
        before = weights(model)
        with raising(ValueError, executable(path)):
            load_weights(model, path)
        assert not mark.exists()
        assert same_weights(model, before)
        # the trap works: it is the loading that does not step into it
        pickle.loads(pickle.dumps(Evil(mark)))
        assert mark.exists()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
class TestDamaged:
    """Whatever stands in a file, the error says which file it is and what to do."""

    def refused(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)
        with pytest.raises(ValueError, match="weights file") as caught:
            read_state(path)
        assert type(caught.value) is ValueError
        text = str(caught.value)
        assert text.startswith(f"The weights file '{path}' ")
        assert "damaged" in text or "holds" in text
        assert "Save" in text
        assert caught.value.__cause__ is not None or "holds" in text

    @pytest.mark.parametrize("zipped", [True, False])
    def test_cut_short(self, path: Path, zipped: bool) -> None:
        good = saved(mlp().state_dict(), _use_new_zipfile_serialization=zipped)
        for size in range(0, len(good), len(good) // 60):
            self.refused(path, good[:size])

    @pytest.mark.parametrize("zipped", [True, False])
    def test_bytes_that_flipped(self, path: Path, zipped: bool) -> None:
        """A file that still reads may read as anything; one that does not is told as damaged."""
        good = saved(mlp().state_dict(), _use_new_zipfile_serialization=zipped)
        source = random.Random(0)
        for _ in range(150):
            bad = bytearray(good)
            for _ in range(source.choice([1, 20])):
                bad[source.randrange(len(bad) // 4 if zipped else 900)] = source.randrange(256)
            path.write_bytes(bad)
            try:
                read_state(path)
            except ValueError as error:
                assert str(path) in str(error)  # noqa: PT017

    def test_random_bytes(self, path: Path) -> None:
        source = random.Random(0)
        for _ in range(150):
            self.refused(path, source.randbytes(source.choice([1, 10, 1000])))

    @pytest.mark.parametrize("text", ["", "weights\n", "the weights of a model", "{}", "a,b\n1,2"])
    def test_text(self, path: Path, text: str) -> None:
        self.refused(path, text.encode())

    def test_archives_of_other_things(self, path: Path) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("notes.txt", "not weights")
        self.refused(path, buffer.getvalue())
        buffer = io.BytesIO()
        np.savez(buffer, weight=np.ones(2))
        self.refused(path, buffer.getvalue())

    def test_the_whole_text(self, path: Path) -> None:
        path.write_bytes(saved(line().state_dict())[:-30])
        with pytest.raises(ValueError, match="weights file") as caught:
            read_state(path)
        cause = caught.value.__cause__
        assert str(caught.value) == (
            f"The weights file '{path}' is damaged: it cannot be read ({cause!r}). Save it anew "
            "with torch.save(model.state_dict(), path)."
        )


def test_unwrap() -> None:
    model = line()
    assert unwrap(model) is model
    assert unwrap(nn.DataParallel(model)) is model


def compiled(model: Any) -> Any:
    return torch.compile(model, backend="eager")


def inside(model: Any) -> Any:
    """A model a part of which is wrapped."""
    model[0] = compiled(nn.DataParallel(model[0]))
    return model


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A group of one process, which is enough to spread a model over."""
    store = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group("gloo", f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


WRAPS: dict[str, Any] = {
    "plain": lambda model: model,
    "compiled": compiled,
    "DataParallel": nn.DataParallel,
    "DDP": nn.parallel.DistributedDataParallel,
    "compiled DDP": lambda model: compiled(nn.parallel.DistributedDataParallel(model)),
    "DataParallel of compiled": lambda model: nn.DataParallel(compiled(model)),
    "inside": inside,
}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("saved_as", WRAPS)
@pytest.mark.parametrize("loaded_as", WRAPS)
def test_whatever_a_model_is_wrapped_in(path: Path, saved_as: str, loaded_as: str) -> None:
    """The file is torch's own, of the wrapped model."""
    source, target = mlp(), mlp()
    expected = [one.detach().clone() for one in source.parameters()]
    torch.save(WRAPS[saved_as](source).state_dict(), path)
    load_weights(WRAPS[loaded_as](target), path)
    assert all(map(torch.equal, target.parameters(), expected))


class TestNames:
    """Where a model itself has parts that are called like wrappers."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 1)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(1, 1, bias=False)
            self.weight = nn.Parameter(torch.zeros(1, 1))

    @pytest.mark.parametrize("make", [Own, Both])
    @pytest.mark.parametrize("wrap", [lambda model: model, nn.DataParallel])
    @pytest.mark.parametrize("loaded", [lambda model: model, nn.DataParallel])
    def test_they_stay_apart(self, path: Path, make: Any, wrap: Any, loaded: Any) -> None:
        source, target = make(), make()
        torch.save(wrap(source).state_dict(), path)
        load_weights(loaded(target), path)
        assert same_weights(source, target)

    def test_versions_of_modules(self, path: Path) -> None:
        """They are read by where they are, so that they move with the names."""
        seen: list[Any] = []

        class Aware(nn.Linear):
            _version = 7

            def _load_from_state_dict(
                self, state: Any, prefix: Any, metadata: Any, *a: Any
            ) -> None:
                seen.append(metadata.get("version"))
                super()._load_from_state_dict(state, prefix, metadata, *a)

        torch.save(nn.DataParallel(nn.Sequential(Aware(1, 1))).state_dict(), path)
        load_weights(nn.Sequential(Aware(1, 1)), path)
        assert seen == [7]


HUGE = 300_000_000


def with_claims(path: Path, count: int, size: int, zipped: bool) -> None:
    """Let a file of ten numbers speak of more: of a storage, and of a tensor on it."""
    data = saved({"weight": torch.zeros(10)}, _use_new_zipfile_serialization=zipped)
    if zipped:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = {one.filename: archive.read(one) for one in archive.infolist()}
        name = next(one for one in entries if one.endswith("data.pkl"))
        entries[name] = claim(entries[name], count, size)
        with zipfile.ZipFile(path, "w") as archive:
            for name, entry in entries.items():
                archive.writestr(name, entry)
    else:
        path.write_bytes(claim(data, count, size))


def claim(text: bytes, count: int, size: int) -> bytes:
    place = text.index(b"cpu")
    for number in (count, size):
        place = text.index(b"K\n", place)
        text = text[:place] + b"J" + number.to_bytes(4, "little") + text[place + 2 :]
        place += 5
    return text


def blown_up(path: Path) -> None:
    """Let half a megabyte be four hundred once it is unpacked."""
    data = saved({"weight": torch.zeros(10)})
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {one.filename: archive.read(one) for one in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, entry in entries.items():
            with archive.open(name, "w") as file:
                for _ in range(400 if name.endswith("data/0") else 1):
                    file.write(bytes(1_000_000) if name.endswith("data/0") else entry)


def test_sizes_that_a_file_does_not_have(tmp_path: Path) -> None:
    """They are refused before there is memory for them, of which there is less than they claim."""
    files = {}
    for zipped in (True, False):
        for kind, count, size in (("storage", HUGE, 10), ("tensor", 10, HUGE)):
            path = tmp_path / f"{kind} {zipped}"
            with_claims(path, count, size, zipped)
            files[path] = "it claims 1200000000 bytes, but has"
    blown_up(tmp_path / "blown up")
    files[tmp_path / "blown up"] = "it claims 400"
    code = (
        "import resource, sys, torch\n"
        "from fastnet.backend.torch.weights import read_state\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 300_000_000,) * 2)\n"
        "for path in sys.argv[1:]:\n"
        "    try: read_state(path)\n"
        "    except ValueError as error: print(error)\n"
        "try: torch.empty(100_000_000)\n"
        "except RuntimeError: print('no more')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, files)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    *told, limited = done.stdout.splitlines()
    assert limited == "no more"
    for line_, (path, text) in zip(told, files.items(), strict=True):
        assert line_.startswith(f"The weights file '{path}' is damaged: it cannot be read (")
        assert text in line_


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_sizes_that_a_file_has(path: Path) -> None:
    for zipped in (True, False):
        with_claims(path, 10, 10, zipped)
        assert torch.equal(read_state(path)["weight"], torch.zeros(10))
