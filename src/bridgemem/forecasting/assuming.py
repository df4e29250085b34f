"""Assuming: which assumed events count in a forecast, as it reads only what lies before the time asked about."""

from __future__ import annotations

from collections.abc import Sequence

from bridgemem.errors import DataError
from bridgemem.events.log import Clock

NAMED = 3  # times of events that are named one by one


def check_counted(assumed: Sequence[int], step: int, clock: Clock) -> None:
    """Refuse a step that no assumed event lies before: the answer would be that without them. assumed: their steps."""
    if not assumed or min(assumed) < step:
        return
    which = f"none of the {len(assumed):,} assumed events lies before" if len(assumed) > 1 else ""
    raise DataError(
        f"{which or f'the assumed event, at {clock.label(assumed[0])}, does not lie before'} {clock.label(step)}, the "
        "time asked about, and later ones do not count; ask about a later time, or assume earlier events."
    )


def uncounted(assumed: Sequence[int], step: int, clock: Clock) -> str | None:
    """Which of the assumed events lie too late to count in a forecast for a step; None where all count."""
    late = sorted(one for one in assumed if one >= step)
    if not late:
        return None
    times = list(dict.fromkeys(map(clock.label, late)))
    more = f" and {len(times) - NAMED:,} more times" if len(times) > NAMED else ""
    lie, do = ("lies", "does") if len(late) == 1 else ("lie", "do")
    return (
        f"{len(late):,} of the {len(assumed):,} assumed events, at {', '.join(times[:NAMED])}{more}, {lie} not before "
        f"{clock.label(step)}, the time asked about, and {do} not count."
    )
