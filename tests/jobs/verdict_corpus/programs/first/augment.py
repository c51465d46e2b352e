"""Crop an image; one of them is too small."""


def run(step: int, value: object, config: dict[str, object]) -> bool:
    width = 64 - step
    raise ValueError(f"image {step * 8} is {width} pixels wide, a crop needs 224")
