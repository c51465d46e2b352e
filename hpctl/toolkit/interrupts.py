"""How a command tells Ctrl-C from an input that has ended."""

import click


def is_ctrl_c_abort(abort: click.Abort) -> bool:
    """Return whether a question was answered by Ctrl-C. click says Abort of an input's end as
    well."""
    return isinstance(abort.__context__, KeyboardInterrupt)
