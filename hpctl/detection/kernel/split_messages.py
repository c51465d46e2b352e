"""Join the records of one message of NVIDIA's driver: a GPU that fell off the bus.

Not patterns of rows: the GPU's address and what happened to it are in different lines.

    NVRM: The NVIDIA GPU 0000:b3:00.0
    NVRM: (PCI ID: 10de:26b5) installed in this system has
    NVRM: fallen off the bus and is not responding to commands.

The driver prints them at once (osapi.c, RmInitAdapter's probe), and /dev/kmsg has one record; a
saved log and older kernels have one record a line, and some forms break the second line in two.
A message is joined only within bounds: one at a time, of parts that have exactly these texts,
within `FOLLOWS` and `APART` records of its first part. What does not fit is judged as one line. No
part is a fault except the last, which may come without the others; with a first part that names
no address it is none. The GPU's vendor and product (`10de:26b5`) are no address.
"""

import re
from datetime import timedelta

from msgspec.structs import replace

from hpctl.detection.kmsg import KernelRecord

PART_HEAD = "NVRM"
"""The first four characters of each part."""
LONGEST_PART = 96
"""Characters of a part: all longer lines are other messages."""
FOLLOWS = timedelta(seconds=2)
APART = 8
"""Records from the first part to the last: other processors print in between."""

_NAME = r"[\w.:-]{1,40}"
"""What the first part calls the GPU: the row of Xid 79 tells an address from other names."""
_IDS = r"\(PCI ID: [0-9a-fA-F]{4}:[0-9a-fA-F]{4}\)"
_INSTALLED = "installed in this system has"
_FIRST = re.compile(rf"NVRM: (?:The NVIDIA )?GPU (?:at )?{_NAME}(?: {_IDS})?(?: {_INSTALLED})?")
_MIDDLE = re.compile(rf"NVRM: (?:{_IDS}(?: {_INSTALLED})?|{_INSTALLED})")
_LAST = "NVRM: fallen off the bus"


class KernelMessageJoiner:
    """Join the parts of a message as they come. It holds the text of one message at most."""

    def __init__(self) -> None:
        self._first: KernelRecord | None = None
        self._text = ""

    def join(self, record: KernelRecord) -> KernelRecord:
        """Return the record, with the text of the parts before it where it is the last part."""
        text = record.text.rstrip()
        if _FIRST.fullmatch(text):
            self._first, self._text = record, text
            return record
        first = self._first
        if first is None:
            return record
        if not _is_next_message_part(first, record):
            self._first = None
        elif _MIDDLE.fullmatch(text) and len(self._text) < 2 * LONGEST_PART:
            self._text = f"{self._text} {text}"
        elif text.startswith(_LAST):
            self._first = None
            return replace(record, text=f"{self._text} {text}")
        return record


def _is_next_message_part(first: KernelRecord, record: KernelRecord) -> bool:
    return record.seq - first.seq <= APART and abs(record.at - first.at) <= FOLLOWS
