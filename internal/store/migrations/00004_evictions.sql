-- Evictions: who makes room for whom, and how far it got.

-- +goose Up
CREATE TABLE evictions (
    id         TEXT   NOT NULL PRIMARY KEY,
    namespace  TEXT   NOT NULL,
    job_id     TEXT   NOT NULL,
    tenant     TEXT   NOT NULL,
    state      TEXT   NOT NULL,
    reason     TEXT   NOT NULL,
    victims    TEXT   NOT NULL,
    deadline   BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    version    BIGINT NOT NULL
);
CREATE UNIQUE INDEX evictions_one_open_per_job ON evictions (namespace, job_id)
    WHERE state IN ('wanted', 'signalled', 'stopping');
CREATE INDEX evictions_updated ON evictions (updated_at, id);

-- +goose Down
DROP TABLE evictions;
