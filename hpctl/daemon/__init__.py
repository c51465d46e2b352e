"""The composition root: one process on the head node that wires the rooms together.

The room promises an orderly life: one daemon at a time by lock and lease, a configuration that is
either accepted whole or rejected with the old one kept, and an end that leaves jobs alone.

- `composition` reads the configuration, takes the locks, and builds every object once, in order.
- `lifecycle` holds `Daemon`: stand by, take over, cycle until SIGTERM, end in order. Each part has
  a file: `standby`, `takeover`, `cycle` with `follow_up`, `pause` and `cloud_pace`.
- `main` runs one daemon to its end and executes the program again after a lost lease.
- `reload` is what SIGHUP does, with the list of the sections that need a restart;
  `configuration_audit` writes the configuration to the journal.
- `health` logs and stores troubles and flaws, `readiness` talks to systemd, `journal_guard` waits
  for a journal that is away, `signals` notes the signals.
- `locks` and `controller_watch` are what their names say.
- `kinds` is the explicit list of the kinds of recovery that the engine drives, `intake` that of the
  routes of the intake's process, `configuration_checks` that of `hpctl config check`. With
  `composition` they are the list of features: one is removed by deleting its room and its lines.
- `command` holds `hpctl daemon` and `hpctl config`, `page_command` `hpctl page`.

Threads and processes: the loop on the main thread; the calls to the cloud, the renewal of the lease
and the readers of the world on threads; the intake and the page as processes.

Begin with `composition.py`, then `lifecycle.py` and `cycle.py`. The room decides nothing: a rule
about nodes or jobs belongs to the room of its concept.
"""
