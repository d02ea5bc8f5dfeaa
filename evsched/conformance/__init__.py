"""The conformance kit: scenes that workers and producers in any language must pass (docs/conformance.md).

`kit.py` says what a scene is, and runs scenes. `worker_scenes.py`, `sealed_scenes.py` and `producer_scenes.py` have
them. `stage.py` is what they play on: a Redis, a dispatcher, an API, workers. `python_worker.py` and
`python_producer.py` are our own programs under test. Nothing imports this package but the command.
"""
