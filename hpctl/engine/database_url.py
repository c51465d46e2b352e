"""The URL of the journal's database: what it must be, and what of it may be shown.

It may hold a password, as its own part or as one of its options. Messages, the audit trail and
`hpctl config show` reach users that must not have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import URL

_SHAPE = (
    "database_url is no URL such as postgresql://hpctl@db.example/hpctl;"
    " in a password write @ as %40, : as %3A and / as %2F"
)


def parse_database_url(text: str) -> URL:
    """Return the URL. Raises ValueError, which repeats nothing of the text."""
    # Here, for it takes a tenth of a second, and most commands have no such URL.
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise ValueError(_SHAPE) from None
    if "@" in (url.host or ""):  # what follows a password's own @ is taken for the host
        raise ValueError(_SHAPE)
    return url


def mask_url_password(url: URL) -> str:
    """Return a URL with a mark in place of its password, and without options that are one."""
    query = {name: value for name, value in url.query.items() if not _is_url_password_option(name)}
    return url.set(query=query).render_as_string()


def mask_database_url_password(url: URL) -> str:
    """Return the URL of a database without its password, or a mark where one was."""
    return mask_url_password(url).replace(":***@", "@", 1)


def has_url_password(url: URL) -> bool:
    """Return whether a URL holds a password."""
    return bool(url.password) or any(map(_is_url_password_option, url.query))


def _is_url_password_option(option: str) -> bool:
    return "pass" in option.lower()
