"""Tests that the programs in README.md run and that its figures are those of bench/results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BEFORE, AFTER, RESUME, KERAS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
EAGER = AFTER.replace("compile=True", "compile=False")


def measured(report: str) -> dict[str, Any]:
    path = ROOT / "bench" / "results" / f"{report}.json"
    found = json.loads(path.read_text(encoding="utf-8"))["environments"]["main"]
    return {one["workload"]: one["ratios"] for one in found}


def test_before_and_after_print_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    printed = []
    for program in (BEFORE, EAGER):
        torch.manual_seed(0)
        exec(program, {})
        lines = capsys.readouterr().out.splitlines()
        printed.append([float(number) for line in lines for number in line.split()])
    assert len(printed[0]) == 30
    assert printed[1] == pytest.approx(printed[0], rel=1e-4)


class Killed(Exception):
    """Raised in the place of a signal."""


@pytest.mark.parametrize("step", [7, 20, 33])
def test_a_killed_run_resumes_bit_for_bit(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    import fastnet

    def run(file: str) -> dict[str, Any]:
        names: dict[str, Any] = {}
        exec(EAGER, names)
        exec(RESUME.replace("gan.ckpt", file), names)
        return names

    def save_and_die(*args: Any, **rest: Any) -> None:
        nonlocal step
        step -= 1
        if step == 0:
            raise Killed
        save(*args, **rest)

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    straight = run("straight.ckpt")
    save = fastnet.save_checkpoint
    with monkeypatch.context() as patch:
        torch.manual_seed(0)
        patch.setattr(fastnet, "save_checkpoint", save_and_die)
        with pytest.raises(Killed):
            run("gan.ckpt")
    torch.manual_seed(1)
    resumed = run("gan.ckpt")
    for name in ("generator", "discriminator"):
        expected = straight[name].state_dict()
        for key, value in resumed[name].state_dict().items():
            assert torch.equal(value, expected[key]), key


@pytest.mark.tf
def test_tensorflow(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorflow")
    names: dict[str, Any] = {}
    exec(KERAS, names)
    assert names["batch"]["image"].shape == (7, 64)
    # the comment beside `print` says what it prints
    said = re.search(r"print\(.*\)  # (.*)", KERAS)
    assert said is not None
    assert capsys.readouterr().out.strip() == said[1]


def test_what_it_says_of_other_libraries_was_measured() -> None:
    ratios = {
        peer: found["bare"]["median"] for peer, found in measured("report")["mlp_train"].items()
    }
    assert ratios.pop("fastnet") < 1.05
    others = [ratio for peer, ratio in ratios.items() if not peer.startswith("bare")]
    text = " ".join(README.split())
    assert f"take {min(others):.1f} to {max(others):.1f} times as long" in text


def test_the_gain_on_a_gpu_was_measured() -> None:
    page = (ROOT / "bench" / "results" / "gpu.md").read_text(encoding="utf-8")
    found = re.findall(r"\| fastnet, compile=True \| \d+ \| ([\d.]+) \|", page)
    ratios = [float(ratio) for ratio in found]
    assert f"[{int(1 / max(ratios))} to {int(1 / min(ratios))} times faster]" in README


def table(first: str) -> list[list[str]]:
    """Return the rows of the table whose header begins with a word."""
    lines = README.partition(f"| {first} |")[2].splitlines()[2:]
    rows = [line.strip(" |").split(" | ") for line in lines]
    return rows[: next(i for i, line in enumerate(lines) if "|" not in line)]


def check(figure: str, ratios: dict[str, Any], peer: str, beside: str) -> None:
    if peer in ratios:
        assert float(figure) == pytest.approx(ratios[peer][beside]["median"], rel=0.05), peer
    else:
        assert figure == "-"


def test_the_table_of_pytorch_was_measured() -> None:
    ratios = measured("compiled")
    names = ["mlp_sgd", "mlp_adam", "modules120_adam", "pair", "gpt_adam"]
    names += ["mlp512_adam", "lenet_train"]
    rows = table("PyTorch")
    for name, (_, *figures) in zip(names, rows, strict=True):
        peers = ["fastnet", "bare_fused", "compiled_update", "jax_step"]
        for peer, figure in zip(peers, figures, strict=True):
            check(figure, ratios[f"compiled_{name}"], peer, "bare")
    large = measured("compiled_large")
    text = " ".join(README.split())
    gpt, resnet = large["compiled_gpt256_adam"], large["compiled_resnet18"]
    found = re.search(r"takes ([\d.]+), with `torch.compile` ([\d.]+), in JAX ([\d.]+),", text)
    assert found is not None
    for figure, peer in zip(
        found.groups(), ("fastnet", "compiled_update", "jax_step"), strict=True
    ):
        check(figure, gpt, peer, "bare")
    found = re.search(r"same convolutions, ([\d.]+), with `torch.compile` ([\d.]+\d)", text)
    assert found is not None
    for figure, peer in zip(found.groups(), ("fastnet", "compiled_update"), strict=True):
        check(figure, resnet, peer, "bare")
    small = [float(row[1]) for row in rows[:4]]
    assert f"{int(1 / max(small))} to {int(1 / min(small))} times faster" in text


def test_the_table_of_keras_was_measured() -> None:
    graphs, compiled = measured("tensorflow"), measured("compiled_tensorflow")
    for mode, (_, *figures) in zip(("train", "infer"), table("Keras"), strict=True):
        graph, program = graphs[f"tf_mlp_{mode}"], compiled[f"tf_mlp_{mode}_compiled"]
        columns = [
            (graph, "fastnet"),
            (program, "fastnet"),
            (graph, "tf_function"),
            (program, "tf_function_jit"),
            (graph, "keras_fit"),
            (graph, "keras_fit_at_once"),
        ]
        for figure, (ratios, peer) in zip(figures, columns, strict=True):
            check(figure, ratios, peer, "tf_concrete")


def test_the_times_of_compiling_were_measured() -> None:
    page = (ROOT / "bench" / "results" / "first_steps.md").read_text(encoding="utf-8")
    (text,) = re.findall("Compiling takes time: (.*) A step that", " ".join(README.split()))
    gpt = "GPT of 4 layers, 256 wide, train step, Adam"
    for work in ("MLP train step, Adam", "120 modules train step, SGD", gpt):
        for peer in ("fastnet", "torch.compile, model and optimizer"):
            cells = (
                rf"\| {work} \| {re.escape(peer)} \| ([\d.]+) \|[^|]*\|[^|]*\|[^|]*\| ([\d.]+) \|"
            )
            found = re.search(cells, page)
            assert found is not None
            cold, warm = map(float, found.groups())
            assert re.search(rf"\b{cold:.0f}\b", text), cold
            assert re.search(rf"\b{warm:.1f}\b", text), warm
