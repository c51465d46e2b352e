"""What the client raises, each with a hint that says what to do about it."""

from __future__ import annotations


class ClientError(Exception):
    """Base of every error of this package. `hint` says what to do; `str()` includes it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class CommandNotFoundError(ClientError):
    """A program that the client runs is not on this machine."""


class CommandFailedError(ClientError):
    """A program that the client ran has failed. `exit_code` is its own, `stderr` what it said."""

    def __init__(self, message: str, hint: str, *, exit_code: int, stderr: str) -> None:
        super().__init__(message, hint)
        self.exit_code = exit_code
        self.stderr = stderr


class JobNotFoundError(ClientError):
    """Neither Slurm's queue nor its accounting knows the job."""


class WaitTimeoutError(ClientError, TimeoutError):
    """`wait` has reached its timeout; the job continues."""
