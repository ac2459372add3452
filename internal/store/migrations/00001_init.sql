-- The first schema: settings, keys, ledger, jobs, decisions, intents, endpoints, usage.
-- One dialect for both engines: text ids, BIGINT microseconds UTC, BOOLEAN, JSON as TEXT.

-- +goose Up
CREATE TABLE settings (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
);

CREATE TABLE api_keys (
    id           TEXT   NOT NULL PRIMARY KEY,
    kind         TEXT   NOT NULL,
    name         TEXT   NOT NULL,
    tenant       TEXT   NOT NULL,
    role         TEXT   NOT NULL,
    prefix       TEXT   NOT NULL,
    hash         TEXT   NOT NULL,
    endpoints    TEXT   NOT NULL,
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT,
    last_used_at BIGINT
);
CREATE UNIQUE INDEX api_keys_hash ON api_keys (hash);
CREATE INDEX api_keys_created ON api_keys (created_at, id);
CREATE INDEX api_keys_tenant_created ON api_keys (tenant, created_at, id);

-- A pool whose node no longer offers it stays, not present, as long as something is taken from it, so that
-- "taken" is always the sum of the claims, whatever order fingerprints and settlements come in.
CREATE TABLE pools (
    node_id    TEXT    NOT NULL,
    group_name TEXT    NOT NULL,
    capacity   BIGINT  NOT NULL,
    unit_mib   BIGINT  NOT NULL,
    taken      BIGINT  NOT NULL,
    present    BOOLEAN NOT NULL,
    PRIMARY KEY (node_id, group_name)
);

CREATE TABLE reservations (
    id         TEXT   NOT NULL PRIMARY KEY,
    tenant     TEXT   NOT NULL,
    namespace  TEXT   NOT NULL,
    job_id     TEXT   NOT NULL,
    state      TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    version    BIGINT NOT NULL
);
CREATE UNIQUE INDEX reservations_one_open_per_job ON reservations (namespace, job_id)
    WHERE state IN ('reserved', 'submitted', 'confirmed');
CREATE INDEX reservations_open_created ON reservations (created_at, id)
    WHERE state IN ('reserved', 'submitted', 'confirmed');
CREATE INDEX reservations_expiry ON reservations (expires_at)
    WHERE state IN ('reserved', 'submitted');
CREATE INDEX reservations_created ON reservations (created_at, id);
CREATE INDEX reservations_tenant_created ON reservations (tenant, created_at, id);

CREATE TABLE claims (
    reservation_id TEXT   NOT NULL REFERENCES reservations (id) ON DELETE CASCADE,
    seq            BIGINT NOT NULL,
    node_id        TEXT   NOT NULL,
    group_name     TEXT   NOT NULL,
    units          BIGINT NOT NULL,
    task_group     TEXT   NOT NULL,
    task           TEXT   NOT NULL,
    alloc_id       TEXT   NOT NULL,
    PRIMARY KEY (reservation_id, seq)
);
CREATE INDEX claims_pool ON claims (node_id, group_name);

CREATE TABLE jobs (
    namespace   TEXT   NOT NULL,
    id          TEXT   NOT NULL,
    tenant      TEXT   NOT NULL,
    user_name   TEXT   NOT NULL,
    spec        TEXT   NOT NULL,
    spec_hash   TEXT   NOT NULL,
    injection   TEXT   NOT NULL,
    state       TEXT   NOT NULL,
    reason_code TEXT   NOT NULL,
    reason      TEXT   NOT NULL,
    priority    BIGINT NOT NULL,
    eval_id     TEXT   NOT NULL,
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL,
    queued_at   BIGINT NOT NULL,
    version     BIGINT NOT NULL,
    PRIMARY KEY (namespace, id)
);
CREATE INDEX jobs_waiting ON jobs (priority DESC, queued_at, namespace, id) WHERE state = 'waiting';
CREATE INDEX jobs_unsent ON jobs (created_at, namespace, id) WHERE state = 'submitting';
CREATE INDEX jobs_eval ON jobs (eval_id) WHERE eval_id <> '';
CREATE INDEX jobs_created ON jobs (created_at, namespace, id);

CREATE TABLE decisions (
    id          TEXT   NOT NULL PRIMARY KEY,
    namespace   TEXT   NOT NULL,
    job_id      TEXT   NOT NULL,
    outcome     TEXT   NOT NULL,
    reason_code TEXT   NOT NULL,
    reason      TEXT   NOT NULL,
    decided_at  BIGINT NOT NULL,
    input       TEXT   NOT NULL,
    output      TEXT   NOT NULL
);
CREATE INDEX decisions_job ON decisions (namespace, job_id, decided_at DESC, id DESC);

CREATE TABLE intents (
    id         TEXT   NOT NULL PRIMARY KEY,
    node_id    TEXT   NOT NULL,
    card_uuid  TEXT   NOT NULL,
    form       TEXT   NOT NULL,
    state      TEXT   NOT NULL,
    reason     TEXT   NOT NULL,
    claimed_by TEXT   NOT NULL,
    version    BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX intents_one_open_per_card ON intents (card_uuid)
    WHERE state IN ('wanted', 'claimed');

CREATE TABLE endpoints (
    id         TEXT   NOT NULL PRIMARY KEY,
    tenant     TEXT   NOT NULL,
    model      TEXT   NOT NULL,
    service    TEXT   NOT NULL,
    policy     TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    version    BIGINT NOT NULL
);
CREATE UNIQUE INDEX endpoints_model ON endpoints (model);
CREATE INDEX endpoints_created ON endpoints (created_at, id);
CREATE INDEX endpoints_tenant_created ON endpoints (tenant, created_at, id);

CREATE TABLE usage_records (
    id                TEXT    NOT NULL PRIMARY KEY,
    tenant            TEXT    NOT NULL,
    key_id            TEXT    NOT NULL,
    endpoint_id       TEXT    NOT NULL,
    model             TEXT    NOT NULL,
    service           TEXT    NOT NULL,
    backend           TEXT    NOT NULL,
    operation         TEXT    NOT NULL,
    ending            TEXT    NOT NULL,
    stream            BOOLEAN NOT NULL,
    prompt_tokens     BIGINT,
    completion_tokens BIGINT,
    status            BIGINT  NOT NULL,
    tries             BIGINT  NOT NULL,
    started_at        BIGINT  NOT NULL,
    duration_us       BIGINT  NOT NULL,
    first_byte_us     BIGINT  NOT NULL
);
CREATE INDEX usage_records_started ON usage_records (started_at, id);
CREATE INDEX usage_records_tenant_started ON usage_records (tenant, started_at, id);

-- +goose Down
DROP TABLE usage_records;
DROP TABLE endpoints;
DROP TABLE intents;
DROP TABLE decisions;
DROP TABLE jobs;
DROP TABLE claims;
DROP TABLE reservations;
DROP TABLE pools;
DROP TABLE api_keys;
DROP TABLE settings;
