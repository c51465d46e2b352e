"""Call a C function that blocks, through ctypes' PyDLL, which keeps the GIL."""

import ctypes


def run(step: int, value: object, config: dict[str, object]) -> bool:
    library = ctypes.PyDLL(None)
    while True:
        library.sleep(3600)
