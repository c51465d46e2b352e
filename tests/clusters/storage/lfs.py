"""A stand-in for Lustre's `lfs`, for tests: `hsm_state` and `hsm_restore` over a small JSON file.

It is told by the file that LFS_STATE names: `released` files, how many looks a restore takes
(`looks`), which files cannot be restored (`broken`); and it writes its calls to `calls`.
"""

import json
import os
import sys
from pathlib import Path

PLACE = Path(os.environ["LFS_STATE"])


def main() -> int:
    """Do as lfs does, in its words."""
    state = json.loads(PLACE.read_text())
    verb, files = sys.argv[1], sys.argv[2:]
    state["calls"].append([verb, len(files)])
    code = 0
    if verb == "hsm_state":
        gone = [name for name in files if not os.path.lexists(name)]
        for name in gone:
            print(f"can't get hsm state for {name}: No such file or directory", file=sys.stderr)
            code = 1
        for name in files if not gone else ():
            left = state["coming"].get(name)
            if left is not None:
                state["coming"][name] = left - 1
                if left <= 1:
                    del state["coming"][name]
                    state["released"].remove(name)
            out = name in state["released"]
            flags = (
                "(0x0000000d) released exists archived" if out else "(0x00000009) exists archived"
            )
            print(f"{name}: {flags}, archive_id:1")
    elif verb == "hsm_restore":
        bad = [name for name in files if name in state["broken"]]
        if bad:
            print(f"Cannot send HSM request (use of {bad[0]}): No data available", file=sys.stderr)
            code = 1
        else:
            state["coming"] |= dict.fromkeys(files, state["looks"])
    PLACE.write_text(json.dumps(state))
    return code


if __name__ == "__main__":
    raise SystemExit(main())
