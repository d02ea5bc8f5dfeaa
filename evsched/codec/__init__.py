"""A codec: it compresses and encrypts the arguments and results of an app's jobs; docs/encryption.md.

    app = App(codec=Codec({"2026-11": os.environ["PAYLOAD_KEY"]}))

`codec.py` has it. The core knows only the protocol that it has (`jobs/sealed.py`), and imports nothing of this package.
`rekey.py` seals with the newest key what another one has sealed, for `evsched rekey`.
"""

from __future__ import annotations

from evsched.codec.codec import Codec

__all__ = ["Codec"]
