"""The promises of the walk-through, each run for real against real processes. `python -m acceptance` shows them."""
