"""Several workers kept together: they meet, take their steps side by side, and fail as one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

import tensorflow as tf

from fastnet.backend.tf._internals import Messages
from fastnet.errors import RankError

__all__ = ["Together", "Workers"]

# all in seconds: how long to wait for a text before it is seen whether its worker is there; how
# long that may take to answer; how long a worker has to fail by itself before what it waits for is
# broken off; how long the first one, which keeps the texts, stays for the others to read why it
# has failed
_PATIENCE, _ANSWER, _GRACE, _LINGER = 1.0, 5.0, 5.0, 10.0
_PERIOD = 0.5


class Workers:
    """The workers of a cluster, as one of them sees them.

    They meet at the same places of the program, one after the other: whoever is at another place,
    or gone, is found out there, and nobody waits for ever.

    Args:
        rank: The place of this worker.
        tasks: TensorFlow's names of all of them.
        messages: What brings texts to them, or None.
        meet_by_collective: What to meet by where there is nothing to bring texts.

    Attributes:
        rank: The place of this worker.
        count: How many there are.
        over: Why there will be no collectives any more, or None.
    """

    def __init__(
        self,
        rank: int,
        tasks: list[str],
        messages: Messages | None,
        meet_by_collective: Callable[[], None],
    ) -> None:
        self.rank = rank
        self.count = len(tasks)
        self.over: str | None = None
        self._tasks = tasks
        self._messages = messages
        self._meet_by_collective = meet_by_collective
        self._meetings = 0

    @property
    def is_over(self) -> bool:
        """Whether there will be no collectives any more."""
        return self.over is not None

    def meet(self, place: str, word: str = "") -> list[str]:
        """Wait until all workers have come to a place of the program.

        Args:
            place: What the place is called.
            word: What to tell the others.

        Returns:
            What each of them has told; where nothing brings texts, each time this one's.

        Raises:
            RankError: If one of them is gone, has failed, or is at another place.
        """
        self.require()
        if self._messages is None:
            self._meet_by_collective()
            return [word] * self.count
        number = self.arrive({"place": place, "word": word})
        words = []
        for other in range(self.count):
            told = (
                {"place": place, "word": word} if other == self.rank else self._hear(other, number)
            )
            if told.get("error"):
                raise self.lost(told["error"])
            if told["place"] != place:
                raise self.lost(
                    f"Worker {other} is at {told['place']}, where worker {self.rank} is at "
                    f"{place}. Let all workers run the same program: open networks, save, load "
                    "and gather alike on each."
                )
            words.append(str(told["word"]))
        return words

    def require(self) -> None:
        """Refuse to go on where workers have lost each other.

        Raises:
            RankError: If they have.
        """
        if self.over is not None:
            if self._messages is not None:
                with suppress(tf.errors.OpError):  # for those that wait
                    self.arrive({"place": "its end", "error": self.over})
            raise RankError(
                f"{self.over} The workers have lost each other since. Start all of them anew, from "
                "the last checkpoint."
            )

    def fail(self, error: BaseException) -> None:
        """Tell the others why this worker takes no part in anything any more.

        Args:
            error: What it ends with.
        """
        if self._messages is None:
            return
        told = self.over or f"Worker {self.rank} has failed with {type(error).__name__}: {error}"
        with suppress(RankError):
            number = self.arrive({"place": "its end", "word": "", "error": told})
            if self.rank == 0:
                self.linger(number)

    def linger(self, number: int) -> None:
        """Stay until the others have read why the first worker, which keeps the texts, fails.

        Args:
            number: The number of the meeting where it has told why.
        """
        end = monotonic() + _LINGER
        for other in range(1, self.count):
            while monotonic() < end:
                if self.news(other, number, _PERIOD) is not None:
                    break

    def together(self, place: str) -> Together:
        """Return what keeps the workers side by side in an opening.

        Args:
            place: What the opening is called.
        """
        return Together(self, place, self._messages)

    # ------------------------------------------------------------------ texts

    def arrive(self, told: Mapping[str, Any]) -> int:
        """Tell the others where this worker is.

        Args:
            told: What to tell: "place", "word" and, of one that has failed, "error".

        Returns:
            The number of the meeting.

        Raises:
            RankError: If there is nobody to carry it.
        """
        assert self._messages is not None
        self._meetings += 1
        with self._explained():
            self._messages.put(self.key(self._meetings, self.rank), json.dumps(told))
        return self._meetings

    def _hear(self, other: int, number: int) -> dict[str, Any]:
        """Wait for another worker to arrive."""
        while True:
            told = self.news(other, number, _PATIENCE)
            if told is not None:
                return told

    def news(self, other: int, number: int, seconds: float) -> dict[str, Any] | None:
        """Ask where another worker is.

        Args:
            other: Its place.
            number: The number of the meeting.
            seconds: How long to wait.

        Returns:
            What it has told, or None if it is yet to arrive.

        Raises:
            RankError: If it is gone.
        """
        assert self._messages is not None
        key = self.key(number, other)
        with self._explained():
            text = self._messages.get(key, seconds)
            if text is None and not self._messages.answers(self._tasks[other], _ANSWER):
                text = self._messages.get(key, 0.1)  # its last word
                if text is None:
                    raise self.lost(f"Worker {other} {_GONE}")
        return None if text is None else dict(json.loads(text))

    @property
    def next_meeting(self) -> int:
        """The number of the next meeting."""
        return self._meetings + 1

    @staticmethod
    def key(number: int, worker: int) -> str:
        """Return what a worker's text for a meeting is found under.

        Args:
            number: The number of the meeting.
            worker: The place of the worker.
        """
        return f"fastnet/{number}/{worker}"

    def lost(self, text: str) -> RankError:
        """Take down why there will be no collectives any more.

        Args:
            text: Why.

        Returns:
            The error to raise.
        """
        self.over = self.over or text
        return RankError(text)

    def _explained(self) -> _Explained:
        return _Explained(self)


class _Explained:
    """Says what it means that the service which carries texts is gone."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, tf.errors.OpError):
            if isinstance(error, (tf.errors.AlreadyExistsError, tf.errors.InvalidArgumentError)):
                return  # of our own making
            text = f"Worker 0 {_GONE}" if self._workers.rank else f"A worker {_GONE}"
            raise self._workers.lost(text) from error


_GONE = "has ended without a word: it was killed, or its machine is gone."


class Together:
    """Keeps workers side by side in one opening, in which each step waits for all of them.

    Args:
        workers: The workers.
        place: What the opening is called.
        messages: What brings texts, or None.
    """

    def __init__(self, workers: Workers, place: str, messages: Messages | None) -> None:
        self._workers = workers
        self._place = place
        self._messages = messages
        self._begun = 0
        self._done = 0
        # what another worker has told that left the opening: its place and its words
        self._left: dict[int, dict[str, Any]] = {}
        self._wrong: str | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._ending = 0

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Wait for all workers, and compare what they are to run.

        Args:
            plan: What this worker is to run, part by part.

        Raises:
            RankError: If a worker is to run something else, is gone, or at another place.
        """
        own = json.dumps(plan)
        for other, word in enumerate(self._workers.meet(self._place, own)):
            if word != own:
                theirs = json.loads(word)
                part = next(
                    name for name in {**plan, **theirs} if plan.get(name) != theirs.get(name)
                )
                raise RankError(
                    f"Worker {other} opens its network with {part} {theirs.get(part)}, where "
                    f"worker {self._workers.rank} has {plan.get(part)}. Let all workers build and "
                    "open networks alike."
                )
        if self._messages is not None:
            self._ending = self._workers.next_meeting
            self._thread = threading.Thread(target=self._listen, name="fastnet-watch", daemon=True)
            self._thread.start()

    def step(self, run: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        """Return a step that is not begun where a worker is known not to take it, too.

        Args:
            run: The step.
        """

        def run_together(batch: Mapping[str, Any]) -> dict[str, Any]:
            # one that has failed may be about to fail here too, which is the better error
            if self._left and not self._has_failed():
                wrong = self._complaint(self._begun + 1)
                if wrong is not None:
                    raise self._workers.lost(wrong)
            self._begun += 1
            try:
                result = run(batch)
            except tf.errors.OpError as error:
                raise self._translated(error) from error
            self._done = self._begun
            return result

        return run_together

    def end(self, error: BaseException | None) -> None:
        """Leave the opening.

        Args:
            error: What it ends with, None if nothing has gone wrong.

        Raises:
            RankError: If another worker has failed, or has taken more steps or fewer.
        """
        self._over.set()
        workers = self._workers
        if self._messages is None:
            if error is None:
                workers.meet(self._end_place)
            return
        if error is None:
            taken = [int(word) for word in workers.meet(self._end_place, str(self._done))]
            if len(set(taken)) > 1:
                raise RankError(_uneven(taken, workers.rank))
            return
        with suppress(RankError):
            told = f"Worker {workers.rank} has failed with {type(error).__name__}: {error}"
            if workers.over is not None:
                told = workers.over
            number = workers.arrive(
                {"place": self._end_place, "word": str(self._done), "error": told}
            )
            if workers.rank == 0:
                workers.linger(number)

    @property
    def _end_place(self) -> str:
        return f"the end of {self._place}"

    # ------------------------------------------------------------------ the others

    def _listen(self) -> None:
        waiting = [one for one in range(self._workers.count) if one != self._workers.rank]
        while not self._over.wait(_PERIOD):
            for other in tuple(waiting):
                try:
                    told = self._workers.news(other, self._ending, 0.05)
                except RankError as error:
                    told = {"error": str(error), "word": "0"}
                if told is not None:
                    waiting.remove(other)
                    self._left[other] = told
            if self._left and self._break_off():
                return

    def _break_off(self) -> bool:
        """Break off a step that a worker takes no part in; return whether that was so."""
        step = self._begun
        if step == self._done or self._complaint(step) is None:
            return False
        if self._has_failed() and self._over.wait(_GRACE):
            return False
        wrong = self._complaint(step)
        if self._begun != step or self._done == step or wrong is None or self._over.is_set():
            return False
        assert self._messages is not None
        self._wrong = wrong
        self._workers.over = self._workers.over or wrong
        self._messages.abort(wrong)
        return True

    def _has_failed(self) -> bool:
        return any(told.get("error") for told in self._left.values())

    def _complaint(self, step: int) -> str | None:
        """Return why there cannot be a step: a worker has failed, or takes no more."""
        for other, told in self._left.items():
            if told.get("error"):
                return str(told["error"])
            if int(told["word"]) < step:
                taken = [int(told["word"])] * self._workers.count
                taken[self._workers.rank] = step
                for one, words in self._left.items():
                    taken[one] = int(words["word"])
                return _uneven(taken, self._workers.rank, other)
        return None

    def _translated(self, error: Exception) -> Exception:
        """Return what another worker has told, in the place of what TensorFlow makes of it."""
        if self._messages is None:
            return error
        if self._wrong is None and isinstance(error, _BROKEN):
            # the last word of one whose process has ended
            for other in range(self._workers.count):
                if other != self._workers.rank and other not in self._left:
                    with suppress(RankError):
                        told = self._workers.news(other, self._ending, _PATIENCE)
                        if told is not None:
                            self._left[other] = told
            self._wrong = self._complaint(self._begun)
            if self._wrong is None and self._workers.over is not None:
                self._wrong = self._workers.over
        if self._wrong is None:
            return error
        self._workers.over = self._workers.over or self._wrong
        return RankError(self._wrong)


_BROKEN = tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.InternalError


def _uneven(taken: list[int], rank: int, other: int | None = None) -> str:
    if other is None:
        other = next(place for place, steps in enumerate(taken) if steps != taken[rank])
    more, fewer = (rank, other) if taken[rank] > taken[other] else (other, rank)
    return (
        f"Worker {fewer} has ended its steps after {taken[fewer]}, where worker {more} is at step "
        f"{taken[more]}. Give each worker as many batches: a tf.distribute dataset does, or "
        "repeat() and take(n)."
    )
