"""What torch's own checks of collectives say about the ranks.

`monitored_barrier` names the ranks that are missing on rank 0. With
`TORCH_DISTRIBUTED_DEBUG=DETAIL` torch compares what the ranks call before each collective, and
each rank prints what it calls and what one other rank calls. None of them says which rank is wrong.

The regular expressions have no nested repeats, and lines are of bounded length.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

_BARRIER: Final = re.compile(
    r"\bRanks? (\d{1,7}(?:, \d{1,7}){0,64}) failed to pass monitoredBarrier"
)
"""What torch's monitored_barrier says (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp)."""
_CALL: Final = re.compile(
    r"\bRank (\d{1,7}) is running collective: CollectiveFingerPrint\(([^()]{1,900})"
)
"""What a rank calls (torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp, torch 2.13), up to the
parenthesis that begins its tensors' devices: those differ by rank."""
_FIELD: Final = re.compile(r"(OpType|TensorShape|SequenceNumber)=([^=]{1,400}?)(?:, (?=[A-Z])|$)")


def find_ranks_missing_from_barrier(lines: Iterable[str]) -> tuple[str, int | None] | None:
    """Return who did not come to a monitored barrier, as a sentence, and the rank where it is one;
    None where no line names a rank."""
    found = next(filter(None, map(_BARRIER.search, lines)), None)
    if found is None:
        return None
    ranks = found[1].split(", ")
    who = f"rank {found[1]}" if len(ranks) == 1 else f"ranks {found[1]}"
    return f"{who} did not come to a monitored barrier", int(ranks[0]) if len(ranks) == 1 else None


def find_mismatched_collective(lines: Iterable[str]) -> tuple[str, int | None] | None:
    """Return how the ranks' calls differ, as a sentence, and the rank whose call differs from that
    of all others; None where no line shows two calls.

    The rank is None where several ranks differ, or where two ranks differ from each other.
    """
    calls: dict[int, str] = {}
    for line in lines:
        for rank, call in _CALL.findall(line):
            calls.setdefault(int(rank), call)
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, call in sorted(calls.items()):
        ranks[call].append(rank)
    if len(ranks) < 2:
        return None
    fewest, *_, most = sorted(ranks, key=lambda call: len(ranks[call]))
    if len(ranks) == 2 and len(ranks[fewest]) == 1 < len(ranks[most]):
        (rank,) = ranks[fewest]
        others = len(ranks[most])
        why = (
            f"rank {rank} calls {_describe_collective_call(fewest)},"
            f" {others} others {_describe_collective_call(most)}"
        )
        return why, rank
    return f"the ranks' calls differ: {_format_collective_calls(ranks)}", None


def _format_collective_calls(ranks: Mapping[str, list[int]]) -> str:
    """Return the first calls, each with its first rank."""
    shown = [f"rank {those[0]} {_describe_collective_call(call)}" for call, those in ranks.items()]
    return ", ".join(shown[:3])


def _describe_collective_call(call: str) -> str:
    """Return a call for a person: `ALLGATHER of [4] (number 65)`."""
    fields = dict(_FIELD.findall(call))
    shape = f" of {fields['TensorShape']}" if "TensorShape" in fields else ""
    number = f" (number {fields['SequenceNumber']})" if "SequenceNumber" in fields else ""
    return f"{fields.get('OpType', call[:40])}{shape}{number}"[:120]
