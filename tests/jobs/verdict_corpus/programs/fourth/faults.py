"""Errors that a program meets: of types, of attributes, of arithmetic, of a subprocess."""

import json
import subprocess


class Meter:
    def __init__(self) -> None:
        self.values: list[float] = []

    def average(self) -> float:
        return sum(self.values) / len(self.values)


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "arithmetic":
        return Meter().average() > 0
    if config["how"] == "subprocess":
        subprocess.run(["sh", "-c", "echo no metrics >&2; exit 7"], check=True)
    if config["how"] == "json":
        return bool(json.loads('{"image": 17, "label": '))
    return value.shapes[0] > 0
