"""docs/cli.md: every command and option, from the commands themselves."""

import inspect
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby

import click

from hpctl.cli.main import ALIASES, cli
from hpctl.toolkit.lazy_commands import LazyCommandGroup

HEAD = """# Commands

Commands are written without `hpctl`; `hpctl COMMAND --help` prints examples too. `hpctl --help`
lists the commands of every day, `hpctl help --all` every command, one line each, and
`man hpctl-COMMAND` shows a command with its subcommands. Read commands work while the daemon is
down. Requests (`pause`, `approve`, ...) go to the daemon, whose gates apply.

- **Exit codes**: 0 fine; 1 problem found, refused or failed; 2 usage; 3 cannot tell, or in doubt;
  130 interrupted by Ctrl-C (work that was ordered continues).
- **Durations**: `90s`, `30min`, `3h`, `1d`; a bare number is seconds. Times are UTC.
- **Output**: text on a terminal, at most 200 columns elsewhere unless `COLUMNS` says otherwise. A
  `--dry-run` ends with `Dry run: nothing was done.`
- **Options of nearly every command**: `--json`; `--config` where the daemon's configuration is
  read; `--profile`, `--region` and `--endpoint-url` where AWS is asked; `--cluster` where one
  cluster is meant (on a head node the default is its own).
- **Confirmation**: `replace`, `reboot` and what changes a cluster ask before they act, unless
  `--yes` is given; `approve` and `cancel` ask on a terminal only. `--dry-run` says what would
  happen to which node and job.
- **Options of `agent` and `sandbox`**: in their `--help`.
- **Completion**: `eval "$(hpctl completion bash)"`; also zsh and fish.

| option of several commands | meaning |
|---|---|
"""
EARLIER = """## Earlier names

They work as the names of today, and are not listed by `--help` or completion.

| earlier | today |
|---|---|"""
_SHARED_BY = 2
"""An option that so many commands have is described once."""
_IN_HEAD = ("| `--json`", "| `--config ", "| `--profile ", "| `--region ", "| `--cluster ")
_IN_HELP = ("hpctl sandbox ", "hpctl agent ")
_BY_HAND = "hpctl agent triage"
"""What few people call by hand is in _IN_HELP: `--help` describes its options."""
_EVERYWHERE = ("as_json", "config", "profile", "region", "endpoint_url")


def page() -> str:
    """Return the page. Raises ValueError for a command or an option without a help."""
    commands = list(_walk_commands("hpctl", cli))
    uses: dict[str, Counter[str]] = defaultdict(Counter)
    for words, command in commands:
        for option in _list_described_options(words, command):
            uses[_format_flags(option)][_format_text(option.help)] += 1
    shared = {
        flags: text
        for flags, helps in uses.items()
        for text, count in helps.most_common(1)
        if count >= _SHARED_BY
    }
    listed = [f"| `{flags}` | {text} |" for flags, text in sorted(shared.items())]
    lines = [HEAD.rstrip("\n"), *(row for row in listed if not row.startswith(_IN_HEAD))]
    for group, those in groupby(commands, lambda one: one[0].split()[1]):
        members = list(those)
        repeated = _find_repeated_options(members, shared)
        lines += ["", f"## {group}"]
        for (flags, text), names in repeated.items():
            lines += ["", f"`{flags}` of {', '.join(f'`{name}`' for name in names)}: {text}"]
        for words, command in members:
            lines += _describe_command(words, command, shared, repeated)
    lines += ["", EARLIER, *(f"| `{old}` | `{today}` |" for old, today in _list_earlier())]
    return "\n".join(lines) + "\n"


def _list_earlier() -> list[tuple[str, str]]:
    """Return the earlier names of commands with those of today, by name."""
    of_cluster = cli.get_command(click.Context(cli), "cluster")
    assert isinstance(of_cluster, LazyCommandGroup)
    below = {f"cluster {old}": f"cluster {new}" for old, new in of_cluster.aliases.items()}
    return sorted({**ALIASES, **below}.items())


def _find_repeated_options(
    members: Sequence[tuple[str, click.Command]], shared: Mapping[str, str]
) -> dict[tuple[str, str], list[str]]:
    """The options that several commands of a group have in the same sense, and which have them."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for words, command in members:
        for option in _list_described_options(words, command):
            if option.name not in _EVERYWHERE and not _is_shared(option, shared):
                found[_option_key(option)].append(words.split(maxsplit=2)[-1])
    return {meaning: names for meaning, names in found.items() if len(names) >= _SHARED_BY}


def _walk_commands(text: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        if command.invoke_without_command and text != "hpctl":
            yield text, command
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from _walk_commands(f"{text} {name}", child)
    else:
        yield text, command


def _describe_command(
    text: str,
    command: click.Command,
    shared: Mapping[str, str],
    repeated: Collection[tuple[str, str]],
) -> Iterator[str]:
    if not command.help:
        raise ValueError(f"{text} has no help")
    context = click.Context(command, info_name=text)
    arguments = [a for p in command.params for a in _describe_argument(p, context)]
    usage = " ".join([text.removeprefix("hpctl "), *arguments])
    yield from ("", f"**`{usage}`**", "") if " " in usage else ("",)
    about = _format_text(inspect.cleandoc(command.help).split("\n\n")[0].partition("\f")[0])
    options = _list_described_options(text, command)
    known = [o for o in options if _is_shared(o, shared)]
    also = [_option_name(o) for o in known if o.name not in (*_EVERYWHERE, "cluster")]
    yield about + (" Takes " + ", ".join(f"`{name}`" for name in also) + "." if also else "")
    own = [o for o in options if o not in known and _option_key(o) not in repeated]
    if own:
        yield ""
        yield from (f"- `{_format_flags(o)}`: {_format_text(o.help)}" for o in own)


def _is_shared(option: click.Option, shared: Mapping[str, str]) -> bool:
    return option.name in ("as_json", "dry_run") or shared.get(
        _format_flags(option)
    ) == _format_text(option.help)


def _option_key(option: click.Option) -> tuple[str, str]:
    return _format_flags(option), _format_text(option.help)


def _describe_argument(parameter: click.Parameter, context: click.Context) -> list[str]:
    if not isinstance(parameter, click.Argument):
        return []
    return parameter.get_usage_pieces(context) or [parameter.make_metavar(context)]


def _list_described_options(words: str, command: click.Command) -> list[click.Option]:
    """Return the options that the page describes. Raises ValueError where one has no help."""
    return [] if words.startswith(_IN_HELP) and words != _BY_HAND else _list_options(command)


def _list_options(command: click.Command) -> list[click.Option]:
    found = [o for o in command.params if isinstance(o, click.Option) and not o.hidden]
    for option in found:
        if not option.help:
            raise ValueError(f"{command.name} {option.opts[-1]} has no help")
    return found


def _option_name(option: click.Option) -> str:
    """Of a switch the side that is not the default."""
    return (
        option.secondary_opts[-1] if option.secondary_opts and option.default else option.opts[-1]
    )


def _format_flags(option: click.Option) -> str:
    """`--every TIME`, `--wait/--no-wait`, `-o, --output FILE`."""
    names = ", ".join(option.opts) + "".join(f"/{o}" for o in option.secondary_opts)
    if option.is_flag or option.count:
        return names
    metavar = option.make_metavar(click.Context(click.Command("")))
    return f"{names} {metavar.removesuffix(' RANGE')}"


def _format_text(text: str | None) -> str:
    return re.sub(r"\s+", " ", (text or "").replace("\b", "")).strip().replace("|", "\\|")
