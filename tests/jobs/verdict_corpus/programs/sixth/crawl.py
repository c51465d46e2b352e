"""Take far longer than the other ranks: compressing, or with pauses that grow each time."""

import lzma
import time


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "throttled":
        time.sleep(min(3.0 * (1 + step - int(str(config["step"]))) ** 2, 90.0))
        return True
    until = time.monotonic() + float(str(config["how"]))
    raw = bytes(range(256)) * 512
    while time.monotonic() < until:
        lzma.compress(raw)
    return True
