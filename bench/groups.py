"""All tables by their groups, and those that names on the command line mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from bench import comparison, watch
from bench.alternatives import measure as alternatives
from bench.figures import Table
from bench.growth import tables as growth
from bench.own import batches, commands, flood, killed, metrics, overtaking, policy, recurrences, restore
from bench.reliability import faults, injected, losses, searches
from bench.scale import Scale
from bench.scaling import tables as scaling
from bench.workflows import measure as workflows

Groups = Mapping[str, Mapping[str, Table]]
"""Tables by their groups and names."""

COMPARED = "compare"
"""The group of the tables that compare schedulers."""


def groups(schedulers: Sequence[str], scale: Scale, missing: Mapping[str, str] | None = None) -> Groups:
    """Return all tables. `missing`: why other schedulers that are to be compared cannot be."""
    return {
        COMPARED: comparison.tables(schedulers, scale, missing or {}),
        "designs": {"alternatives": alternatives.table(scale)},
        "growth": growth.tables(scale),
        "scaling": scaling.tables(scale),
        "reliability": {
            "losses": losses.table(),
            "faults": faults.table(),
            **searches.tables(scale.states),
            **injected.tables(scale.points, scale.minutes),
        },
        "workflows": workflows.tables(),
        "own": {
            "flood": flood.table(),
            **policy.tables(),
            **recurrences.tables(scale),
            **batches.tables(scale),
            "idle-commands": watch.commands(scale),
            "overtaking": overtaking.table(scale),
            "killed": killed.table(scale),
            "restore": restore.table(scale),
            "production": scaling.production(scale),
            "commands": commands.table(scale),
            **metrics.tables(3 * scale.jobs),
        },
    }


def expanded(names: Sequence[str], every: Groups) -> list[str]:
    """Return the names of tables that these names of tables and groups mean; without one, compare and designs.

    Raises:
        KeyError: there is neither such a table nor such a group; the argument is its name.
    """
    tables = set(chain.from_iterable(every.values()))
    found = list[str]()
    for name in names or (COMPARED, "designs"):
        if name not in every and name not in tables:
            raise KeyError(name)
        found += every.get(name, [name])
    return list(dict.fromkeys(found))
