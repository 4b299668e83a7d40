"""Stands in for `opencode export` and `opencode import`, which take seconds to start: what both do to the database was
measured with 1.18.33. Messages and parts are added where their ids are new; a part is of the message that it names.
"""

import contextlib
import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

SCHEMA = """
create table if not exists session (id primary key, directory, info);
create table if not exists message (id primary key, session, data);
create table if not exists part (id primary key, message references message(id), session, data);
"""


def database(environment: dict[str, str]) -> Path:
    """Where the sessions are."""
    data = Path(environment.get("XDG_DATA_HOME") or Path(environment["HOME"], ".local", "share"), "opencode")
    return data / environment.get("OPENCODE_DB", "opencode.db")


@contextlib.contextmanager
def opened(environment: dict[str, str]) -> Iterator[sqlite3.Connection]:
    """The database, made where it is not there; what was done to it is kept unless the block raises."""
    place = database(environment)
    place.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(place)) as connection, connection:
        connection.executescript(SCHEMA)
        yield connection


def written_out(connection: sqlite3.Connection, session: str) -> dict[str, object] | None:
    """A session as `export` writes it."""
    found = connection.execute("select info, directory from session where id = ?", (session,)).fetchone()
    if found is None:
        return None
    messages = []
    for (data,) in connection.execute("select data from message where session = ? order by id", (session,)).fetchall():
        info = json.loads(data)
        parts = connection.execute("select data from part where message = ? order by id", (info["id"],))
        messages.append({"info": info, "parts": [json.loads(each) for (each,) in parts]})
    return {"info": {**json.loads(found[0]), "directory": found[1]}, "messages": messages}


def take_in(connection: sqlite3.Connection, archive: dict[str, object], directory: str) -> None:
    """As `import` does."""
    info = archive["info"]
    assert isinstance(info, dict)
    held = "insert into session values (?, ?, ?) on conflict (id) do update set directory = excluded.directory"
    connection.execute(held, (info["id"], directory, json.dumps(info)))
    messages = archive["messages"]
    assert isinstance(messages, list)
    for each in messages:
        its = {**each["info"], "sessionID": info["id"]}
        connection.execute("insert or ignore into message values (?, ?, ?)", (its["id"], info["id"], json.dumps(its)))
        for part in each["parts"]:
            row = (part["id"], part["messageID"], info["id"], json.dumps(part))
            connection.execute("insert or ignore into part values (?, ?, ?, ?)", row)
    connection.commit()


def main(command: str, argument: str) -> int:
    """What a process of the program does."""
    with opened(dict(os.environ)) as connection:
        if command == "import":
            take_in(connection, json.loads(Path(argument).read_text()), str(Path.cwd()))
            return 0
        found = written_out(connection, argument)
    if found is None:
        sys.stderr.write(f"Error: Session not found: {argument}\n")
        return 1
    sys.stdout.write(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
