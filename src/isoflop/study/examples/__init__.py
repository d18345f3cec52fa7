"""Study files that come with the package."""

from pathlib import Path

DEMO = Path(__file__).parent / "demo.toml"
"""The 2017 decoder against one change at a time, and the whole modern recipe."""
