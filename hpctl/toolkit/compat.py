"""What Python 3.10 lacks, under the names and with the behaviour that 3.11 gives it.

3.10 is the system's Python of HyperPod's AMIs (docs/adr/0037-python-3-10.md). Nothing else
in the package asks for the interpreter's version.
"""

import re
from datetime import datetime, timezone
from enum import Enum

UTC = timezone.utc


class StrEnum(str, Enum):
    """An enumeration whose members are their values, in `str()` and `format()` too."""

    __str__ = str.__str__
    __format__ = str.__format__  # type: ignore[assignment]  # a C function, no Callable


SAFE_PATH = (
    "-c",
    "import sys; sys.path = [p for p in sys.path if p]; import runpy;"
    " runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)",
)
"""`python *SAFE_PATH MODULE ARGUMENTS...` is `python -P -m MODULE ARGUMENTS...` of 3.11: nothing is
imported from the current directory, where a user's `json.py` may lie."""

_ISO = re.compile(
    r"(\d{4})-?(\d\d)-?(\d\d)"
    r"(?:.(\d\d)(?::?(\d\d)(?::?(\d\d)(?:[.,](\d+))?)?)?(?:(Z)|([+-]\d\d):?(\d\d)?)?)?",
    re.ASCII,
)


def parse_iso_time(text: str) -> datetime:
    """`datetime.fromisoformat` of 3.11: `Z`, basic format and any number of decimals.

    3.10 reads what `isoformat()` writes and nothing else. Week dates and seconds in the offset are
    read by neither. Decimals beyond microseconds are cut. Raises ValueError.
    """
    found = _ISO.fullmatch(text)
    if not found:
        raise ValueError(f"Invalid isoformat string: {text!r}")
    year, month, day, hour, minute, second, decimals, zulu, hours, minutes = found.groups()
    offset = "+00:00" if zulu else f"{hours}:{minutes or '00'}" if hours else ""
    clock = f"{hour or '00'}:{minute or '00'}:{second or '00'}.{(decimals or '0')[:6]:0<6}"
    return datetime.fromisoformat(f"{year}-{month}-{day}T{clock}{offset}")
