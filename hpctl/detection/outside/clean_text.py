"""Text that a script or another tool computed, made fit for a finding: cleaned, never refused."""

import re

MAX_CODE = 64

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


_NO_CODE = re.compile(r"[^A-Za-z0-9_.:+-]+")


def sanitize_finding_code(text: str) -> str:
    """Return a finding's code: what a code may not hold becomes `_`. Empty for an empty text."""
    return _NO_CODE.sub("_", text.strip())[:MAX_CODE]


def sanitize_text_line(text: str, limit: int) -> str:
    """Return one line without control characters, which terminals execute."""
    return _CONTROL.sub(" ", text).strip()[:limit]
