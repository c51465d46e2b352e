"""Checkpoints: which saved step is complete, where a job resumes, and saves that outlive a node.

The room promises that a checkpoint is called complete only when its files prove it. A name, a
modification time or a `latest` pointer is never the proof.

- `search` finds candidates below a directory and returns the newest complete one. Each framework
  is one Format of `formats`, which recognizes its directories and proves them.
- `patterns` are names of files that a job declares; `declared` groups and proves such files, and
  `contents` reads one of them.
- `files` reads a checkpoint on a file system or in an object store, with bounds; `remote` names a
  place in an object store, and `fetch` copies a checkpoint from there, completely or not at all.
- `marks` are files next to the checkpoints that exclude some from a search; `mark_command` writes
  one.
- `resume` answers where a start resumes. `hpctl checkpoint last`, which the preamble of `hpctl
  sbatch` calls, `hpctl run`, the elastic launcher and in-process restarts all call it.
- `fast` keeps saves on the disks of the nodes and replicates them.
- `hpctl_checkpoint` is a single file that users copy next to their program. It needs Python 3.8 and
  no other part of hpctl.
- `explain` describes a job's checkpoints for `hpctl explain`.
- `first_save` writes to a job's log what hpctl recognizes of its first save.
- `save_interval` computes how often to save; `run_records` holds the records of earlier attempts.

The code runs inside jobs, as the owner of the job, and in commands (`command`, `advise`). The
daemon does not read checkpoints.

Begin with `search.py`, `files.py` and `formats/manifest.py`. Nothing here executes what a
checkpoint contains: pickles are read by `formats/pickle_reader.py`. In a job's checkpoint directory
nothing that a training program saved is deleted; `fast` removes old steps from the nodes' disks.
"""
