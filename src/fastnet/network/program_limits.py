"""Limits of programs and traces, so that neither time nor memory grows with the steps.

`CompileOptions.max_programs` limits the compiled programs of each set.
"""

from __future__ import annotations

MAX_CHANGES_IN_A_ROW = 4
"""Changes that each make all programs invalid, one after the other, before steps run uncompiled.

A change in every step would otherwise compile a program in every step.
"""

MAX_LENGTHS = 4096
"""Lengths of batches of which a program remembers whether it takes them."""

MAX_COMPILATIONS = 64
"""Programs that are compiled for the same ops, including those that are no longer in use.

Graphs of TensorFlow that are not to be compiled do not count.

The frameworks keep what they have compiled, so ops that change forever would fill the memory.
"""

MAX_CELLS = 32
"""Time steps, times layers and directions, of an `nn.GRU` or `nn.RNN` on the CPU in one program.

PyTorch decomposes them to the operations of each cell, 64 for a GRU with its backward pass.
Compiling two layers over 48 steps takes more than four minutes.
"""

MAX_TRACES = 16
"""Traces of the same ops that are kept in TensorFlow, and as many with dynamic axes."""

MANY_TRACES = 8
"""Traces of the same ops after which a warning gives their number, in TensorFlow."""
