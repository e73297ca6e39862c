"""Every family of drafters by the command line: ``python -m benchmarks.drafters --help``."""
