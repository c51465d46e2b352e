"""Identities of the machine replaced by others of the same form, the same one everywhere.

What comes back from a GPU machine is committed as recordings. A card's UUID, serial number and PDI
(`nvidia-smi -q -x`) identify it; a host name and paths identify the machine.
"""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

GPU_UUID = re.compile(r"(?<=GPU-|MIG-)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
SERIAL = re.compile(
    r"(?:<serial>|<chassis_serial_number>|Serial Number\s*: ?|nvmlDeviceGetSerial\W+)([0-9]{8,20})"
)
PDI = re.compile(r"<pdi>0x([0-9a-f]{16})</pdi>")


class Redactor:
    """Knows the identities that stand in the texts which it was shown.

    `words` are further words to replace, by their replacement: the host's name, folders.
    """

    def __init__(self, words: Mapping[str, str] | None = None) -> None:
        self._replaced: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._words = {word: new for word, new in (words or {}).items() if len(word) > 3}

    def learn(self, texts: Iterable[str]) -> None:
        """Find the identities in texts. Every text must be shown before the first is replaced:
        a bare number is known as a serial number from another place alone."""
        for text in texts:
            for uuid in GPU_UUID.findall(text):
                self._rename("uuid", uuid, "{:08x}-1111-2222-3333-444444444444")
            for serial in SERIAL.findall(text):
                self._rename("serial", serial, f"165{{:0{len(serial) - 3}d}}")
            for pdi in PDI.findall(text):
                self._rename("pdi", pdi, "aaaaaaaa{:08x}")

    def text(self, text: str) -> str:
        """Return a text with every known identity replaced."""
        for old, new in self._replaced.items():
            text = text.replace(old, new)
        # The longest first: one folder may lie in another.
        for old in sorted(self._words, key=len, reverse=True):
            text = text.replace(old, self._words[old])
        return text

    def value(self, value: Any) -> Any:
        """Return a value of strings, lists, tuples and dicts with every text in it replaced."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return type(value)(self.value(item) for item in value)
        if isinstance(value, dict):
            return {self.value(key): self.value(item) for key, item in value.items()}
        return value

    def file(self, name: str, raw: bytes) -> bytes:
        """Return a file's content with every text in it replaced; a pickle is written anew."""
        if name.endswith(".pickle"):
            # Written by a part of this very run.
            return pickle.dumps(self.value(pickle.loads(raw)))
        return self.text(raw.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def _rename(self, kind: str, old: str, form: str) -> None:
        # An identity of zeros is a stand-in already.
        if old in self._replaced or not old.strip("0-"):
            return
        self._replaced[old] = form.format(self._counts[kind])
        self._counts[kind] += 1
