"""A JAX program that fails in its first attempt: jax_program.py FOLDER cuda|cpu oom|raise."""

import os
import sys
from pathlib import Path


def main(folder: Path, device: str, kind: str) -> None:
    """Fail in the first attempt, else compute a little and say that the run is done."""
    if device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    import jax
    import jax.numpy as jnp

    print(f"step 1 on {jax.devices()}", flush=True)
    if os.environ.get("HPCTL_ATTEMPT", "1") == "1":
        if kind == "oom":
            print((jnp.ones((1 << 20, 1 << 20), jnp.float32) + 1).sum())
        raise ValueError("a bug that shows once")
    print(f"step 2 {float(jax.jit(jnp.sum)(jnp.ones(8)))}", flush=True)
    from hpctl import progress

    progress.step(2)
    progress.done()
    (folder / "done").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
