"""The configuration file: read, checked as a whole, and given as plain typed values.

`document` keeps lines and replaces `${VAR}` and `file:`, `model` is the schema, `load` puts both together and `schema`
prints it.
"""

from headrace.app.config.load import Config, StreamConfig, TriggerConfig, load_config

__all__ = ["Config", "StreamConfig", "TriggerConfig", "load_config"]
