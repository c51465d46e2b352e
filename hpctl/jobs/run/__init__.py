"""The step supervisor of `hpctl run`: it owns the steps of one allocation, and nothing else.

`supervise` is the loop and `steps` runs one step at a time. `allocation` is what is known of the
job's nodes, `trouble_handler` has troubles decided and reported, `history` keeps them. `output`
follows what a step prints, `progress` and `progress_notes` what its ranks report. `flight` has the
ranks write dumps when a collective times out, `timeouts` finds the rank for which it waited. Pure:
`ending`, `progress`. Only `srun` starts processes.
"""
