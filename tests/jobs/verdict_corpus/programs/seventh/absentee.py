"""Miss a collective: nothing to learn from, code of the model that hangs, an early end."""

import subprocess
import sys

COMPLETION = "import threading\nthreading.Event().wait()\n"


def run(step: int, value: object, config: dict[str, object]) -> bool:
    how = config["how"]
    if how == "equal rewards":
        value[1].fill_(0.5)
    elif how == "run code":
        done = subprocess.run([sys.executable, "-c", COMPLETION], capture_output=True, check=False)
        value[1][0] = float(done.returncode == 0)
    else:
        # The patience of this rank's own early stopping is at its end.
        value.should_training_stop = True
    return False
