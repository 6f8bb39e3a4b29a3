"""What makes a program of Headrace: its configuration, its commands, HTTP, metrics, logs, the sidecar, the demo.

Nothing imports this package. Read first: `serve.py`, where the parts are wired together.
"""
