"""The journal: an append-only record of decisions and steps, from which the state is rebuilt.

`events` defines what is written, `state` folds events into memory; both are pure, and a running
daemon and a restarting one fold the same events. `reader` holds every query that reads the journal,
over a `source`: a SQLite file without SQLAlchemy (`sqlite_source`), for commands that must start
quickly, or any database through it (`database`, which has the tables, the migrations and the
meaning of errors, too). `rows` turns rows into values and back. `store` is the reader that also
writes, with the lease and its epoch; `audit_chain` holds the chain of audit records. `check`,
`backup` and `restore` are behind `hpctl journal`. One daemon writes, and a corrupt journal stops
it.
"""
