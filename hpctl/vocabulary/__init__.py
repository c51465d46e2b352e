"""The values that all rooms share: facts, recoveries and their tables, policies, ports.

The room promises one type for each thing and one meaning for each type. Values are frozen structs;
times are aware datetimes in UTC; UNKNOWN is neither healthy nor faulty.

- Facts: `identity` (names of nodes, instances, jobs and recoveries), `model` (findings and
  reports), `slurm_facts`, `cloud_facts`, `assessment`, `hang`, `trouble`, `demand`.
- Durable treatments: `node_recovery`, `job_recovery` and `change` each hold the record of
one kind
  of treatment and its transition table. A pair of phase and signal that is not in the table raises
  IllegalRecoverySignalError. `recovery` holds what the kinds share: steps, and how a step is
  repeated safely.
- Numbers that decide: `policy` (the defaults of the daemon), `run_policy` and `policy_file` (what
  is done when a run fails).
- `ports`: protocols that adapters implement, with the promise which errors they raise.
- `isolation`: `each` handles every node or job on its own. An exception about one of them becomes
  a Flaw of that one, and the others go on.

The records and tables lie here, and not with the rooms that advance them, because the engine, the
journal and the commands all read them. What moves a record is in the `advance.py` of `nodes`,
`jobs` and `capacity`.

Every file is pure (no clock, no I/O, no logging, no randomness), but for `policy_file`, which
reads the YAML of users. Begin with `model.py`, `recovery.py` and `ports.py`. The room decides
nothing about a particular node or job.
"""
