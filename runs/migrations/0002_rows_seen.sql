-- The most rows that any attempt of a run has read, also one that failed: a later attempt that reads fewer is a loss that
-- somebody has to look at. `selection` stands for what was selected: another query may well have fewer rows.
CREATE TABLE IF NOT EXISTS rows_seen (
    run_id    TEXT    NOT NULL PRIMARY KEY,
    selection TEXT    NOT NULL,
    rows      INTEGER NOT NULL
) STRICT;
