"""The benchmark: the figures of the README, measured side by side in one run. `python -m bench --help`."""
