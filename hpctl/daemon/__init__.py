"""The composition root: one process on the head node that wires the rooms together.

The room promises an orderly life: one daemon at a time by lock and lease, a configuration that is
either accepted whole or rejected with the old one kept, and an end that leaves jobs alone.

- `main` reads the configuration, takes locks and lease, builds the adapters and the objects of the
  other rooms, and runs `hpctl/engine/loop.py` until SIGTERM. SIGHUP reads the configuration again.
  A daemon without the lease stands by, follows the journal and takes over.
- `kinds` is the explicit list of the kinds of recovery that the engine drives. A feature that is a
  kind is removed by deleting its modules and its line.
- `command` holds `hpctl daemon`, `hpctl page` and `hpctl config`.

Threads and processes that `main` starts: the loop on the main thread, the calls to the cloud and
the renewal of the lease on threads, the intake and the page as processes.

Begin with `kinds.py`, then `Daemon._make_loop` in `main.py`. The room decides nothing: a rule
about nodes or jobs belongs to the room of its concept.
"""
