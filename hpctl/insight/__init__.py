"""What the facts and the journal say beyond a single fault, and the views that show it.

The room promises that the commands and the web page say the same thing: `status_view`,
`nodes_view` and `explain_view` build one value each from the world that
`hpctl/engine/world_reader.py` reads: the daemon's, of its last cycle. The commands print it, the
page renders it.

- `grey` finds nodes that are slow or lossy beside the other nodes of their job.
- `forecast` estimates how likely a node breaks within days.
- `report` sums up a period: what failed, what it cost, what was saved.

`grey/daemon.py` runs in the daemon and adds its findings to those of the agents. The forecast
orders burn-ins and adds findings in the daemon; otherwise a command computes it. The views,
`report` and the commands only read.

Each `decide.py` is pure, and so are `nodes_view` and `forecast/history.py`.

Begin with `explain_view.py`, then `grey/decide.py`. A forecast never drains a node. A view never
leaves out that a source could not be read: what is unknown is shown as unknown, with the reason.
"""
