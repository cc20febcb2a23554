"""The command line: a thin face over Tower's HTTP API and WebSocket; every decision is the server's. Outermost layer.

Voice, for every command:

- Standard output is for answers: a table, or with `--json` exactly one JSON document, or (in `shell` and `replay`) the bytes
  of a terminal. Everything else (progress, warnings, refusals) goes to standard error, as lines `tower: …`.
- A `tower:` line is lower-case and has no full stop. It says what happened, the session's id, and the next command to type.
  A refusal is two lines: the server's own words, and `tower: what you can do: …`.
- What needs a person is asked on the terminal, never guessed: without one, the flag that answers it is named and we stop (2).
- Nothing a server, a catalog or a colleague wrote reaches the terminal raw: every field goes through `core/terminal.py`.
- A wait shows what it waits for, since when, and who can end it. A token is never printed, nor taken from the command line.
- Exit codes: 0 done or ended normally · 1 a check found something wrong (`verify`, `doctor`) · 2 usage · 3 refused ·
  4 not approved in time · 5 no connection to Tower · 6 ended by Tower (time over, idle, not entitled, …). The exit code of
  what ran in the shell is not passed on: it is in the record.
"""
