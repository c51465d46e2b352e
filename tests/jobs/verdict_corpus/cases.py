"""A run of the corpus: a program, where it runs, what goes wrong, and the truth about it."""

import random
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

CAUSES: dict[str, tuple[str, ...]] = {
    "exception": ("program", "data"),
    "host_memory": ("memory",),
    "device_memory": ("memory",),
    "killed": ("unknown", "preemption"),
    "stopped": ("unknown", "preemption"),
    "gil_held": ("program",),
    "skipped_collective": ("program",),
    "wrong_shape": ("program",),
    "wrong_order": ("program",),
    "slow_rank": ("program", "unknown"),
    "dead_loader": ("data",),
    "disk_full": ("storage",),
    "storage_stall": ("storage",),
    "network_cut": ("link",),
}
"""The causes that are right for each kind, the best first.

A rank that a signal from outside ends or stops leaves no sign of its sender. A rank that is slow by
its own code leaves the same sign as one whose processor is slow.
"""


class Case(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run. `nodes` is the number of ranks of each node, and `rank` is the culprit.

    `launcher` starts the ranks: `plain` as srun does, or torchrun, accelerate, deepspeed, spawn or
    lightning, where the program's trainer starts them.

    `part` replaces `action` at `step`, from then on where it is `lasting`. `outside` is what the
    runner does to the rank or its node at that step. `timeout_s` is the process group's, in
    seconds. `address_mib` is how far the culprit's address space may grow, `memory_mib` bounds its
    control group, `disk_mib` is the size of the folder of checkpoints, `file_kib` that of the
    largest file that the culprit may write. `stall` is what does not answer: a mount, or the holder
    of a lock. `labelled`: each line of the log begins with its task, as with `srun --label`.
    `culprit` is the rank that a verdict has to name: None where it is a node, -1 for `rank`.
    """

    name: str
    kind: str
    program: str
    nodes: tuple[int, ...]
    rank: int
    step: int
    launcher: str = "plain"
    part: str = ""
    action: str = ""
    how: str = ""
    lasting: bool = False
    outside: str = ""
    timeout_s: int = 600
    workers: int = 0
    address_mib: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    file_kib: int = 0
    stall: str = ""
    labelled: bool = False
    note: str = ""
    culprit: int | None = -1
    seed: int = 0

    @property
    def world(self) -> int:
        """Return the number of ranks."""
        return sum(self.nodes)

    def find_node(self, rank: int) -> int:
        """Return the number of a rank's node."""
        for node, count in enumerate(self.nodes):
            if rank < count:
                return node
            rank -= count
        raise IndexError(rank)

    def make_truth(self) -> dict[str, object]:
        """Return what the run is known to be: its kind, its accepted causes, and the culprit."""
        named = self.rank if self.culprit == -1 else self.culprit
        return {
            "kind": self.kind,
            "cause": CAUSES[self.kind][0],
            "accepted": list(CAUSES[self.kind]),
            "rank": named,
            "node": f"n{self.find_node(self.rank) + 1}",
            "note": self.note,
        }


def vary_cases(cases: Sequence[Case], seed: int) -> list[Case]:
    """Return the cases with steps and seeds by `seed`; 0 leaves the steps as they are listed.

    Step 0 stays: it is the start-up.
    """

    found = []
    for number, case in enumerate(cases):
        choice = random.Random(seed * 1000 + number)
        later = choice.randrange(0, 4) if seed and case.step else 0
        found.append(replace(case, step=case.step + later, seed=seed * 1000 + number))
    return found
