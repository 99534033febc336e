"""`fastnet profile`: what is opened and run, and the files that are written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from fastnet.cli import main
from fastnet.profiling import Profile

COMMAND = ["profile", "networks.py:make_network", "--batch", "x:float32:2x3"]

# Keeps count of what it is asked for, where a test can see it.
COUNTING = """\
from fastnet.network.torch import TorchNetwork
from fastnet.op.tensorop import TensorOp
from fastnet.schedule import EpochScheduler

seen = []
made = []


class Note(TensorOp):
    def forward(self, data, state):
        seen.append((state["mode"], state["epoch"], state["eager"], data.sum().item()))
        return data + 1


network = TorchNetwork(
    [
        Note("x", "y"),
        EpochScheduler({1: None, 4: Note("y", "z", ds_id="scans")}),
    ]
)


def batches():
    import torch

    for number in range(3):
        made.append(number)
        yield {"x": torch.full((2,), float(number))}
"""


@pytest.fixture
def counting(folder: Path) -> Any:
    (folder / "counting.py").write_text(COUNTING)
    yield lambda: sys.modules["counting"]
    sys.modules.pop("counting", None)


def test_what_is_run(counting: Any, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--mode", "eval", "--epoch", "4", "--ds-id", "scans", "--steps", "4", "--skip", "1"]
    assert main(["profile", "counting:network", "--batch", "counting:batches", *asked]) == 0
    # three batches, used again for five steps of two ops; the second reads what the first wrote
    sums = [0, 2, 2, 4, 4, 6, 0, 2, 2, 4]
    assert counting().seen == [("eval", 4, False, number) for number in sums]
    assert counting().made == [0, 1, 2]
    assert "eval: 4 steps" in capsys.readouterr().out


def test_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("matplotlib.image")
    options = ["--json", "made.json", "--trace", "made.trace", "--plot", "made.png"]
    assert main([*COMMAND, "--steps", "9", *options]) == 0
    printed = capsys.readouterr().out
    profile = Profile.from_json(folder / "made.json")
    assert printed == f"{profile}\n"
    (section,) = profile.sections
    assert section.steps == 9
    events = json.loads((folder / "made.trace").read_text())["traceEvents"]
    assert sum(event.get("name") == "LambdaOp(x) -> y" for event in events) == 9
    assert image.imread(folder / "made.png").shape[2] == 4


def test_a_comparison(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--steps", "9", "--json", "before.json"]) == 0
    capsys.readouterr()
    options = ["--json", "after.json", "--compare", "before.json"]
    assert main([*COMMAND, "--steps", "9", *options]) == 0
    printed = capsys.readouterr().out
    before, after = (Profile.from_json(folder / f"{name}.json") for name in ("before", "after"))
    assert printed == f"{after}\n\n{before.compare(after)}\n"


def test_update(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    (folder / "trained.py").write_text(
        "import torch\n"
        "import fastnet\n"
        "from fastnet.op.tensorop import LambdaOp\n"
        "from fastnet.op.tensorop.model import ModelOp, UpdateOp\n"
        "model = fastnet.build(lambda: torch.nn.Linear(3, 1), 'sgd')\n"
        "network = fastnet.Network([ModelOp(model, 'x', 'y'), UpdateOp(model, 'y')])\n"
        "first = model.weight.detach().clone()\n"
    )
    command = ["profile", "trained:network", "--batch", "x:float32:2x3", "--steps", "2"]
    assert main(command) == 0
    trained = sys.modules.pop("trained")
    assert torch.equal(trained.first, trained.model.weight)
    assert "train: 2 steps; the models were restored" in capsys.readouterr().out
    assert main([*command, "--update"]) == 0
    trained = sys.modules.pop("trained")
    assert not torch.equal(trained.first, trained.model.weight)
    assert "train: 2 steps, which trained the models" in capsys.readouterr().out


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what is said of a command that is refused."""
    assert main(list(words)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err.removeprefix("fastnet: ").removesuffix("\n")


def test_a_batch_without_a_key(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = told(capsys, "profile", "networks:network", "--batch", "xx:float32:2x3")
    assert message.startswith("--batch: LambdaOp (op 0, inputs ['x'], outputs ['y'])")
    assert "Did you mean 'xx'?" in message


def test_a_network_that_cannot_be_opened(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "networks.py").write_text(
        "from fastnet import TorchNetwork\n"
        "from fastnet.op.tensorop import LambdaOp\n"
        "from fastnet.slicer import AxisSlicer, MeanUnslicer\n"
        "network = TorchNetwork(\n"
        "    [LambdaOp(fn=lambda x: (x, x.mean()), inputs='x', outputs=['y', 'm'])],\n"
        "    slicers=[AxisSlicer(axis=0, slice='x'), MeanUnslicer('m')],\n"
        ")\n"
    )
    command = ["profile", "networks:network", "--batch", "x:float32:2x3", "--steps", "2"]
    message = told(capsys, *command, "--outputs", "y")
    assert message.startswith("the network cannot be entered: ValueError: The keys ['y']")
    assert main([*command, "--outputs", "m"]) == 0


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (None, "No such file"),
        ("no JSON", "is not a file of --json: "),
        ("[1, 2]", "but this has no schema"),
        ('{"schema": "fastnet.profile/3"}', "but this has the schema 'fastnet.profile/3'"),
        ('{"schema": "fastnet.profile/4"}', "'sections'"),
    ],
)
def test_not_a_profile(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str | None, part: str
) -> None:
    if text is not None:
        (folder / "other.json").write_text(text)
    message = told(capsys, *COMMAND, "--compare", "other.json")
    assert message.startswith("--compare: 'other.json' ")
    assert part in message


def test_unknown_format_of_picture(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    message = told(capsys, *COMMAND, "--plot", "made.xyz")
    assert message.startswith("--plot")
    assert "does not end in .png" in message


@pytest.mark.parametrize("other", [["--mode", "eval"], ["--eager"]])
def test_a_profile_of_other_steps(
    folder: Path, capsys: pytest.CaptureFixture[str], other: list[str]
) -> None:
    """It is refused before anything is measured."""
    assert main([*COMMAND, "--steps", "2", "--json", "before.json"]) == 0
    capsys.readouterr()
    options = [*other, "--compare", "before.json", "--json", "after.json"]
    asked = "eval" if "eval" in other else "train, eager"
    message = told(capsys, *COMMAND, *options)
    assert message.startswith("--compare: 'before.json'")
    assert asked in message
    assert not (folder / "after.json").exists()


def test_a_picture_without_matplotlib(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fastnet.cli.profile.find_spec", lambda name: None)
    message = told(capsys, *COMMAND, "--plot", "made.png")
    assert message.startswith("--plot needs matplotlib")
    assert "pip install matplotlib" in message
