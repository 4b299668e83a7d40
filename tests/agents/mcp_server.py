"""An MCP server on stdin and stdout, with one tool that changes something and one that asks its user a question.

Run as a program: `python mcp_server.py FILE`. It writes the names of the tools that were called into the file.
"""

import json
import sys
from pathlib import Path
from typing import Any

TOOLS = ("change_it", "ask_back")
QUESTION = {"message": "your name?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}


def send(**frame: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **frame}) + "\n")
    sys.stdout.flush()


def said(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def main(called: Path) -> None:
    asking: Any = None
    for line in sys.stdin:
        frame = json.loads(line)
        match frame.get("method"):
            case "initialize":
                version = frame["params"]["protocolVersion"]
                server = {"name": "things", "version": "1"}
                result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
                send(id=frame["id"], result=result)
            case "tools/list":
                tools = [
                    {"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": name != TOOLS[0]}}
                    for name in TOOLS
                ]
                send(id=frame["id"], result={"tools": tools})
            case "tools/call":
                name = frame["params"]["name"]
                with called.open("a", encoding="utf-8") as file:
                    file.write(f"{name}\n")
                if name == "ask_back":
                    asking = frame["id"]
                    send(id="question", method="elicitation/create", params=QUESTION)
                else:
                    send(id=frame["id"], result=said("changed"))
            case None if frame.get("id") == "question":
                send(id=asking, result=said(json.dumps(frame.get("result"))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
