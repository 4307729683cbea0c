"""The exceptions of this package.

Corruption found in a cache is a result, not an exception, unless a guard was asked to raise it. What can be raised::

    CanaryError                       everything below; catch this to catch all
    |-- ArgumentError(ValueError)     an argument has a wrong value, shape, device or layout
    |-- ArgumentTypeError(TypeError)  an argument has a wrong type or dtype
    |-- EngineUnavailableError        the engine asked for cannot run here; says why and what to do
    |-- IntegrationError              the software to work with is missing, or of a version that is not known
    |-- CorruptionError               a pass guarded with mode="raise" found violations
    |-- FaultNotApplicable            a dump has no place for the fault that was to be injected
    `-- DumpError                     a dump cannot be used
        |-- DumpReadError             the file is missing, not a dump, damaged or hostile
        |-- DumpVersionError          written by a newer format than this reader knows
        `-- DumpFormatError           a key is missing or has a wrong type, dtype or shape

The two argument errors also derive from the built-in error that SGLang's launchers raise in their place, so code
written for those keeps its ``except`` clauses.
"""

from __future__ import annotations


class CanaryError(Exception):
    """Base of every exception this package raises on purpose."""


class ArgumentError(CanaryError, ValueError):
    """An argument has a wrong value, shape, device or memory layout."""


class ArgumentTypeError(CanaryError, TypeError):
    """An argument has a wrong type or dtype."""


class EngineUnavailableError(CanaryError, RuntimeError):
    """The engine asked for cannot run on this machine or on these tensors."""


class IntegrationError(CanaryError, RuntimeError):
    """The software to work with is missing, or of a version that is not known."""


class CorruptionError(CanaryError, RuntimeError):
    """A pass that is guarded with ``mode="raise"`` found violations; lists the first of them."""


class FaultNotApplicable(CanaryError):
    """A dump has no place for the fault that was to be injected; says what it lacks."""


class DumpError(CanaryError):
    """A dump cannot be used. ``path`` names the file, or is None for a dump in memory."""

    def __init__(self, message: str, *, path: str | None = None) -> None:
        self.path = path
        super().__init__(message if path is None else f"{path}: {message}")


class DumpReadError(DumpError):
    """The file is missing, not a dump, damaged, or asks for something a dump never needs."""


class DumpVersionError(DumpError):
    """The dump was written in a format version this reader does not know."""


class DumpFormatError(DumpError):
    """A key of the dump is missing or ill-typed. ``key`` is its dotted path, such as ``groups[0].halves.K.tail``."""

    def __init__(self, key: str, expected: str, got: str, *, path: str | None = None) -> None:
        self.key = key
        self.expected = expected
        self.got = got
        super().__init__(f"{key}: expected {expected}, got {got}", path=path)
