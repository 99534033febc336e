"""Compiled steps: the ops of a step traced into one graph, compiled, and called with flat tensors.

A step passes through these modules:

1. `step.CompiledStep` runs the steps of an execution plan. The first step of each context runs
   eagerly, because optimizers create their state in it. After that `program_cache.ProgramCache`
   looks up a program that fits, or compiles one.
2. `capture.capture` traces the ops with `make_fx`. `fake_tensors.StepState` puts fake tensors in
   the places of parameters, buffers and optimizer state, `optimizers` and `rules` replace the
   optimizers' arithmetic, `accumulation` handles merged gradients, and `RecordingDict` refuses
   reads of data that changes from step to step. A `guard.Guard` is a snapshot of the data
   that ops, models and optimizers reach. It is taken before the trace: an op that changes its own
   data while it is traced is not captured. `number_inputs` makes inputs of Python numbers that
   change between steps.
3. `lowering.lower` makes the graph functional and has Inductor, or another backend, compile it.
4. `program.Program` compares, before each step, the guard, the tensors and the global state, binds
   tensors to the graph's inputs, and calls it. `input_signature` matches batches, `dynamic_batch`
   those of another size.
5. `verification.verify` runs the first step of each program a second time, eagerly from the same
   state, and compares the results.

Whatever cannot be captured raises `uncapturable.Uncapturable`: steps run eagerly, and
`network.traces` has the reason.
"""
