"""docs/messages.md: each error that an operator or a job's owner can meet, and what to do.

The page is read from the code's syntax trees: the text that a command raises is what
its user sees. Texts of decisions are in docs/recovery.md and docs/jobs-and-admins.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

ROOT: Final = Path(__file__).resolve().parents[1]

ROOMS: Final = {
    "cli": "Status, diagnosis and orders",
    "jobs": "Jobs",
    "checkpoints": "Checkpoints",
    "clusters": "Clusters",
    "sagemaker": "The SageMaker API",
    "capacity": "Capacity",
    "nodes": "Nodes, acceptance and maintenance",
    "insight": "Reports and forecasts",
    "slurm": "Slurm",
    "engine": "Configuration and journal",
    "daemon": "The daemon",
    "service": "Intake, page and notifications",
    "detection": "The node agent",
    "faults": "The catalogue of faults",
    "wire": "Requests and reports",
    "toolkit": "Files and values",
    "vocabulary": "Policies and values",
    "sandbox": "The sandbox",
}
"""The rooms whose errors reach a person, in the page's order, and their headings."""

BASES: Final = ("HpctlError", "UsageError")
"""Errors that a command prints: hpctl's own, and click's of a command line."""

_WAIT_OR_OLDER: Final = (
    "Wait if the job is still saving. Otherwise the save was interrupted: hpctl resumes from an"
    " older complete checkpoint."
)

REASONS: Final = {
    "IncompleteCheckpointError": (
        "CHECKPOINT not complete: ",
        "Nothing to do: hpctl resumes from the newest complete checkpoint.",
    ),
    "UnfinishedCheckpointSaveError": ("CHECKPOINT not complete: ", _WAIT_OR_OLDER),
    "UnverifiableCheckpointError": (
        "CHECKPOINT unreadable: ",
        "hpctl cannot check this checkpoint and does not choose it. Check it with the program that"
        " saved it; `hpctl resume JOB --from-step N` resumes from an older one.",
    ),
}
"""Why hpctl does not resume from a checkpoint, by class: what `hpctl checkpoint ls` prints before
the reason, and what to do."""

REASONS_TITLE: Final = "Why hpctl does not resume from a checkpoint"

REASONS_INTRODUCTION: Final = """`hpctl checkpoint ls`, `hpctl checkpoint verify`, `hpctl explain`
and a job's log print these. CHECKPOINT is the checkpoint's path and format, FILE a file in it. A
file can be incomplete because a save still runs, or because its node failed during a save."""

WORDS: Final = {
    "DETAIL": "REASON",
    "ERROR": "REASON",
    "FORMAT_AWS_ERROR": "REASON",
    "FORMAT_ERROR": "REASON",
    "FORMAT_LFS_ERROR": "REASON",
    "EXPLAIN_STACK_REFUSAL": "REASON",
    "JOIN": "LIST",
    "MESSAGE": "REASON",
    "MESSAGE_OF": "REASON",
    "READ_FILE_TAIL": "LAST_LINES",
    "READ_LAST_LINES": "LAST_LINES",
    "READ_LAST_LOG_LINES": "LAST_LINES",
    "READ_LOG_END": "LAST_LINES",
    "READ_END_OF_JOB_LOG": "LAST_LINES",
    "LIST_DIRECTIVE_NAMES": "DIRECTIVE_NAMES",
    "FORMAT_HPCTL_DIRECTIVE_NAMES": "DIRECTIVE_NAMES",
    "EXPLAIN_REFUSAL": "REASON",
    "FORMAT_REFUSAL_RESPONSE": "REASON",
    "STRERROR": "REASON",
    "STRIP": "REASON",
    "READ_DATABASE_MESSAGE": "REASON",
    "GET_DATABASE_ERROR_MESSAGE": "REASON",
    "TROUBLE": "REASON",
    "WHY": "REASON",
    "WHY_NOT": "REASON",
}
"""Clearer words for values, by the word that the code's name gives."""

EXPRESSIONS: Final = {
    "member.name": "MEMBER",
    "off": "",
    "own": "",
    "fix": "",
    "there": "",
    "script.name": "SCRIPT",
    "option": "OPTION",
    "yaml_files.suggest_similar_word(name, list(known))": "",
    "s3": "URL",
    "row.group": "ROW_GROUP",
    "len(chosen)": "CHOSEN",
    "found.size": "OTHER_SIZE",
    "member.size": "OTHER_SIZE",
    "description['ClusterName']": "CLUSTER",
    "_format_group_role_and_partition(NODE_TYPES[role], partition)": "a ROLE",
    "_format_group_role_and_partition(*lines)": "a OTHER_ROLE",
    "archive.size": "SIZE",
    "known[0]": "STEP",
    "known[-1]": "OTHER_STEP",
    "_PORTS[0]": "FIRST_PORT",
    "_PORTS[-1]": "LAST_PORT",
    "parent.parent": "DIRECTORY",
    "fold_hostlist(these)": "NODES",
    "given.getsockname()[1]": "SOCKET_PORT",
    "parent.st_uid": "UID",
    "int(pointer[:18])": "ITERATION",
    "error.filename": "DIRECTORY",
    "error.filename or directory": "DIRECTORY",
    "error.name": "PACKAGE",
    "path.parent": "DIRECTORY",
    "file.parent": "DIRECTORY",
    "seen.until": "TIME",
    "until": "TIME",
    "archive.path": "ARCHIVE",
    "first + PORTS - 1": "LAST",
    "RANKS_ON + 1": "COUNT",
    "str(shard)[:80]": "FILE",
    "str(backend)[:40]": "BACKEND",
    "min(missing)[:80]": "TENSOR",
    "ending.lstrip('/')": "MEMBER",
}
"""Clearer words for values, by their expression."""

PLACES: Final[Mapping[str, Mapping[str, str]]] = {
    "checkpoints/": {"NAME": "FILE", "SHOWN": "FILE", "KEY": "FILE"},
    "checkpoints/formats/nvrx.py": {
        "NUMBER": "ITERATION",
        "FORMAT_RANKS": "RANKS",
        "SIZEMORE": "SIZE",
    },
    "checkpoints/resume.py": {"FILE": "VARIABLE", "NAME": "VARIABLE", "WHAT": "VALUES"},
    "checkpoints/advise.py": {"WANTED": "JOB", "TARGET": "JOB"},
    "checkpoints/patterns.py": {"TEXT": "PATTERN", "COMPONENT": "PATTERN"},
    "clusters/": {"SHOWN": "NODE", "OF_ARN": "OTHER_VALUE", "ROW_GROUP": "GROUP"},
    "clusters/node_order_plan.py": {"ROW_GROUP": "OTHER_GROUP"},
    "jobs/sbatch/context.py": {"SHOWN": "", "NAMED": "DIRECTORY"},
    "checkpoints/formats/pickle_reader.py": {"KEY": "KEY", "FILE": "FILE"},
    "checkpoints/formats/accelerate.py": {"MISSING": "FILE", "PLACE": "OTHER_CHECKPOINT"},
    "checkpoints/formats/deepspeed.py": {"PREFIXFIRST": "FILE", "FIRST": "OTHER_FILE"},
    "checkpoints/formats/orbax.py": {
        "NAME": "FILE",
        "STEP": "_CHECKPOINT_METADATA",
        "MARK": "commit_success.txt",
        "TREE": "_METADATA",
    },
    "checkpoints/formats/torchtune.py": {"STATE": "recipe_state.pt", "DONE": "EPOCH"},
    "checkpoints/declared.py": {"TEXT": "PATTERN"},
    "detection/outside/hma_log.py": {"COMMAND": "JOURNALCTL"},
    "engine/journal/database.py": {"DRIVERNAME": "NAME"},
    "clusters/apply.py": {
        "NAME": "CLUSTER",
        "GET": "REASON",
        "FIRST": "CODE",
        "TOOK": "ADDED",
        "MORE": "REQUESTED",
    },
    "clusters/capacity.py": {"NAME": "PLAN", "THERE": ""},
    "clusters/cluster_file.py": {"NAME": "CLUSTER"},
    "clusters/commands/context.py": {"NAME": "CLUSTER", "THERE": ""},
    "clusters/commands/delete.py": {"NAME": "CLUSTER"},
    "clusters/commands/scale.py": {"TARGET": "SIZE"},
    "clusters/commands/storage.py": {"NAME": "FILE", "UNDER_WAY": "FILE", "VERB": "COMMAND"},
    "clusters/commands/waiting.py": {"SHORT": "CLUSTER"},
    "clusters/migration.py": {"NAME": "GROUP"},
    "clusters/node_lookup.py": {"EVERY": "LIST", "SOME": "LIST"},
    "clusters/request.py": {"NAME": "CLUSTER"},
    "clusters/storage.py": {"TEXT": "the file system FILE_SYSTEM"},
    "clusters/iam_policies.py": {"WHAT": "OPTION", "TEXT": "VALUE"},
    "cli/": {"WORD": "CHECK", "HINT": "SUGGESTION"},
    "engine/journal/": {"WHAT": "JOURNAL", "PLACE": "JOURNAL_ENTRY", "NAME": "JOURNAL"},
    "jobs/": {"TEXT": "JOB"},
    "jobs/elastic/": {"TEXT": "VALUE"},
    "jobs/hangs/ras_report.py": {"WHERE": "ADDRESS"},
    "jobs/sbatch/command.py": {"WHERE": "DIRECTORY", "UNKNOWN": "OPTION"},
    "jobs/sbatch/options.py": {"PLACE": "OPTION", "NAME": "OPTION_NAME"},
    "nodes/acceptance/": {"NAME": "TEST"},
    "nodes/decisions_command.py": {"NAME": "TARGET", "PHASE": "STATE"},
    "nodes/evidence/": {"PREFIXNAME": "ARCHIVE", "FOUND": "OTHER_SIZE"},
    "nodes/windows/": {"NAME": "WINDOW"},
    "sagemaker/": {"NAME": "SERVICE", "KEY": "FIELD"},
    "service/page/serve.py": {"PORT": "PATH"},
    "service/notify/": {"SOURCE": "FILE_OR_VARIABLE"},
    "wire/munge.py": {"GENERATION": "OTHER_MACHINE", "MINE": "MACHINE"},
}
"""Clearer words for values, by the beginning of a module's path below `hpctl/`. Of several that
fit, the later one wins."""

INTRODUCTION: Final = """# Messages

Each error that a command, the daemon or the agent prints, by what it is about, and what to do.
Words in capitals stand for values: search for a part of the text that has none. REASON is the text
that the system or another program gives, and LIST has one or more names.
[Troubleshooting](troubleshooting.md) goes by symptom, [recovery.md](recovery.md) has what a
recovery says, and [alerts.md](alerts.md) the alerts.
"""

_PROSE = re.compile(r"(?=.* ).*[a-z]{3}")
"""A text without it is a value or a code, such as `invalid_credential`."""

_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")
"""The name of a constant."""


class Message(Struct, frozen=True, order=True):
    """One text that a person may meet. `action` is empty where the text says what to do."""

    text: str
    action: str


ANSWERS: Final = {"describe_available_steps": "There are steps LIST."}
"""What functions return that write a part of a message."""

SPECIAL_REASONS: Final = {
    "only model weights": "Resume from a checkpoint that has the optimizer's state as well.",
    "still being written": _WAIT_OR_OLDER,
    "ranks have saved their files": _WAIT_OR_OLDER,
    "belongs to another user": "Save checkpoints as the job's owner. hpctl resumes from the newest"
    " complete checkpoint.",
    "file of one rank": "Name the checkpoint's directory.",
    "was deleted while": "Nothing: hpctl resumes from another complete checkpoint.",
    "backports.zstd": "pip install backports.zstd",
    "give --world-size": "Add --world-size with the number of ranks that saved the checkpoint.",
}
"""What to do about reasons for which the action of their class does not hold, by a part of the
reason."""

SPECIAL_ACTIONS: Final = {
    "JOURNALCTL is not installed": "Install the package systemd on the node. hpctl's other checks"
    " continue.",
    "this machine has no HyperPod health agent": "Nothing to do: on a machine without this agent,"
    " hpctl's other checks continue.",
}
"""What to do about messages for which the action of their module does not hold, by a part of the
text."""

ACTIONS: Final[Mapping[str, str]] = {
    "detection/kmsg.py": "Check that the agent runs as root: systemctl status hpctl-agent",
    "detection/node_name.py": "Check MUNGE on this node: systemctl status munge",
    "detection/outside/hma_log.py": "Check the health agent's service and log on the node. hpctl's"
    " other checks continue.",
    "detection/outside/report_request.py": "Fix the program that sends the report: `hpctl agent"
    " report --help` describes it.",
    "detection/report_command.py": "Correct the command line: `hpctl agent report --help`.",
    "jobs/hangs/stacks.py": "Check that the job still runs (`squeue`), and run the command again.",
    "nodes/evidence/archive.py": "Check the directory's free space and permissions on the node."
    " The node's recovery continues without evidence.",
    "nodes/evidence/bucket.py": "Do not use the archive. The node's recovery does not need it.",
    "nodes/evidence/fetch.py": "Do not use the archive. The node's recovery does not need it.",
    "nodes/evidence/store.py": "Do not use the archive. The node's recovery does not need it.",
    "sagemaker/": "Correct what the reason names (permissions, region, network); hpctl's daemon"
    " tries again.",
    "sandbox/": "Read the sandbox's logs: hpctl sandbox logs",
    "sandbox/command.py": "Correct the command line: `hpctl sandbox --help`.",
    "sandbox/hardware.py": "Correct the command line: `hpctl sandbox inject --help`.",
    "sandbox/spec.py": "Choose another directory (TMPDIR) or a smaller sandbox: `hpctl sandbox up"
    " --help`.",
    "slurm/": "Run the command on a machine with Slurm's commands and configuration.",
    "slurm/read.py": "Nothing to do.",
    "wire/": "Install the same hpctl release on the head node and on all nodes, and restart the"
    " agents and the daemon.",
    "wire/heads.py": "Correct the URL in `heads` of hpctl.yaml or in --head.",
    "wire/munge.py": "Check munge on both machines: systemctl status munge. Install the same hpctl"
    " release on the head node and on all nodes.",
}
"""What to do about the messages of a module that do not say it, by the beginning of the module's
path below `hpctl/`. Of several that fit, the later one wins."""


def describe_value(node: ast.expr) -> str:
    """Return a word in capitals for an expression inside a text."""
    expression = ast.unparse(node)
    if expression in EXPRESSIONS:
        return EXPRESSIONS[expression]
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "join"
    ):
        return "LIST"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
        return "COUNT"
    names = [
        each.attr if isinstance(each, ast.Attribute) else each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute | ast.Name)
    ]
    word = names[0].strip("_").upper() if names else "VALUE"
    return WORDS.get(word, word)


def read_part(node: ast.FormattedValue, assigned: Mapping[str, ast.expr]) -> str:
    """Return a value inside a text: a constant's value, or a word in capitals."""
    value = node.value
    name = getattr(value, "id", getattr(value, "attr", ""))
    if _CONSTANT.fullmatch(name) and isinstance(assigned.get(name), ast.Constant):
        constant = ast.literal_eval(assigned[name])
        return f"{constant:g}" if isinstance(constant, float) else str(constant)
    return describe_value(value)


def find_answer(call: ast.Call, assigned: Mapping[str, ast.expr]) -> ast.expr | None:
    """Return the expression that a call returns; None where it is not one expression."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if name in ANSWERS:
        return ast.Constant(ANSWERS[name])
    if name == "suggest_similar_names" and call.args:
        return call.args[-1]
    return assigned.get(name) if isinstance(call.func, ast.Name) else None


def read_texts(node: ast.expr | None, assigned: Mapping[str, ast.expr]) -> list[str]:
    """Return the texts that an expression may be; none where its value is not in the code.

    `assigned` has the values of the function's local names and of constants.
    """
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        parts = []
        for value in node.values:
            if isinstance(value, ast.Constant):
                parts.append(str(value.value))
            elif isinstance(value, ast.FormattedValue):
                parts.append(read_part(value, assigned))
        return ["".join(parts)]
    if isinstance(node, ast.IfExp):
        return [*read_texts(node.body, assigned), *read_texts(node.orelse, assigned)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = read_texts(node.left, assigned), read_texts(node.right, assigned)
        return [first + second for first in left or ["TEXT"] for second in right or ["TEXT"]]
    if isinstance(node, ast.Call):
        return read_texts(find_answer(node, assigned), assigned)
    if isinstance(node, ast.Name) and node.id in assigned:
        rest = {name: value for name, value in assigned.items() if name != node.id}
        return read_texts(assigned[node.id], rest)
    return []


def list_assignments(function: ast.AST, before: int | None = None) -> dict[str, ast.expr]:
    """Return the values of the names that a function assigns once.

    With the number of a line, the last value before that line of each name that is assigned.
    """
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign) or (before is not None and node.lineno >= before):
            continue
        target = node.targets[0]
        if isinstance(target, ast.Name):
            found.setdefault(target.id, []).append(node.value)
        elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for name, value in zip(target.elts, node.value.elts, strict=False):
                if isinstance(name, ast.Name):
                    found.setdefault(name.id, []).append(value)
    if before is None:
        return {name: values[0] for name, values in found.items() if len(values) == 1}
    return {name: max(values, key=lambda each: each.lineno) for name, values in found.items()}


def find_subclasses(trees: Sequence[ast.Module], bases: Sequence[str]) -> set[str]:
    """Return the names of the classes that stand on one of these, and these."""
    parents = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                parents[node.name] = {
                    getattr(base, "attr", getattr(base, "id", "")) for base in node.bases
                }
    found = set(bases)
    while True:
        more = {name for name, above in parents.items() if above & found} - found
        if not more:
            return found
        found |= more


def list_constants(trees: Sequence[ast.Module]) -> dict[str, ast.expr]:
    """Return the values of constants that modules define, without those with several values."""
    found: dict[str, ast.expr] = {}
    several = set()
    for tree in trees:
        for node in tree.body:
            if isinstance(node, ast.Assign):
                target: ast.expr = node.targets[0]
            elif isinstance(node, ast.AnnAssign):
                target = node.target
            else:
                continue
            if not isinstance(target, ast.Name) or not _CONSTANT.fullmatch(target.id):
                continue
            if node.value is None:
                continue
            known = found.setdefault(target.id, node.value)
            if ast.dump(known) != ast.dump(node.value):
                several.add(target.id)
    return {name: value for name, value in found.items() if name not in several}


def list_answers(
    functions: Sequence[ast.FunctionDef | ast.AsyncFunctionDef],
) -> dict[str, ast.expr]:
    """Return the text that a function returns, for each function that only returns one text."""
    found: dict[str, ast.expr] = {}
    for function in functions:
        last = function.body[-1]
        if len(function.body) == 1 and isinstance(last, ast.Return) and last.value is not None:
            found[function.name] = last.value
    return found


def find_messages(
    tree: ast.Module, errors: set[str], constants: Mapping[str, ast.expr] | None = None
) -> Iterator[Message]:
    """Yield the texts of the errors of these classes that a module raises or makes.

    `constants` has the values of other modules' constants.
    """
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    outer = {**(constants or {}), **list_constants([tree]), **list_answers(functions)}
    for function in functions:
        known = {**outer, **list_assignments(function)}
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name not in errors:
                continue
            given = node.args[1] if len(node.args) > 1 else None
            hints = [keyword.value for keyword in node.keywords if keyword.arg == "hint"]
            nearest = {**known, **list_assignments(function, before=node.lineno)}
            actions = read_texts(hints[0] if hints else given, nearest)
            for text in read_texts(node.args[0], known):
                yield Message(clean_text(text), clean_text(actions[0] if actions else ""))


def clean_text(text: str) -> str:
    """Return a text as one cell of a table."""
    one_line = re.sub(r"\s+", " ", text).strip()
    return one_line.replace("|", "\\|").replace("<", "&lt;")


def draw_table(messages: Sequence[Message]) -> str:
    """Return a table of messages."""
    lines = ["| message | what to do |", "|---|---|"]
    for message in messages:
        lines.append(f"| {message.text} | {message.action} |")
    return "\n".join(lines)


def choose_action(place: str, text: str) -> str:
    """Return what to do about a message, of a module that does not say it."""
    fitting = [action for beginning, action in ACTIONS.items() if place.startswith(beginning)]
    fitting += [action for part, action in SPECIAL_ACTIONS.items() if part in text]
    return fitting[-1] if fitting else ""


def use_place_words(text: str, place: str) -> str:
    """Return a text with the clearer words of a module's place."""
    words: dict[str, str] = {}
    for beginning, some in PLACES.items():
        if place.startswith(beginning):
            words.update(some)
    return re.sub(r"[A-Z][A-Z_0-9]+", lambda found: words.get(found[0], found[0]), text)


def collect_messages(
    room: str, errors: set[str], constants: Mapping[str, ast.expr] | None = None
) -> list[Message]:
    """Return the messages of a room, each once, in order."""
    found: set[Message] = set()
    for path in sorted((ROOT / "hpctl" / room).rglob("*.py")):
        place = path.relative_to(ROOT / "hpctl").as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for message in find_messages(tree, errors, constants):
            text = use_place_words(message.text, place)
            action = use_place_words(message.action, place) or choose_action(place, text)
            found.add(Message(text, action))
    acted = {message.text for message in found if message.action}
    shown = []
    for message in sorted(found):
        is_prose = _PROSE.search(message.text) is not None
        if is_prose and (message.action or message.text not in acted):
            shown.append(message)
    return shown


def collect_reasons(constants: Mapping[str, ast.expr]) -> list[Message]:
    """Return why hpctl does not resume from a checkpoint, each reason once, in order."""
    found = set()
    for name, (beginning, action) in REASONS.items():
        for message in collect_messages("checkpoints", {name}, constants):
            special = [each for part, each in SPECIAL_REASONS.items() if part in message.text]
            found.add(Message(beginning + message.text, *(special[:1] or [action])))
    return sorted(found)


def page() -> str:
    """Return docs/messages.md."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in ROOT.glob("hpctl/**/*.py")]
    errors = find_subclasses(trees, BASES)
    constants = list_constants(trees)
    parts = [INTRODUCTION]
    for room, title in ROOMS.items():
        messages = collect_messages(room, errors, constants)
        if messages:
            parts.append(f"## {title}\n\n{draw_table(messages)}\n")
    reasons = draw_table(collect_reasons(constants))
    parts.append(f"## {REASONS_TITLE}\n\n{REASONS_INTRODUCTION}\n\n{reasons}\n")
    return "\n".join(parts)
