"""Be somewhere else while the others are in a collective."""

import os
import select
import time


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "retry":
        while not os.path.exists("ready.flag"):
            time.sleep(0.5)
    elif config["how"] == "select":
        read, _ = os.pipe()
        select.select([read], [], [])
    return True
