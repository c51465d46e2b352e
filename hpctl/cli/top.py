"""`hpctl top`: problems, nodes, jobs and recoveries, live in a terminal."""

from __future__ import annotations

import functools
import gc
import os
import re
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Final

import click
from msgspec import Struct

from hpctl.cli.explain import draw_target_explanation, explain_node_job_or_recovery
from hpctl.engine import config_loading
from hpctl.engine.attention import PersonTask
from hpctl.engine.estimates import RecoveryTimeEstimator
from hpctl.engine.instance_resolver import make_natural_sort_key
from hpctl.engine.job_losses import find_job_downtime, group_recoveries_by_job
from hpctl.engine.nodes_view import make_nodes_view
from hpctl.engine.status_view import ClusterStatusView, make_cluster_status_view
from hpctl.engine.world import World
from hpctl.engine.world_reader import WorldReader
from hpctl.nodes import decisions_command, orders_command
from hpctl.toolkit import output
from hpctl.toolkit.arguments import DurationType
from hpctl.toolkit.bounds import make_printable
from hpctl.toolkit.durations import format_duration
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.hostlist import fold_hostlist, is_host_name
from hpctl.toolkit.tables import (
    BAD,
    DIM,
    HEAD,
    WARN,
    WIDE,
    color_state_word,
    format_age,
    format_plain_columns,
    format_state_counts,
    make_plain_table,
    stack_renderables,
    style_text,
)
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.job_recovery import JobRecovery
from hpctl.vocabulary.slurm_facts import SlurmJob

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from hpctl.engine.config import Config

HEADINGS: Final = {
    "problems": ("WHAT", "WAITING", "DO"),
    "nodes": ("NODE", "SLURM", "HEALTH", "RULE", "HEARD", "TREATMENT"),
    "jobs": (
        "JOB", "STATE", "NODES", "RECOVERY", "RUNS AGAIN IN", "LOST", "RESTARTS", "USER", "NAME",
    ),
    "recoveries": ("WHAT", "PHASE", "FOR", "RULE", "WHY"),
}  # fmt: skip
TABS: Final = tuple(HEADINGS)
OFTEN_EMPTY: Final = ("RUNS AGAIN IN", "LOST", "RECOVERY")
"""Columns that are left out where no row has anything in them."""
ONLY_WIDE: Final = ("RESTARTS", "USER")
COMMANDS: Final = ("hpctl ", "systemctl ")
"""With these a line about what is unknown ends, where a command is of use."""
WIDTHS: Final = {"WHAT": 40, "NODES": 12, "RECOVERY": 10}
"""How wide these columns are at most; on a wide screen three times that."""
LINES = 6
"""Lines of the screen above and below the rows and the problems."""
SHARE = 5
"""At most one line of so many shows a problem, whatever the view."""
OLD_S = 15.0
"""After so long without a reading the screen says that it is old."""
KEYS = "q quit  Enter explain  / filter  s sort  Tab view  a approve  p pause  r replace"
BACK = "Esc back  q quit  arrows scroll"
LOOK_S = 0.25
"""How often a change of the window's size is looked for."""
ESCAPE_S = 0.05
"""How long the rest of a key's sequence may take over a slow line."""

_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
_PART = re.compile(rb"\x1b([\[O][0-9;]*)?\Z")
_NAMED = {"[A": "up", "[B": "down", "[5~": "pgup", "[6~": "pgdn", "[H": "home", "[F": "end"}
_NAMED |= {"[1~": "home", "[4~": "end", "OA": "up", "OB": "down", "OH": "home", "OF": "end"}
_CONTROL = {"\r": "enter", "\n": "enter", "\t": "tab", "\x1b": "esc", "\x7f": "del", "\b": "del"}
_CONTROL |= {"\x03": "quit", "\x04": "quit", "\x1a": "stop"}
_PLAIN = {"k": "up", "j": "down", "g": "home", "G": "end", "q": "quit"}
_ASKS = {"enter": "explain", "a": "approve", "p": "pause", "r": "replace"}


class TopTableRow(Struct, frozen=True):
    """One row. `target`: what `hpctl explain` tells of. `urgency`: 0 comes first. `node`: what
    `replace` would replace, if anything; `held`: an approval lets it go ahead."""

    target: str
    cells: tuple[str, ...]
    urgency: int = 2
    node: str = ""
    held: bool = False


class TopScreenContent(Struct, frozen=True):
    """What there is to show."""

    status: ClusterStatusView
    rows: dict[str, list[TopTableRow]]


def make_top_screen_content(w: World) -> TopScreenContent:
    """Return everything as rows, what needs attention first."""
    status = make_cluster_status_view(w)
    rows = {
        "nodes": _list_node_rows(w),
        "jobs": _list_job_rows(w),
        "recoveries": _list_recovery_rows(status),
    }
    for table in rows.values():
        table.sort(key=lambda row: (row.urgency, make_natural_sort_key(row.cells[0])))
    return TopScreenContent(status, {"problems": _list_problem_rows(status), **rows})


def _sanitize_table_cells(*cells: object) -> tuple[str, ...]:
    """Cells of one line each, whatever others wrote."""
    return tuple(make_printable(" ".join(str(cell).split())) for cell in cells)


def _list_problem_rows(status: ClusterStatusView) -> list[TopTableRow]:
    """Return what needs a person, as the page has it, and then every other problem."""
    found = []
    for task in status.person_tasks:
        lasts = format_duration((status.as_of - task.since).total_seconds())
        target = task.targets[0] if task.targets else ""
        hold = next((h for h in status.holds if h.target == target), None)
        node = "" if target.isdecimal() else target
        approvable = hold is not None and hold.approvable
        cells = _sanitize_table_cells(task.title, lasts, _format_task_commands(task))
        found.append(
            TopTableRow(target if approvable else task.explain, cells, 0, node, held=approvable)
        )
    for line in status.unknowns:
        what, _, command = line.rpartition(": ")
        is_command = command.startswith(COMMANDS)
        cells = (
            _sanitize_table_cells(what, "-", command)
            if is_command
            else _sanitize_table_cells(line, "-", "-")
        )
        found.append(TopTableRow(line, cells))
    for line in status.other_problems:
        what, _, target = line.partition("hpctl explain ")
        what = what.rstrip(": ")
        found.append(
            TopTableRow(
                target or line,
                _sanitize_table_cells(what, "-", f"hpctl explain {target}" * bool(target)),
            )
        )
    return found


def _format_task_commands(task: PersonTask) -> str:
    """Return the commands to choose from, or what to do where no command does it."""
    return " or ".join(task.commands) or task.ask


def _list_node_rows(w: World) -> list[TopTableRow]:
    found = []
    for n in make_nodes_view(w).nodes:
        state = n.slurm_state + "".join(f"+{flag}" for flag in n.slurm_flags)
        heard = format_age(n.last_heard, w.now).removesuffix(" ago")
        cells = _sanitize_table_cells(n.name, state, n.condition, n.rule, heard, n.treatment)
        bad = n.recovery or n.held_by or n.condition == "faulty"
        odd = n.slurm_flags or n.condition != "healthy"
        found.append(TopTableRow(n.name, cells, 0 if bad else 1 if odd else 2, n.name))
    return found


def _list_job_rows(w: World) -> list[TopTableRow]:
    jobs = w.slurm.jobs if w.slurm else {}
    hits, estimator = group_recoveries_by_job(w), RecoveryTimeEstimator(w)
    found = []
    for number in jobs.keys() | w.state.open_jobs.keys():
        job, rec = jobs.get(number), w.state.get_open_job_recovery(number)
        about = job or rec
        assert about is not None
        hold = w.state.holds.get(str(number))
        doing = str(rec.phase) if rec else f"held: {hold.gate}" if hold else ""
        again = estimator.estimate_job_restart_time(rec) if rec else None
        lost = find_job_downtime(w, job, hits.get(number, []), w.now).text
        cells = _sanitize_table_cells(
            about.shown,
            job.state if job else "-",
            _format_nodes(job, rec),
            doing,
            again.text(w.now) if again else "",
            f"{lost} GPU-h" if lost else "",
            job.restarts if job else "-",
            about.user,
            about.name,
        )
        found.append(TopTableRow(str(number), cells, 0 if doing else 2))
    return found


@functools.lru_cache(4096)
def _fold_node_names_to_hostlist(names: tuple[NodeName, ...]) -> str:
    """Return names as a hostlist; kept, because a job has the same nodes at the next reading."""
    return fold_hostlist(names) if all(map(is_host_name, names)) else ",".join(names)


def _format_nodes(job: SlurmJob | None, rec: JobRecovery | None) -> str:
    """`2: n[1,3]`: how many nodes a job has and which; how many it wants, where it has none."""
    names = job.nodes if job is not None else ()
    if names:
        return f"{len(names)}: {_fold_node_names_to_hostlist(names)}"
    size = (rec.nodes or len(rec.ran_on) if rec is not None else 0) or (job.wants if job else 0)
    return f"{size}: none yet" if size else "-"


def _list_recovery_rows(status: ClusterStatusView) -> list[TopTableRow]:
    found = []
    for h in status.holds:
        lasts = format_duration((status.as_of - h.since).total_seconds())
        cells = _sanitize_table_cells(h.shown, f"held: {h.gate}", lasts, h.rule, h.why)
        node = "" if h.target.isdecimal() else h.target
        found.append(TopTableRow(h.target, cells, 0, node, held=h.approvable))
    for r in status.waiting_for_a_person + status.node_recoveries:
        lasts = format_duration((status.as_of - r.opened).total_seconds())
        cells = _sanitize_table_cells(r.node, r.phase, lasts, r.rule, r.meaning or r.why)
        found.append(TopTableRow(r.id, cells, 0 if r.ended else 1, r.node))
    for j in status.job_recoveries:
        lasts = format_duration((status.as_of - j.opened).total_seconds())
        cells = _sanitize_table_cells(
            f"job {j.shown}", j.phase, lasts, j.cause_rule or j.action, j.why
        )
        found.append(TopTableRow(j.id, cells, 1))
    return found


class TopScreen:
    """What is on the screen and what each key does to it. Knows neither terminal nor clock."""

    def __init__(self, view: str = "nodes") -> None:
        self.tab = TABS.index(view)
        self.filter, self.typing = "", False
        self.sort: int | None = None
        self.index, self.target = 0, ""
        self.story: list[Text] = []
        self.room = 1
        """How many rows, or lines of a story, there is room for."""

    def rows(self, shown: TopScreenContent) -> list[TopTableRow]:
        """Return the rows of the view, filtered and sorted; the cursor stays on what it was on."""
        text, by = self.filter.casefold(), self.sort
        found = [r for r in shown.rows[TABS[self.tab]] if text in " ".join(r.cells).casefold()]
        if by is not None:
            found.sort(key=lambda row: make_natural_sort_key(row.cells[by]))
        targets = [row.target for row in found]
        self.index = targets.index(self.target) if self.target in targets else self.index
        self.index = max(0, min(self.index, len(found) - 1))
        self.target = targets[self.index] if targets else ""
        return found

    def handle_key(self, key: str, shown: TopScreenContent) -> str:
        """Take one key; answers what it asks for beyond the screen, if anything."""
        if self.typing:
            return self._handle_filter_key(key)
        key = _PLAIN.get(key, key)
        rows = self.rows(shown)
        size = len(self.story) - self.room if self.story else len(rows) - 1
        step = {"up": -1, "down": 1, "pgup": -self.room, "pgdn": self.room, "home": -size - 1,
                "end": size + 1}.get(key)  # fmt: skip
        if step is not None:
            self.index = max(0, min(self.index + step, size))
            self.target = self.target if self.story or not rows else rows[self.index].target
        elif self.story and key in ("esc", "enter"):
            self.story, self.index = [], 0
        elif self.story or key in ("quit", "stop"):
            return key if key in ("quit", "stop") else ""
        elif key in ("tab", "1", "2", "3", "4"):
            self.tab = int(key) - 1 if key != "tab" else (self.tab + 1) % len(TABS)
            self.sort, self.index, self.target = None, 0, ""
        elif key == "s":
            at = -1 if self.sort is None else self.sort
            self.sort = at + 1 if at + 1 < len(HEADINGS[TABS[self.tab]]) else None
        elif key in ("/", "esc"):
            self.typing, self.filter = key == "/", ""
        return _ASKS.get(key, "") if not self.story else ""

    def _handle_filter_key(self, key: str) -> str:
        if key in ("enter", "esc", "quit"):
            self.typing, self.filter = False, "" if key == "esc" else self.filter
        elif key == "del":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter += key
        return "quit" if key == "quit" else ""

    def draw(
        self, shown: TopScreenContent, note: str, height: int, width: int = 80
    ) -> RenderableType:
        """Return the screen, `height` lines of it."""
        problems = (
            [] if TABS[self.tab] == "problems" else format_problem_lines(shown, height // SHARE)
        )
        self.room = max(1, height - LINES - len(problems))
        if self.story:
            self.room = height - 1
            lines = self.story[self.index : self.index + self.room]
            blank = [style_text("")] * (self.room - len(lines))
            return stack_renderables([*lines, *blank, style_text(BACK, DIM)])
        rows = self.rows(shown)
        first = max(0, self.index - self.room + 1)
        here = list(islice(enumerate(rows), first, first + self.room))
        kept = self._choose_visible_columns(rows, width)
        headings = HEADINGS[TABS[self.tab]]
        table = make_plain_table(
            *(_make_table_column(headings[n], n == kept[-1], width) for n in kept)
        )
        table.expand = True
        for at, row in here:
            cells = (color_state_word(row.cells[n].partition("+")[0], row.cells[n]) for n in kept)
            table.add_row(*cells, style="reverse" if at == self.index else "")
        blank = [style_text("")] * (self.room - max(0, len(rows) - first))
        foot = style_text(f"filter: {self.filter}_") if self.typing else style_text(KEYS, DIM)
        foot.no_wrap = True
        tabs = self._draw_tabs(shown, len(rows))
        return stack_renderables([*draw_header(shown, note), *problems, tabs, table, *blank, foot])

    def _choose_visible_columns(self, rows: list[TopTableRow], width: int) -> list[int]:
        """Return the columns that are shown: those that say something, as far as there is room."""
        found = []
        for n, heading in enumerate(HEADINGS[TABS[self.tab]]):
            empty = heading in OFTEN_EMPTY and not any(row.cells[n] for row in rows)
            if not empty and (width >= WIDE or heading not in ONLY_WIDE):
                found.append(n)
        return found

    def _draw_tabs(self, shown: TopScreenContent, count: int) -> Text:
        line = style_text("")
        for number, name in enumerate(TABS):
            text = f" {number + 1} {name} {len(shown.rows[name])} "
            line.append(text, "reverse" if number == self.tab else "")
        if self.sort is not None:
            line.append(f"  by {HEADINGS[TABS[self.tab]][self.sort]}", DIM)
        if self.filter:
            line.append(f"  {count} with {make_printable(self.filter)!r}", DIM)
        line.no_wrap = True
        return line


def draw_header(shown: TopScreenContent, note: str = "") -> list[Text]:
    """Three lines about everything."""
    s = shown.status
    first = style_text(s.cluster or "hpctl", HEAD)
    first.append(f"  mode {s.mode}  {s.as_of:%Y-%m-%d %H:%M:%S} UTC", "default")
    second = style_text("nodes ")
    second.append_text(format_state_counts(s.nodes.by_state))
    second.append("; health ").append_text(format_state_counts(s.nodes.by_condition))
    paused = [f"{p.what} is paused by {p.by}" + f": {p.why}" * bool(p.why) for p in s.pauses]
    wrong = [note, *paused, s.stopped, *s.unknowns]
    text = "; ".join(_sanitize_table_cells(*filter(None, wrong)))
    third = style_text(text, BAD) if text else _draw_status_counts(shown)
    for line in (first, second, third):
        line.no_wrap, line.overflow = True, "ellipsis"
    return [first, second, third]


def _draw_status_counts(shown: TopScreenContent) -> Text:
    """Return how much needs a person, and how much hpctl has in hand."""
    s = shown.status
    tasks, others = len(s.person_tasks), len(s.other_problems)
    text = (
        style_text(f"needs a person: {tasks}", BAD)
        if tasks
        else style_text("nothing needs a person", DIM)
    )
    treated = f"; in treatment: nodes {len(s.node_recoveries)}, jobs {len(s.job_recoveries)}"
    text.append(treated, "default")
    if others:
        text.append(f"; other problems: {others}", WARN)
    return text


def format_problem_lines(shown: TopScreenContent, most: int) -> list[Text]:
    """Return what needs a person, one line each, and how many more there are."""
    rows = [row for row in shown.rows["problems"] if row.urgency == 0]
    lines = []
    for row in rows[: most if len(rows) <= most else most - 1]:
        what, lasts, do = row.cells
        line = style_text("! ", BAD)
        line.append(what, HEAD).append(f" ({lasts}): ", "default").append(do, "default")
        lines.append(line)
    if len(rows) > len(lines):
        lines.append(style_text(f"! and {len(rows) - len(lines)} more: press 1", BAD))
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return lines


def _make_table_column(name: str, last: bool, width: int) -> tuple[str, dict[str, object]]:
    """Return a column as rich takes it: the last has what is left of the line."""
    if last:
        return name, {"ratio": 1}
    widest = WIDTHS.get(name)
    if widest is None:
        return name, {}
    return name, {"max_width": widest * (3 if width >= WIDE else 1), "overflow": "ellipsis"}


def print_all_table_rows(out: Console, shown: tuple[TopScreenContent, str]) -> None:
    """Draw all rows of a view, for a pipe."""
    found, view = shown
    for line in draw_header(found):
        out.print(line)
    if view != "problems":
        for line in format_problem_lines(found, len(found.rows["problems"])):
            out.print(line, no_wrap=True, crop=False, overflow="ignore")
    rows = [HEADINGS[view], *(row.cells for row in found.rows[view])]
    out.print(format_plain_columns(rows), no_wrap=True, crop=False)


class TopReader(threading.Thread):
    """Reads the world again and again, so that keys do not wait for them."""

    def __init__(self, config: Config, every_s: float) -> None:
        super().__init__(daemon=True)
        self.config, self.every_s = config, every_s
        self.wake = threading.Event()
        self._world = WorldReader(config, recent=True)
        self.note = ""
        self.model = self._read()

    def _read(self) -> TopScreenContent:
        return make_top_screen_content(self._world.read(output.get_current_utc_time(), slurm=True))

    def run(self) -> None:
        """Run until it is ended. What cannot be read now is noted, and what was read last stays."""
        while True:
            begun = time.monotonic()
            try:
                self.model, self.note = self._read(), ""
            except (HpctlError, OSError) as error:
                self.note = str(error)
            # A quarter of its time at most: reading is work for slurmctld, and a copy of the
            # journal for the daemon.
            self.wake.wait(max(self.every_s, 3 * (time.monotonic() - begun)))
            self.wake.clear()


@contextmanager
def _use_raw_terminal_mode(fd: int) -> Iterator[None]:
    """Keys one by one, without echo; Ctrl-C and Ctrl-Z are keys as well."""
    saved = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        how = termios.tcgetattr(fd)
        how[3] &= ~termios.ISIG
        termios.tcsetattr(fd, termios.TCSADRAIN, how)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, saved)


def read_pressed_keys(fd: int, timeout_s: float) -> list[str]:
    """Return the keys pressed by then, by name. A terminal that is gone quits."""
    if not select.select([fd], [], [], timeout_s)[0]:
        return []
    try:
        got = os.read(fd, 1024)
    except OSError:
        got = b""
    while _PART.search(got) and select.select([fd], [], [], ESCAPE_S)[0]:
        got += os.read(fd, 1024)
    found = _KEY.findall(got.decode(errors="ignore"))
    return [_NAMED.get(key[1:], _CONTROL.get(key, key)) for key in found] or ["quit"]


def _render_target_explanation(out: Console, config: Config, target: str) -> list[Text]:
    from rich.text import Text

    try:
        view, note = explain_node_job_or_recovery(config, target)
        with out.capture() as drawn:
            draw_target_explanation(out, view)
            if note:
                out.print(style_text(f"hpctl: {note}", DIM))
    except HpctlError as error:
        return [style_text(f"{error}. {error.hint}")]
    return [Text.from_ansi(line, no_wrap=True) for line in drawn.get().splitlines()]


def _describe_stale_data(shown: TopScreenContent) -> str:
    """That what is shown is old, where nothing was read for a while."""
    seconds = (output.get_current_utc_time() - shown.status.as_of).total_seconds()
    return (
        f"this is {format_duration(seconds)} old: nothing was read since" if seconds > OLD_S else ""
    )


def _run_screen_until_operator_request(
    out: Console, reader: TopReader, screen: TopScreen
) -> tuple[str, TopTableRow | None]:
    """Until a key asks for what needs the terminal for itself; that, and the row it is about."""
    fd, drawn = sys.stdin.fileno(), None
    with _use_raw_terminal_mode(fd), out.screen(hide_cursor=True) as shown:
        while True:
            seen = (reader.model, reader.note or _describe_stale_data(reader.model), out.size)
            if seen != drawn:
                size = out.size
                shown.update(screen.draw(seen[0], seen[1], size.height, size.width))
                drawn = seen
            for key in read_pressed_keys(fd, LOOK_S):
                drawn, asked = None, screen.handle_key(key, seen[0])
                row = next((r for r in screen.rows(seen[0]) if r.target == screen.target), None)
                if asked == "explain" and row is not None:
                    screen.story, screen.index = (
                        _render_target_explanation(out, reader.config, row.target),
                        0,
                    )
                elif asked in ("quit", "stop", "pause") or (asked and asked != "explain" and row):
                    return asked, row


def _send_operator_request(asked: str, row: TopTableRow | None, paused: bool, config: str) -> None:
    """Ask the operator, then the daemon, as the command of that name does."""
    context = click.get_current_context()
    options = {"no_wait": False, "config": config, "as_json": False}
    try:
        if asked == "pause":
            verb = "unpause" if paused else "pause"
            output.confirm(f"{verb} hpctl?", abort=True)
            context.invoke(getattr(orders_command, verb), **options)
        elif asked == "approve" and row is not None:
            if not row.held:
                raise HpctlError(
                    f"nothing to approve: no action of hpctl on {row.target} waits for an approval"
                )
            chosen = {"targets": (row.target,), "rule": None, "dry_run": False, "yes": False}
            context.invoke(decisions_command.approve, **chosen, **options)
        elif row is not None:
            if not row.node:
                raise HpctlError(
                    f"{row.target} is not a node, and hpctl can replace only nodes",
                    "select the row of a node",
                )
            order = {"names": (row.node,), "now": False, "yes": False, "dry_run": False}
            context.invoke(orders_command.replace, follow=False, **order, **options)
    except (click.exceptions.Exit, click.Abort):
        pass
    except HpctlError as error:
        output.echo(f"hpctl: {error}. {error.hint}", err=True)
    output.prompt("Enter goes back", default="", show_default=False)


@click.command()
@click.option("--view", type=click.Choice(TABS), default="nodes", help="What is shown first.")
@click.option(
    "--delay", "-d", type=DurationType("0.5s", "1h"), default="1s", show_default=True,
    help="How long to wait before reading again, at least.",
)  # fmt: skip
@output.config_option
def top(view: str, delay: float, config: str) -> None:
    """Problems, nodes, jobs and recoveries, live.

    What needs a person comes first, with the command to run. Enter explains a row; approve, pause
    and replace ask before they do anything. Where output is not a terminal, one screen is printed.
    """
    reader = TopReader(config_loading.load_config(config), delay)
    gc.freeze()
    gc.enable()
    out = output.make_console()
    if not (sys.stdin.isatty() and out.is_terminal and not out.is_dumb_terminal):
        # By hand: a screen of panels that share its height.
        output.show_view("top", (reader.model, view), False, print_all_table_rows)
        return
    # The terminal is put back however it ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    reader.start()
    screen = TopScreen(view)
    while True:
        asked, row = _run_screen_until_operator_request(out, reader, screen)
        if asked == "quit":
            return
        if asked == "stop":
            os.kill(0, signal.SIGTSTP)
            continue
        _send_operator_request(asked, row, bool(reader.model.status.paused_by), config)
        reader.wake.set()
