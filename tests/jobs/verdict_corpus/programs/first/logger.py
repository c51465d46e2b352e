"""Format a large table at every step; it grows."""

import time


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "grows":
        time.sleep(1.0 * 1.6 ** (step - config["step"]))
        return True
    until = time.monotonic() + float(config["how"])
    rows = []
    while time.monotonic() < until:
        rows = [f"{number:020}" for number in range(20_000)]
    return bool(rows)
