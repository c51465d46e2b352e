"""What people and programs read, letter by letter. HPCTL_REGOLD=1 writes the files anew."""

import json
import os
from pathlib import Path

import pytest

from tests.tables import table

pytestmark = pytest.mark.integration

GOLDEN = Path(__file__).parent / "golden"
NEW_PLAN = f"tpo-{'7' * 64}"
CHECKED = "arn:aws:iam::111122223333:role/hyperpod"
COMMANDS = table(GOLDEN / "commands.yaml")


def compare(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("HPCTL_REGOLD"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_text_and_json_are_as_before(request, name: str) -> None:
    fixture, code, line = COMMANDS[name]
    run = request.getfixturevalue(fixture).run
    result = run(*line.split())
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code == code, result.output
    compare(f"{name}.txt", result.stdout)
    for line_ in result.stdout.splitlines():
        # An ARN is for copying into a file.
        assert len(line_) <= 80 or line_.startswith("training_plan: ")
        assert line_ == line_.rstrip()
        assert "\x1b" not in line_
    if "--dry-run" in line:
        assert result.stdout.endswith("\nDry run: nothing was done.\n")
    text = run(*line.split(), "--json").stdout
    assert next(iter(json.loads(text))) == "schema"
    compare(f"{name}.json", text)
