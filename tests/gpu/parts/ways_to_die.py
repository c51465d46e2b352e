"""Programs that die in eighteen ways, and what hpctl says of each."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.gpu.context import Context
    from tests.gpu.stories import Story
    from tests.gpu.training.warm import WarmPrograms

TITLE = "Ways to die: CUDA, torch, JAX"
LIMIT_S = 75
DRY_LIMIT_S = 100
SIDE_BY_SIDE = True
NEEDS = frozenset({"gpu", "torch"})
AT_ONCE, DRY_AT_ONCE = 4, 2
DIES_S = 40.0


@dataclass(frozen=True)
class Way:
    """One way to die and the kinds of trouble that are right for it."""

    kind: str
    right: tuple[str, ...]
    on_cpu: bool = False
    """The CPU knows this way too, with the same answer."""
    blocking: bool = False
    """With CUDA_LAUNCH_BLOCKING=1."""

    @property
    def name(self) -> str:
        """Return the name of its recordings."""
        return self.kind + ("_blocking" if self.blocking else "")


WAYS = (
    Way("oom", ("gpu_memory",)),
    Way("assert", ("crash",)),
    Way("assert", ("crash",), blocking=True),
    Way("illegal", ("cuda",)),
    Way("illegal", ("cuda",), blocking=True),
    Way("trap", ("cuda",)),
    Way("kernel_assert", ("crash",)),
    Way("no_gpu", ("cuda", "node")),
    Way("bad_ordinal", ("cuda", "crash")),
    Way("cublas", ("crash", "cuda")),
    Way("sigkill", ("killed",), on_cpu=True),
    Way("segv", ("crash",), on_cpu=True),
    Way("abort", ("crash",), on_cpu=True),
    Way("nan", ("nan", "crash"), on_cpu=True),
    Way("pinned", ("host_memory", "gpu_memory", "cuda")),
    Way("host_oom", ("host_memory",), on_cpu=True),
    Way("loader", ("host_memory", "crash"), on_cpu=True),
    Way("jax_oom", ("gpu_memory",)),
)


def run(context: Context) -> None:
    """Let each program die, and compare hpctl's verdict with what it died of."""
    from functools import partial

    from tests.gpu.stories import Story, tell_side_by_side
    from tests.gpu.training.ranks import QUIET
    from tests.gpu.training.warm import WarmPrograms

    device = "cpu" if context.dry else "cuda"
    verdicts: dict[str, Any] = {}
    with WarmPrograms({**context.environment, **QUIET}, preloaded=("torch",)) as programs:
        stories = {}
        for way in WAYS:
            story = Story(f"death/{way.name}", f"called {' or '.join(way.right)}")
            stories[story] = partial(
                die, context=context, programs=programs, way=way, device=device, verdicts=verdicts
            )
        tell_side_by_side(context, stories, DRY_AT_ONCE if context.dry else AT_ONCE)
    context.keep_json("deaths/verdicts.json", verdicts)
    kernel = context.run(["dmesg"], 5.0).out.splitlines()
    context.keep("deaths/kmsg", "\n".join(line for line in kernel if "NVRM" in line) + "\n")
    ran = [verdict for verdict in verdicts.values() if verdict["right"] is not None]
    right = sum(verdict["right"] for verdict in ran)
    context.say(f"{right} of {len(ran)} verdicts are right")


def die(
    story: Story,
    *,
    context: Context,
    programs: WarmPrograms,
    way: Way,
    device: str,
    verdicts: dict[str, Any],
) -> None:
    """Run one program to its end."""
    from tests.gpu.training.ranks import HERE
    from tests.gpu.training.verdicts import classify, label_lines

    if device == "cpu" and not way.on_cpu:
        story.skip("needs a GPU")
        return
    if way.kind == "jax_oom" and find_spec("jax") is None:
        story.skip("no JAX")
        return
    environment = {"CUDA_LAUNCH_BLOCKING": "1"} if way.blocking else {}
    program = programs.start(
        HERE / "death_program.py", [way.kind, device], way.name, context.scratch, environment
    )
    code = program.wait(min(DIES_S, context.left_s() - 2.0))
    text = program.out + program.err
    context.keep(f"deaths/{way.name}.stderr", program.err)
    if code is None:
        story.held, story.observed = False, "it did not die in time"
        return
    said = classify(code, text)
    labelled = classify(code, label_lines(text, rank=0))
    right = said["kind"] in way.right
    verdicts[way.name] = {
        "expected": "|".join(way.right),
        "said": {"kind": said["kind"], "why": said["why"]},
        "right": right,
    }
    story.facts = {"said": said, "labelled": labelled, "last_lines": text.splitlines()[-4:]}
    checks = {"kind": right, "the same with srun's label": labelled["kind"] == said["kind"]}
    story.conclude(checks, f"exit code {code}, {said['kind']}: {said['why']}")
