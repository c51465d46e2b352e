"""What the rarer opcodes of a pickle do to the machine that skims it.

Source: CPython, Lib/pickletools.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hpctl.jobs.checkpoints.skim_values import OTHER

if TYPE_CHECKING:
    from hpctl.jobs.checkpoints.skim import Machine


def _push(value: object) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(value)


def _skipping(length_of: int, more: int = 0) -> Callable[[Machine], None]:
    """An argument whose length stands before it in `length_of` bytes; its value is not kept."""

    def run(machine: Machine) -> None:
        machine.skip(machine.number(length_of) if length_of else more)
        machine.stack.append(OTHER)

    return run


def _wordy(machine: Machine) -> None:
    machine.line()
    machine.stack.append(OTHER)


def _integer(machine: Machine) -> None:
    said = machine.line()
    value: object = {b"00": False, b"01": True}.get(said)
    machine.stack.append(int(said.rstrip(b"L")) if value is None else value)


def _global(machine: Machine) -> None:
    machine.line()
    _wordy(machine)


def _set_item(machine: Machine) -> None:
    pair = [machine.stack.pop(-2), machine.stack.pop()]
    machine.set_items(machine.stack[-1], pair)


def _new_filled_dict(machine: Machine) -> None:
    items = machine.to_mark()
    machine.new_dict()
    machine.set_items(machine.stack[-1], items)


def _pop(machine: Machine) -> None:
    machine.stack.pop()


def _make(machine: Machine) -> None:
    """An object of some class: perhaps an OrderedDict, whose pairs come next."""
    machine.drop(2)
    machine.stack[-1] = {}


def _build(machine: Machine) -> None:
    state = machine.stack.pop()
    target = machine.stack[-1]
    if type(target) is dict and type(state) is dict:
        target |= state
    elif type(target) is dict and not target:
        machine.stack[-1] = state


def _forget(machine: Machine) -> None:
    machine.to_mark()


RARE: dict[int, Callable[[Machine], None]] = {
    opcode[0]: action
    for opcode, action in {
        b"\x80": lambda m: m.skip(1),  # PROTO
        b"\x95": lambda m: m.skip(8),  # FRAME
        b"(": lambda m: m.mark(),
        b"0": _pop,
        b"1": _forget,  # POP_MARK
        b"2": lambda m: m.stack.append(m.stack[-1]),  # DUP
        b"N": _push(None),
        b"\x88": _push(True),
        b"\x89": _push(False),
        b")": _push(OTHER),  # EMPTY_TUPLE
        b"]": _push(OTHER),  # EMPTY_LIST
        b"\x8f": _push(OTHER),  # EMPTY_SET
        b"}": lambda m: m.new_dict(),
        b"d": _new_filled_dict,
        b"s": _set_item,
        b"\x85": lambda m: m.drop(1),  # TUPLE1
        b"\x86": lambda m: m.drop(2),
        b"\x87": lambda m: m.drop(3),
        b"\x81": _make,  # NEWOBJ
        b"\x92": lambda m: m.drop(3),  # NEWOBJ_EX
        b"R": _make,  # REDUCE
        b"b": _build,
        b"\x93": lambda m: m.drop(2),  # STACK_GLOBAL
        b"Q": lambda m: m.drop(1),  # BINPERSID
        b"a": _pop,  # APPEND
        b"e": _forget,  # APPENDS
        b"\x90": _forget,  # ADDITEMS
        b"t": lambda m: m.collapse(),
        b"l": lambda m: m.collapse(),
        b"\x91": lambda m: m.collapse(),  # FROZENSET
        b"c": _global,
        b"P": _wordy,
        b"S": _wordy,
        b"F": _wordy,
        b"V": lambda m: m.stack.append(m.line().decode("raw-unicode-escape")),
        b"I": _integer,
        b"L": _integer,
        b"g": lambda m: m.stack.append(m.recall(int(m.line()))),
        b"p": lambda m: m.put_in(int(m.line())),
        b"q": lambda m: m.put_in(m.number(1)),
        b"r": lambda m: m.put_in(m.number(4)),
        b"X": lambda m: m.text(m.number(4)),
        b"\x8c": lambda m: m.text(m.number(1)),
        b"\x8d": lambda m: m.text(m.number(8)),
        b"\x8a": lambda m: m.stack.append(m.number(m.number(1), signed=True)),  # LONG1
        b"\x8b": _skipping(4),  # LONG4: no offset has more than 255 bytes
        b"G": _skipping(0, 8),
        b"U": _skipping(1),
        b"T": _skipping(4),
        b"C": _skipping(1),
        b"B": _skipping(4),
        b"\x8e": _skipping(8),
        b"\x96": _skipping(8),
    }.items()
}
