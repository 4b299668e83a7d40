"""The worker's log: one JSON object a line on stderr."""

import json
import logging
import sys

log = logging.getLogger("steersman.worker")


class JsonLines(logging.Formatter):
    """One JSON object a line, with a machine-readable `action`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        body = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "action": getattr(record, "action", record.name),
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            body["error"] = self.formatException(record.exc_info)
        return json.dumps(body, default=str)


def log_as_json() -> None:
    """Log this process to stderr from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def write(action: str, message: str, level: int = logging.INFO, **facts: object) -> None:
    """One line of the worker itself."""
    log.log(level, message, extra={"action": action, "facts": facts})
