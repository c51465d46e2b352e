"""What is done about a run's trouble, by kind, and the decision that comes of it."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.trouble import STOP_EXIT_CODE, TroubleKind


class RunAction(StrEnum):
    """What may be done, gentlest first. An answer is the gentlest that is possible and useful."""

    NONE = "none"
    """Nothing: another program does it, or the run is over."""
    NOTIFY = "notify"
    """Say so; let the run go on."""
    PROCESS = "process"
    """Restart the ranks inside the running step."""
    STEP = "step"
    """Launch a new step inside the same allocation."""
    REQUEUE = "requeue"
    """Give the allocation back and start again."""
    END = "end"
    """Let the job end as Slurm ends it: FAILED with the program's exit code."""
    HOLD = "hold"
    """Stop, and tell the user why."""


RESTARTS: Final = frozenset({RunAction.PROCESS, RunAction.STEP, RunAction.REQUEUE})
"""The actions that run the program again, and that the budgets count."""


STOPS: Final = frozenset({RunAction.END, RunAction.HOLD})
"""The actions after which a job runs again only if a person has it run again."""


class RestartBackoff(Struct, frozen=True):
    """Seconds before a restart.

    The first restart after progress never waits; the second in a row waits `first_s`, each
    further one `factor` times longer, at most `cap_s`.
    """

    first_s: float = 30.0
    factor: float = 2.0
    cap_s: float = 1800.0


class TroubleTreatment(Struct, frozen=True):
    """What one kind of trouble gets.

    `ladder`: the actions in order; each repeat without progress climbs one rung, impossible ones
    are passed over, and the last rung is kept. An action that is listed twice is tried twice.
    `backoff`: whether restarts wait. `exclude`: after how many times on the same node the run
    leaves that node (0: never; times of all kinds that exclude add up). `save_first`: whether
    ranks that still live are asked to save before. `hold_same`: whether the same signature,
    `same_signature` times without progress, stops the job: for what the program does to itself.
    `max`: after how many restarts of this kind without progress the job is stopped (0: no bound of
    its own). `why` argues for a default.
    """

    ladder: tuple[RunAction, ...]
    backoff: bool = False
    exclude: int = 0
    save_first: bool = False
    hold_same: bool = False
    max: int = 0
    why: str = ""


_ALL: Final = (RunAction.PROCESS, RunAction.STEP, RunAction.REQUEUE, RunAction.END)


_ONCE_MORE: Final = (RunAction.STEP, RunAction.REQUEUE, RunAction.END)


DEFAULTS: Final[Mapping[TroubleKind, TroubleTreatment]] = {
    TroubleKind.NODE: TroubleTreatment(
        (RunAction.STEP, RunAction.REQUEUE),
        exclude=1,
        save_first=True,
        why="The node failed, not the program: waiting does not help.",
    ),
    TroubleKind.CRASH: TroubleTreatment(
        _ALL,
        backoff=True,
        hold_same=True,
        why="Most crashes are transient; a repeat from the same checkpoint is a bug.",
    ),
    TroubleKind.GPU_MEMORY: TroubleTreatment(
        _ONCE_MORE,
        hold_same=True,
        why="One restart frees leaks and fragments; then the batch is too large for the GPU.",
    ),
    TroubleKind.HOST_MEMORY: TroubleTreatment(
        _ONCE_MORE,
        hold_same=True,
        why="One restart frees leaks and other people's memory; then it asked for too little.",
    ),
    TroubleKind.CUDA: TroubleTreatment(
        _ONCE_MORE,
        exclude=1,
        why="An error that names the device is the node's until it follows the program elsewhere.",
    ),
    TroubleKind.NETWORK: TroubleTreatment(
        _ONCE_MORE,
        backoff=True,
        exclude=2,
        why="The reporting rank is often not the cause: a second report excludes the node.",
    ),
    TroubleKind.HANG: TroubleTreatment(
        _ALL,
        exclude=2,
        why="A race passes with a restart; a node named twice is more than bad luck. Hung ranks"
        " cannot save, so none is asked to.",
    ),
    TroubleKind.NAN: TroubleTreatment(
        _ONCE_MORE,
        hold_same=True,
        why="Once it may be a bad GPU or batch; twice from the same checkpoint is the model."
        " Never saved first: the weights are corrupt.",
    ),
    TroubleKind.SPIKE: TroubleTreatment(
        (RunAction.NOTIFY,), why="Most spikes recover without action."
    ),
    TroubleKind.SLOW: TroubleTreatment(
        (RunAction.NOTIFY,), why="Slow steps are still steps; a restart loses some."
    ),
    TroubleKind.UPLOAD: TroubleTreatment(
        (RunAction.NOTIFY,), why="Training continues; tiers hold the checkpoint."
    ),
    TroubleKind.STORAGE: TroubleTreatment(
        (RunAction.REQUEUE,),
        backoff=True,
        exclude=2,
        why="File systems recover in minutes; other jobs can use the nodes. A stale mount is"
        " one node's.",
    ),
    TroubleKind.DISK_FULL: TroubleTreatment(
        (RunAction.HOLD,),
        why="A full file system stays full until its owner makes room: a restart would fail at its"
        " next save.",
    ),
    TroubleKind.CORRUPTION: TroubleTreatment(
        (RunAction.REQUEUE,),
        exclude=1,
        why="Wrong results are worse than none: exclude the node at once.",
    ),
    TroubleKind.NO_PROGRESS: TroubleTreatment(
        (RunAction.STEP, RunAction.REQUEUE, RunAction.HOLD),
        backoff=True,
        why="An exit without progress may follow a lost node; the third is a finished or"
        " broken program, which a person must tell apart: with exit code 0 Slurm would call it"
        " COMPLETED.",
    ),
    TroubleKind.PREEMPTED: TroubleTreatment((RunAction.NONE,), why="Slurm requeues it itself."),
    TroubleKind.TIME_LIMIT: TroubleTreatment(
        (RunAction.REQUEUE,), save_first=True, why="The next run continues from the checkpoint."
    ),
    TroubleKind.KILLED: TroubleTreatment(
        _ONCE_MORE, backoff=True, why="One kill may be a mistake; a second is intended."
    ),
    TroubleKind.FINAL: TroubleTreatment((RunAction.NONE,), why="It asked not to be run again."),
}
"""What a careful person would choose. Documented, with the reasons, in docs/policies.md."""


UNPLANNED: Final = frozenset(TroubleKind) - {TroubleKind.TIME_LIMIT, TroubleKind.PREEMPTED}
"""The kinds whose restarts count against `restarts`: a time limit is no failure."""


CERTAIN: Final = frozenset({TroubleKind.NODE, TroubleKind.CORRUPTION})
"""Kinds that prove a node bad: it is never used again just to have enough nodes."""


LEAVES_ALIVE: Final = frozenset(
    {
        TroubleKind.SPIKE,
        TroubleKind.SLOW,
        TroubleKind.UPLOAD,
        TroubleKind.TIME_LIMIT,
        TroubleKind.NAN,
        TroubleKind.HANG,
    }
)
"""Kinds after which the ranks still run, unless a watcher has seen otherwise."""


WHY_CHARS: Final = 200
"""A reason is read in squeue's columns: one line, no longer than this."""


JITTER: Final = 0.25
"""Jobs that one outage has hit do not all come back in the same second: up to this much later."""


class RunPolicy(Struct, frozen=True):
    """How one job is treated: merged from the cluster's, its partition's and its own file.

    `restarts` in `window_s` seconds, `without_progress` of them in a row, and `same_signature`
    times the same signature without progress are the budgets; over any of them the job is stopped
    (`find_last_resort_action`).
    Where a run's progress is unknown, one that went well for `proven_s` counts as progress.
    `most_excluded`: so many nodes at most are left out on suspicion, the oldest is let in again.
    `nodes` is the elastic range (least, most), None for a fixed size. `grow_gain` is how many
    times over a restart must pay for itself before a smaller run grows back.
    `final_exit_codes` ask not to be run again, `corruption_exit_codes` are evidence of silent
    data corruption. `hang_floor_s` and `hang_factor`: no step for `hang_factor` times the run's
    own median step, and at least `hang_floor_s`, is a hang; `hang_start_s` before the first step.
    `notify` is a command (argument list), given the JSON of trouble and answer on its stdin.
    """

    restarts: int = 10
    window_s: float = 86400.0
    without_progress: int = 3
    same_signature: int = 2
    proven_s: float = 3600.0
    most_excluded: int = 8
    backoff: RestartBackoff = field(default_factory=RestartBackoff)
    save_grace_s: float = 60.0
    nodes: tuple[int, int] | None = None
    grow_gain: float = 3.0
    spares: int = 0
    final_exit_codes: tuple[int, ...] = (STOP_EXIT_CODE,)
    corruption_exit_codes: tuple[int, ...] = (16, 17)
    hang_floor_s: float = 60.0
    hang_factor: float = 3.0
    hang_start_s: float = 1800.0
    treatments: Mapping[TroubleKind, TroubleTreatment] = field(default_factory=dict)
    """Only where they differ from the defaults (`DEFAULTS`)."""
    log_rules: tuple[str, ...] = ()
    """Names of presets, or absolute paths of rule files."""
    notify: tuple[str, ...] = ()

    def treatment(self, kind: TroubleKind) -> TroubleTreatment:
        """Return what this policy, or the default, says of a kind."""
        return self.treatments.get(kind) or DEFAULTS[kind]

    def find_last_resort_action(self, kind: TroubleKind) -> RunAction:
        """Return END or HOLD: how a job is stopped that a budget forbids to restart.

        By the end of the kind's ladder, or of its default ladder where that ends with neither.
        HOLD where both say nothing: the program has not failed, and a person decides.
        """
        for treatment in (self.treatment(kind), DEFAULTS[kind]):
            if treatment.ladder[-1] in STOPS:
                return treatment.ladder[-1]
        return RunAction.HOLD


class RunActionDecision(Struct, frozen=True):
    """What to do, after how many seconds, on which nodes not to, and why, for a person.

    `why` is one line of at most 200 characters; a HOLD's begins with "hpctl: ". `exclude` are all
    nodes that the job is to stay off from now on, those of earlier answers included. `size`: how
    many nodes the new step gets (elastic; 0 where the action is no STEP). `save_first_s`: how
    long to let the ranks save first, 0 for not at all.
    """

    action: RunAction
    why: str
    after_s: float = 0.0
    exclude: tuple[NodeName, ...] = ()
    size: int = 0
    save_first_s: float = 0.0
