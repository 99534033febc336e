"""The op that updates a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import Parameter, signature
from typing import Any, Literal

from fastnet.backend.dispatch import model_framework
from fastnet.backend.model_metadata import (
    every_optimizer_of,
    get_metadata,
    name_of,
    require_built,
    set_metadata,
)
from fastnet.backend.update import REPORTS, Followers, SavedWindow, Update
from fastnet.errors import shorten
from fastnet.op.checks import is_int, is_number
from fastnet.op.op import is_overridden
from fastnet.op.tensorop.model.held_model import HoldsModel
from fastnet.types import Forward, Model, State
from fastnet.util import to_set

_RESTS = ("carry", "flush", "drop")


class UpdateOp(HoldsModel):
    """Updates a model's weights with the gradients of a loss.

    It runs in this order: backward, merge, clip, and step. The step may be deferred.

    1. Backward: the gradients of the loss are computed, or given `gradients` are used. A non-scalar
       loss is averaged, a Keras model's own losses, such as regularizers, are added to it unless
       `model_losses` is False, and in mixed precision it is scaled.
    2. Merge: with `merge_grad`, gradients are accumulated over that many steps, and then averaged.
       If `merge_grad` is lowered meanwhile, the next step averages all accumulated gradients. With
       `weight`, it is a weighted average: the sum of gradients times weights, divided by the sum
       of the weights, over the steps and over all processes.
    3. Clip: the gradients of everything that the optimizer updates are unscaled, measured and
       clipped together, as by `torch.nn.utils.clip_grad_norm_` and `tf.clip_by_global_norm`. The
       norm spans consecutive updates, all processes, and all shards of a model.
    4. Step: the optimizer takes its step. With `defer` it does so after the network's last op,
       and in torch gradients are clipped then.

    In torch, UpdateOps at the end of a network take their optimizers' steps after the last of them
    has computed its gradients, so that models that depend on each other can be updated in one step.
    If models share parameters, the gradients of these are summed, and only the first optimizer
    steps them. In TensorFlow, and in torch before another op without `defer`, each takes its step
    immediately, before the next one computes its gradients, and steps shared parameters with its
    own gradient. See `TensorOp` for `mode` and `ds_id`.

    Args:
        model: A model from `fastnet.build`.
        loss_name: The key of the loss, a tensor; a non-scalar loss is averaged.
        gradients: The key of precomputed gradients, a list with one for each trainable parameter.
            None to compute the gradients of the loss, as mixed precision requires.
        merge_grad: How many steps' gradients to average for one update.
        defer: Whether to take the optimizer's step after the network's last op.
        clip_norm: The maximum global norm of the gradients, above 0, or None.
        clip_value: The maximum absolute value of each gradient element, above 0, or None.
        outputs: Keys for values of the update: "grad_norm" for the norm of all gradients before
            they are clipped, a scalar, NaN where "stepped" is False; "stepped" for whether the
            optimizer has taken a step, a boolean scalar: False while gradients are merged, or a
            Keras optimizer accumulates them, in a warmup, and if the step is skipped because the
            gradients of a scaled loss have overflowed, or because of `skip_nonfinite` or `weight`;
            "total" for the value that is minimized: the mean of the loss with the model's own
            losses, unscaled, also while gradients are merged and in a warmup, but NaN if
            `gradients` are given.
        rest: What happens to merged gradients of fewer than `merge_grad` steps at the end of a
            training context: "carry" to continue with them when the network is next entered, as
            FastEstimator does; "flush" to update with their average; "drop" to discard them. After
            an error, or if a loop over `fastnet.steps` or `iter_transform` stops before its loader
            ends, they are always carried.
        weight: The key of the weight of a step's gradients, one number, such as the number of
            tokens that a mean loss is over: unequal batches then update as one large batch would.
            Steps of weight 0 count as steps, but add nothing, not even a NaN. If the sum of the
            weights is 0, there is no update. None for equal weights.
        skip_nonfinite: Whether to leave the weights, the optimizer, and what follows its steps
            unchanged if an element of a gradient is infinite or NaN; merged gradients are
            discarded then. With a scaled loss, steps are skipped in any case.
        model_losses: Whether to add a Keras model's own losses (`model.losses`: those of
            regularizers and `add_loss`) to the loss, as FastEstimator does in each UpdateOp. False
            if the loop adds them itself, or for all but one of a model's UpdateOps. A torch
            model has none.

    Raises:
        AssertionError: If the model does not come from `fastnet.build`.
        ValueError: If a setting is out of its range; if the model has mixed precision and
            `gradients` are given, or uses DataParallel and `merge_grad` is more than 1; if both
            `clip_norm` and `clip_value` are given; if `loss_name` or `gradients` is not one key; in
            a network also if the model's optimizer can only step with a closure.

    >>> import torch, fastnet
    >>> model = fastnet.build(lambda: torch.nn.Linear(2, 1), optimizer_fn="sgd", model_name="line")
    >>> UpdateOp(model, "loss", clip_norm=1.0, outputs={"grad_norm": "norm", "stepped": "stepped"})
    UpdateOp(loss -> norm, stepped, 'line', mode=train)
    """

    defer: bool
    alike_on_ranks = (
        "merge_grad",
        "defer",
        "clip_norm",
        "clip_value",
        "rest",
        "weight",
        "skip_nonfinite",
        "model_losses",
    )
    resolved_from = ("model", "loss_name", "gradients", *alike_on_ranks)

    def __init__(
        self,
        model: Model,
        loss_name: str,
        gradients: str | None = None,
        mode: str | Iterable[str] | None = "train",
        ds_id: str | Iterable[str] | None = None,
        merge_grad: int = 1,
        defer: bool = False,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        outputs: Mapping[Literal["grad_norm", "stepped", "total"], str] | None = None,
        rest: Literal["carry", "flush", "drop"] = "carry",
        weight: str | None = None,
        skip_nonfinite: bool = False,
        model_losses: bool = True,
    ) -> None:
        reports = _read_reports(model, outputs)
        super().__init__(
            inputs=_inputs_of(loss_name, gradients, weight),
            outputs=list(reports.values()) or None,
            mode=mode,
            ds_id=ds_id,
        )
        self.model = model
        self.loss_name = loss_name
        self.gradients = gradients
        self.merge_grad = merge_grad
        self.defer = defer
        self.clip_norm = clip_norm
        self.clip_value = clip_value
        self.rest = rest
        self.weight = weight
        self.skip_nonfinite = skip_nonfinite
        self.model_losses = model_losses
        self.retain_graph = False
        self._reports = tuple(reports)
        self._check_settings()
        self._register_loss()
        self._update = _make_update(self, self._reports)
        self._applied_settings = self._current_settings()

    def _check_settings(self) -> None:
        """Raise an error for invalid settings."""
        model, name = self.model, name_of(self.model)
        require_built("UpdateOp", model)
        limit = "a number above 0, or None"
        checks = {
            "loss_name": (isinstance(self.loss_name, str), "one key"),
            "gradients": (isinstance(self.gradients, (str, type(None))), "one key, or None"),
            "merge_grad": (_is_count(self.merge_grad), "an int of at least 1"),
            "defer": (isinstance(self.defer, bool), "True or False"),
            "model_losses": (isinstance(self.model_losses, bool), "True or False"),
            "clip_norm": (_is_limit(self.clip_norm), limit),
            "clip_value": (_is_limit(self.clip_value), limit),
            "rest": (self.rest in _RESTS, f"one of {list(_RESTS)}"),
            "weight": (isinstance(self.weight, (str, type(None))), "one key, or None"),
            "skip_nonfinite": (isinstance(self.skip_nonfinite, bool), "True or False"),
        }
        for setting, (is_valid, needed) in checks.items():
            if not is_valid:
                raise ValueError(
                    f"UpdateOp of '{name}' has {setting}={shorten(getattr(self, setting))}, but it "
                    f"must be {needed}."
                )
        if self.gradients is not None and get_metadata(model, "mixed_precision"):
            raise ValueError(
                f"UpdateOp of '{name}' is given the gradients '{self.gradients}', but the model "
                "has mixed precision, which needs the gradients of a scaled loss. "
                "Leave `gradients` out, or make the model in float32, with mixed_precision=False."
            )
        if self.clip_norm is not None and self.clip_value is not None:
            raise ValueError(
                f"UpdateOp of '{name}' has both clip_norm={shorten(self.clip_norm)} and "
                f"clip_value={shorten(self.clip_value)}. Leave one of them out."
            )

    def _register_loss(self) -> None:
        """Record the loss name on the model."""
        names = get_metadata(self.model, "loss_name")
        if isinstance(names, set):
            names.add(self.loss_name)
        elif names is None:
            set_metadata(self.model, "loss_name", {self.loss_name})

    def resolve_settings(self, changed: Sequence[str] = ()) -> None:
        """Apply changed settings; merged gradients are kept with the same model. See `Op`."""
        self._set_io(self.inputs, self.outputs, self.mode, self.ds_id)
        before, now = self._applied_settings, self._current_settings()
        if before == now:
            return
        previous_inputs = self.inputs, self.in_list
        try:
            if any(before[name] != now[name] for name in ("loss_name", "gradients", "weight")):
                inputs = _inputs_of(self.loss_name, self.gradients, self.weight)
                self.in_list = not isinstance(inputs, str)
                self._set_io(inputs, self.outputs, self.mode, self.ds_id)
            self._check_settings()
            update = _make_update(self, self._reports)
            if before["model"] == now["model"]:
                update.continue_from(self._update)
        except Exception:
            # Settings take effect together, or not at all.
            self.inputs, self.in_list = previous_inputs
            raise
        self._register_loss()
        self._update, self._applied_settings = update, now

    def _current_settings(self) -> dict[str, tuple[type, Any]]:
        # Compare types as well: True equals 1.0, but is not a valid norm.
        settings = {name: getattr(self, name) for name in self.resolved_from}
        return {name: (type(value), value) for name, value in settings.items()}

    def check_keys(self) -> None:
        """Check the number of inputs and outputs, and that no optimizer needs a closure."""
        n_inputs = 1 if self.weight is None else 2
        if len(self.inputs) != n_inputs:
            raise ValueError(
                f"UpdateOp takes {'1 input' if n_inputs == 1 else '2 inputs'} and writes "
                f"{list(self._reports)}, but its inputs are {self.inputs} and its outputs "
                f"{self.outputs}."
            )
        if len(self.outputs) != len(self._reports):
            raise ValueError(
                f"UpdateOp of '{name_of(self.model)}' writes {list(self._reports)}, but its "
                f"outputs are {list(self.outputs)}. Pass one key for each value."
            )
        for optimizer in every_optimizer_of(self.model):
            step = getattr(optimizer, "step", None)  # Keras's optimizers have none.
            closure = signature(step).parameters.get("closure") if callable(step) else None
            if closure is not None and closure.default is Parameter.empty:
                kind = type(optimizer).__name__
                raise ValueError(
                    f"UpdateOp of '{name_of(self.model)}' cannot use the model's optimizer, "
                    f"{kind}: it needs a closure that computes the loss several times in each "
                    "step, but a network computes it once. Build the model with another optimizer, "
                    f"or call `{kind}.step(closure)` in a hand-written loop."
                )

    def updater(self) -> Update:
        """Return the object that updates the model; it is replaced when settings change."""
        return self._update

    def get_fe_loss_keys(self) -> set[str]:
        """Return the key of the loss."""
        return to_set(self.loss_name)

    def fe_retain_graph(self, retain: bool | None = None) -> bool | None:
        """Get or set whether the graph is retained for the gradients of a later op."""
        if retain is not None:
            self.retain_graph = retain
        return self.retain_graph

    @property
    def needs_graph(self) -> bool:
        """Whether the op differentiates a graph: not if `gradients` are given."""
        return self.gradients is None or is_overridden(self, _FORWARD)

    def forward(self, data: Any, state: State) -> Any:
        """Update the model with the loss or the gradients; return the values of the outputs."""
        return self._update(data, state, self.defer, self.retain_graph)

    def bind(self, defer: bool, retain_graph: bool, followers: Followers = ()) -> Forward | None:
        """Return the function to call instead of `forward`, or None if `forward` is overridden.

        The network determines the arguments; the op's own settings stay unchanged. `followers` are
        called after each step of the optimizer.
        """
        if is_overridden(self, _FORWARD):
            return None
        return partial(
            self._update,
            defer=defer or self.defer,
            retain_graph=retain_graph,
            followers=tuple(followers),
        )

    def flush_call(
        self, followers: Followers, state: State, defer: bool
    ) -> Callable[[], None] | None:
        """Return the function that flushes when the network is left, or None.

        `state` collects the deferred steps, and what undoes the flush after an error.
        """
        if not self._update.is_merging or self.rest != "flush":
            return None
        return partial(self._update.flush, followers, state, defer)

    def drop_call(self) -> Callable[[], None] | None:
        """Return the function that drops the window when the network is left, or None."""
        return self._update.drop if self._update.is_merging and self.rest == "drop" else None

    def describe_settings(self) -> list[str]:
        """Describe the settings of the update, for `explain`."""
        described = []
        if self.merge_grad > 1:
            endings = {"carry": "", "flush": ", flushes the rest", "drop": ", drops the rest"}
            described.append(f"averages {self.merge_grad} steps{endings[self.rest]}")
        if self.clip_norm is not None:
            described.append(f"clips to the norm {self.clip_norm:g}")
        if self.clip_value is not None:
            described.append(f"clips to the value {self.clip_value:g}")
        if self.weight is not None:
            described.append(f"weights steps by '{self.weight}'")
        if self.skip_nonfinite:
            described.append("skips gradients that are not finite")
        if not self.model_losses:
            described.append("leaves out the losses of the model's layers")
        return described

    def state_dict(self) -> dict[str, Any]:
        """Return the merged gradients for a checkpoint.

        Returns:
            Under "merged" the number of steps that were accumulated since the last update; under
            "gradients" the sum of each parameter's gradients, unscaled, or None if it has none:
            first the model's trainable parameters in order (in torch followed by others that its
            optimizer updates), then parameters that were frozen since the last update. The sums
            are tensors of the parameters' shapes, dtypes and devices in torch, and arrays in
            TensorFlow, of float32 for bfloat16. Under "weight" the sum of the weights, or None
            without weights; under "names" the names of these parameters, and under "model_name"
            that of the model.
        """
        window = self._update.save_window()
        return {
            "merged": window.steps,
            "gradients": window.gradients,
            "weight": window.weight,
            "names": self._update.names_of(self._update.window_parameters()),
            "model_name": name_of(self.model),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state that `state_dict` returned.

        Args:
            state: The state of this op or an equivalent one; arrays may replace tensors. Without
                "model_name" and "names" it is taken for one of this op's model and parameters.

        Raises:
            ValueError: If the state is invalid, or of a model of another name, or has merged steps
                that the op does not merge, or not one gradient of the right shape for each
                trainable parameter. The op is then unchanged.
        """
        problem = _problem_of(state, self, self._update)
        if problem:
            raise ValueError(
                f"The state to load {problem}. Load it into the UpdateOp of the model that it "
                "was saved from, with the same settings, and the same parameters trainable."
            )
        if state["merged"]:
            parameters = self._update.window_parameters(state.get("names", ()))
            window = SavedWindow(int(state["merged"]), state["gradients"], state.get("weight"))
            self._update.load_window(window, parameters)
        else:
            self._update.drop()


# Keep the original function, because users may replace UpdateOp.forward.
_FORWARD = UpdateOp.forward


def _inputs_of(loss_name: str, gradients: str | None, weight: str | None) -> str | list[str]:
    source = loss_name if gradients is None else gradients
    return source if weight is None else [source, weight]


def _is_count(value: object) -> bool:
    return is_int(value) and value is not True and value >= 1


def _is_limit(value: object) -> bool:
    return value is None or (is_number(value) and value is not True and value > 0)


def _read_reports(model: Model, outputs: Any) -> dict[str, str]:
    """Return the key of each report."""
    if outputs is None:
        return {}
    if not isinstance(outputs, Mapping) or any(report not in REPORTS for report in outputs):
        raise ValueError(
            f"UpdateOp of '{name_of(model)}' takes outputs as a mapping from {list(REPORTS)} to "
            f"keys, such as {{'grad_norm': 'norm'}}, but got {shorten(outputs)}."
        )
    return dict(outputs)


def _problem_of(state: Any, op: UpdateOp, update: Update) -> str | None:
    """Return why a state cannot be loaded, to follow "The state to load", or None."""
    if not isinstance(state, dict) or not {"merged", "gradients"} <= state.keys():
        return "is not an UpdateOp's: it has no 'merged' and 'gradients'"
    steps, gradients = state["merged"], state["gradients"]
    if not hasattr(steps, "__index__") or steps < 0 or not isinstance(gradients, (list, tuple)):
        return f"has {steps!r} merged steps and gradients of type {type(gradients).__name__}"
    if not steps:
        return None  # Other parameters may have been trainable.
    model_name, saved_model_name = name_of(op.model), state.get("model_name")
    if saved_model_name is not None and saved_model_name != model_name:
        return (
            f"has merged gradients of the model '{saved_model_name}', but the op updates "
            f"'{model_name}'"
        )
    parameters = update.window_parameters(state.get("names", ()))
    if len(gradients) != len(parameters):
        return (
            f"has {len(gradients)} gradients, but the model '{model_name}' has {len(parameters)} "
            "trainable weights"
        )
    names = update.names_of(parameters)
    for saved_name, name in zip(state.get("names", names), names, strict=False):
        if saved_name != name:
            return f"has a gradient of '{saved_name}', where the trainable weight is '{name}'"
    if (state.get("weight") is None) != (op.weight is None):
        if op.weight is None:
            return "has gradients merged with weights, but the op merges without weights"
        return "has gradients merged without weights, but the op merges with weights"
    if not update.is_merging:
        return f"has the merged gradients of {steps} steps, but the op does not merge: merge_grad=1"
    for index, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        if gradient is not None and not _fits(gradient, parameter):
            shape, dtype = tuple(getattr(gradient, "shape", ())), getattr(gradient, "dtype", None)
            return (
                f"has gradient {index} of the shape {shape} and dtype {dtype}, which cannot be "
                f"added to those of the shape {tuple(parameter.shape)} and {parameter.dtype}"
            )
    return None


def _fits(gradient: Any, parameter: Any) -> bool:
    """Return whether a saved gradient has a shape and dtype that a parameter's gradients have."""
    kinds = ["float", "int"]
    # Complex gradients fit complex parameters only.
    if "complex" in str(parameter.dtype):
        kinds.append("complex")
    dtype = str(getattr(gradient, "dtype", None))
    has_dtype = any(kind in dtype for kind in kinds)
    return has_dtype and tuple(getattr(gradient, "shape", ())) == tuple(parameter.shape)


def _make_update(op: UpdateOp, reports: Sequence[str]) -> Update:
    return model_framework(op.model).make_update(op, reports)
