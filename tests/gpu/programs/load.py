"""Keep a GPU busy: `load.py SECONDS [--pretend]`, then hold its memory until killed.

Prints one line of JSON when it multiplies, and one when it has ended to multiply.
"""

import json
import os
import sys
import time

EDGE = 8192
HELD_BYTES = 4 << 30


def say(**facts):
    """Print one line of JSON."""
    print(json.dumps({"pid": os.getpid(), **facts}), flush=True)


def multiply(seconds):
    """Multiply bf16 matrices for so long."""
    import torch

    began = time.monotonic()
    factor = torch.randn((EDGE, EDGE), device="cuda", dtype=torch.bfloat16)
    product = torch.empty_like(factor)
    held = torch.zeros(HELD_BYTES, dtype=torch.uint8, device="cuda")
    torch.matmul(factor, factor, out=product)
    torch.cuda.synchronize()
    say(ready=True, context_s=round(time.monotonic() - began, 2))
    end = time.monotonic() + seconds
    rates = []
    while time.monotonic() < end:
        began = time.perf_counter()
        for _ in range(64):
            torch.matmul(factor, factor, out=product)
        torch.cuda.synchronize()
        rates.append(64 * 2 * EDGE**3 / (time.perf_counter() - began) / 1e12)
    say(done=True, tflops=sorted(rates)[len(rates) // 2], held=int(held[0]))
    return factor, product, held


if __name__ == "__main__":
    if "--pretend" in sys.argv:
        say(ready=True)
        time.sleep(float(sys.argv[1]))
        say(done=True)
    else:
        HELD = multiply(float(sys.argv[1]))
    time.sleep(600)
