"""The step supervisor of `hpctl run`: it owns the steps of one allocation, and nothing else.

Pure parts: `words` (srun's command line), `said` (what srun says), `choose`, `ending`, `grow`,
`banner`. `launch` alone starts processes; `supervise` is the loop.
"""
