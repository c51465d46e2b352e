"""`hpctl top`: what is shown and what keys do; in a real pseudo-terminal, and through a pipe."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from fcntl import ioctl
from struct import pack

import pytest
from msgspec.structs import replace
from rich.console import Console

from hpctl.cli.top import (
    HEADINGS,
    TopScreen,
    TopScreenContent,
    make_top_screen_content,
    read_pressed_keys,
)
from hpctl.engine.journal.events import GateBlocked
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.slurm_facts import Tres
from tests.cli import worlds
from tests.cli.test_terminal import EVIL, OBEYED
from tests.fakes.command_line import Head
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

SICK, JOB = "ip-10-1-0-4", "4343"


def everything() -> TopScreenContent:
    return make_top_screen_content(worlds.world(worlds.healed(), worlds.troubled()))


def shown(
    screen: TopScreen, found: TopScreenContent, width: int = 80, height: int = 24
) -> list[str]:
    out = Console(width=width, height=height, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with out.file:
        out.print(screen.draw(found, "", height))
    return [line.rstrip() for line in out.export_text().splitlines()]


def test_what_needs_attention_comes_first_and_all_fits_80_by_24() -> None:
    found = everything()
    for view in found.rows:
        lines = shown(TopScreen(view), found)
        assert len(lines) == 24
        assert lines[-1].startswith("q quit")
        assert lines[0].startswith("llm-prod  mode own")
        assert lines[2].startswith("needs a person: 1; in treatment: nodes 1, jobs 2")
        task = next(n for n, line in enumerate(lines) if "ip-10-1-0-6: GSP RPC" in line)
        table = next(n for n, line in enumerate(lines) if line.startswith(HEADINGS[view][0]))
        assert (task < table) is (view != "problems")
        assert "hpctl undrain ip-10-1-0-6" in lines[task]
    names = [row.cells[0] for row in found.rows["nodes"]]
    assert names[:3] == ["ip-10-1-0-4", "ip-10-1-0-5", "ip-10-1-0-6"]
    assert names[-1] == "ip-10-1-0-3"
    assert [row.target for row in found.rows["jobs"]] == ["4343", "4444", "4545", "4242"]
    holds = [(r.target, r.held) for r in found.rows["recoveries"] if "held" in r.cells[1]]
    assert holds == [("4444", False), ("ip-10-1-0-5", True)]


def test_a_job_s_line_shows_its_nodes_when_it_runs_again_and_what_it_lost() -> None:
    slurm = worlds.slurm()
    eight = Tres(gres=(("gpu", 8),))
    nodes = {name: replace(node, has=eight) for name, node in slurm.nodes.items()}
    events = (worlds.healed(), worlds.troubled())
    found = make_top_screen_content(
        worlds.world(*events, slurm=replace(slurm, nodes=nodes), now=worlds.at(1800))
    )
    table = {row.target: row.cells for row in found.rows["jobs"]}
    job, state, where, doing, again, lost, *_ = table["4242"]
    assert (job, state, where, doing, again) == ("4242", "RUNNING", "2: ip-10-1-0-[1,3]", "", "")
    assert lost == "<0.1 GPU-h"
    assert table["4545"][2:6] == ("2: none yet", "starting", "at most 24 h", "7.7 GPU-h")
    narrow = shown(TopScreen("jobs"), found)
    heading = next(line for line in narrow if line.startswith("JOB"))
    assert heading.split() == [
        "JOB",
        "STATE",
        "NODES",
        "RECOVERY",
        "RUNS",
        "AGAIN",
        "IN",
        "LOST",
        "NAME",
    ]
    assert "RESTARTS" not in heading
    screen = TopScreen("jobs")
    out = Console(width=200, height=60, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with out.file:
        out.print(screen.draw(found, "", 60, 200))
    assert "RESTARTS" in out.export_text()


def test_many_problems_leave_room_and_say_how_many_more_there_are() -> None:
    why = "its launch failed"
    holds = [
        GateBlocked(worlds.at(n), f"ip-10-1-0-{n}", "offender", why, f"xid-{n}")
        for n in range(20, 40)
    ]
    found = make_top_screen_content(worlds.world(worlds.troubled(), holds))
    lines = shown(TopScreen(), found)
    assert len(lines) == 24
    listed = [line for line in lines if line.startswith("! ")]
    assert len(listed) == 4
    assert listed[-1] == "! and 18 more: press 1"
    screen = TopScreen()
    assert screen.handle_key("1", found) == ""
    assert screen.rows(found)[20].cells[0] == "ip-10-1-0-6: GSP RPC timeout"
    assert screen.handle_key("enter", found) == "explain"


def test_a_daemon_that_is_silent_is_a_problem_with_its_command() -> None:
    found = make_top_screen_content(worlds.world(now=worlds.at(4000)))
    (row,) = found.rows["problems"]
    assert row.cells[0].startswith("the daemon on head-1 (pid 4711) has been silent for 1 h")
    assert row.cells[2] == "systemctl status hpctl-daemon"


def test_keys_move_filter_sort_and_ask() -> None:
    found, screen = everything(), TopScreen()

    def press(*names: str) -> str:
        return [screen.handle_key(name, found) for name in names][-1]

    press("down", "down")
    assert screen.target == "ip-10-1-0-6"
    assert press("s") == ""
    assert screen.rows(found)[0].cells[0] == "ip-10-1-0-1"
    assert screen.target == "ip-10-1-0-6"
    press("/", *"aLLx", "del", "o", "enter")
    assert {row.cells[1] for row in screen.rows(found)} == {"ALLOCATED"}
    assert press("end", "a") == "approve"
    assert screen.target == "ip-10-1-0-3"
    press("esc")
    assert len(screen.rows(found)) == 8
    press("tab")
    assert screen.rows(found)[0].cells[0] == "4343"
    assert (press("enter"), press("p"), press("r"), press("q")) == (
        "explain", "pause", "replace", "quit",
    )  # fmt: skip
    assert press("/", "q") == ""


def test_a_cursor_in_a_long_list_stays_in_sight() -> None:
    found, screen = everything(), TopScreen()
    row = found.rows["nodes"][0]
    many = [replace(row, target=f"n{i}", cells=(f"n{i}", *row.cells[1:])) for i in range(2000)]
    found = replace(found, rows={**found.rows, "nodes": many})
    shown(screen, found)
    for key, first, cursor in (
        ("pgdn", "n1", "n17"),
        ("end", "n1983", "n1999"),
        ("home", "n0", "n0"),
    ):
        screen.handle_key(key, found)
        lines = shown(screen, found)
        heading = next(n for n, line in enumerate(lines) if line.startswith("NODE"))
        assert (lines[heading + 1].split()[0], screen.target) == (first, cursor)


def test_no_name_is_obeyed() -> None:
    slurm = worlds.slurm()
    jobs = {i: replace(job, name=EVIL + "\nx", user=EVIL) for i, job in slurm.jobs.items()}
    nodes = {**slurm.nodes, NodeName(SICK): replace(slurm.nodes[NodeName(SICK)], reason=EVIL)}
    found = make_top_screen_content(
        worlds.world(worlds.troubled(), slurm=replace(slurm, jobs=jobs, nodes=nodes))
    )
    for view in found.rows:
        lines = shown(TopScreen(view), found, width=200)
        assert len(lines) == 24
        assert not OBEYED.search("".join(lines))


def test_keys_are_read_by_name_also_in_pieces() -> None:
    mine, theirs = os.pipe()
    for piece, names in (
        (b"\x1b[A\x1bOBj", ["up", "down", "j"]),
        (b"\x1b", ["esc"]),
        (b"\x03", ["quit"]),
    ):
        os.write(theirs, piece)
        assert read_pressed_keys(mine, 1) == names
    assert read_pressed_keys(mine, 0) == []
    os.close(theirs)
    assert read_pressed_keys(mine, 1) == ["quit"]
    os.close(mine)


def test_through_a_pipe_one_screen_is_printed(history: Head) -> None:
    text = history.run("top", width=200).stdout
    lines = text.splitlines()
    assert lines[3].startswith("! ip-10-1-0-6: GSP RPC timeout (")
    assert lines[3].endswith("hpctl undrain ip-10-1-0-6 or hpctl replace ip-10-1-0-6")
    assert [line.split()[0] for line in lines[5:]][:2] == ["ip-10-1-0-4", "ip-10-1-0-5"]
    assert "n-44444444 vacated" in text
    assert "sweep [7B]" in history.run("top", "--view", "jobs", width=200).stdout


class Terminal:
    """hpctl in a pseudo-terminal of 80 by 24, and what it has written there so far."""

    def __init__(self, head: Head) -> None:
        self.main, child = pty.openpty()
        ioctl(child, termios.TIOCSWINSZ, pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(child)
        self.child, self.text, self._written = child, "", b""
        # select() takes no descriptor above 1023, and other tests of this process hold many.
        self._ready = select.poll()
        self._ready.register(self.main, select.POLLIN)
        env = {**os.environ, "HPCTL_CONFIG": str(head.config), "TERM": "xterm-256color"}
        env.pop("COLUMNS", None)
        command = [sys.executable, "-m", "hpctl", "top", "--view", "recoveries"]
        self.process = subprocess.Popen(
            command, env=env, stdin=child, stdout=child, stderr=child, start_new_session=True
        )

    def wait(self, *words: str) -> str:
        """Until all of it was written since the last time."""
        until = time.monotonic() + PATIENCE_S
        while not all(word in self.text for word in words):
            assert time.monotonic() < until, (words, self.text)
            if self._ready.poll(200):
                self._written += os.read(self.main, 65536)
                # A color, or a letter of several bytes, may come in two pieces.
                shown = self._written.decode(errors="replace")
                self.text = re.sub(r"\x1b\[[0-9;]*m", "", shown)
        found, self.text, self._written = self.text, "", b""
        return found

    def type(self, text: str) -> None:
        os.write(self.main, text.encode())


@contextmanager
def terminal(head: Head) -> Iterator[Terminal]:
    made = Terminal(head)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        os.close(made.main)
        os.close(made.child)


def test_in_a_terminal_one_looks_explains_asks_and_leaves(history: Head) -> None:
    history.config.write_text(
        history.config.read_text() + "slurm: {bin: /nonexistent, adapter: cli}\n"
    )
    with terminal(history) as seen:
        seen.wait("\x1b[?1049h", "approve", "held: budget")
        seen.type("/n-4\r")
        seen.type("\x1b")
        seen.wait("q quit")
        seen.type("/budget\r")
        seen.wait("1 with 'budget'")
        seen.type("\r")
        seen.wait("held by budget", "Esc back")
        seen.type("\x1b")
        seen.wait("Tab view")
        seen.type("a")
        seen.wait("\x1b[?1049l", "approve ip-10-1-0-5? [y/N]")
        seen.type("n\n")
        seen.wait("Enter goes back")
        seen.type("\n")
        seen.wait("\x1b[?1049h", "Tab view")
        for key, question, answer in (
            ("p", "pause hpctl? [y/N]", "n"),
            ("r", "cannot see which jobs run on the nodes", ""),
        ):
            seen.type(key)
            seen.wait(question)
            seen.type(f"{answer}\n" * bool(answer) + "\n")
            seen.wait("Tab view")
        seen.type("a")
        seen.wait("approve ip-10-1-0-5?")
        seen.type("y\n")
        seen.wait("queued as request", "Enter goes back")
        seen.type("\n")
        seen.wait("Tab view")
        seen.type("q")
        assert seen.process.wait(PATIENCE_S) == 0
        seen.wait("\x1b[?1049l", "\x1b[?25h")
        assert termios.tcgetattr(seen.child) == seen.before
    with closing(history.store()) as store:
        assert [(r.verb, r.target) for r in store.requests()] == [("approve", "ip-10-1-0-5")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_puts_the_terminal_back(history: Head, number: int) -> None:
    with terminal(history) as seen:
        seen.wait("Tab view")
        seen.process.send_signal(number)
        assert seen.process.wait(PATIENCE_S) in (128 + signal.SIGTERM, 130)
        seen.wait("\x1b[?1049l", "\x1b[?25h")
        assert termios.tcgetattr(seen.child) == seen.before
