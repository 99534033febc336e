"""Compiled steps: the ops of a step traced into one graph, compiled, and called with flat tensors.

A step passes through these modules:

1. `session.CompiledSession` runs the steps of a session. The first step runs eagerly, because
   optimizers create their state in it. After that `program_set.TorchProgramSet`, which plans of the
   same ops share, finds a program that is valid for the batch, or compiles one.
2. `capture.capture` traces the ops with `make_fx`, checks what they have done, and returns a
   `captured.Capture`. `step_state.StepState` puts fake tensors in the places of parameters,
   buffers and optimizer state; `optimizers` and `rules` replace the optimizers' update rules, and
   `accumulation` handles merged gradients. `trace_watch` and `random_numbers` refuse what a graph
   would freeze or leave out. A `guard.Guard` is a snapshot of the data reachable from ops and
   models, taken before the trace: it also shows which ops change their own data while they are
   traced. `restoration` then puts everything back. `number_inputs` turns Python numbers that change
   between steps into graph inputs. `buffer_broadcasts` has the flags of models in
   DistributedDataParallel; `backend.torch.collectives` the operators by which ranks communicate.
3. `lowering.lower` makes the graph functional and has Inductor, or another backend, compile it.
   `products` has the operator for large matrix products on the CPU.
4. `program.TorchProgram` compares, before each step, the guard, the tensors and the global state,
   binds tensors to the graph's inputs, and calls it. `input_signature` matches batches, and
   `open_lengths` finds which of their axes a program may leave open.
5. `verification.Verification` runs the first step of each program eagerly, and from the same state
   the graph and the program on copies, and compares the results.

A step that cannot be captured raises `uncapturable.Uncapturable` and runs eagerly;
`network.traces` has the reason.
"""
