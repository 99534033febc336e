"""Every page for users and contributors leads to what there is, and its programs run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import fastnet
from fastnet.op.tensorop.loss import MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.docs.programs import programs, run
from tests.subprocesses import run_python

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    ROOT / "bench" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


@every_page
def test_links(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]*)\)", page.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


@every_page
def test_targets_of_make(page: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE):
        assert name in targets, name


@every_page
def test_files_that_are_named_from_the_root(page: Path) -> None:
    folders = "src|tests|bench|docs|examples|constraints"
    text = page.read_text(encoding="utf-8")
    for name in re.findall(rf"\b((?:{folders})/[\w./-]*\w)", text):
        if not (name.startswith("build/") or (page.parent / name).exists()):
            assert (ROOT / name).exists(), name


@pytest.mark.parametrize("module", ["bench.report", "bench.instructions"])
def test_commands_of_the_benchmarks(module: str) -> None:
    done = run_python("-m", module, "--help", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    page = (ROOT / "bench" / "README.md").read_text(encoding="utf-8")
    for line in re.findall(rf"python -m {re.escape(module)}(.*)", page):
        for option in re.findall(r"--[a-z-]+", line.partition("#")[0]):
            assert option in done.stdout, option


def test_program_of_the_page_about_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    program, *_ = programs("checkpoints")
    # at first it is told to stop, as if it had been killed
    for stop in ("if epoch == 2: break", "pass"):
        exec(program.replace("# one epoch is over", stop), {})
    told = capsys.readouterr().out
    exec(program.replace("run.ckpt", "another.ckpt"), {})
    assert told == capsys.readouterr().out
    assert told.count("epoch") == 4


def test_keras_program_of_the_page_about_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorflow")
    monkeypatch.chdir(tmp_path)
    _, program, *_ = programs("checkpoints")
    for last in (2, 4):
        exec(program.replace("range(first, 5)", f"range(first, {last + 1})"), {})
    told = capsys.readouterr().out
    exec(program.replace("keras.ckpt", "another.ckpt"), {})
    assert told == capsys.readouterr().out
    assert told.count("epoch") == 4


def test_fine_tuning_on_the_page_about_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(programs("checkpoints")[3], names)
    old, new = names["pretrained"], names["model"]
    assert torch.equal(new[0].weight, old[0].weight)
    assert new[2].weight.shape == (3, 16)


class Killed(Exception):
    """In the place of a signal."""


@pytest.mark.parametrize("step", [7, 16, 20, 44])
def test_a_program_that_goes_on_in_the_middle_of_an_epoch(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    import fastnet

    monkeypatch.chdir(tmp_path)
    program = programs("checkpoints")[2]
    straight: dict[str, Any] = {}
    exec(program.replace("steps.ckpt", "another.ckpt"), straight)
    steps, taken = fastnet.steps, 0

    def until_killed(*args: Any) -> Any:
        nonlocal taken
        for each in steps(*args):
            taken += 1
            if taken == step:
                raise Killed
            yield each

    with monkeypatch.context() as patched:
        patched.setattr(fastnet, "steps", until_killed)
        with pytest.raises(Killed):
            exec(program, {})
    torch.rand(3)
    again: dict[str, Any] = {}
    exec(program, again)
    weights, expected = again["model"].state_dict(), straight["model"].state_dict()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_programs_of_the_page_about_training(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tensorflow")
    names: dict[str, Any] = {}
    for program in programs("training"):
        exec(program, names)
    # a window of four steps of six is whole
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_target_network_of_the_page_about_training_moves_by_its_rule() -> None:
    torch = pytest.importorskip("torch")
    (program,) = (one for one in programs("training") if "class MoveTarget" in one)
    names: dict[str, Any] = {"torch": torch, "fastnet": fastnet}
    names |= {"ModelOp": ModelOp, "UpdateOp": UpdateOp, "MeanSquaredError": MeanSquaredError}
    exec(program, names)
    critic, target = names["critic"], names["target"]
    compile = fastnet.CompileOptions(backend="eager")
    network = fastnet.Network(names["learner"].ops, compile=compile)
    before = [one.clone() for one in target.parameters()]
    with torch.no_grad():
        critic.weight.add_(1.0)
    with network("train"):
        for _ in range(4):
            network.run_step({"x": torch.randn(8, 4)})
            for mean, weight in zip(before, critic.parameters(), strict=True):
                mean.lerp_(weight.detach(), 0.01)
    assert [record.fallback for record in network.traces] == [None]
    for mean, moved in zip(before, target.parameters(), strict=True):
        torch.testing.assert_close(moved, mean)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_program_of_the_page_about_processes(tmp_path: Path, count: int) -> None:
    """It runs in one process and in three, where the first one alone prints and writes.

    What it prints is of all samples, of which the ranks have different numbers.
    """
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.distributed")
    program, _ = programs("distributed")
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}")
    told = run(program, tmp_path, launcher=torchrun)
    errors = re.findall(r"^epoch \d: error (.*)$", told, re.MULTILINE)
    assert len(errors) == 3
    model = fastnet.build(lambda: torch.nn.Linear(4, 1), optimizer_fn="adam", model_name="line")
    ops = [ModelOp(model, "x", "y"), MeanSquaredError(("y", "t"), "loss"), UpdateOp(model, "loss")]
    fastnet.load_checkpoint(tmp_path / "run.ckpt", fastnet.Network(ops))
    x = torch.randn(62, 4, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        error = (model(x) - x.sum(1, keepdim=True)).square().mean().item()
    assert float(errors[-1]) == pytest.approx(error, abs=6e-5)


@pytest.mark.tf
def test_tensorflow_program_of_the_page_about_processes(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorflow")
    _, program = programs("distributed")
    exec(program, {})
    assert re.fullmatch(r"error \d+\.\d{4}\n", capsys.readouterr().out)


def test_programs_of_the_migration_page() -> None:
    torch = pytest.importorskip("torch")
    from fastnet.compat import v1
    from fastnet.op.tensorop import LambdaOp

    imports, older = programs("migration")
    names: dict[str, Any] = {}
    exec(imports, names)
    assert names["fe"].__name__ == "fastnet"
    assert {"CrossEntropy", "ModelOp", "UpdateOp", "EpochScheduler"} <= names.keys()

    network = v1.Network([LambdaOp(lambda x: x + 1, "x", "y")])
    names = {"network": network, "batch": {"x": torch.ones(2)}}
    exec(older, names)
    assert names["prediction"]["y"].tolist() == [2, 2]
    assert names["Network"] is v1.Network
