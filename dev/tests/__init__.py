"""Tests of the development tools: `python -m unittest discover -s dev/tests -t dev`."""
