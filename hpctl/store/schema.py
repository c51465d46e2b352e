"""The journal's tables, the same on SQLite, MariaDB and PostgreSQL."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects.mysql import LONGTEXT

metadata = MetaData()
_id = BigInteger().with_variant(Integer, "sqlite")
# MariaDB's TEXT ends at 64 KiB, its FLOAT has 24 bits, and its default collation takes Node1
# for node1.
_text = Text().with_variant(LONGTEXT, "mysql", "mariadb")
_server: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}

meta = Table(
    "hpctl_meta",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("value", String(64), nullable=False),
    **_server,
)

events = Table(
    "hpctl_events",
    metadata,
    Column("seq", _id, primary_key=True, autoincrement=True),
    Column("kind", String(32), nullable=False),
    Column("payload", _text, nullable=False),
    Index("hpctl_events_kind", "kind"),
    sqlite_autoincrement=True,
    **_server,
)

past = Table(
    # What ended long ago: read to explain it, and never replayed by a daemon. It came later than
    # the other tables and changes none of them, so the schema's number is still the same.
    "hpctl_past",
    metadata,
    Column("seq", _id, primary_key=True, autoincrement=False),
    # Of the end of the whole that an event belongs to, so that all of it is deleted at once: days
    # since 0001-01-01, UTC.
    Column("day", Integer, nullable=False),
    Column("recovery", String(32), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("payload", _text, nullable=False),
    Index("hpctl_past_day", "day"),
    Index("hpctl_past_recovery", "recovery"),
    **_server,
)

audit = Table(
    # Who asked what, and by which configuration the daemon acted: each row's digest covers the
    # one before it, and nothing here is ever retired. Later than the other tables, like `past`.
    "hpctl_audit",
    metadata,
    Column("seq", _id, primary_key=True, autoincrement=True),
    Column("kind", String(32), nullable=False),
    Column("payload", _text, nullable=False),
    Column("digest", String(64), nullable=False),
    sqlite_autoincrement=True,
    **_server,
)

agents = Table(
    "hpctl_agents",
    metadata,
    Column("node", String(255), primary_key=True),
    Column("instance", String(64), nullable=False),
    Column("boot", String(64), nullable=False),
    Column("last_heard", Double, nullable=False),
    Column("findings", _text, nullable=False),
    **_server,
)

heard = Table(
    "hpctl_heard",
    metadata,
    Column("id", Integer, primary_key=True),
    # One row for all nodes: ten thousand of them are heard every ten seconds.
    Column("times", _text, nullable=False),
    **_server,
)

requests = Table(
    "hpctl_requests",
    metadata,
    Column("id", _id, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("verb", String(32), nullable=False),
    Column("target", String(255), nullable=False),
    Column("asked_by", String(255), nullable=False),
    Column("taken", Boolean, nullable=False, default=False),
    sqlite_autoincrement=True,
    **_server,
)

lease = Table(
    "hpctl_lease",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("epoch", Integer, nullable=False),
    Column("until", Double, nullable=False),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", String(32), nullable=False),
    Column("mode", String(16), nullable=False),
    Column("started", Double, nullable=False),
    Column("heartbeat", Double, nullable=False),
    Column("last_cycle_s", Double, nullable=False),
    Column("trouble", _text, nullable=False),
    **_server,
)
