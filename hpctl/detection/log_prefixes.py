r"""Strip what other tools print before each line of a kernel log.

    gpu-17: [12345.678901] TEXT                      pdsh, clush, `srun -l`
    /var/log/messages:4711:Nov 10 12:00:00 ...       grep
    [pod/agent-x2b/agent] [12345.678901] TEXT        kubectl logs --prefix
    dmesg-1  | [12345.678901] TEXT                   docker compose
    2026-11-10T12:00:00.123Z Nov 10 12:00:00 ...     CloudWatch, kubectl logs --timestamps
    2026-11-10T12:00:00Z {job="x"} [12.345] TEXT     logcli
    171 <4>1 2026-11-10T12:00:00Z ...                syslog over TCP
    > [12345.678901] TEXT                            a quotation
    1762776000123,i-0abc,Nov 10 12:00:00 ...         CloudWatch's CSV
    2026-11-10T12:00:00.1Z stdout F [12.345] TEXT    a container runtime's files
    2026-11-10 12:00:00    [12345.678901] TEXT       a console's recorder
    12:00:00  NVRM: TEXT                             a time of day, cut from a date
    ^[[32m[12345.678901] ^[[33mTEXT                  dmesg --color=always

A prefix is stripped only where the form of a log follows it, which then says who wrote the line. So
a prefix never makes a line of a program one of the kernel's. The exception is a time of day that a
line begins with, before `NVRM: `: the rest is a bare message, and syslog and the journal print no
program's name without a date. Behind a date or a host's name, `NVRM` is a program's name, which any
user may choose (`logger -t NVRM`).
"""

import re

_MOST = 3
"""Prefixes of one line: `grep` over files that `pdsh` wrote."""
_COLOR = re.compile(r"\x1b\[[\d;]{0,16}m")
_BOM = "\ufeff"

MONTH = r"(?:\d{1,2})?[^\W\d_]{1,12}\.?"
"""A month as the writer's language has it: `Nov`, `april`, `févr.`, `5月`."""
ISO_TIME = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_DATE = rf"{MONTH} [ \d]?\d (?:\d{{4}} )?\d\d:\d\d:\d\d"
_LEVEL = r"(?:emerg|alert|crit|err|error|warn|warning|notice|info|debug)"
DECODED = rf"([a-z]+\d?) *:(?:[a-z]+ *: | +{_LEVEL}: (?=\[))"
"""A facility and a level, as `dmesg -x` and `talosctl dmesg` print them."""
_FORM = (
    # What the form of a log begins with: a time since the boot, a date, a priority, kmsg's header.
    rf"(?=\[ *\+?\d{{1,10}}\.\d{{1,9}}[\] @<]|\[(?:[^\W\d_]{{1,12}}\.? )?{_DATE}|\[\d{{4}}-\d\d-"
    rf"|(?:[^\W\d_]{{1,12}}[.,]? )?{_DATE}|{ISO_TIME} |<\d{{1,3}}>|{DECODED}|\d+,\d+,\d+,[^;]*;)"
)
_TIMED = (
    rf"\"?(?:\d{{13}}|{ISO_TIME})\"?(?:,| {{1,8}})"
    r"(?:std(?:out|err) [FP] |\{[^}]{0,500}\} |[\w./:@-]{1,200}[, ])?\"?"
)
_PREFIX = re.compile(
    r"(?:[\w./@~+-]{1,200}:(?:\d{1,9}:)? {0,2}|[\w.-]{1,64} login: |\[pod/[\w./-]{1,200}\] "
    rf"|[\w.-]{{1,64}} {{1,32}}\| |(?:[>|*`] ?){{1,8}}"
    rf"|(?:[a-z]+\d?\.[a-z]+|\d{{1,5}}) (?=<)| {{1,5}}|{_TIMED}){_FORM}"
    r"|\d\d:\d\d:\d\d(?:[.,]\d{1,9})? {1,4}(?=NVRM: )"
)


def strip_log_prefixes(text: str) -> str:
    """Return a line without colors, and without what tools that collect logs put before it."""
    if "\x1b" in text:
        text = _COLOR.sub("", text)
    text = text.removeprefix(_BOM)
    for _ in range(_MOST):
        prefix = _PREFIX.match(text)
        if prefix is None:
            return text
        text = text[prefix.end() :]
    return text
