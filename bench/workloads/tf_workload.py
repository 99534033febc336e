"""What the workloads in TensorFlow share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from bench.workloads.workload import Framework, Workload, check_keys

# What torch.testing.assert_close allows float32, so that both frameworks are judged alike.
_RELATIVE, _ABSOLUTE = 1.3e-6, 1e-5


@dataclass(frozen=True)
class TFWorkload(Workload):
    """A workload whose results are mappings of tensors, unless it says otherwise."""

    framework: ClassVar[Framework] = "tf"
    baseline: ClassVar[str] = "tf_concrete"
    references: ClassVar[tuple[str, ...]] = ("tf_concrete",)

    def check(self, expected: Any, result: Any, extra_keys: bool) -> None:
        """Compare keys and values."""
        import numpy as np

        for key in check_keys(expected, result, extra_keys):
            mine, other = np.asarray(result[key]), np.asarray(expected[key])
            np.testing.assert_allclose(mine, other, _RELATIVE, _ABSOLUTE, err_msg=key)

    def check_weights(self, expected: Any, result: Any) -> None:
        """Compare the weights of two models."""
        import numpy as np

        pairs = zip(result.get_weights(), expected.get_weights(), strict=True)
        for place, (mine, other) in enumerate(pairs):
            said = f"weight {place}"
            np.testing.assert_allclose(mine, other, _RELATIVE, _ABSOLUTE, err_msg=said)
