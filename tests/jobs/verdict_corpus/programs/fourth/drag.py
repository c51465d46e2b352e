"""Work on something that takes very long on this rank."""

import random
import statistics
import time


def run(step: int, value: object, config: dict[str, object]) -> bool:
    late = step - int(str(config["step"]))
    limit = 1.5 * 1.9**late if config["how"] == "more" else float(str(config["how"]))
    until = time.monotonic() + limit
    while time.monotonic() < until:
        if config["how"] == "more":
            time.sleep(0.2)
        else:
            statistics.median(random.random() for _ in range(2000))
    return True
