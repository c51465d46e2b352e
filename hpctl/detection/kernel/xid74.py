"""Read the registers of an Xid 74, which describe an NVLink."""

from collections.abc import Sequence

# The seven registers of an Xid 74 (NVLink, up to Hopper): what the set bits mean.
#
#     NVRM: Xid (PCI:0003:00:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error ...
#         link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)
#
# The table is NVIDIA's workflow for this code (WORKFLOW_NVLINK_ERR of the Xid catalogue). The
# first, third, fourth and fifth registers have meaning; the others have none.


def _make_bit_mask(*bits: int) -> int:
    return sum(1 << bit for bit in bits)


# (register, bits): their meaning, the most specific first. The first that is set is the kind.
_KINDS: tuple[tuple[str, dict[int, int]], ...] = (
    (
        "parity",
        {
            0: _make_bit_mask(4, 5),
            2: _make_bit_mask(0, 1, 2, 6),
            4: _make_bit_mask(18, 19, 21, 22, 24, 25, 27, 28),
        },
    ),
    ("hardware", {0: _make_bit_mask(8, 9, 12, 16, 17, 24, 28), 2: _make_bit_mask(16, 19)}),
    ("signal", {0: _make_bit_mask(21, 22)}),
    ("repeats-matter", {0: _make_bit_mask(27, 29), 2: _make_bit_mask(17, 18)}),
    ("unexpected", {2: _make_bit_mask(13)}),
    ("fabric", {3: _make_bit_mask(18)}),
    ("side-effect", {0: _make_bit_mask(1, 20), 3: _make_bit_mask(16, 17)}),
    ("corrected", {4: _make_bit_mask(20, 23, 26, 29)}),
    ("harmless", {0: _make_bit_mask(0, 23, 30)}),
)


_READ = (0, 2, 3, 4)


def classify_xid74_registers(registers: Sequence[int]) -> str:
    """Return the meaning of the registers as one word.

    - `parity`     ECC or parity, likely hardware
    - `hardware`   possibly hardware: the connection
    - `signal`     a marginal channel
    - `repeats-matter` harmless once, a fault where it repeats
    - `unexpected` never seen in production, according to the vendor
    - `fabric`     a by-product, after which the fabric needs a reset
    - `side-effect` a by-product of another error
    - `corrected`  a count of corrected errors passed its threshold; nothing was lost
    - `harmless`   can be ignored
    - `unknown`    no bit is set, or one that the table does not have
    """
    if len(registers) <= max(_READ):
        return "unknown"
    known = dict.fromkeys(_READ, 0)
    for _, masks in _KINDS:
        for register, mask in masks.items():
            known[register] |= mask
    if any(registers[register] & ~known[register] for register in _READ):
        return "unknown"
    for name, masks in _KINDS:
        if any(registers[register] & mask for register, mask in masks.items()):
            return name
    return "unknown"
