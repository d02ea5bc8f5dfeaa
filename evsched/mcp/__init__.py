"""An MCP server, `evsched mcp`: the tools by which a language model looks at jobs and, if it may, acts on them.

The tools are operations of the HTTP interface (`evsched/api`), and the doctor: `tools.py` lists them, `server.py`
serves them over stdin and stdout. Extra `mcp`. Nothing here reads or changes jobs by itself.
"""

from evsched.errors import ConfigError


def missing() -> ConfigError:
    """Return the error that the libraries of the extra are not installed."""
    return ConfigError("evsched mcp needs the package mcp: pip install 'evsched[mcp]'")
