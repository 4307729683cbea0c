"""Every fault as something that can be done to a dump."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from canary_numba.dump.model import Dump
from canary_numba.errors import ArgumentError, FaultNotApplicable
from canary_numba.fault_names import FAULT_NAMES
from canary_numba.faults import (
    allocator_faults,
    byte_faults,
    chain_faults,
    content_faults,
    rank_faults,
    record_faults,
    table_faults,
    window_faults,
)
from canary_numba.faults.label import Label
from canary_numba.faults.scene import Scene

_FAMILIES = (
    allocator_faults,
    table_faults,
    content_faults,
    chain_faults,
    record_faults,
    byte_faults,
    window_faults,
    rank_faults,
)

INJECTORS: Final[Mapping[str, Callable[[Scene], Label]]] = {
    name: next(getattr(family, name) for family in _FAMILIES if hasattr(family, name)) for name in FAULT_NAMES
}
"""What does each fault, by its name."""

ATTEMPTS = 8
"""Places tried before a fault counts as not applicable: the first one drawn may happen to be unfit."""


def inject(dump: Dump, fault: str, seed: int) -> tuple[Dump, Label]:
    """Do one fault to a copy of a dump, as it happens in the field.

    Parameters
    ----------
    dump
        Stays as it is.
    fault
        One of :data:`canary_numba.fault_names.FAULT_NAMES`.
    seed
        Decides where: the same seed, the same place.

    Returns
    -------
    tuple of Dump and Label
        The broken copy, and what was done. For ``ranks_disagree`` the copy is the next rank's dump of the same step.

    Raises
    ------
    ArgumentError
        No fault has this name.
    FaultNotApplicable
        The dump has no place where this could happen.
    """
    if fault not in INJECTORS:
        raise ArgumentError(f"no fault is named {fault!r}: {', '.join(FAULT_NAMES)}")
    reason = None
    for attempt in range(ATTEMPTS):
        scene = Scene(dump, seed * ATTEMPTS + attempt)
        try:
            label = INJECTORS[fault](scene)
        except FaultNotApplicable as error:
            reason = error
            continue
        return scene.finish(), label
    assert reason is not None
    raise FaultNotApplicable(f"{fault} cannot happen in this dump: {reason}")
