"""Hangs: which running job makes no progress, and which rank the others wait for.

`decide` judges from what the agents count of a job's processes and GPUs; it is pure. `daemon` feeds
it, and asks agents for the stacks of the ranks. The witnesses are `stacks` (py-spy, grouped by
`stack_groups`), `ras_report` and `ras_judge` (NCCL's RAS service), and `flight_files` and
`flight_recorder` (PyTorch's dumps, read in a bounded process). `command` is `hpctl stacks`. A
witness names only a rank of its job; the daemon acts on a hang only as the policy says.
"""
