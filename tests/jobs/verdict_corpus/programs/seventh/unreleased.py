"""Stay in C with the interpreter's lock: skip what was seen, try all orders, await an answer."""

import ctypes
import itertools
import math
from functools import partial


def run(step: int, value: object, config: dict[str, object]) -> bool:
    how = config["how"]
    if how == "skip":
        # It counts tokens where it should count batches.
        next(itertools.islice(value, 10**13, None))
    elif how == "orders":
        wanted = value[0, :16].tolist()
        min(itertools.permutations(range(16)), key=partial(math.dist, wanted))
    else:
        # A client library's binding that does not release the lock.
        answer = ctypes.create_string_buffer(16)
        ctypes.PyDLL(None).recv(value.fileno(), answer, 16, 0)
    return False
