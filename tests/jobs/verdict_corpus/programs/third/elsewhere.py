"""Do something else in place of a collective: wait for a program or a thread, or stop early."""

import subprocess
import sys
import threading


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "program":
        subprocess.run(["sleep", "3000"], check=True)
    elif config["how"] == "thread":
        ready = threading.Event()
        threading.Thread(target=lambda: None, daemon=True).start()
        ready.wait()
    elif config["how"] == "stop early":
        print("early stopping: no improvement for 3 evaluations", flush=True)
        sys.exit(0)
    return True
