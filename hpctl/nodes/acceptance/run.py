"""Run the tests of a level on this node: `python -m hpctl.nodes.acceptance.run --level quick`.

Prints one line of the contract and one of JSON for each test (hpctl/nodes/acceptance/result.py),
and ends with 1 where one failed, 2 where there was none to run. With `--id` the results are also
written for the agent, which reports them. It imports nothing of the daemon and runs as the user who
starts it. `run_acceptance_tests_on_nodes` runs it on several nodes at once, one task a node, by
srun: in a job, or as separate jobs.
"""

import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import re2
from msgspec import Meta, Struct
from msgspec.structs import replace

from hpctl.detection.check import CheckResultUnknownError
from hpctl.detection.outside.plugin_child import PluginProcess
from hpctl.detection.outside.trust import explain_untrusted_directory, explain_untrusted_path
from hpctl.nodes.acceptance import result
from hpctl.nodes.acceptance.card import read_node_gpu_card
from hpctl.nodes.acceptance.result import (
    AcceptanceRunResults,
    AcceptanceTestJsonLine,
    AcceptanceTestResult,
    Cure,
    FigureName,
    RunId,
    TestName,
    shorten_to_one_line,
)
from hpctl.slurm.run import SlurmCommandRunner
from hpctl.toolkit import yaml_files
from hpctl.toolkit.bounds import make_printable
from hpctl.toolkit.compat import SAFE_PATH
from hpctl.toolkit.errors import HpctlError, InvalidFileError
from hpctl.toolkit.hostlist import fold_hostlist
from hpctl.vocabulary.identity import NodeName

HERE = Path(__file__).parent
SITE = Path("/etc/hpctl/tests.d")
SPOOL = "/var/lib/hpctl/agent"
"""The agent's own, or what HPCTL_AGENT_SPOOL says for both."""
FOLDER = "acceptance"
MAX_OUTPUT = 1024 * 1024
MAX_WAITING = 64
"""The most result files that wait for an agent which does not come: no further ones are written."""
QUICK_S = 90.0
LEVELS = ("quick", "full", "group")

_Level = Literal["quick", "full", "group"]
_Word = Annotated[str, Meta(max_length=256)]


class AcceptanceRequirements(Struct, frozen=True):
    """What must be there: programs on PATH, paths, mount points."""

    programs: tuple[_Word, ...] = ()
    paths: tuple[_Word, ...] = ()
    mounts: tuple[_Word, ...] = ()

    def missing(self) -> str:
        """Return the first that is absent, in words; empty where all is there."""
        for program in self.programs:
            if shutil.which(program) is None:
                return f"no {program} on PATH"
        for path in self.paths:
            if not os.path.exists(path):
                return f"no {path} on this node"
        for mount in self.mounts:
            if not os.path.ismount(mount):
                return f"{mount} is not mounted"
        return ""


class FigurePattern(Struct, frozen=True):
    """How one figure is read: the group of a regular expression, times `scale`."""

    match: str
    scale: float = 1.0
    of: Literal["last", "min", "max"] = "last"

    def __post_init__(self) -> None:
        if _compile_re2_pattern(self.match).groups != 1:
            raise ValueError("match needs exactly one group, around the number")

    def read(self, output: str) -> float | None:
        """Return the figure in an output; None where it is not there."""
        found = []
        for text in _compile_re2_pattern(self.match).findall(output):
            with contextlib.suppress(ValueError):
                found.append(float(text) * self.scale)
        if not found:
            return None
        return found[-1] if self.of == "last" else min(found) if self.of == "min" else max(found)


class RemedyPattern(Struct, frozen=True):
    """The remedy that a piece of the output asks for."""

    match: str
    remedy: Cure

    def __post_init__(self) -> None:
        _compile_re2_pattern(self.match)


class AcceptanceTest(Struct, frozen=True):
    """One row of tests.yaml, whose head says what each key means. Times in seconds."""

    __test__ = False

    name: TestName
    what: _Word
    command: Annotated[tuple[str, ...], Meta(min_length=1, max_length=64)]
    levels: Annotated[tuple[_Level, ...], Meta(min_length=1)]
    timeout_s: Annotated[float, Meta(gt=0, le=14400)]
    needs: AcceptanceRequirements = AcceptanceRequirements()
    figures: Annotated[dict[FigureName, FigurePattern], Meta(max_length=result.MAX_FIGURES)] = {}
    failed: str = ""
    remedy: Cure = "none"
    remedies: Annotated[tuple[RemedyPattern, ...], Meta(max_length=16)] = ()

    def __post_init__(self) -> None:
        _compile_re2_pattern(self.failed)

    def judge(self, status: int, output: str, complaint: str) -> AcceptanceTestResult:
        """Return what an ended command amounts to. Its own line of the contract goes before the
        rest."""
        figures: dict[str, object] = {**result.parse_measured_figures(output)}
        read = {name: figure.read(output) for name, figure in self.figures.items()}
        figures |= {name: value for name, value in read.items() if value is not None}
        parsed = result.parse_test_result_line(self.name, output)
        if parsed is not None:
            if parsed.status != "Failed" and status != 0:
                parsed = self.failure(f"says {parsed.status} and ends with exit code {status}")
            return replace(parsed, figures=result.select_valid_figures(figures))
        failed = _compile_re2_pattern(self.failed).search(output) if self.failed else None
        if status == 0 and failed is None:
            return AcceptanceTestResult(
                self.name, "Passed", figures=result.select_valid_figures(figures)
            )
        why = output[max(0, failed.start() - 120) : failed.end() + 80] if failed else ""
        last = (complaint or output).strip().splitlines()[-1:]
        why = why or f"exit code {status}{': ' if last else ''}{''.join(last)}"
        return replace(self.failure(why, output), figures=result.select_valid_figures(figures))

    def failure(self, why: str, output: str = "") -> AcceptanceTestResult:
        """Return that the test has failed, with the remedy that its output asks for."""
        asked = (
            each.remedy for each in self.remedies if _compile_re2_pattern(each.match).search(output)
        )
        return AcceptanceTestResult(
            self.name, "Failed", next(asked, self.remedy), result.shorten_to_one_line(why)
        )


class AcceptanceTestFile(Struct, frozen=True):
    """A file of tests."""

    __test__ = False

    tests: Annotated[tuple[AcceptanceTest, ...], Meta(max_length=result.MAX_RESULTS)] = ()


class InvalidTestFileError(InvalidFileError):
    """A file of tests that cannot be used."""

    __test__ = False
    hint_text = f"{HERE}/tests.yaml says at its head what a row may hold."


def _compile_re2_pattern(pattern: str) -> "re2._Regexp":
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(f"no regular expression (RE2): {pattern!r:.80}: {error}") from error


def load_acceptance_tests(site: Path = SITE) -> dict[str, AcceptanceTest]:
    """Return all tests by name, hpctl's own first, then the site's by file. Raises HpctlError.

    A site's row replaces the one of its name. Its files are root's, as the agent's plugins are.
    """
    found = {test.name: test for test in _load_acceptance_test_file(HERE / "tests.yaml")}
    if not site.is_dir():
        return found
    paths = sorted(path for path in site.glob("*.yaml") if not path.name.startswith("."))
    for place in (site, *paths):
        trouble = (
            explain_untrusted_directory(place)
            if place == site
            else explain_untrusted_path(place, place.lstat())
        )
        if trouble:
            raise HpctlError(
                f"hpctl does not run this site's node tests: {trouble}",
                "Give the file or directory to root (chown root) and let no other user write to "
                "it (chmod go-w).",
            )
    for path in paths:
        found |= {test.name: test for test in _load_acceptance_test_file(path)}
    return found


def _load_acceptance_test_file(path: Path) -> tuple[AcceptanceTest, ...]:
    text = yaml_files.read_size_limited_text(path, InvalidTestFileError)
    return yaml_files.parse_yaml_struct(
        AcceptanceTestFile, text, str(path), InvalidTestFileError
    ).tests


def choose_acceptance_tests(
    known: Mapping[str, AcceptanceTest], level: str, names: Sequence[str]
) -> list[AcceptanceTest]:
    """Return the tests of a level, or those of these names. Raises HpctlError for a name that is
    none."""
    for name in names:
        if name not in known:
            hint = f"The tests are {', '.join(known)}."
            raise HpctlError(
                "hpctl has no node test with the name "
                f"{name}{yaml_files.suggest_similar_word(name, list(known))}",
                hint,
            )
    if names:
        return [test for test in known.values() if test.name in names]
    return [test for test in known.values() if level in test.levels]


def run_acceptance_test(test: AcceptanceTest, left_s: float, host: str) -> AcceptanceTestResult:
    """Run one test, to its end or its timeout. Raise nothing."""
    missing = test.needs.missing()
    if missing:
        return AcceptanceTestResult(
            test.name, "Skipped", reason=result.shorten_to_one_line(missing)
        )
    if left_s < 1.0:
        return AcceptanceTestResult(
            test.name, "Skipped", reason="no time is left for it at this level"
        )
    values = {
        "here": str(HERE),
        "host": host,
        "python": os.environ.get("HPCTL_TEST_PYTHON") or sys.executable,
        "gpus": str(len(list(Path("/dev").glob("nvidia[0-9]*")))),
    }
    command = list(test.command)
    for name, value in values.items():
        command = [word.replace(f"{{{name}}}", value) for word in command]
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        ended = PluginProcess(command, min(test.timeout_s, left_s), environment, MAX_OUTPUT).run()
    except CheckResultUnknownError as error:
        cut = left_s < test.timeout_s and "not done" in str(error)
        return (
            AcceptanceTestResult(
                test.name, "Skipped", reason="no time was left to finish it at this level"
            )
            if cut
            else test.failure(str(error))
        )
    return test.judge(ended.status, ended.output.decode(errors="replace"), ended.complaint)


def write_acceptance_result_file(results: AcceptanceRunResults, spool: Path) -> Path:
    """Return the file for the agent, whole or not at all. Raises HpctlError."""
    folder = spool / FOLDER
    try:
        folder.mkdir(mode=0o755, exist_ok=True)
        if len(list(folder.iterdir())) >= MAX_WAITING:
            raise HpctlError(
                f"cannot store the test's result: {MAX_WAITING} results wait in {folder}, and "
                "hpctl's agent does not collect them",
                "Check the agent on this node: systemctl status hpctl-agent",
            )
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".", delete=False) as file:
            file.write(result.encode_results(results))
            file.flush()
            # Not by its name: the folder is the daemon's user's, who may put a link there.
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        path = folder / f"{results.id}.json"
        os.replace(file.name, path)
    except OSError as error:
        hint = "The agent's directory is root's: run the tests as root, or without --id."
        raise HpctlError(f"{folder}: {error.strerror}", hint) from error
    return path


CANCELLING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Slurm and systemd send the first, Ctrl-C the second, a terminal that closes the third.

A test is in a separate session, so neither Ctrl-C nor the terminal's end reaches it.
"""


def _kill_test_and_exit(number: int, _frame: object) -> None:
    """Kill the test that runs, and exit with 128 + the signal's number, as a shell does.

    A signal may come while Popen is starting the test. No object holds the process then, so the
    kernel's list of children says which it is.
    """
    own = os.getpid()
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        for pid in map(int, children):
            with contextlib.suppress(OSError):
                # Before its exec the test is not yet in a separate process group.
                os.kill(pid, signal.SIGKILL)
                os.killpg(pid, signal.SIGKILL)
    sys.exit(128 + number)


def install_cancellation_handlers() -> None:
    """Install the handlers of CANCELLING in this process, which runs nothing else."""
    for number in CANCELLING:
        # nohup ignores SIGHUP: the run is to outlive its terminal.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _kill_test_and_exit)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests that were asked for; the exit code."""
    given = _build_parser().parse_args(arguments)
    try:
        todo = choose_acceptance_tests(load_acceptance_tests(given.tests), given.level, given.test)
        if given.check:
            return _print_tests(todo, given.spool)
        results = _run_acceptance_tests(todo, given.level, given.id or "none")
        if given.id:
            write_acceptance_result_file(replace(results, card=read_node_gpu_card()), given.spool)
    except HpctlError as error:
        for text in (f"hpctl: {error}", error.hint):
            print(make_printable(text, lines=True), file=sys.stderr)
        return 2
    if all(each.status == "Skipped" for each in results.results):
        print("hpctl: no test of this level can run on this node", file=sys.stderr)
        return 2
    return 1 if results.failed_results else 0


def _print_tests(todo: Sequence[AcceptanceTest], spool: Path) -> int:
    """Print which tests this node would run; return the exit code. Raises HpctlError."""
    missing = [test.needs.missing() for test in todo]
    for test, why in zip(todo, missing, strict=True):
        print(make_printable(f"{test.name}: {f'skipped: {why}' if why else 'runs'}"))
    if not os.access(spool, os.W_OK):
        raise HpctlError(
            f"cannot start the test: the directory {spool} is not writable, so hpctl's agent "
            "would not get the result",
            "Run the test as the user of hpctl's daemon (root or SlurmUser), to whom the "
            "directory belongs.",
        )
    if all(missing):
        raise HpctlError(
            "hpctl has no test of this level that can run on this node",
            "Choose another level, or add tests in /etc/hpctl/tests.d.",
        )
    return 0


def _run_acceptance_tests(
    todo: Sequence[AcceptanceTest], level: str, run_id: str
) -> AcceptanceRunResults:
    """Run the tests one after another and report each as it ends."""
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    started = time.time()
    end = time.monotonic() + (QUICK_S if level == "quick" else math.inf)
    done = []
    for test in todo:
        found = run_acceptance_test(test, end - time.monotonic(), host)
        done.append(found)
        print(make_printable(found.line(host)), flush=True)
        print(json.dumps(result.make_test_result_json(host, found)), flush=True)
    return AcceptanceRunResults(run_id, level, started, time.time(), tuple(done))


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("hpctl.nodes.acceptance.run", description="Test this node.")
    parser.add_argument("--level", choices=LEVELS, default="quick", help="which tests")
    parser.add_argument("--test", action="append", default=[], help="these instead, by name")
    parser.add_argument("--check", action="store_true", help="name the tests, run none")
    parser.add_argument(
        "--id", type=_parse_test_run_id, help="write the results for the agent under this id"
    )
    spool = os.environ.get("HPCTL_AGENT_SPOOL") or SPOOL
    parser.add_argument("--spool", type=Path, default=Path(spool), help="the agent's directory")
    site = os.environ.get("HPCTL_TESTS_D") or SITE
    parser.add_argument("--tests", type=Path, default=Path(site), help="the site's own tests")
    return parser


def _parse_test_run_id(text: str) -> str:
    try:
        return msgspec.convert(text, RunId)
    except msgspec.ValidationError as error:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is no id: {error}") from error


ANSWER_S = 30.0
"""How much longer than the tests their step may take."""
_PASSED_ON = ("HPCTL_", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_line = msgspec.json.Decoder(AcceptanceTestJsonLine)

Found = Mapping[NodeName, tuple[AcceptanceTestResult, ...]]


def run_acceptance_tests_on_nodes(  # noqa: PLR0913 -- what one srun is started with
    runner: SlurmCommandRunner,
    nodes: Collection[NodeName],
    level: str,
    limit_s: float,
    options: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> tuple[Found, str]:
    """Return what each node said of itself, nothing where it said nothing; and srun's own last
    words.

    `options` are further ones of srun. Never raises; it takes `limit_s` and ANSWER_S at most.
    """
    command = [sys.executable, *SAFE_PATH, "hpctl.nodes.acceptance.run", "--level", level]
    count = str(len(nodes))
    ran = runner.run(
        "srun",
        *(
            "--nodes",
            count,
            "--ntasks",
            count,
            "--ntasks-per-node=1",
            "--nodelist",
            fold_hostlist(nodes),
        ),
        *("--kill-on-bad-exit=0", "--quiet", *options, *command),
        timeout=limit_s + ANSWER_S,
        environ=environ,
    )
    found: dict[NodeName, tuple[AcceptanceTestResult, ...]] = {}
    for text in ran.out[: 16 << 20].decode("utf-8", "replace").splitlines():
        if not text.startswith('{"host"'):
            continue
        try:
            line = _line.decode(text)
        except (msgspec.MsgspecError, RecursionError):
            continue
        name = NodeName(line.host)
        if name in nodes:
            cleaned = replace(line.result, reason=shorten_to_one_line(line.result.reason))
            found[name] = (*found.get(name, ()), cleaned)
    return found, "" if ran.ok else shorten_to_one_line(ran.message)


def select_forwarded_environment_variables(
    environ: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Return the variables that tests on another node need."""
    return {name: value for name, value in environ.items() if name.startswith(_PASSED_ON)}


def summarize_failed_tests(results: Sequence[AcceptanceTestResult]) -> str:
    """Return why a node is bad by its results: the failed tests in one line; empty where none
    failed."""
    failed = [f"{r.test}: {r.reason or 'failed'}" for r in results if r.status == "Failed"]
    return shorten_to_one_line("; ".join(failed))


def format_failed_node_reasons(nodes: Mapping[NodeName, str]) -> str:
    """Return bad nodes with their reasons, the first four."""
    named = [f"{node} ({why})" for node, why in list(nodes.items())[:4]]
    more = [f"{len(nodes) - 4} more"] if len(nodes) > 4 else []
    return ", ".join((*named, *more))


if __name__ == "__main__":
    install_cancellation_handlers()
    sys.exit(main())
