-- Sessions under compare-and-swap, one open session a person, the audit trail, tickets.
-- Portable SQL: {identity} is the engine's word for a number that only grows. Times are UTC, ISO 8601, microseconds.

CREATE TABLE session (
    sid            TEXT PRIMARY KEY CHECK (length(sid) = 10),
    version        INTEGER NOT NULL CHECK (version >= 1),
    state          TEXT NOT NULL,
    app            TEXT NOT NULL,
    requester      TEXT NOT NULL,
    request_digest TEXT NOT NULL,
    asked_at       TEXT NOT NULL,
    changed_at     TEXT NOT NULL,
    document       TEXT NOT NULL
);

CREATE INDEX session_by_state ON session (state, asked_at);

CREATE INDEX session_by_app ON session (app, asked_at);

CREATE INDEX session_by_time ON session (asked_at);

-- Every name of the requester when the session was asked for. The index is the rule: one open session under all aliases.
CREATE TABLE session_alias (
    sid   TEXT NOT NULL REFERENCES session (sid),
    alias TEXT NOT NULL,
    open  INTEGER NOT NULL CHECK (open IN (0, 1)),
    PRIMARY KEY (sid, alias)
);

CREATE UNIQUE INDEX session_alias_one_open ON session_alias (alias) WHERE open = 1;

-- No reference to session: refusals are events too, and some name a session that never was.
CREATE TABLE audit (
    seq     {identity},
    name    TEXT NOT NULL,
    at      TEXT NOT NULL,
    actor   TEXT,
    sid     TEXT,
    app     TEXT,
    code    TEXT,
    details TEXT NOT NULL
);

CREATE INDEX audit_by_sid ON audit (sid, seq);

CREATE TABLE ticket (
    hash       TEXT PRIMARY KEY,
    person     TEXT NOT NULL,
    sid        TEXT NOT NULL,
    role       TEXT NOT NULL,
    origin     TEXT NOT NULL,
    expires_at TEXT NOT NULL
);

CREATE INDEX ticket_by_expiry ON ticket (expires_at);
