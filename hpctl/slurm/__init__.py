"""Slurm behind the Scheduler port: how it is read, and what may be sent to it.

The room promises one shape of nodes and jobs for every release from 22.05 on, bounded calls, and
an Outcome for every order. Reads are retried; orders are sent once.

- `run` starts Slurm's commands, with a limit on time and output, and maps their error texts.
- `read` runs the reads, `parse` turns their text into values, `records` holds the shapes that both
  adapters share.
- `rules` decides from a fresh look what may be sent about a node or a job. Its docstring is the
  theory of the restart: why a job is requeued and started in exactly this order.
- `cli` is the adapter by scontrol and scancel. `pyslurm` is the faster adapter for clusters that
  have it; it runs libslurm in a child process.
- `hazards` reads a release and its slurm.conf for `hpctl doctor`.

`parse`, `records`, `rules` and `hazards` are pure; the last reads its table, `hazards.yaml`. The
adapters run in the daemon and in commands; `run` also in the agent, `run` and `read` inside jobs.

Begin with `rules.py`, then `cli.py` and `parse.py`. Names, comments and reasons are text that
users write: they are never split on spaces or `=`. A job in COMPLETING is never requeued. No
module here decides when a node or a job is treated.
"""
