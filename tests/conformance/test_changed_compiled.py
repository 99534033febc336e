"""Changed settings of ops in compiled steps: PyTorch with the eager backend, TensorFlow with XLA.

These are the ops that train, run a model or choose among ops, since each change compiles again.
"""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.tf, pytest.mark.slow]

from fastnet.op.tensorop import TensorOp
from tests.conformance import test_changed_ops as settings
from tests.conformance.frameworks import FRAMEWORKS, TF, Framework

NAMES = {"CrossEntropy", "LambdaOp", "ModelOp", "OneOf", "Repeat", "Sometimes", "UpdateOp"}
CASES = [
    case for case in settings.CASES if issubclass(case.cls, TensorOp) and case.cls.__name__ in NAMES
]


class CompiledTF(TF):
    """TensorFlow graphs that XLA compiles."""

    def network(self, ops: Any, pops: Any = None, slicers: Any = None) -> Any:
        return self.network_class(ops, pops, slicers, compile=True)


@pytest.fixture(params=[FRAMEWORKS["torch-compiled"], CompiledTF("tf-compiled")], ids=repr)
def fw(request: pytest.FixtureRequest) -> Framework:
    return request.param


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.cls.__name__)
def test_settings(fw: Framework, case: settings.Case) -> None:
    settings.test_changed_settings(fw, case)
