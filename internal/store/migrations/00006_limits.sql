-- Keys that are rotated and revoked, limits of the gateway and what is taken from them, prices, and who changed what.

-- +goose Up
-- How often a kind of rows has changed: who keeps a copy asks one row whether it is current. A change holds the row
-- until its end, so that numbers are seen in the order in which they were given.
CREATE TABLE revisions (
    name  TEXT   NOT NULL PRIMARY KEY,
    value BIGINT NOT NULL
);
INSERT INTO revisions (name, value) VALUES ('keys', 0), ('limits', 0);

ALTER TABLE api_keys ADD COLUMN member TEXT NOT NULL DEFAULT '';
ALTER TABLE api_keys ADD COLUMN prior_hash TEXT;
ALTER TABLE api_keys ADD COLUMN prior_until BIGINT;
ALTER TABLE api_keys ADD COLUMN revoked_at BIGINT;
ALTER TABLE api_keys ADD COLUMN revision BIGINT NOT NULL DEFAULT 0;
UPDATE api_keys SET member = name;
CREATE UNIQUE INDEX api_keys_prior_hash ON api_keys (prior_hash);
CREATE INDEX api_keys_revision ON api_keys (revision, id);

-- At most one row for a subject and a model; the empty model stands for all models together.
CREATE TABLE limits (
    id              TEXT   NOT NULL PRIMARY KEY,
    tenant          TEXT   NOT NULL,
    scope           TEXT   NOT NULL,
    subject         TEXT   NOT NULL,
    model           TEXT   NOT NULL,
    requests_minute BIGINT,
    tokens_minute   BIGINT,
    concurrency     BIGINT,
    tokens_month    BIGINT,
    nanos_month     BIGINT,
    created_at      BIGINT NOT NULL,
    updated_at      BIGINT NOT NULL
);
CREATE UNIQUE INDEX limits_subject ON limits (tenant, scope, subject, model);
CREATE INDEX limits_created ON limits (created_at, id);
CREATE INDEX limits_tenant_created ON limits (tenant, created_at, id);

-- What was taken from a limit. The state is the gateway's own. A row outlives no limit, but may come back for a
-- moment after one was deleted, and harms nobody then.
CREATE TABLE allowances (
    limit_id     TEXT   NOT NULL PRIMARY KEY,
    month        BIGINT NOT NULL,
    month_tokens BIGINT NOT NULL,
    month_nanos  BIGINT NOT NULL,
    state        TEXT   NOT NULL
);

CREATE TABLE prices (
    model            TEXT   NOT NULL PRIMARY KEY,
    prompt_nanos     BIGINT NOT NULL,
    cached_nanos     BIGINT NOT NULL,
    completion_nanos BIGINT NOT NULL,
    request_nanos    BIGINT NOT NULL,
    updated_at       BIGINT NOT NULL
);

CREATE TABLE audit_events (
    id        TEXT   NOT NULL PRIMARY KEY,
    at        BIGINT NOT NULL,
    tenant    TEXT   NOT NULL,
    actor     TEXT   NOT NULL,
    actor_key TEXT   NOT NULL,
    action    TEXT   NOT NULL,
    object    TEXT   NOT NULL,
    detail    TEXT   NOT NULL
);
CREATE INDEX audit_events_at ON audit_events (at, id);
CREATE INDEX audit_events_tenant_at ON audit_events (tenant, at, id);

-- +goose Down
DROP TABLE audit_events;
DROP TABLE prices;
DROP TABLE allowances;
DROP TABLE limits;
DROP INDEX api_keys_revision;
DROP INDEX api_keys_prior_hash;
ALTER TABLE api_keys DROP COLUMN revision;
ALTER TABLE api_keys DROP COLUMN revoked_at;
ALTER TABLE api_keys DROP COLUMN prior_until;
ALTER TABLE api_keys DROP COLUMN prior_hash;
ALTER TABLE api_keys DROP COLUMN member;
DROP TABLE revisions;
