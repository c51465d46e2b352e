"""What an empty node shows is kept before its remedy destroys it.

The room promises that no job waits for it: only the node's remedy does, for `evidence.deadline_s`
at most. One archive a recovery holds the kernel's log, the journal, NVML's and DCGM's views,
counters and the agent's findings, without secrets, in a shared directory or in S3.

- `decide` is pure and runs in the daemon: it orders the evidence once the node is empty, a bounded
  number of nodes at once, and lets the remedy go ahead when the agent has answered, cannot answer,
  or takes too long.
- `agent` takes the order on the node, writes a line to the node's own log, and starts `gather`, a
  separate process that it ends after `GATHER_S`. `collect` runs the commands and bounds what each
  says, `redact` removes secrets, `archive` writes the file.
- `store` lists and deletes archives of a directory and checks what is in them, `bucket` does so in
  S3 and sends there. `fetch` copies an archive and holds it to the journal: a node may have written
  anything in its place. `daemon` runs the deletion on a thread. `cloudwatch` copies an instance's
  streams where its node could not answer. `command` is `hpctl evidence`, `check` compares the
  places that the head and the agents name.

Begin with `decide.py`, then `gather.py`. The order and the answer are in
`hpctl/vocabulary/evidence.py`; they travel as the orders of GPU resets do.
"""
