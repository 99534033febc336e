"""The calls that a thread makes, told to a function of Python where they may matter."""

from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, final

@final
class Calls:
    """Looks on at the calls of a thread.

    Args:
        see: Told of a call: the frame that it is in, what is called, and whether that is a function
            of C. In a call of Python it is the frame and the code of what is called. It returns
            whether it need not be told of that again, whoever calls it.
        is_quiet: Returns whether functions of C that some code calls are told only if they are
            among `always`.
        always: Functions of C.
    """

    def __init__(
        self,
        see: Callable[[FrameType, Any, bool], bool],
        is_quiet: Callable[[CodeType], bool],
        always: list[Any],
    ) -> None: ...
    def watch(self) -> None:
        """Look on at the calls of this thread from now on, until `sys.setprofile` is called."""
