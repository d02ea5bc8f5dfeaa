"""The conformance kit: scenes that a worker in any language must pass (docs/conformance.md).

`scenes.py` has the scenes, `stage.py` what they play on: a Redis, a dispatcher, an API, and the worker under test.
`kit.py` runs them and prints the differences. `python_worker.py` is our own worker under test. Nothing imports this
package but the command.
"""
