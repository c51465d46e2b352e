"""Grey failures: nodes that are slow or lossy compared with their peers, and report no fault.

`decide` is pure: peers are the nodes of one job, and a node is found when it stands out by its own
signals in several of the last windows. `daemon` keeps the windows in memory, and adds the
findings, with those about a node's history, to the health of the nodes.
"""
