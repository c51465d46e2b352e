"""Maintenance windows: nodes that an admin keeps for a while in a reservation with the flag MAINT.

The room promises that the jobs on the nodes of a window that `hpctl maintenance add` plans are
asked to save and move before it begins, that hpctl does nothing to a node within a window, no
matter who made its reservation, and that a node serves after a window only once it is verified.

A window is a change of kind MAINTENANCE (`hpctl.vocabulary.change`). Its reservation is Slurm's, so
that slurmctld keeps jobs away and ends the window though no daemon runs. A reservation that an
admin made is followed from its beginning. One that an admin changes ends its change, and another
one follows it.

- `decide` is pure: which windows are followed, what an open one does next, and which nodes are
  closed, before a window and shortly before its end.
- `requests` is pure: the answers to `hpctl maintenance add` and `end`.
- `kind` is what the engine drives.
- `command` holds `hpctl maintenance`; `jobs_ahead` says what becomes of the jobs.

Making room and verifying are node recoveries of the rules `maintenance-begins` and
`maintenance-over` (`hpctl.nodes.advance`). Begin with `decide.py`.
"""
