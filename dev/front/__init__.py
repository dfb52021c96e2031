"""The HTTP front that lets chDB, ClickHouse as a library, answer like a ClickHouse server.

For development and tests only: production talks to a real server.
"""
