"""Removal of secrets and of people's addresses from text that leaves a node.

Every pattern is bounded, so that a line that was made to be slow costs time by its length only.
What looks like a secret and is none is lost with it: a support case can do without.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

REMOVED: Final = "[redacted]"
MOST_LINE: Final = 8192
"""Characters of a line that are kept. The rest is dropped, so that no secret is cut in two."""

KEY_LINES: Final = 400
"""Lines of a private key; the largest in use has some 200."""

_NAMES: Final = (
    r"pass(?:word|wd|phrase|code)?|pwd|secret|token|credentials?|authorization|bearer|"
    r"api[-_]?key|access[-_]?key(?:[-_]?id)?|private[-_]?key|account[-_]?key|signing[-_]?key|"
    r"signature|cookie|x-amz-security-token|x-amz-credential"
)
_VALUE: Final = r"(?:\"[^\"]{0,4096}\"?|'[^']{0,4096}'?|[^\s\"',;&]{1,4096})"
_NAMED: Final = re.compile(
    # The name may be a part of a longer one: HF_TOKEN, --wandb-api-key, "db_password".
    rf"((?:{_NAMES})[\w.-]{{0,64}}[\"']?)(\s{{0,8}}(?:[:=]|=>|\bis\b)\s{{0,8}}|\s{{1,8}})"
    rf"((?:bearer|basic|token)\s{{1,8}})?{_VALUE}",
    re.IGNORECASE,
)
_VARIABLE: Final = re.compile(rf"\b([A-Z][A-Z0-9]{{0,63}}_[A-Z0-9_]{{1,128}}=){_VALUE}")
_USERINFO: Final = re.compile(r"(://)[^\s/@]{1,512}@")
_MAIL: Final = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
_KEYS: Final = re.compile(
    r"\b(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA|AROA|AIDA|AGPA|ANPA|APKA)[A-Z0-9]{12,124}"
    r"|\bgh[pousr]_[A-Za-z0-9]{16,255}|\bgithub_pat_\w{16,255}|\bglpat-[\w-]{16,64}"
    r"|\bhf_[A-Za-z0-9]{16,64}|\bxox[a-z]-[\w-]{8,255}|\bsk-[\w-]{16,255}|\bAIza[\w-]{30,64}"
    r"|\bnvapi-[\w-]{16,128}|\beyJ[\w-]{8,2048}\.[\w-]{4,4096}(?:\.[\w-]{0,4096})?"
)
_SECRET_KEY: Final = re.compile(
    # An AWS secret access key has no prefix: forty characters of base64.
    r"(?<![\w/+])(?=[A-Za-z0-9/+]{0,39}[A-Z])(?=[A-Za-z0-9/+]{0,39}[a-z])"
    r"(?=[A-Za-z0-9/+]{0,39}[0-9])[A-Za-z0-9/+]{40}(?![\w/+])"
)
_LONG: Final = re.compile(r"[\w+/=-]{96,}")
_BEGIN: Final = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY")
_END: Final = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY")


def redact_line(line: str) -> str:
    """Return a line without what looks like a secret or a mail address."""
    line = _USERINFO.sub(rf"\1{REMOVED}@", line)
    line = _NAMED.sub(rf"\1\2{REMOVED}", line)
    line = _VARIABLE.sub(rf"\1{REMOVED}", line)
    line = _KEYS.sub(REMOVED, line)
    line = _SECRET_KEY.sub(REMOVED, line)
    line = _LONG.sub(REMOVED, line)
    return _MAIL.sub(REMOVED, line)


def redact_stream(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a stream of bytes, each redacted and of MOST_LINE characters at most.

    Every line of a private key is removed, KEY_LINES at most where its end is missing.
    """
    of_key = 0
    for raw in _split_bounded_lines(chunks):
        line = raw.decode("utf-8", "replace").replace("\0", " ")
        if _BEGIN.search(line):
            of_key = KEY_LINES
        if of_key:
            of_key = 0 if _END.search(line) else of_key - 1
            yield REMOVED.encode() + b"\n"
            continue
        yield redact_line(line).encode() + b"\n"


def _split_bounded_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines without their ends; of a line that is too long, its first MOST_LINE bytes."""
    rest = b""
    for chunk in chunks:
        lines = chunk.replace(b"\r", b"\n").split(b"\n")
        lines[0] = (rest + lines[0])[: MOST_LINE + 1]
        rest = lines.pop()[: MOST_LINE + 1]
        for line in lines:
            yield _truncate_line_at_blank(line)
    if rest:
        yield _truncate_line_at_blank(rest)


def _truncate_line_at_blank(line: bytes) -> bytes:
    """Cut a line at a blank, so that the part that is kept has no part of a secret at its end."""
    if len(line) <= MOST_LINE:
        return line
    kept = line[:MOST_LINE]
    return kept[: max(kept.rfind(b" "), 0)] + b" ..."
