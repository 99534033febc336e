"""A traced step as XLA runs it: compiled for each kind of batch, and checked in each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fastnet.backend.tf._internals import direct_call, launch_call, shape_of_eager
from fastnet.network.announcing import announced
from fastnet.network.compiling import CompileOptions
from fastnet.network.tf.compiled.guarding import for_xla
from fastnet.network.tf.compiled.reading import Uncompilable, read

__all__ = ["CompiledStep", "Compiler", "Kinds"]

Call = Callable[[list[tf.Tensor]], Sequence[tf.Tensor]]
# Told why something was compiled, how long that took, and why steps are not compiled all the same.
Tell = Callable[[str, float, str | None], None]

# of a network whose ops change without end; what XLA has compiled TensorFlow keeps
_MOST_PROGRAMS = 64
_UNLIKE = (
    "values came, such as NaN, that XLA does not treat as the graph does; each such step runs as a "
    "graph after all"
)


class Kinds:
    """The kinds of batches that were compiled for the ops and the models as they are."""

    def __init__(self) -> None:
        self.count = 0


class Compiler:
    """Has traced steps compiled by XLA, for one program.

    Args:
        options: How.
        tell: Told of what was compiled, and of what was not.
        never: Why nothing can be compiled; None if something perhaps can.
    """

    def __init__(self, options: CompileOptions, tell: Tell, never: str | None = None) -> None:
        self.options = options
        self._never = never
        self.tell = tell
        self._made = 0

    def refuses(self, kinds: Kinds) -> str | None:
        """Return why no further kind of batches is compiled; None if it may be.

        Args:
            kinds: Those that there are.
        """
        if self._never is not None:
            return self._never
        if kinds.count >= self.options.most_kinds:
            return f"there are more than {self.options.most_kinds} kinds of steps"
        if self._made >= _MOST_PROGRAMS:
            return f"{_MOST_PROGRAMS} programs were compiled for what is run in this mode"
        return None

    def count(self, kinds: Kinds) -> None:
        """Count one more.

        Args:
            kinds: Those that there were.
        """
        kinds.count += 1
        self._made += 1

    def compile(
        self,
        concrete: Any,
        plain: Call,
        kinds: Kinds,
        describe: Callable[[str], str | None],
        wide: bool,
    ) -> CompiledStep:
        """Make a step of a traced function; XLA compiles it when it is first called.

        Args:
            concrete: The traced function.
            plain: Calls it as it is.
            kinds: The kinds of batches that were compiled before.
            describe: Given the name of a node, says which op of the network it is of; or None.
            wide: Whether it is for batches of several shapes.

        Returns:
            The step.
        """
        fallback = self.refuses(kinds)
        run: Any = None
        checked = False
        if fallback is None:
            try:
                if tf.config.list_logical_devices("GPU"):
                    raise Uncompilable("there is a GPU; steps are compiled on the CPU only, so far")
                reading = read(concrete, describe, not self.options.fallback_random)
                run = for_xla(concrete, reading)
                checked = bool(reading.watches)
            except Uncompilable as error:
                fallback = str(error)
            except Exception as error:
                fallback = _failure(error)
        return CompiledStep(self, plain, run, checked, kinds, wide, fallback)


class CompiledStep:
    """A step that XLA compiles for each kind of batch when it first comes.

    Args:
        compiler: What it is compiled by.
        plain: Runs the step as it was traced.
        run: The function that XLA compiles, or None.
        checked: Whether its last result is whether all that must hold does.
        kinds: The kinds of batches that were compiled before.
        wide: Whether it is for batches of several shapes.
        fallback: Why it is not compiled; None if it is.

    Attributes:
        call: Runs the step: takes the tensors as a list, and returns tensors. It is another one
            once it has run.
        is_settled: Whether it is known what `call` runs.
    """

    def __init__(
        self,
        compiler: Compiler,
        plain: Call,
        run: Any,
        checked: bool,
        kinds: Kinds,
        wide: bool,
        fallback: str | None,
    ) -> None:
        self._outcome: tuple[float, str | None] = 0.0, fallback
        self._late_reason: str | None = None
        self._compiler = compiler
        self._plain = plain
        self._checked = checked
        self._kinds = kinds
        self._wide = wide
        # the shapes that were compiled, or are not to be
        self._shapes: dict[Any, bool] = {}
        self._was_unlike = False
        self.is_settled = fallback is not None
        self.call: Call = plain
        # TensorFlow forgets a function that nobody has
        self._held = run
        if run is not None:
            self._launch: Call = launch_call(run) or (lambda tensors: list(run(*tensors)))
            self._direct = direct_call(run)
            self.call = self._unless_recorded(self._run_any if wide else self._run_first)

    def first_outcome(self, reason: str) -> tuple[float, str | None]:
        """Return how the first step went.

        Args:
            reason: Why it was traced, which is told later where nothing was compiled yet: the step
                has failed, or a tape of the program's own has recorded it.

        Returns:
            How many seconds it took to compile it, and why steps are not compiled, or None.
        """
        if not self.is_settled:
            self._late_reason = reason
        return self._outcome

    def _unless_recorded(self, call: Call) -> Call:
        """Leave a step to the graph that a tape, or a graph, of the program's own is to know of."""
        plain, direct = self._plain, self._direct
        if direct is None:
            return lambda tensors: call(tensors) if tf.executing_eagerly() else plain(tensors)
        could_record, executing_eagerly = direct.could_record, direct.executing_eagerly

        def call_unless_recorded(tensors: list[tf.Tensor]) -> Sequence[tf.Tensor]:
            if could_record() or not executing_eagerly():
                return plain(tensors)
            return call(tensors)

        return call_unless_recorded

    def _run_any(self, tensors: list[tf.Tensor]) -> Sequence[tf.Tensor]:
        key = tuple(map(shape_of_eager, tensors))
        compiled = self._shapes.get(key)
        if compiled:
            return self._run(tensors)
        return self._run_first(tensors, key) if compiled is None else self._plain(tensors)

    def _run_first(self, tensors: list[tf.Tensor], key: Any = None) -> Sequence[tf.Tensor]:
        """Run a step of a kind of batches that is not compiled yet."""
        refused = self._compiler.refuses(self._kinds)
        if refused is not None:
            results = self._plain(tensors)
            self._settle(key, 0.0, refused)
            return results
        started = time.perf_counter()
        try:
            with announced("compiling a step with XLA"):
                results = self._launch(tensors)
        except Exception as error:
            seconds = time.perf_counter() - started
            # nothing has run; what is wrong with the batch the graph says better
            results = self._plain(tensors)
            self._settle(key, seconds, _failure(error))
            self.call = self._plain
            return results
        seconds = time.perf_counter() - started
        self._compiler.count(self._kinds)
        self._settle(key, seconds, None)
        return self._results(results, tensors)

    def _settle(self, key: Any, seconds: float, fallback: str | None) -> None:
        self._shapes[key] = fallback is None
        if not self._wide:
            self.call = self._unless_recorded(self._run) if fallback is None else self._plain
        if not self.is_settled:
            self.is_settled = True
            self._outcome = seconds, fallback
            if self._late_reason is not None:
                self._compiler.tell(self._late_reason, seconds, fallback)
            return
        # the epoch comes first
        shapes = ", ".join(str(tuple(one)) for one in key[1:])
        self._compiler.tell(f"a batch has the shapes {shapes}", seconds, fallback)

    def _run(self, tensors: list[tf.Tensor]) -> Sequence[tf.Tensor]:
        try:
            results = self._launch(tensors)
        except tf.errors.OpError:
            # which says what is wrong with the step
            return self._plain(tensors)
        return self._results(results, tensors) if self._checked else results

    def _results(self, found: Any, tensors: list[tf.Tensor]) -> Sequence[tf.Tensor]:
        results: list[tf.Tensor] = found
        # of a tensor that is asked for its truth by itself it takes twice as long
        if not self._checked or results.pop().numpy():
            return results
        # all variables are as they were
        again = self._plain(tensors)
        if not self._was_unlike:
            self._was_unlike = True
            self._compiler.tell("a step has run twice", 0.0, _UNLIKE)
        return again


def _failure(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"XLA has failed with {type(error).__name__}: {first}"
