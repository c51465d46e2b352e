"""What hpctl raises on purpose, each with a hint that says what to do about it."""


class HpctlError(Exception):
    """Base of every error that hpctl raises on purpose. `hint` says what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ServiceUnavailable(HpctlError):
    """A read failed: nothing may be concluded from it, least of all that a thing is absent."""


class ReadInterrupted(ServiceUnavailable):
    """A long read was given up: something has happened that is more urgent."""


class ServiceCallRefused(HpctlError):
    """The answer to a call is no. `code` is the service's own word for it.

    An order that is refused was certainly not taken.
    """

    def __init__(self, message: str, hint: str = "", *, code: str = "") -> None:
        super().__init__(message, hint)
        self.code = code


class ResourceNotFound(ServiceCallRefused):
    """What a call names is not there: a cluster, a subnet, a role, a bucket."""


class OrderOutcomeUnknown(HpctlError):
    """An order was sent, and may or may not be taken: look before it is repeated."""


class CorruptJournalError(HpctlError):
    """The journal says something impossible. The daemon stops; it never starts from empty."""


class InvalidFileError(HpctlError):
    """A file with problems: all of them, each with its place."""

    hint_text = ""

    def __init__(self, path: str, problems: list[str]) -> None:
        text = "\n  ".join([f"{path}: {len(problems)} problem(s)", *problems])
        super().__init__(text, self.hint_text)
        self.problems = tuple(problems)
