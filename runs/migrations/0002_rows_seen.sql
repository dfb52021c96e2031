-- The most rows that any attempt of the run has read, also one that failed: a later attempt that reads fewer is a loss
-- that somebody has to look at.
ALTER TABLE runs ADD COLUMN rows_seen INTEGER NOT NULL DEFAULT 0;

UPDATE runs SET rows_seen = rows;
