"""Runs that are killed in a save and in a step; hpctl's verdicts on what they leave; the truth."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.gpu.boxes import wait_for
from tests.gpu.training.formats import FORMATS, Format
from tests.gpu.training.measures import find_last, find_weights
from tests.gpu.training.ranks import PROGRAM, read_marks
from tests.gpu.training.verdicts import find_newest, judge_all

if TYPE_CHECKING:
    from tests.gpu.context import Context
    from tests.gpu.stories import Story
    from tests.gpu.training.warm import WarmProgram, WarmPrograms

CHECK = Path(__file__).with_name("load_program.py")
SAVES_BEFORE = 2
"""Saves that end before the one in which the run is killed."""
INTO_SAVE = 0.4
"""Of a save's duration, when the run is killed."""


@dataclass(frozen=True)
class ChainSizes:
    """How long a run is, and how much it saves."""

    device: str
    steps: int
    every: int
    ballast_mib: int
    limit_s: float


class KillChain:
    """One format: a run killed in a save, resumed and killed in a step, resumed to its end."""

    def __init__(
        self, context: Context, programs: WarmPrograms, form: Format, sizes: ChainSizes
    ) -> None:
        self._context, self._programs, self._form, self._sizes = context, programs, form, sizes
        self._folder = context.scratch / form.name
        self._saves = self._folder / "save"
        self._saves.mkdir(parents=True)
        self.rounds: list[dict[str, Any]] = []

    def run(self, story: Story, weights: str) -> None:
        """Run the chain; `weights` is the digest of an undisturbed run."""
        resume: str | None = None
        for number, kill in enumerate((self._kill_in_save, self._kill_in_step)):
            program = self._start(number, resume)
            try:
                kill(program, number)
            finally:
                program.kill()
            self.rounds.append(self._judge(number))
            chosen = self.rounds[-1]["chosen"]
            resume = chosen["path"] if chosen else None
        program = self._start(2, resume)
        code = program.wait(self._limit_s())
        marks = self._marks(2)
        start = find_last(marks, "start")
        ended = find_weights(marks, self._sizes.steps)
        story.facts = {"rounds": self.rounds, "end": program.err[-600:] if code else ""}
        story.figures = {
            "resumed_step": start["step"] if start else None,
            "save_ms": round(1000 * _last_save_s(self._marks(0)), 1),
        }
        rounds = self.rounds
        checks = {
            "nothing damaged is called whole": not any(r["false_whole"] for r in rounds),
            "the newest that loads is chosen": all(r["chose_newest"] for r in rounds),
            "resumed from the newest that loads": bool(start)
            and start["step"] == (rounds[1]["newest"] or 0),
            "same weights as an undisturbed run": bool(weights) and ended == weights,
        }
        in_save = "in a save" if rounds[0]["in_save"] else "between saves"
        shown = [round_["shown"] for round_ in rounds]
        story.conclude(checks, f"killed {in_save}: {shown[0]}; killed in a step: {shown[1]}")

    def _start(self, number: int, resume: str | None) -> WarmProgram:
        sizes = self._sizes
        words: list[object] = [
            "--marks",
            self._folder / f"marks{number}",
            "--directory",
            self._saves,
        ]
        words += ["--device", sizes.device, "--backend", "none", "--format", self._form.name]
        words += ["--steps", sizes.steps, "--every", sizes.every, "--step-s", "0.01"]
        words += ["--ballast-mib", sizes.ballast_mib]
        if resume:
            words += ["--resume-from", resume]
        return self._programs.start(PROGRAM, words, f"run{number}", self._folder)

    def _marks(self, number: int) -> list[dict[str, Any]]:
        return read_marks(self._folder / f"marks{number}")

    def _limit_s(self) -> float:
        return max(1.0, min(self._sizes.limit_s, self._context.left_s() - 3.0))

    def _kill_in_save(self, program: WarmProgram, number: int) -> None:
        def saves_again() -> bool:
            begun = [mark for mark in self._marks(number) if mark["what"] == "save"]
            return len(begun) > SAVES_BEFORE or program.code is not None

        if not wait_for(saves_again, self._limit_s(), 0.001):
            raise TimeoutError(f"no save: {program.err[-600:]}")
        time.sleep(INTO_SAVE * _last_save_s(self._marks(number)))

    def _kill_in_step(self, program: WarmProgram, number: int) -> None:
        def steps_on() -> bool:
            marks = self._marks(number)
            start = find_last(marks, "start")
            if program.code is not None:
                return True
            goal = start["step"] + self._sizes.every + self._sizes.every // 2 if start else 0
            return bool(start) and any(
                mark["what"] == "step" and mark["step"] >= goal for mark in marks
            )

        if not wait_for(steps_on, self._limit_s(), 0.001):
            raise TimeoutError(f"no step: {program.err[-600:]}")

    def _judge(self, number: int) -> dict[str, Any]:
        """Compare hpctl's verdicts with what the format's own reader loads."""
        marks = self._marks(number)
        begun, ended = find_last(marks, "save"), find_last(marks, "saved")
        judged = judge_all(self._saves)
        chosen = find_newest(self._saves)
        loads = self._load_all()
        by_name = {verdict["name"]: verdict for verdict in judged}
        whole = {name for name, verdict in by_name.items() if verdict["whole"]}
        good = {name for name, found in loads.items() if found["step"] is not None}
        newest = max((loads[name]["step"] for name in good if ".tmp" not in name), default=None)
        chosen_step = loads.get(chosen["name"], {}).get("step") if chosen else None
        return {
            "in_save": bool(begun) and (not ended or ended["step"] < begun["step"]),
            "judged": judged,
            "loads": loads,
            "chosen": chosen,
            "false_whole": sorted(whole - good),
            "passed_over_though_it_loads": sorted(good - whole),
            "newest": newest,
            "chose_newest": chosen_step == newest,
            "shown": f"chose step {chosen_step}, newest that loads is {newest}",
        }

    def _load_all(self) -> dict[str, dict[str, Any]]:
        """Return of each checkpoint the step that the format's reader finds, or why it fails."""
        import json

        place = self._folder / f"loads-{len(self.rounds)}.json"
        words = [self._saves, place, self._form.name, self._sizes.ballast_mib]
        program = self._programs.start(CHECK, words, f"load{len(self.rounds)}", self._folder)
        limit_s = self._limit_s()
        code = program.wait(limit_s)
        if not place.exists():
            how = f"exit code {code}" if code is not None else f"not done within {limit_s:.0f} s"
            raise RuntimeError(f"the loader wrote nothing ({how}): {program.err[-600:]}")
        found: dict[str, dict[str, Any]] = json.loads(place.read_text())
        return found


def _last_save_s(marks: list[dict[str, Any]]) -> float:
    took = [mark["took_s"] for mark in marks if mark["what"] == "saved"]
    return float(took[-1]) if took else 0.0


def run_undisturbed(context: Context, programs: WarmPrograms, sizes: ChainSizes) -> str:
    """Return the digest of the weights of a run that nobody kills; "" if it failed."""
    folder = context.scratch / "undisturbed"
    words: list[object] = ["--marks", folder, "--directory", folder / "save"]
    words += ["--device", sizes.device, "--backend", "none", "--steps", sizes.steps]
    words += ["--every", sizes.steps]
    program = programs.start(PROGRAM, words, "run", folder)
    program.wait(min(sizes.limit_s, context.left_s()))
    return find_weights(read_marks(folder), sizes.steps)


def forms() -> list[Format]:
    """Return the formats whose library is here."""
    from importlib.util import find_spec

    return [
        form
        for form in FORMATS.values()
        if form.name != "safetensors" or find_spec("safetensors") is not None
    ]
