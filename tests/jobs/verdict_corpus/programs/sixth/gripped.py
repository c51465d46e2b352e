"""Keep the interpreter's lock: a mutex that an extension takes twice, and long work in C."""

import ctypes
import itertools
import math


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "mutex":
        library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
        library.pthread_mutex_lock(mutex)
        library.pthread_mutex_lock(mutex)
    elif config["how"] == "binomial":
        math.comb(10**9, 5 * 10**8)
    else:
        dict.fromkeys(itertools.cycle(("low", "high")))
    return True
