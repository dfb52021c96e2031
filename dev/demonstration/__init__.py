"""The parts of the demo: what it shows, how it drives Temporal, and what one sees of it."""
