"""What real GPUs answered, printed and logged: the ground truth of the tests' stand-ins.

One folder per card and driver; its README.md describes the machine and each file. A test that uses
a recording names the file, so that a reader can look at what the real component said.
"""

import json
from pathlib import Path
from typing import Any

H200 = Path(__file__).parent / "h200-580.159"


def read_text(name: str, card: Path = H200) -> str:
    """Return the text of one recording, for example "kmsg-crashes.txt"."""
    return (card / name).read_text(encoding="utf-8")


def read_json(name: str, card: Path = H200) -> Any:
    """Return the value of one recording in JSON, for example "crashes.json"."""
    return json.loads(read_text(name, card))


def read_kernel_records(name: str, card: Path = H200) -> list[str]:
    """Return the records of one recording of /dev/kmsg, in its own format, one a line."""
    return read_text(name, card).splitlines()
