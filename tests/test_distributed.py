"""fastnet.distributed: processes that train together, and end as one."""

from __future__ import annotations

import operator
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from fastnet import distributed
from tests.launched import in_ranks

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
    def test_as_a_context_manager(self) -> None:
        with distributed.run(seed=3):
            drawn = random.random(), np.random.random(), torch.rand(())
        distributed.seed_ranks(3)
        assert drawn == (random.random(), np.random.random(), torch.rand(()))
        error = ValueError("mine")
        with pytest.raises(ValueError, match=r"^mine$") as raised, distributed.run():
            raise error
        assert raised.value is error
        assert not issubclass(ValueError, distributed.RankError)

    def test_no_framework_is_imported(self) -> None:
        code = (
            "import sys; from fastnet import distributed\n"
            "with distributed.run(): distributed.barrier(); distributed.gather({'x': 1})\n"
            "print({'torch', 'tensorflow'} & set(sys.modules))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment(), capture_output=True, text=True
        )
        assert (done.stdout, done.stderr) == ("set()\n", "")


class TestRanks:
    def test_each_has_its_place(self) -> None:
        count = 2
        assert in_ranks(count, places) == [
            ((place, count, place == 0), "gloo", False) for place in range(count)
        ]

    def test_a_group_of_the_program_stays_its_own(self) -> None:
        assert in_ranks(2, adopted) == [(0, 2, True), (1, 2, True)]

    def test_the_timeout_and_the_backend_are_passed_on(self) -> None:
        told = [one.lower() for one in in_ranks(2, impatient)]
        # the first one to give up closes the connection, which the other may see before its time
        late = ["timed out" in one or "timeout" in one for one in told]
        closed = ["connection closed by peer" in one for one in told]
        assert any(late)
        assert all(map(operator.or_, late, closed))

    def test_random_numbers_are_each_ones_own(self) -> None:
        first, second = in_ranks(2, drawn)
        assert first == drawn_by_hand(7)
        assert second == drawn_by_hand(8)


@pytest.fixture(scope="module")
def gathered() -> Any:
    return in_ranks(2, gathers)


class TestGather:
    def test_all_ranks_get_the_same(self, gathered: Any) -> None:
        first, second = gathered
        assert repr(first) == repr(second)

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

    def test_what_has_axes_is_joined(self, gathered: Any) -> None:
        even = gathered[0]["even"]
        assert even["rows"].tolist() == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
        assert even["nest"][0]["a"].tolist() == [0, 0, 1, 1]
        assert even["array"].tolist() == [0, 0, 1, 1]

    def test_uneven_batches_are_weighed(self, gathered: Any) -> None:
        """As if all samples had been in one process."""
        uneven = gathered[0]["uneven"]
        samples = [float(value) for value in range(5)]
        assert uneven["x"].tolist() == samples
        assert uneven["mean"].item() == np.mean(samples)
        assert gathered[0]["told"]["mean"].item() == np.mean(samples)
        # NaN on the larger part leaves the smaller one's
        assert uneven["partly"].item() == 5.0
        # of several lengths none is the number of samples
        assert gathered[0]["ambiguous"]["mean"].item() == (1.0 + 3.5) / 2

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            (
                "keys",
                "Results are gathered under the keys ['loss'] on rank 0, but ['lost'] on rank 1. "
                "Gather the same keys on each.",
            ),
            (
                "nests",
                "The value of 'x' holds different numbers of values on the ranks, [1, 2], so that "
                "they cannot be put together. What ops return must not depend on which part of "
                "the data they see.",
            ),
            (
                "shapes",
                "The value of 'x' has the shapes [(1, 2), (1, 3)] on the ranks, which cannot be "
                "joined along the first axis. Leave it out of what is gathered, or let the others "
                "agree.",
            ),
            (
                "kinds",
                "The value of 'x' is of different types on the ranks, ['Tensor', 'float'], so that "
                "they cannot be put together. Let it be a tensor on each, or on none.",
            ),
        ],
    )
    def test_what_does_not_fit_is_refused_on_each(
        self, gathered: Any, name: str, text: str
    ) -> None:
        assert [one["errors"][name] for one in gathered] == [text, text]

    def test_no_dict(self) -> None:
        with pytest.raises(
            TypeError, match=r"^gather takes a result, a dict of values by key, but got list"
        ):
            distributed.gather([1])  # type: ignore[arg-type]


PROGRAM = """
import sys, torch, fastnet
from fastnet import distributed
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp, UpdateOp

case = sys.argv[1]
with distributed.run(timeout=10):
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
            network.run_step({"x": torch.ones(2, 4)})
"""


class TestFailures:
    """torchrun ends the job, and prints the rank and the reason."""

    @pytest.mark.parametrize(
        ("case", "reason"),
        [
            ("raises", "ValueError: the data is spoilt"),
            ("ends", "Another rank has failed, has ended, or is elsewhere in the program."),
            ("other", "The ranks would train by different ops: rank 0 has ModelOp"),
        ],
    )
    def test_under_torchrun(self, tmp_path: Path, case: str, reason: str) -> None:
        program = tmp_path / "program.py"
        program.write_text(PROGRAM)
        done = torchrun(program, 2, case)
        assert done.returncode == 1
        root = done.stderr.partition("Root Cause")[2]
        rank = re.search(r"rank +: (\d)", root)
        assert rank is not None
        assert reason in root
        assert f"Raised on rank {rank[1]} of 2." in root
        if case == "raises":
            assert rank[1] == "1"


class TestBadInput:
    def test_no_group_under_torchrun(self) -> None:
        for text in in_ranks(1, alone, WORLD_SIZE=2)[0]:
            assert "was called in one of 2 processes that the launcher has started, before" in text

    def test_a_cluster_that_cannot_be_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TF_CONFIG", "{")
        with pytest.raises(ValueError, match=r"^TF_CONFIG is in the environment, but cannot be"):
            distributed.init()


# --------------------------------------------------------------------------- what ranks run


def places() -> Any:
    with distributed.run():
        place = distributed.rank(), distributed.world_size(), distributed.is_main()
        backend = dist.get_backend()
        distributed.barrier()
    return place, backend, dist.is_initialized()


def adopted() -> Any:
    dist.init_process_group("gloo")
    with distributed.run():
        assert dist.is_initialized()
    place = distributed.rank(), distributed.world_size(), dist.is_initialized()
    dist.destroy_process_group()
    return place


def impatient() -> str:
    distributed.init(backend="gloo", timeout=1)
    store = distributed.rank()
    try:
        if store == 0:
            dist.barrier()
        else:
            dist.recv(torch.ones(1), 0)
    except RuntimeError as error:
        return str(error)
    return "nothing"


def drawn() -> Any:
    with distributed.run(seed=7):
        return drawn_now()


def drawn_by_hand(seed: int) -> Any:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return drawn_now()


def drawn_now() -> Any:
    return random.random(), np.random.random(), torch.rand(3).tolist()


def gathers() -> Any:
    with distributed.run():
        rank = distributed.rank()
        nan = float("nan")
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
        return {
            "even": distributed.gather(even),
            "uneven": distributed.gather(uneven),
            "told": distributed.gather({"mean": x.mean()}, samples=len(x)),
            "ambiguous": distributed.gather({**uneven, "more": torch.ones(9)}),
            "errors": {name: error_of(result) for name, result in wrong.items()},
        }


def error_of(result: Any) -> str:
    try:
        distributed.gather(result)
    except ValueError as error:
        return str(error)
    return ""


def alone() -> list[str]:
    texts = []
    for call in (distributed.barrier, lambda: distributed.gather({})):
        try:
            call()
        except ValueError as error:
            texts.append(str(error))
    assert len(texts) == 2
    return texts


# --------------------------------------------------------------------------- torchrun


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def torchrun(program: Path, count: int, *arguments: str) -> Any:
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={count}", str(program), *arguments),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.fixture(autouse=True)
def left_alone() -> Iterator[None]:
    yield
    assert not dist.is_initialized()
