"""Compiled steps: the ops of a step traced into one graph, compiled, and called with flat tensors.

A step passes through these modules:

1. `step.CompiledStep` holds the programs of an execution plan. The first step of each context runs
   eagerly, because optimizers create their state in it. After that a program that fits is looked
   up, or compiled.
2. `capture.capture` traces the ops with `make_fx`. `fake_tensors.StepState` puts fake tensors in
   the places of parameters, buffers and optimizer state, `optimizers` and `rules` replace the
   optimizers' arithmetic, `grad_scaler` and `accumulation` that of scaled and merged gradients, and
   `recording.RecordingDict` refuses reads of what changes from step to step. A `guard.Guard` is a
   snapshot of the data that ops, models and optimizers reach. It is taken before the trace: an op
   that changes its own data while it is traced is not captured.
3. `lowering.lower` makes the graph functional and has Inductor, or another backend, compile it.
4. `program.Program` compares, before each step, the guard, the tensors and the global state, binds
   tensors to the graph's inputs, and calls it. `input_signature` matches batches, `dynamic_batch`
   those of another size.
5. `verification.verify` runs the first step of each program a second time, eagerly from the same
   state, and compares the results.

Whatever cannot be captured raises `uncapturable.Uncapturable`: steps run eagerly, and
`network.traces` has the reason. `tail` runs ops after the last update eagerly after the program.
"""
