"""Play batch scripts from a directory outside the repository: `python -m ... DIRECTORY [NAME...]`.

`play.yaml` there: a script's name with `arguments`, `options`, `environment`, `files`, `ranks` and
`ends`, as in `stage.Part`, and `nodes`, the nodes that the cluster needs.
"""

import sys
import traceback
from pathlib import Path
from typing import Any

import yaml

from tests.jobs.strangers.stage import Part, Stage, stage


def main(directory: str, *names: str) -> None:
    """Play the named scripts, or all."""
    where = Path(directory).resolve()
    plays: dict[str, dict[str, Any]] = yaml.safe_load((where / "play.yaml").read_text())
    with stage(nodes=10) as found:
        for name in names or plays:
            play(found, Part(where / name, **(plays[name] or {})))


def play(found: Stage, part: Part) -> None:
    """Play one script, and print what its owner has seen."""
    print(f"== {part.script.name}", flush=True)
    try:
        played = found.submit(part)
        print(played.said, flush=True)
        found.lose_node(played, part)
        print(f"   node lost: {played.node_lost}", flush=True)
        found.kill_rank(played, part)
        print(f"   rank killed: {played.rank_killed}", flush=True)
        found.finish(played)
        print("   finished", flush=True)
    except Exception:  # noqa: BLE001 -- the other scripts are played as well
        traceback.print_exc()
        print(f"   FAILED {part.script.name}", flush=True)
        for log in sorted((found.base / part.script.stem).rglob("*")):
            if log.is_file():
                print(f"--- {log}\n{log.read_text(errors='replace')[-3000:]}", flush=True)
        jobs = found.live.sandbox.run(["squeue", "-a"]).stdout
        print(jobs, flush=True)
    finally:
        found.clear()


if __name__ == "__main__":
    main(*sys.argv[1:])
