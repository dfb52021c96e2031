-- One row for each run, that is, for each interval of each export. Instants are text of one fixed form
-- (`2026-01-01T00:00:00.000000Z`), so that they sort as they read.
CREATE TABLE IF NOT EXISTS runs (
    run_id         TEXT    NOT NULL PRIMARY KEY,
    export_id      TEXT    NOT NULL,
    workflow_id    TEXT,
    interval_start TEXT    NOT NULL,
    interval_end   TEXT    NOT NULL,
    status         TEXT    NOT NULL,
    attempt        INTEGER NOT NULL,
    rows           INTEGER NOT NULL,
    bytes          INTEGER NOT NULL,
    files          TEXT    NOT NULL,
    error_kind     TEXT,
    error          TEXT,
    started_at     TEXT    NOT NULL,
    finished_at    TEXT
) STRICT;

CREATE INDEX IF NOT EXISTS runs_by_start ON runs (started_at DESC);
CREATE INDEX IF NOT EXISTS runs_by_export ON runs (export_id, interval_end DESC);
