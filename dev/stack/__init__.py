"""The development services: real programs on loopback, without Docker and without root."""
