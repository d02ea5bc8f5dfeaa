"""The command that prints the JSON Schema of what clients write to Redis."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from evsched.cli import output
from evsched.client.wire_schema import Written, wire_schema


def schema(
    of: Annotated[
        Written | None, Parameter(help="What it is for. Default: one document with the definitions of all.")
    ] = None,
    /,
) -> None:
    """Print the JSON Schema of what clients write to Redis: payloads, inline jobs, the records of recurrences.

    The dialect is 2020-12. docs/protocol.md says where each is written.

    Example: evsched schema payload > payload.schema.json
    """
    output.as_json(wire_schema(of))
