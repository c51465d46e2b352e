"""The examples in C and bash, compiled and run as they are."""

import shutil
import subprocess

import pytest

from hpctl.jobs.run.progress_notes import (
    ProgressNoteFileReader,
    find_progress_notes_in_log,
    open_progress_note_listener,
)
from tests.jobs.run.progress_talk import ROOT, environment, heard

pytestmark = pytest.mark.integration


def test_the_c_example_compiles_without_a_warning_and_is_heard(tmp_path) -> None:
    source, program = ROOT / "examples/progress.c", tmp_path / "tell"
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-o", str(program)]
    subprocess.run(["gcc", *flags, str(source)], check=True, timeout=60)
    with open_progress_note_listener() as listener:
        subprocess.run([str(program)], env=environment(listener.address), check=True, timeout=60)
        (note,) = heard(listener, 1)
    assert (note.step, note.loss, note.rank) == (12, 0.5, 3)
    subprocess.run([str(program)], env=environment("unix:/nowhere"), check=True, timeout=60)


@pytest.mark.parametrize("line", [0, 1, 2])
def test_the_bash_lines_are_heard(line: int, tmp_path) -> None:
    bash = shutil.which("bash")
    assert bash
    page = (ROOT / "docs/progress.md").read_text(encoding="utf-8")
    code, fence, _ = page.partition("```bash\n")[2].partition("```")
    assert fence
    lines = [text for text in code.splitlines() if text and not text.startswith("#")]
    script = f"step=12 loss=0.5 SLURM_PROCID=3\n{lines[line]}\n"
    with open_progress_note_listener(["localhost"]) as udp:
        place = tmp_path / "progress"
        reader = ProgressNoteFileReader(place)
        address = [f"file:{place}", udp.address, ""][line]
        done = subprocess.run(
            [bash, "-c", script], env=environment(address), check=True, timeout=60,
            capture_output=True,
        )  # fmt: skip
        notes = (
            find_progress_notes_in_log(done.stdout)
            if line == 2
            else heard(reader if line == 0 else udp, 1)
        )
        reader.close()
    assert [(note.step, note.loss) for note in notes] == [(12, 0.5)]
