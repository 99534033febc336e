"""A traced step as XLA runs it: compiled for each kind of batch, and checked in each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import tensorflow as tf

from fastnet.backend.tf._internals import launch_call, recording, shape_of_eager
from fastnet.network.compile_options import CompileOptions
from fastnet.network.tf.compiled.guarding import Source
from fastnet.network.tf.compiled.pieces import Call, Failed, Pieces
from fastnet.network.tf.compiled.reading import Reading, Uncompilable, read
from fastnet.network.tf.compiled.spread import Spread
from fastnet.network.trace_records import report_if_slow

__all__ = ["CompiledStep", "Compiler", "Kinds"]
# Told why something was compiled, how long that took, why steps are not compiled all the same, and
# what is where it is not all.
Tell = Callable[[str, float, str | None, str | None], None]
# Told in the graph's terms what is wrong with a step.
Explain = Callable[[BaseException, Any], None]

# of a network whose ops change without end; what XLA has compiled TensorFlow keeps
_MOST_PROGRAMS = 64
_SPREAD = "the steps are spread over devices by a strategy; what each does by itself"
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
        spread: Whether the steps are spread over several devices.
    """

    def __init__(self, options: CompileOptions, tell: Tell, spread: bool = False) -> None:
        self.options = options
        self._spread = spread
        self.tell = tell
        self._made = 0

    def refuses(self, kinds: Kinds) -> str | None:
        """Return why no further kind of batches is compiled; None if it may be.

        Args:
            kinds: Those that there are.
        """
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
        explain: Explain,
        wide: bool,
    ) -> CompiledStep:
        """Make a step of a traced function; XLA compiles it when it is first called.

        Args:
            concrete: The traced function.
            plain: Calls it as it is.
            kinds: The kinds of batches that were compiled before.
            describe: Given the name of a node, says which op of the network it is of; or None.
            explain: Given an error of TensorFlow that a step raises, and the graph, adds to it.
            wide: Whether it is for batches of several shapes.

        Returns:
            The step.
        """
        fallback = self.refuses(kinds)
        program: _Whole | _Several | None = None
        if fallback is None:
            try:
                if tf.config.list_logical_devices("GPU"):
                    raise Uncompilable("there is a GPU; steps are compiled on the CPU only, so far")
                seeded = not self.options.fallback_random
                reading = read(concrete, describe, seeded, self._spread)
                program = self._program(concrete, reading, plain, explain)
            except Uncompilable as error:
                fallback = str(error)
            except Exception as error:
                fallback = _failure(error)
        return CompiledStep(self, plain, program, kinds, wide, fallback)

    def _program(
        self, concrete: Any, reading: Reading, plain: Call, explain: Explain
    ) -> _Whole | _Several:
        told = False

        def failed(error: BaseException | None) -> None:
            nonlocal told
            if not told:
                told = True
                reason = "a step has run twice" if error is None else "a step has failed"
                self.tell(reason, 0.0, _UNLIKE if error is None else _failure(error), None)

        source = Source(concrete, reading)
        if source.called and not self._spread:
            raise Uncompilable("the step reads what is only found when it is called")
        reason = next(iter(reading.unfit.values()), None)
        if reason is None and not self._spread:
            return _Whole(source, plain, failed)
        if self.options.fallback_random and reading.draws is not None:
            # a graph for each kind of batches would draw the same numbers as the others
            raise Uncompilable(reading.draws)
        if self._spread:
            return _Several(Spread(source, reading, explain, failed), _SPREAD)
        return _Several(Pieces(source, reading, explain, failed), f"{reason}; what is around it")


class _Whole:
    """A step that is one program.

    Args:
        source: The traced function.
        plain: Runs the step as it was traced.
        failed: Told when the program has failed, and the step ran as it was traced.

    Attributes:
        reason: Why not all of it is compiled: it is.
        part: What is compiled, where it is not all.
    """

    reason: str | None = None
    part: str | None = None

    def __init__(self, source: Source, plain: Call, failed: Failed) -> None:
        made = source.whole()
        # TensorFlow forgets a function that nobody has
        self._held = made.concrete
        first = source.first_used
        self._launch: Call = launch_call(self._held, first) or (
            lambda tensors: list(self._held(*tensors[first:]))
        )
        self._checked = made.checked
        self._plain = plain
        self._failed = failed

    def begin(self, tensors: list[tf.Tensor]) -> tuple[Call, Sequence[tf.Tensor] | None]:
        """Run the first step of a kind of batches, or find what does.

        Args:
            tensors: What it is given.

        Returns:
            What runs the steps, and what the first has returned if it has run.

        Raises:
            Exception: What XLA raises where it cannot compile it; nothing has run then.
        """
        return self._run, self._results(self._launch(tensors), tensors)

    def _run(self, tensors: list[tf.Tensor]) -> Sequence[tf.Tensor]:
        try:
            results = self._launch(tensors)
        except tf.errors.OpError as error:
            # nothing has run; what is wrong with the batch the graph says better
            again = self._plain(tensors)
            self._failed(error)
            return again
        return self._results(results, tensors) if self._checked else results

    def _results(self, found: Any, tensors: list[tf.Tensor]) -> Sequence[tf.Tensor]:
        results: list[tf.Tensor] = found
        # of a tensor that is asked for its truth by itself it takes twice as long
        if not self._checked or results.pop().numpy():
            return results
        # all variables are as they were
        again = self._plain(tensors)
        self._failed(None)
        return again


class _Several:
    """A step of several programs, with a graph around them.

    Args:
        pieces: The programs.
        reason: Why it is not one; what they are.

    Attributes:
        reason: Why not all of it is compiled; None before something is.
        part: What is compiled.
    """

    def __init__(self, pieces: Pieces | Spread, reason: str) -> None:
        self._pieces = pieces
        self._why = reason
        self.reason: str | None = None
        self.part: str | None = None

    def begin(self, tensors: list[tf.Tensor]) -> tuple[Call, Sequence[tf.Tensor] | None]:
        """Make what runs the steps of a kind of batches.

        Args:
            tensors: What the first is given.

        Returns:
            That, and nothing: the first has not run.

        Raises:
            Exception: What XLA raises where it cannot compile one of the programs.
        """
        call, count = self._pieces.make([tf.TensorSpec(one.shape, one.dtype) for one in tensors])
        self.part = f"{count} program{'s' if count > 1 else ''}"
        self.reason = f"{self._why} is compiled, as {self.part}"
        return call, None


class CompiledStep:
    """A step that XLA compiles for each kind of batch when it first comes.

    Args:
        compiler: What it is compiled by.
        plain: Runs the step as it was traced.
        program: What XLA compiles; None if nothing.
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
        program: _Whole | _Several | None,
        kinds: Kinds,
        wide: bool,
        fallback: str | None,
    ) -> None:
        self._outcome: tuple[float, str | None] = 0.0, fallback
        self._late_reason: str | None = None
        self._compiler = compiler
        self._plain = plain
        self._kinds = kinds
        self._wide = wide
        # by the shapes that have come
        self._calls: dict[Any, Call] = {}
        self._compiling = Lock()
        self.is_settled = program is None
        self.call: Call = plain
        if program is not None:
            self._program = program
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
        plain, asked = self._plain, recording()
        if asked is None:
            return lambda tensors: call(tensors) if tf.executing_eagerly() else plain(tensors)
        could_record, executing_eagerly = asked

        def call_unless_recorded(tensors: list[tf.Tensor]) -> Sequence[tf.Tensor]:
            if could_record() or not executing_eagerly():
                return plain(tensors)
            return call(tensors)

        return call_unless_recorded

    def _run_any(self, tensors: list[tf.Tensor]) -> Sequence[tf.Tensor]:
        key = tuple(map(shape_of_eager, tensors))
        call = self._calls.get(key)
        return self._run_first(tensors, key) if call is None else call(tensors)

    def _run_first(self, tensors: list[tf.Tensor], key: Any = None) -> Sequence[tf.Tensor]:
        """Run a step of a kind of batches that is not compiled yet; while it is, as a graph."""
        if not self._compiling.acquire(blocking=False):
            return self._plain(tensors)
        try:
            call = self._calls.get(key)
            return self._begin(tensors, key) if call is None else call(tensors)
        finally:
            self._compiling.release()

    def _begin(self, tensors: list[tf.Tensor], key: Any) -> Sequence[tf.Tensor]:
        refused = self._compiler.refuses(self._kinds)
        if refused is not None:
            results = self._plain(tensors)
            self._settle(key, self._plain, 0.0, refused)
            return results
        started = time.perf_counter()
        with report_if_slow("compiling a step with XLA"):
            try:
                call, begun = self._program.begin(tensors)
            except Exception as error:
                seconds = time.perf_counter() - started
                # nothing has run; what is wrong with the batch the graph says better
                results = self._plain(tensors)
                self._settle(key, self._plain, seconds, _failure(error))
                self.call = self._plain
                return results
            try:
                return call(tensors) if begun is None else begun
            finally:
                # also where an op has raised: what is compiled serves the next step
                seconds = time.perf_counter() - started
                self._compiler.count(self._kinds)
                self._settle(key, call, seconds, self._program.reason, self._program.part)

    def _settle(
        self, key: Any, call: Call, seconds: float, fallback: str | None, part: str | None = None
    ) -> None:
        self._calls[key] = call
        if not self._wide:
            self.call = call if call is self._plain else self._unless_recorded(call)
        # the epoch comes first
        shapes = ", ".join(str(tuple(one)) for one in key[1:]) if self.is_settled else ""
        reason = f"a batch has the shapes {shapes}" if self.is_settled else self._late_reason
        if part is not None:
            self._compiler.tell(reason or "a first step", seconds, None, part)
            seconds = 0.0
        if self.is_settled or reason is not None:
            self._compiler.tell(str(reason), seconds, fallback, None)
        if not self.is_settled:
            self.is_settled = True
            self._outcome = seconds, fallback


def _failure(error: BaseException) -> str:
    if isinstance(error, Uncompilable):
        return str(error)
    first = str(error).strip().partition("\n")[0]
    return f"XLA has failed with {type(error).__name__}: {first}"
