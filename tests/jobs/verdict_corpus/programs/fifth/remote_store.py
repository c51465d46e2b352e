"""Use files whose server has stopped: copy, import, or take the lock of a cache."""

import fcntl
import importlib
import shutil
import sys
from pathlib import Path

from filelock import FileLock


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "copy":
        shutil.copytree("mounted", "local")
    elif config["how"] == "import":
        sys.path.insert(0, "mounted")
        importlib.import_module("tokenizer_of_this_model")
    else:
        # As a node that has stopped holds it: the lock belongs to another open file.
        with Path("cache.lock").open("w") as holder:
            fcntl.flock(holder, fcntl.LOCK_EX)
            FileLock("cache.lock").acquire()
    return True
