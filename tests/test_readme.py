"""Tests that the programs in README.md run and that its figures are those of bench/results."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
HAND_WRITTEN, TORCH, KERAS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def measured(report: str) -> dict[str, Any]:
    path = ROOT / "bench" / "results" / f"{report}.json"
    found = json.loads(path.read_text(encoding="utf-8"))["environments"]["main"]
    return {one["workload"]: one["ratios"] for one in found}


def test_the_network_takes_the_steps_of_the_hand_written_loop() -> None:
    torch = pytest.importorskip("torch")
    made, rest = TORCH.split("network = fastnet.Network(")
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    exec(made, names)
    models = {name: names[name] for name in ("generator", "discriminator")}
    by_hand = {name: copy.deepcopy(model) for name, model in models.items()}
    for name, model in list(by_hand.items()):
        by_hand[f"{name[0]}_optimizer"] = torch.optim.Adam(model.parameters())
    functions = {
        "torch": torch,
        "bce": torch.nn.functional.binary_cross_entropy_with_logits,
        "zeros": torch.zeros(32, 1),
        "ones": torch.ones(32, 1),
    }
    scope = functions | by_hand
    exec(HAND_WRITTEN, scope)

    program = f"network = fastnet.Network({rest}".replace("compile=True", "compile=False")
    torch.manual_seed(1)
    exec(program, names)
    torch.manual_seed(1)
    for _ in range(10):
        # the network draws `real` first, and then the generator's input
        scope["step"](torch.randn(32, 64))
    for name, model in models.items():
        for ours, theirs in zip(model.parameters(), by_hand[name].parameters(), strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6), name


@pytest.mark.tf
def test_tensorflow(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorflow")
    names: dict[str, Any] = {}
    exec(KERAS, names)
    assert names["result"]["scores"].shape == (7, 10)
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


def test_the_table_was_measured() -> None:
    ratios = measured("compiled")
    rows = re.findall(
        r"^ *\| (?!step|-)(.+) \| (.+) \| (.+) \| (.+) \| (.+) \|$", README, re.MULTILINE
    )
    names = ["mlp_sgd", "mlp_adam", "modules120_adam", "pair", "gpt_adam", "lenet_train"]
    peers = ["fastnet", "bare_fused", "compiled_update", "jax_step"]
    assert len(rows) == len(names)
    for name, (_, *said) in zip(names, rows, strict=True):
        for peer, figure in zip(peers, said, strict=True):
            found = ratios[f"compiled_{name}"].get(peer)
            if found is None:
                assert figure == "-"
            else:
                assert float(figure) == pytest.approx(found["bare"]["median"], rel=0.05)
    small = [float(row[1]) for row in rows[:4]]
    assert f"{int(1 / max(small))} to {int(1 / min(small))} times faster" in " ".join(
        README.split()
    )
