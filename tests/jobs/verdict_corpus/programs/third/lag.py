"""Take far longer than the other ranks: by waiting, by hashing, or by compressing."""

import hashlib
import time
import zlib


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "backoff":
        for attempt in range(step - int(str(config["step"])) + 1):
            time.sleep(2.0 * 1.7**attempt)
        return True
    until = time.monotonic() + float(str(config["how"]))
    raw = bytes(1 << 16)
    while time.monotonic() < until:
        hashlib.blake2b(zlib.compress(raw, 9)).digest()
    return True
