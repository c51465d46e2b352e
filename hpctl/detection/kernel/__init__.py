"""Kernel log lines: which of them matter, and what finding each becomes. Pure.

`log` sorts a batch of records and picks the readers of each line by its beginning. `patterns`
matches a line against the rows of the fault tables (hpctl/faults/kernel.md). What a row cannot
express is read by `xid` and `xid74` (numbers and registers of GPUs), `processor_errors` (counts and
status words), `out_of_memory` (whose process was killed), `traces` (two lines that belong together)
and `unknown_driver_lines` (words of failure in lines without a row). `line` makes the finding.
"""
