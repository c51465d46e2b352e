"""Read a few fields of a large pickle without executing it, in bounded memory.

An object is reduced to its state, a state to the few wanted fields, and all else to one
placeholder. Only texts are kept for later references. So memory grows with the number of distinct
texts, not with the pickle's size, and the pickle's content cannot have anything imported, called,
hashed or compared.

It is written for speed, because it takes most of the time of a search in a large checkpoint: one
loop handles the frequent opcodes and frequent sequences of them, and a table handles the rest.
Measured in benchmarks/checkpoints.py. Source of the opcodes: CPython, Lib/pickletools.py.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from array import array
from bisect import bisect_left
from collections.abc import Callable

from msgspec import Struct

from hpctl.checkpoints.files import IncompleteCheckpointError, OpenFile, UnverifiableCheckpointError


class DiscardedValue:
    """A value that is not kept. `recalled`: referenced again, so that its content is unknown."""

    __slots__ = ("recalled",)

    def __init__(self, *, recalled: bool) -> None:
        self.recalled = recalled


OTHER, RECALLED = DiscardedValue(recalled=False), DiscardedValue(recalled=True)


class StorageRef(Struct, frozen=True):
    """The place where torch keeps the numbers of a tensor: `count` items of a kind such as
    LongStorage."""

    kind: str
    key: str
    count: int


class PickledFields:
    """The wanted fields of a dict, or of an object's state."""

    def __init__(self, fields: dict[str, object]) -> None:
        self._fields = fields

    def get(self, key: str) -> object:
        """Return None, True, False, an integer or a text; otherwise a placeholder. None where the
        key is missing. Raises UnverifiableCheckpointError where the pickle refers to a value that
        was not kept."""
        value = self._fields.get(key)
        if value is RECALLED:
            raise UnverifiableCheckpointError(
                f"hpctl cannot read the pickle file: it refers to data elsewhere for the key {key}"
            )
        return value

    def integer(self, key: str) -> int | None:
        """Return the value for a key, where it is an integer (not a bool)."""
        value = self.get(key)
        return value if type(value) is int else None

    def inner(self, key: str) -> PickledFields | None:
        """Return the dict or object under a key."""
        value = self.get(key)
        return PickledFields(value) if isinstance(value, dict) else None


class PickledDictPairReceiver:
    """A receiver of the pairs of the wanted dict as they are read."""

    wants_keys = False
    """Whether `note` is called: it takes time for each of millions of entries."""

    def note(self, keys: list[object], values: list[object]) -> None:
        """Take pairs with their keys; an object in them is a dict of its wanted fields."""

    @abstractmethod
    def add(self, values: list[object]) -> None:
        """Take the values of some pairs; an object is a dict of its wanted fields."""


CHUNK = 4 << 20
_MARGIN = 512
"""More than any opcode with its argument takes, except for texts of more than 255 bytes."""
_TEXT = 4096
"""Longer texts are not names of files; they are not kept."""
_NEW = b")\x81\x94}\x94("
"""An empty tuple, an object made with it, its state begun: as each object of a pickle begins."""
_RECENT = 1 << 16
MOST = 1_000_000
"""Marks, values on the stack and distinct texts: more than any framework writes, and a limit for
memory."""
LOOK_S = 300.0
"""Seconds of processor time for one pickle: what the .metadata of a checkpoint of ten million
tensors takes. A thousand bytes may cost as much as a thousand tensors, and a file may be of any
length."""
_SIZE = b"\x86\x94\x85\x94R\x94"
"""A pair, a tuple of it, a call with that: torch.Size of two dimensions."""


class PickleReader:
    """The stack and the memo of one pickle. `stack` is what lies above the last mark."""

    def __init__(
        self,
        file: OpenFile,
        fields: frozenset[str],
        key: str | None = None,
        sink: Callable[[], PickledDictPairReceiver] = PickledDictPairReceiver,
        storages: dict[str, StorageRef] | None = None,
    ) -> None:
        """Read the pickle in `file`. `fields` of dicts are kept; `sink` makes the receiver of a
        dict under `key`. `storages` collects the storages of all tensors, by their keys."""
        self.file, self.key, self.sink, self.fields = file, key, sink, fields
        self.storages = storages
        self.until = time.thread_time() + LOOK_S
        self.at = 0
        self.buffer, self.position, self.limit = b"", 0, -1
        self.stack: list[object] = []
        self.below: list[list[object]] = []
        # The memo of a large pickle has a thousand times the entries that are ever recalled, and
        # which those are is known too late: it is two arrays of numbers, searched by bisection, and
        # a dict of recent recalls.
        self.places: array[int] = array("Q")
        self.which: array[int] = array("I")
        self.put: dict[int, int] = {}
        self.recent: dict[int, object] = {}
        self.texts: list[str] = []
        self.numbers: dict[str, int] = {}

    def top(self) -> object:
        """Return the top object. Raises IncompleteCheckpointError for bytes that are not a pickle,
        UnverifiableCheckpointError where it takes longer than LOOK_S, OSError."""
        try:
            return self.run()
        except (ValueError, IndexError, KeyError, OverflowError, TypeError) as error:
            why = str(error)[:80]
            raise IncompleteCheckpointError(
                f"{self.file.name} is cut off or damaged: its pickle cannot be decoded ({why})"
            ) from None

    @property
    def end(self) -> int:
        """Return the offset behind the pickle that `top` has read."""
        return self.at - len(self.buffer) + self.position

    # fmt: off
    def run(self) -> object:  # noqa: C901, PLR0912 -- one frame: a call for each opcode costs seconds
        """Return the top object. Raises ValueError, IndexError, KeyError for bytes that are not a
        pickle."""
        stack, recent, memoized = self.stack, self.recent, 0
        buffer, position, limit = b"", 0, -1
        while True:
            if position > limit:
                buffer, position, limit = self.refill(position, len(stack))
            code = buffer[position]
            if code == 0x94:  # MEMOIZE
                value = stack[-1]
                if type(value) is str:
                    self.memoize(memoized, value)
                position, memoized = position + 1, memoized + 1
            elif code == 0x68 or code == 0x6A:  # BINGET, LONG_BINGET
                after = position + (2 if code == 0x68 else 5)
                place = int.from_bytes(buffer[position + 1 : after], "little")
                stack.append(recent.get(place) or self.recall(place))
                position = after
            elif code == 0x4B:  # BININT1
                stack.append(buffer[position + 1])
                position += 2
            elif code == 0x86 and buffer[position : position + 6] == _SIZE:
                stack[-3:] = [OTHER]
                position, memoized = position + 6, memoized + 3
            elif code == 0x29 and buffer[position : position + 6] == _NEW:
                stack[-1:] = [OTHER, {}]
                self.below.append(stack)
                stack = []
                position, memoized = position + 6, memoized + 2
            elif code == 0x8C and buffer[position + 1] + position + 2 <= len(buffer):
                after = position + 2 + buffer[position + 1]  # SHORT_BINUNICODE
                stack.append(buffer[position + 2 : after].decode("utf-8", "surrogatepass"))
                position = after
            elif code == 0x4A or code == 0x4D:  # BININT, BININT2
                after = position + (5 if code == 0x4A else 3)
                raw = buffer[position + 1 : after]
                stack.append(int.from_bytes(raw, "little", signed=code == 0x4A))
                position = after
            elif code == 0x75:  # SETITEMS
                items, stack = stack, self.below.pop()
                self.set_dict_items(stack[-1], items)
                position += 1
            elif code == 0x62 and stack[-2] is OTHER:  # BUILD
                stack[-2:] = stack[-1:]
                position += 1
            elif code == 0x2E:  # STOP
                self.position = position + 1
                return stack[-1]
            else:
                self.stack, self.position = stack, position + 1
                RARE[code](self)
                stack, buffer, position, limit = self.stack, self.buffer, self.position, self.limit
    # fmt: on

    def intern_text_and_get_number(self, text: str) -> int:
        """Return the number of a text. Equal texts are kept once: each rank has its own copies of
        the tensors' names."""
        number = self.numbers.get(text)
        if number is None:
            self.bound(len(self.texts))
            self.numbers[text] = number = len(self.texts)
            self.texts.append(text)
        return number

    def bound(self, held: int) -> None:
        """Raise ValueError where a pickle needs more than MOST of anything."""
        if held > MOST:
            raise ValueError(f"more than {MOST:,} of a kind at once")

    def refill(self, position: int, held: int = 0) -> tuple[bytes, int, int]:
        """Drop what was decoded and read on. Raises ValueError at the end of the file."""
        self.bound(max(held, len(self.below)))
        if time.thread_time() > self.until:
            raise UnverifiableCheckpointError(
                f"{self.file.name} takes hpctl more than {LOOK_S:g} s to decode"
            )
        left = max(0, self.file.size - self.at)
        if not left and position >= len(self.buffer):
            raise ValueError("it ends in the middle")
        if position > len(self.buffer):
            raise ValueError("it ends in the middle of an argument")
        more = self.file.read(self.at, min(CHUNK, left))
        self.at += len(more)
        self.buffer, self.position = self.buffer[position:] + more, 0
        last = self.at >= self.file.size
        self.limit = len(self.buffer) - (1 if last else _MARGIN)
        return self.buffer, 0, self.limit

    def argument(self, length: int) -> bytes:
        """Return the next bytes, whatever their number. Raises ValueError."""
        while self.position + length > len(self.buffer):
            if self.at >= self.file.size:
                raise ValueError("it ends in the middle of an argument")
            self.refill(self.position)
        raw = self.buffer[self.position : self.position + length]
        self.position += length
        return raw

    def number(self, length: int, *, signed: bool = False) -> int:
        """Return the next bytes as an integer."""
        return int.from_bytes(self.argument(length), "little", signed=signed)

    def line(self) -> bytes:
        """Return the rest of the line, of which there is less than _TEXT."""
        raw = bytearray()
        while (byte := self.argument(1)) != b"\n":
            raw += byte
            if len(raw) > _TEXT:
                raise ValueError("a line without end")
        return bytes(raw)

    def skip(self, length: int) -> None:
        """Pass over an argument that is not needed, without holding it. Raises ValueError."""
        ahead = self.position + length - len(self.buffer)
        if ahead <= 0:
            self.position += length
        elif self.at + ahead > self.file.size:
            raise ValueError("it ends in the middle of an argument")
        else:
            self.at += ahead
            self.buffer, self.position, self.limit = b"", 0, -1

    def text(self, length: int) -> None:
        """Push a text; one that is too long for a name is not kept."""
        if length > _TEXT:
            self.skip(length)
            self.stack.append(OTHER)
        else:
            self.stack.append(self.argument(length).decode("utf-8", "surrogatepass"))

    def drop(self, count: int) -> None:
        """Remove `count` values and leave one placeholder."""
        if len(self.stack) < count:
            raise ValueError("the stack is empty")
        del self.stack[len(self.stack) - count :]
        self.stack.append(OTHER)

    def pop_to_mark(self) -> list[object]:
        """Remove and return the values above the last mark, and the mark."""
        taken, self.stack = self.stack, self.below.pop()
        return taken

    def mark(self) -> None:
        """Begin a sequence of values that a later opcode takes together."""
        self.bound(len(self.below))
        self.below.append(self.stack)
        self.stack = []

    def replace_values_above_mark(self) -> None:
        """Replace all values above the mark by one placeholder."""
        self.pop_to_mark()
        self.stack.append(OTHER)

    def push_tuple(self) -> None:
        """Push a tuple: a placeholder, unless it names the storage of a tensor."""
        self.stack, taken = self.below.pop(), self.stack
        self.stack.append(_find_storage(taken))

    def persistent(self) -> None:
        """Push an object outside of the pickle: a storage of torch."""
        storage = self.stack[-1]
        if not isinstance(storage, StorageRef):
            self.drop(1)
        elif self.storages is not None:
            self.bound(len(self.storages))
            self.storages[storage.key] = storage

    def push_dict(self) -> None:
        """Push a dict; under the wanted key one that passes its pairs on as they are read."""
        wanted = bool(self.stack) and self.stack[-1] == self.key
        self.stack.append(self.sink() if wanted else {})

    def set_dict_items(self, target: object, items: list[object]) -> None:
        """Put pairs into a dict: of an object's state only what is wanted."""
        if len(items) % 2:
            raise ValueError("a key without a value")
        if type(target) is dict:
            for key, value in zip(items[::2], items[1::2], strict=True):
                if type(key) is str and key in self.fields:
                    target[key] = value
        elif isinstance(target, PickledDictPairReceiver):
            if target.wants_keys:
                target.note(items[::2], items[1::2])
            target.add(items[1::2])

    def memoize(self, place: int, text: str) -> None:
        """Store under the next place (MEMOIZE)."""
        self.places.append(place)
        self.which.append(self.intern_text_and_get_number(text))

    def memoize_at_index(self, place: int) -> None:
        """Store under a place that the pickle chooses (PUT), as older protocols do."""
        self.recent.pop(place, None)
        value = self.stack[-1]
        if isinstance(value, str):
            self.bound(len(self.put))
            self.put[place] = self.intern_text_and_get_number(value)
        else:
            self.put.pop(place, None)

    def recall(self, place: int) -> object:
        """Return the text that the memo holds there, or a placeholder of a value that was not
        kept."""
        at = bisect_left(self.places, place)
        number = self.put.get(place)
        if number is None and at < len(self.places) and self.places[at] == place:
            number = self.which[at]
        if len(self.recent) >= _RECENT:
            self.recent.clear()
        self.recent[place] = value = RECALLED if number is None else self.texts[number]
        return value


def _make_push_handler(value: object) -> Callable[[PickleReader], None]:
    return lambda reader: reader.stack.append(value)


def _make_skip_handler(length_of: int, more: int = 0) -> Callable[[PickleReader], None]:
    """Return a handler that skips an argument whose length precedes it in `length_of` bytes."""

    def skip_and_push_placeholder(reader: PickleReader) -> None:
        reader.skip(reader.number(length_of) if length_of else more)
        reader.stack.append(OTHER)

    return skip_and_push_placeholder


def _skip_text_line(reader: PickleReader) -> None:
    reader.line()
    reader.stack.append(OTHER)


def _load_integer(reader: PickleReader) -> None:
    text = reader.line()
    value: object = {b"00": False, b"01": True}.get(text)
    reader.stack.append(int(text.rstrip(b"L")) if value is None else value)


def _load_global(reader: PickleReader) -> None:
    module, name = reader.line(), reader.line()
    named = module in (b"torch", b"torch.storage") and name.endswith(b"Storage")
    reader.stack.append(name.decode("ascii", "replace") if named else OTHER)


def _find_storage(values: list[object]) -> object:
    """Return the storage that a tuple names as torch pickles it: `("storage", type, key, device,
    count)`, or the arguments of a tensor that begins where its storage does."""
    if len(values) < 5:
        return OTHER
    first, kind, key, count = values[0], values[1], values[2], values[4]
    if first == "storage" and type(kind) is str and type(key) is str and type(count) is int:
        return StorageRef(kind, key, count)
    return first if isinstance(first, StorageRef) and kind == 0 else OTHER


def _set_dict_item(reader: PickleReader) -> None:
    pair = [reader.stack.pop(-2), reader.stack.pop()]
    reader.set_dict_items(reader.stack[-1], pair)


def _push_filled_dict(reader: PickleReader) -> None:
    items = reader.pop_to_mark()
    reader.push_dict()
    reader.set_dict_items(reader.stack[-1], items)


def _pop_value(reader: PickleReader) -> None:
    reader.stack.pop()


def _make_object(reader: PickleReader) -> None:
    """Replace a class and its arguments by an object: a tensor, or perhaps an OrderedDict, whose
    pairs come next."""
    arguments = reader.stack[-1]
    reader.drop(2)
    reader.stack[-1] = arguments if isinstance(arguments, StorageRef) else {}


def _build_object(reader: PickleReader) -> None:
    state = reader.stack.pop()
    target = reader.stack[-1]
    if type(target) is dict and type(state) is dict:
        target |= state
    elif type(target) is dict and not target:
        reader.stack[-1] = state


def _pop_mark(reader: PickleReader) -> None:
    reader.pop_to_mark()


RARE: dict[int, Callable[[PickleReader], None]] = {
    **dict.fromkeys(b")]\x8f", _make_push_handler(OTHER)),  # EMPTY_TUPLE, EMPTY_LIST, EMPTY_SET
    **{
        code: _make_push_handler(value)
        for code, value in zip(b"N\x88\x89", (None, True, False), strict=True)
    },
    **dict.fromkeys(b"0a", _pop_value),  # POP, APPEND
    **dict.fromkeys(b"1e\x90", _pop_mark),  # POP_MARK, APPENDS, ADDITEMS
    0x74: lambda m: m.push_tuple(),
    **dict.fromkeys(b"l\x91", lambda m: m.replace_values_above_mark()),  # LIST, FROZENSET
    **dict.fromkeys(b"\x81R", _make_object),  # NEWOBJ, REDUCE
    **dict.fromkeys(b"PSF", _skip_text_line),  # PERSID, STRING, FLOAT
    **dict.fromkeys(b"IL", _load_integer),
    **dict.fromkeys(b"UC", _make_skip_handler(1)),  # SHORT_BINSTRING, SHORT_BINBYTES
    **dict.fromkeys(
        b"TB\x8b", _make_skip_handler(4)
    ),  # BINSTRING, BINBYTES; LONG4: no offset is so long
    **dict.fromkeys(b"\x8e\x96", _make_skip_handler(8)),  # BINBYTES8, BYTEARRAY8
    0x51: lambda m: m.persistent(),  # BINPERSID
    0x85: lambda m: m.drop(1),  # TUPLE1
    **dict.fromkeys(b"\x86\x93", lambda m: m.drop(2)),  # TUPLE2, STACK_GLOBAL
    **dict.fromkeys(b"\x87\x92", lambda m: m.drop(3)),  # TUPLE3, NEWOBJ_EX
    0x80: lambda m: m.skip(1),  # PROTO
    0x95: lambda m: m.skip(8),  # FRAME
    0x28: lambda m: m.mark(),
    0x32: lambda m: m.stack.append(m.stack[-1]),  # DUP
    0x7D: lambda m: m.push_dict(),
    0x64: _push_filled_dict,  # DICT
    0x73: _set_dict_item,
    0x62: _build_object,
    0x63: _load_global,
    0x56: lambda m: m.stack.append(m.line().decode("raw-unicode-escape")),  # UNICODE
    0x67: lambda m: m.stack.append(m.recall(int(m.line()))),  # GET
    0x70: lambda m: m.memoize_at_index(int(m.line())),  # PUT, BINPUT, LONG_BINPUT
    0x71: lambda m: m.memoize_at_index(m.number(1)),
    0x72: lambda m: m.memoize_at_index(m.number(4)),
    0x58: lambda m: m.text(m.number(4)),  # BINUNICODE, and with 1 and 8 bytes of length
    0x8C: lambda m: m.text(m.number(1)),
    0x8D: lambda m: m.text(m.number(8)),
    0x8A: lambda m: m.stack.append(m.number(m.number(1), signed=True)),  # LONG1
    0x47: _make_skip_handler(0, 8),  # BINFLOAT
}
