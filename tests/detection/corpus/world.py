"""The files of a case's machine, as they are at one time."""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.detection.corpus.case import Case, Signal
from tests.sysfs_tree import EmulatedSysfsTree

IN_SERVICE = {
    "efa": {
        "keep_alive_rcvd": {"rate": 1 / 3, "start": 1000},
        "tx_pkts": {"rate": 2e6, "start": 10**9},
        "rx_pkts": {"rate": 2e6, "start": 10**9},
        "tx_bytes": {"rate": 1e10, "start": 10**13},
        "rx_bytes": {"rate": 1e10, "start": 10**13},
    },
    "neuron": {},
}
"""How the counters of a device in service grow."""


class World:
    """Files under a root that follow the case's signals."""

    def __init__(self, root: Path, case: Case) -> None:
        self._root, self._at = root, -1.0
        self._files = {path: Signal.of(value) for path, value in (case.files or {}).items()}
        self._counters: dict[tuple[str, str], Signal] = {}
        self._last: dict[Any, Any] = {}
        self._tree: EmulatedSysfsTree | None = None
        if case.devices is not None:
            self._tree = EmulatedSysfsTree(root)
            self._add(self._tree, case)

    def at(self, seconds: float) -> None:
        """Write what has changed; a value of None takes a file away."""
        if seconds == self._at:
            return
        self._at = seconds
        for path, signal in self._files.items():
            if self._changed(path, value := signal.at(seconds)):
                self._put(self._root / path.lstrip("/"), value)
        for (device, name), signal in self._counters.items():
            if self._tree is not None and self._changed((device, name), v := signal.at(seconds)):
                self._count(self._tree, device, name, v)

    def _add(self, tree: EmulatedSysfsTree, case: Case) -> None:
        for kind, count in (case.devices or {}).items():
            for number in range(count):
                device = f"{kind}{number}"
                if kind == "efa":
                    tree.add_efa_device(device)
                else:
                    tree.add_neuron_device(number)
                usual = {name: Signal.of(v) for name, v in IN_SERVICE[kind].items()}
                self._counters |= {(device, name): s for name, s in usual.items()}
                for path, value in case.counters.items():
                    pattern, _, name = path.partition(".")
                    if fnmatchcase(device, pattern):
                        self._counters[device, name] = Signal.of(value)

    def _changed(self, key, value) -> bool:
        before, self._last[key] = self._last.get(key, self), value
        return bool(before != value)

    def _put(self, file: Path, value) -> None:
        if value is None:
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")

    def _count(self, tree: EmulatedSysfsTree, device: str, name: str, value) -> None:
        if device.startswith("neuron"):
            self._put(
                tree.find_neuron_counter_file(int(device.removeprefix("neuron")), name), value
            )
        elif name == "state":
            tree.state(device, value, "5: LinkUp" if "ACTIVE" in value else "3: Disabled")
        else:
            tree.set(device, name, value)
