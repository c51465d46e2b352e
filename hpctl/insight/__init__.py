"""What the facts and the journal show beyond a single fault.

The room promises that what it finds comes with its evidence, and that a forecast never drains a
node.

- `grey` finds nodes that are slow or lossy compared with the other nodes of their job.
- `forecast` estimates how likely a node breaks within days.
- `report` sums up a period: what failed, what it cost, what was saved.

`grey/daemon.py` runs in the daemon and adds its findings to those of the agents. The forecast
orders burn-ins and adds findings in the daemon; otherwise a command computes it. `report` and the
commands only read.

Each `decide.py` is pure, and so is `forecast/history.py`. Begin with `grey/decide.py`.
"""
