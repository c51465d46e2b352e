"""`srun python -m hpctl.sandbox.training`: one rank of the demo's job.

Exit codes: 0 trained to the last step, 1 another rank was lost or the checkpoint directory
failed, 2 usage or a checkpoint that cannot be resumed from.
"""

import argparse
import os
import signal
import sys
from pathlib import Path


def main() -> int:
    """Parse, listen for SIGUSR1, train."""
    asked: list[int] = []
    # Before the slow imports: the default action of SIGUSR1 would end the rank.
    signal.signal(signal.SIGUSR1, lambda signum, _frame: asked.append(signum))
    given = vars(_make_parser().parse_args())

    from hpctl.sandbox.training.group import RankInfo, TrainingPeerLostError
    from hpctl.sandbox.training.loop import CheckpointResumeError, TrainingOptions, run_training

    def consume_checkpoint_save_request() -> bool:
        wanted = bool(asked)
        asked.clear()
        return wanted

    place = RankInfo.of(dict(os.environ), given.pop("bind"))
    options = TrainingOptions(**given)
    try:
        options.directory.mkdir(parents=True, exist_ok=True)
        run_training(options, place, consume_checkpoint_save_request)
    except CheckpointResumeError as error:
        print(f"training: {error}", file=sys.stderr)
        return 2
    except (TrainingPeerLostError, OSError) as error:
        print(f"training: {error}", file=sys.stderr)
        return 1
    return 0


def _make_parser() -> argparse.ArgumentParser:
    get = os.environ.get
    parser = argparse.ArgumentParser("python -m hpctl.sandbox.training", description=__doc__)
    directory = get("HPCTL_CHECKPOINT_DIR")
    parser.add_argument(
        "--checkpoint-dir",
        dest="directory",
        type=Path,
        default=directory,
        required=directory is None,
    )
    fast = get("HPCTL_FAST_DIR")
    parser.add_argument("--fast-dir", dest="fast", type=Path, default=Path(fast) if fast else None)
    resume = get("HPCTL_RESUME_FROM")
    parser.add_argument("--resume-from", type=Path, default=Path(resume) if resume else None)
    parser.add_argument("--steps", type=_parse_positive_integer, default=200)
    parser.add_argument(
        "--checkpoint-every", type=_parse_positive_integer, default=10, metavar="STEPS"
    )
    parser.add_argument(
        "--batch", type=_parse_positive_integer, default=64, help="rows over all ranks"
    )
    parser.add_argument("--step-s", type=float, default=0.25, help="least seconds a step takes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bind", default="", help="address that rank 0 listens on")
    return parser


def _parse_positive_integer(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
