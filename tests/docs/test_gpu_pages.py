"""The pages of docs/gpu, computed from the recordings of real GPUs."""

import json
import shutil

from docgen.generate import PAGES
from docgen.gpu import RECORDINGS, list_pages, page
from tests.gpu.recordings import H200


def test_each_folder_of_recordings_has_a_page_that_the_site_shows():
    names = {
        f"gpu/{path.name}.md" for path in RECORDINGS.iterdir() if (path / "README.md").exists()
    }
    assert (
        set(list_pages()) == names == {f"gpu/{path.name}" for path in (PAGES / "gpu").glob("*.md")}
    )
    for shown in (PAGES.parent / "mkdocs.yml", PAGES / "index.md"):
        assert all(name in shown.read_text(encoding="utf-8") for name in names)


def test_a_section_whose_recording_is_missing_is_left_out(tmp_path):
    for name in ("README.md", "acceptance.json"):
        shutil.copy(H200 / name, tmp_path)
    titles = [line for line in page(tmp_path).splitlines() if line.startswith("#")]
    assert titles == [
        "# NVIDIA H200, driver 580.159.04",
        "## The acceptance test's programs, run twice",
    ]


def test_the_figures_are_those_of_the_recordings(tmp_path):
    shutil.copytree(H200, card := tmp_path / "card")
    path = card / "sandbox-on-gpu.json"
    found = json.loads(path.read_text())
    found["spare"]["fault_to_first_step_s"] = 20.0
    found["spare"]["resumed"]["since_born"] = 5.0
    found["same_bits"]["spare"] = False
    path.write_text(json.dumps(found))
    text = page(card)
    assert "20.0 s after the line; 5.0 s of them (25 %)" in text
    assert "**different from** those of an undisturbed run" in text
    assert "10.7 s after the line; 10.0 s of them (93 %)" in page(H200)
