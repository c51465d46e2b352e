"""How likely a node breaks within 1, 7 and 30 days.

`history` reads breaks and exposure of each instance from the journal, `decide` turns them into
probabilities by a gamma-Poisson model with published priors; both are pure. `command` is
`hpctl cluster forecast`, which also shows how right earlier forecasts were. `history.rank_risks`
orders burn-ins. A forecast never drains a node.
"""
