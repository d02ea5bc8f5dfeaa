"""`python -m evsched`, and the command `evsched`."""

from __future__ import annotations

from evsched.cli import main

if __name__ == "__main__":
    main()
