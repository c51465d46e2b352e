"""Loads every checkpoint of a folder by its format's own reader.

load_program.py FOLDER RESULT FORMAT BALLAST_MIB writes {name: {"step": N}} or, where the reader
fails, {"step": null, "why": TEXT}. Tensors are loaded to the host, whatever device saved them: that
reads every byte, and costs no CUDA context.
"""

import argparse
import json
import sys
from pathlib import Path


def main(folder: Path, result: Path, name: str, ballast_mib: int) -> None:
    """Load and write the result, whole or not at all."""
    from tests.gpu.training.formats import FORMATS
    from tests.gpu.training.program import Training

    words = argparse.Namespace(device="cpu", ballast_mib=ballast_mib)
    training = Training(words, rank=0, world=1)
    found = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        try:
            state = FORMATS[name].load(path, training.state(-1), training.device)
            found[path.name] = {"step": training.take(state)}
        except BaseException as error:  # noqa: BLE001 -- DCP raises one that is no Exception
            found[path.name] = {"step": None, "why": f"{type(error).__name__}: {error}"[:200]}
    part = result.with_suffix(".part")
    part.write_text(json.dumps(found))
    part.rename(result)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
