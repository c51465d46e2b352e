"""hpctl sbatch against the real sbatch: every option reaches it, and what is added works."""

import re
import sys
from pathlib import Path

import pytest

from hpctl.jobs.sbatch import options
from hpctl.jobs.sbatch.context import PythonRuntime, SbatchSubmissionContext
from hpctl.jobs.sbatch.options import merge_hpctl_options, parse_sbatch_command_line
from hpctl.jobs.sbatch.submit import build_resumable_submission
from hpctl.sandbox.api import Sandbox
from hpctl.vocabulary.registration import LONGEST_COMMENT, format_registration_comment
from tests.sandbox.test_training_slurm import field, requeue, wait_for_text
from tests.tables import beside

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
ROOT = str(Path(__file__).resolve().parents[3])

VALUES = beside(__file__, "sbatch_values.yaml")
ENDS = {"help", "usage", "version", "wrap", "wait", "quiet", "clusters"}
"""Options with which sbatch prints no table of options, reads no script, or asks slurmdbd."""


def options_of(slurm):
    """Long name, letter and whether a value must follow, from `sbatch --help`."""
    text = slurm.run(["sbatch", "--help"]).stdout
    for letter, name, equals in re.findall(
        r"^ {2,6}(?:-(\w),? +)?--([a-z-]+)(\[?=)?", text, re.MULTILINE
    ):
        # The help forgets some "=", and calls a value optional that getopt wants.
        yield name, letter, equals == "=" or name in ("container", "container-id", "export")


def understood(slurm: Sandbox, args: list[str]) -> dict[str, str]:
    """What sbatch itself understood: the table that it prints under -v. Submits nothing."""
    done = slurm.run(["sbatch", "--test-only", "-v", *args], check=False)
    reported = done.stderr + done.stdout
    if "end of defined options" not in reported:
        return {"refused": reported.strip()}
    return {
        name: value
        for name, value in re.findall(r"^sbatch: ([a-z-]+) +: (.*)$", reported, re.MULTILINE)
        if name not in ("test-only", "verbose")
    }


def forms_of(name: str, letter: str, value: str) -> list[list[str]]:
    """The ways to write one option; the first cannot be misread."""
    if not value:
        return [[f"--{name}"], *([[f"-{letter}"]] if letter else [])]
    short = [[f"-{letter}{value}"], [f"-{letter}", value]] if letter else []
    return [[f"--{name}={value}"], [f"--{name}", value], *short]


def test_every_option_of_sbatch_reaches_it(slurm: Sandbox, tmp_path) -> None:
    job = tmp_path / "job.sh"
    job.write_text("#!/bin/sh\ntrue\n")
    (tmp_path / "hosts").write_text(slurm.nodes[0] + "\n")
    real = {"@node": slurm.nodes[0], "@hosts": str(tmp_path / "hosts")}
    values = VALUES["every release"] | VALUES["newer releases"]
    names, wrong = [], []
    for name, letter, valued in options_of(slurm):
        names.append(name)
        if name in ENDS:
            continue
        value = values[name] if valued else ""
        forms = forms_of(name, letter, real.get(value, value.removeprefix("@")))
        expected = understood(slurm, [*forms[0], str(job)])
        if name == "power" and "unrecognized option" in expected.get("refused", ""):
            continue  # the help of 24.11 and later still has it
        if "refused" not in expected:
            expected = {"requeue": "requeue", "open-mode": "a", **expected}
        if name == "no-requeue":
            del expected["requeue"]
        for form in forms:
            line = parse_sbatch_command_line([*form, str(job), "an argument"])
            assert (line.script, line.arguments) == (str(job), ["an argument"]), form
            assert set(line.given) == {name}, form
            script = options.parse_batch_script("job.sh", job.read_text())
            asked = build_resumable_submission(
                line,
                script,
                merge_hpctl_options({}, {}, "/"),
                SbatchSubmissionContext(PythonRuntime("/py")),
            )
            comment = format_registration_comment(asked.registered, expected.get("comment", ""))
            wanted = expected if "refused" in expected else {**expected, "comment": comment}
            ours = understood(slurm, [*asked.options, str(job), "an argument"])
            # A flag that this cluster cannot do is refused alike; a value must be accepted.
            if ours != wanted or ("refused" in ours and value):
                wrong.append((form, ours, wanted))
    assert wrong == []
    assert len(names) > 80
    assert set(VALUES["every release"]) <= set(names)


def hpctl_sbatch(slurm, *text, stdin="", **environment):
    return slurm.run(
        [sys.executable, "-m", "hpctl", "sbatch", "--parsable", *text],
        env={"PYTHONPATH": ROOT, **environment},
        input=stdin,
    )


def test_a_requeued_task_of_an_array_resumes_its_own(slurm: Sandbox, shared: Path) -> None:
    script = shared / "array.sh"
    script.write_text(
        "#!/bin/sh\n#SBATCH --array=1-2 -N1\n"
        f"#HPCTL --checkpoint-dir {shared}/{{job_id}}/{{array_task_id}}\n"
        'exec "$HPCTL_PYTHON" -m hpctl.sandbox.training --steps 30 --step-s 0.05'
        " --checkpoint-every 5\n"
    )
    job = hpctl_sbatch(slurm, "-o", f"{shared}/out-%a", str(script)).stdout.strip()
    wait_for_text(shared / "out-2", "step 7 ")
    requeue(slurm, f"{job}_2")
    wait_for_text(shared / "out-2", f"hpctl: resuming from {shared}/{job}/2/step-", timeout=30)
    for task in ("1", "2"):
        wait_for_text(shared / f"out-{task}", "done: 30 steps", timeout=30)
    assert "resuming" not in (shared / "out-1").read_text()


@pytest.mark.nightly
def test_slurm_takes_a_comment_as_long_as_we_think(slurm: Sandbox, shared: Path) -> None:
    args = ["sbatch", "--test-only", "--wrap=true"]
    assert slurm.run([*args, f"--comment={'x' * LONGEST_COMMENT}"], check=False).returncode == 0
    over = f"--comment={'x' * (LONGEST_COMMENT + 1)}"
    assert slurm.run([*args, over], check=False).returncode != 0


@pytest.mark.nightly
def test_spares_are_not_taken_back_by_ntasks(slurm: Sandbox) -> None:
    """Why --spares with --ntasks is refused: sbatch itself makes fewer nodes of it."""
    done = slurm.run(["sbatch", "-H", "--parsable", "-N3", "-n2", "--wrap=true"])
    assert field(slurm, done.stdout.strip(), "NumNodes") == "2-2"
    slurm.run(["scancel", done.stdout.strip()])
    done = slurm.run(["sbatch", "-H", "--parsable", "-N3", "--ntasks-per-node=1", "--wrap=true"])
    assert field(slurm, done.stdout.strip(), "NumNodes") == "3-3"
    slurm.run(["scancel", done.stdout.strip()])


RAW_SAVES = """#!/bin/sh
#SBATCH -N1
#HPCTL --checkpoint-dir {shared}/{{job_id}}{declared}
echo "begins at ${{HPCTL_RESUME_FROM:-the beginning}}"
echo weights > "$HPCTL_CHECKPOINT_DIR/w-10.raw"
sleep 600
"""


def test_custom_files_are_reported_at_the_first_save_and_resumed_where_declared(
    slurm: Sandbox, shared: Path
) -> None:
    jobs, outs = [], []
    for number, declared in enumerate((" --checkpoint-files w-{step}.raw", "")):
        script, out = shared / f"raw-{number}.sh", shared / f"raw-{number}.out"
        script.write_text(RAW_SAVES.format(shared=shared, declared=declared))
        jobs.append(hpctl_sbatch(slurm, "-o", str(out), str(script)).stdout.strip())
        outs.append(out)
    saved = f"{shared}/{jobs[0]}/w-10.raw"
    wait_for_text(outs[0], f"first checkpoint: {saved}, step 10, declared", timeout=60)
    wait_for_text(outs[1], "submit with --checkpoint-files 'w-{step}.raw'", timeout=60)
    requeue(slurm, jobs[0])
    wait_for_text(outs[0], f"hpctl: resuming from {saved}", timeout=60)
    wait_for_text(outs[0], f"begins at {saved}", timeout=60)
    assert "unproven of" in outs[0].read_text()
    slurm.run(["scancel", *jobs])
