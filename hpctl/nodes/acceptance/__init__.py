"""The acceptance test: a node's figures are measured and judged before it serves again.

`decide` holds the test as phases of a node's recovery, `limits` what a figure must meet, `cards`
the figures of healthy GPUs by card (`card_figures.md`); they do no I/O beyond reading that table,
and run in the daemon. `run` runs the tests of `tests.yaml` on the node, in a batch job, with
`speed` as the program that measures and `card` naming the GPUs. `result` is the format in which a
test prints its result, and the inbox from which the agent reports it: the exit code of the job is
no evidence. `daemon` hands all of this to the recoveries of nodes. `preflight` tests the nodes of a
job inside its allocation, before the first step. The commands are `command`, `baseline_command` and
`culprit_command`.
"""
