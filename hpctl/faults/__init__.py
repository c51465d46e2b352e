"""What a fault is, and what the findings about a node amount to.

The room promises that a fault is one row of data. The rows are Markdown tables beside the code
(`gpu.md`, `fabric.md`, `host.md`, `kernel.md`, `outside.md`): code, meaning, remedies, source. The
agent, the decision, the generated catalogue and the tests read the same rows.

1. `table` reads the rows: one FaultRow per code, one HealthCheckSpec per check.
2. `decode` reads what a line of a driver says beyond its number.
3. `catalogue` makes rules of the rows and applies the overrides of a site.
4. `health` folds the reports of an agent into what is known of its node.
5. `hma_marks` and `reachability` turn what Slurm and the cloud say of a node into findings.
6. `incidents` groups findings of one moment; `assess` returns Healthy, Suspect, Faulty with a
   rule, or Unknown.

The agent uses `table` and `decode` to word a finding; the daemon and the read commands use all of
it. Everything is pure, but for `table`, which reads the tables that hpctl ships.

Begin with `table.py`, `gpu.md` and `assess.py`. UNKNOWN and silence never make a node healthier or
faulty. An assessment names a remedy ladder; whether a remedy is taken is decided by the engine.
"""
