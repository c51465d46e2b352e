"""Kernel log lines: which of them matter, and what finding each becomes. Pure.

`log` sorts a batch of records and picks the families whose lines begin like each record; a family
(`xid`, `nvme`, `lockup`, ...) is one module. `line` makes the finding. What a line means for the
node is its row in `hpctl.faults.table`.
"""
