"""Capacity: groups that grow and shrink, spare nodes, burn-in of idle nodes.

The room promises that a change of capacity is durable like a recovery, that instances are added at
most once for each change, that a removal is withdrawn when its node is wanted, and that a burn-in
gives way to a job that could use its node. The record of a change and its transition table are in
`hpctl.vocabulary.change`. A removal is a node recovery: `hpctl.nodes` carries it out.

1. `facts` reads from the view which nodes are idle, which jobs wait and what was changed before.
2. `autoscale` decides whether a group grows, shrinks or stays, with the reason.
3. `plan` opens changes: the autoscaler's, the spares' and burn-ins.
4. `removals` opens the recovery that removes a node, and says when it is withdrawn.
5. `advance` moves an open change, through `group_growth`, `spares` or `burn_in`.
6. `kind` hands this to the engine, as the last kind of a cycle: it plans after the journal has
   what the other kinds opened.

Spare nodes are kept idle in a reservation of Slurm. A job that restarts and lacks nodes gets as
many spares as it lost, the nearest first. Which node is burned in first comes from the forecast,
which `hpctl/daemon/kinds.py` hands over as a function, as it does the reader of a test's results.

All of it is pure and runs in the daemon, except `command` (`hpctl cluster autoscale`), which reads.

Begin with `plan.py` and `autoscale.py`. The room calls no port: the engine executes the steps. An
addition carries the id of the change as its client token where the API takes one.
"""
