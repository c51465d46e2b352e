"""The step supervisor of `hpctl run`: it owns the steps of one allocation, and nothing else.

`supervise` is the loop and `steps` runs one step at a time. `allocation` is what is known of the
job's nodes, `trouble_handler` has troubles decided and reported, `history` keeps them. Pure:
`ending`. `srun` alone starts processes.
"""
