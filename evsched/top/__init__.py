"""The live view of `evsched top`: `collector.py` asks Redis and the workers, `snapshot.py` is what they answered.

It is drawn by `cli/render.py`.
"""
