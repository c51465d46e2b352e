"""One rule for wrong arguments (docs/cli.md): what is no name at all is 2, what is absent is 1."""

from pathlib import Path

import pytest

from hpctl.toolkit.errors import HpctlError, OrderOutcomeUnknown, ServiceUnavailable
from tests.clusters.commands.test_cluster_file import PLAIN
from tests.nodes.commands.test_requests import asked
from tests.tables import beside

pytestmark = pytest.mark.integration

TABLE = beside(__file__)
HERE = Path(__file__).parent
SAMPLES = HERE.parent / "jobs" / "logs" / "samples"
"""By exit code: a command, and what it says."""


@pytest.mark.parametrize("code", TABLE)
def test_a_wrong_argument_ends_as_its_kind_does(history, tmp_path, monkeypatch, code):
    monkeypatch.chdir(tmp_path)
    wrong = []
    for line, message in TABLE[code]:
        args = line.format(plain=" ".join(PLAIN), samples=SAMPLES, here=HERE).split()
        result = history.run(*args, width=300)
        error = result.exception
        expected = error is None or isinstance(error, SystemExit | HpctlError)
        ended = (
            3 if isinstance(error, ServiceUnavailable | OrderOutcomeUnknown) else result.exit_code
        )
        text = f"{result.output} {error} {getattr(error, 'hint', '')}"
        if not expected or ended != code or message not in text:
            wrong.append(f"{line}: {ended} {text}")
    assert wrong == []
    assert (history.aws.sagemaker.ordered, asked(history)) == ([], [])
    assert not Path("cluster.yaml").exists()
