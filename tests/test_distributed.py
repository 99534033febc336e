"""fastnet.distributed: what it does in one process, in several, and under torchrun."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from fastnet import distributed
from tests.ranks import ranks
from tests.subprocesses import run_python

pytestmark = pytest.mark.slow


class TestOneProcess:
    @pytest.mark.fast
    def test_nothing_is_done(self) -> None:
        distributed.init()
        assert (distributed.rank(), distributed.world_size(), distributed.is_main()) == (0, 1, True)
        distributed.barrier()
        result = {"loss": torch.tensor(3), "x": [1]}
        gathered = distributed.gather(result)
        assert gathered == result
        assert gathered is not result
        distributed.shutdown()
        assert not dist.is_initialized()

    @pytest.mark.fast
    def test_run(self) -> None:
        error = ValueError("mine")
        with pytest.raises(ValueError, match=r"^mine$") as raised, distributed.run():
            raise error
        assert raised.value is error
        assert not isinstance(error, distributed.RankError)

    def test_no_framework_is_imported(self) -> None:
        code = (
            "import sys; from fastnet import distributed\n"
            "with distributed.run(): distributed.barrier(); distributed.gather({'x': 1})\n"
            "print({'torch', 'tensorflow'} & set(sys.modules))"
        )
        done = run_python("-c", code)
        assert (done.stdout, done.stderr) == ("set()\n", "")

    def test_bad_input(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(TypeError, match=r"^gather takes a result, a dict of values by key"):
            distributed.gather([1])  # type: ignore[arg-type]
        monkeypatch.setenv("TF_CONFIG", "{")
        with pytest.raises(ValueError, match=r"^TF_CONFIG is in the environment, but cannot be"):
            distributed.init()


@pytest.fixture(scope="module")
def gathered() -> Any:
    return ranks(2)(gather_results)


class TestRanks:
    def test_the_group_of_a_program_stays_its_own(self) -> None:
        assert ranks(2)(run_in_group) == [(0, 2, True), (1, 2, False)]

    def test_means_of_scalars(self, gathered: Any) -> None:
        even = gathered[0]["even"]
        assert torch.equal(even["loss"], torch.tensor(2.0))
        assert even["loss"].dtype == torch.float32
        assert torch.equal(even["nan"], torch.tensor(1.0))
        assert torch.isnan(even["nans"])
        assert torch.equal(even["count"], torch.tensor(0.5, dtype=torch.float64))
        assert torch.equal(even["flag"], torch.tensor(0.5, dtype=torch.float64))
        assert even["half"].dtype == torch.bfloat16
        assert torch.equal(even["complex"], torch.tensor(1j))
        assert (even["python"], even["word"], even["none"]) == (0.5, "rank 0", None)
        assert repr(gathered[0]) == repr(gathered[1])

    def test_values_with_axes_are_concatenated(self, gathered: Any) -> None:
        even = gathered[0]["even"]
        assert even["rows"].tolist() == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
        assert even["nest"][0]["a"].tolist() == [0, 0, 1, 1]
        assert even["array"].tolist() == [0, 0, 1, 1]

    def test_means_are_weighted_by_the_samples(self, gathered: Any) -> None:
        samples = [float(value) for value in range(5)]
        uneven = gathered[0]["uneven"]
        assert uneven["x"].tolist() == samples
        assert uneven["mean"].item() == np.mean(samples)
        assert gathered[0]["told"]["mean"].item() == np.mean(samples)
        # NaN on the larger part leaves that of the smaller one.
        assert uneven["partly"].item() == 5.0
        # Of several lengths none is the number of samples.
        assert gathered[0]["ambiguous"]["mean"].item() == (1.0 + 3.5) / 2

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("keys", "Results are gathered under the keys ['loss'] on rank 0, but ['lost'] on"),
            ("nests", "The value of 'x' holds different numbers of values on the ranks, [1, 2]"),
            ("shapes", "The value of 'x' has the shapes [(1, 2), (1, 3)] on the ranks, which"),
            ("kinds", "The value of 'x' is of different types on the ranks, ['Tensor', 'float']"),
        ],
    )
    def test_results_that_differ_raise_on_each(self, gathered: Any, name: str, text: str) -> None:
        assert all(one["errors"][name].startswith(text) for one in gathered)


PROGRAM = """
import sys, time, torch, fastnet
from fastnet import distributed
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp

case = sys.argv[1]
with distributed.run(timeout=30 if case == "sleeps" else 300):
    rank = distributed.rank()
    model = fastnet.build(lambda: torch.nn.Linear(4, 1), "sgd", model_name="net")
    more = [LambdaOp(lambda x: 2 * x, "x", "x")] if case == "other" and rank else []
    loss = LambdaOp(lambda y: (y**2).mean(), "y", "loss")
    network = fastnet.Network([*more, ModelOp(model, "x", "y"), loss, UpdateOp(model, "loss")])
    with network("train", 1):
        for step in range(3):
            if rank == 1 and step == 1:
                if case == "raises": raise ValueError("the data is spoilt")
                if case == "ends": break
                if case == "sleeps": time.sleep(600)
            network.run_step({"x": torch.ones(2, 4)})
    assert torch.distributed.get_backend() == "gloo"
assert not torch.distributed.is_initialized()
print(f"rank {rank} is done")
"""


class TestTorchrun:
    @pytest.mark.parametrize(
        ("case", "reason"),
        [
            ("raises", "ValueError: the data is spoilt"),
            ("ends", "Another rank has failed, has ended, or is elsewhere in the program."),
            ("sleeps", "Another rank has failed, has ended, or is elsewhere in the program."),
            ("other", "The ranks would train with different ops or settings: rank 0 has ModelOp"),
        ],
    )
    def test_a_failure_ends_the_job(self, tmp_path: Path, case: str, reason: str) -> None:
        """With the rank and the reason."""
        done = torchrun(tmp_path, PROGRAM, 2, case)
        assert done.returncode == 1
        root = done.stderr.partition("Root Cause")[2]
        rank = re.search(r"rank +: (\d)", root)
        assert rank is not None
        assert reason in root
        assert f"Raised on rank {rank[1]} of 2." in root
        if case in ("raises", "sleeps"):
            assert rank[1] == str(int(case == "raises"))

    def test_three_ranks_end(self, tmp_path: Path) -> None:
        """Also with the models in globals, which the wrappers outlive the group in."""
        done = torchrun(tmp_path, PROGRAM, 3, "works")
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.split("\n"))[1:] == [f"rank {rank} is done" for rank in range(3)]


# --------------------------------------------------------------------------- what ranks run


def run_in_group() -> Any:
    with distributed.run():
        place = distributed.rank(), distributed.world_size(), distributed.is_main()
        distributed.barrier()
    assert dist.is_initialized()
    return place


def gather_results() -> Any:
    rank, nan = distributed.rank(), float("nan")
    even = {
        "loss": torch.tensor([1.0, 3.0][rank]),
        "nan": torch.tensor([nan, 1.0][rank]),
        "nans": torch.tensor(nan),
        "count": torch.tensor(rank),
        "flag": torch.tensor(rank == 1),
        "half": torch.tensor(1.0, dtype=torch.bfloat16),
        "complex": torch.tensor([1j, 2.0][rank]),
        "rows": torch.full((2, 2), float(rank), requires_grad=True).detach(),
        "nest": [{"a": torch.tensor([rank, rank])}],
        "array": np.array([rank, rank]),
        "python": rank,
        "word": f"rank {rank}",
        "none": None,
    }
    x = [torch.arange(3.0), torch.arange(3.0, 5.0)][rank]
    uneven = {"x": x, "mean": x.mean(), "partly": torch.tensor([nan, 5.0][rank])}
    wrong: dict[str, Any] = {
        "keys": {["loss", "lost"][rank]: x},
        "nests": {"x": [x] * (1 + rank)},
        "shapes": {"x": torch.ones(1, 2 + rank)},
        "kinds": {"x": [torch.ones(()), 1.0][rank]},
    }
    errors = {}
    for name, result in wrong.items():
        with pytest.raises(ValueError, match=r"on (the )?rank") as caught:
            distributed.gather(result)
        errors[name] = str(caught.value)
    return {
        "even": distributed.gather(even),
        "uneven": distributed.gather(uneven),
        "told": distributed.gather({"mean": x.mean()}, samples=len(x)),
        "ambiguous": distributed.gather({**uneven, "more": torch.ones(9)}),
        "errors": errors,
    }


# --------------------------------------------------------------------------- torchrun


def torchrun(folder: Path, program: str, count: int, *arguments: str) -> Any:
    path = folder / "program.py"
    path.write_text(program)
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}")
    return run_python(*launcher, str(path), *arguments)
