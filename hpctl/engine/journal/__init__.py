"""The journal: an append-only record of decisions and steps, from which the state is rebuilt.

`events` defines what is written, `state` folds events into memory; both are pure, and a running
daemon and a restarting one fold the same events. `store` keeps them in SQLite, MariaDB or
PostgreSQL, with the lease, its epoch and the chain of audit records; `database` holds the tables,
the migrations and the meaning of errors. `rows` reads a SQLite journal without SQLAlchemy, for
commands that must start quickly. `check`, `backup`, `restore` and `copies` are behind `hpctl
journal`. One daemon writes, and a corrupt journal stops it.
"""
