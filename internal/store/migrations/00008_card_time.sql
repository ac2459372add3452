-- How long jobs held cards, which is only added to, and what was settled from it: by hours, of jobs and of those whose
-- requests their engines answered.

-- +goose Up
-- A span that goes on ends at 4611686018427387904.
CREATE TABLE card_spans (
    id         TEXT   NOT NULL PRIMARY KEY,
    tenant     TEXT   NOT NULL,
    namespace  TEXT   NOT NULL,
    job_id     TEXT   NOT NULL,
    task_group TEXT   NOT NULL,
    task       TEXT   NOT NULL,
    alloc_id   TEXT   NOT NULL,
    node_id    TEXT   NOT NULL,
    group_name TEXT   NOT NULL,
    units      BIGINT NOT NULL,
    per_card   BIGINT NOT NULL,
    began_at   BIGINT NOT NULL,
    ended_at   BIGINT NOT NULL
);
CREATE INDEX card_spans_ended ON card_spans (ended_at, id);
CREATE INDEX card_spans_job ON card_spans (namespace, job_id, ended_at);

-- What is held already begins with its reservation.
INSERT INTO card_spans (id, tenant, namespace, job_id, task_group, task, alloc_id, node_id, group_name, units, per_card, began_at, ended_at)
SELECT MIN(claims.reservation_id || '.' || claims.seq), reservations.tenant, reservations.namespace, reservations.job_id, claims.task_group, claims.task,
       claims.alloc_id, claims.node_id, claims.group_name, CAST(SUM(claims.units) AS BIGINT),
       CASE WHEN claims.group_name LIKE '%/gpu/%' THEN 1 WHEN COALESCE(MAX(pools.capacity), 0) > SUM(claims.units) THEN MAX(pools.capacity) ELSE CAST(SUM(claims.units) AS BIGINT) END,
       reservations.created_at, 4611686018427387904
FROM claims JOIN reservations ON reservations.id = claims.reservation_id
LEFT JOIN pools ON pools.node_id = claims.node_id AND pools.group_name = claims.group_name
WHERE claims.alloc_id <> ''
GROUP BY reservations.tenant, reservations.namespace, reservations.job_id, reservations.created_at, claims.task_group, claims.task,
         claims.alloc_id, claims.node_id, claims.group_name;

-- How far card time is settled.
CREATE TABLE card_clock (
    name       TEXT   NOT NULL PRIMARY KEY,
    settled_to BIGINT NOT NULL
);
INSERT INTO card_clock (name, settled_to) VALUES ('cards', 0);

-- The id is a hash of all but the time.
CREATE TABLE card_use (
    id          TEXT   NOT NULL PRIMARY KEY,
    hour        BIGINT NOT NULL,
    tenant      TEXT   NOT NULL,
    key_id      TEXT   NOT NULL,
    endpoint_id TEXT   NOT NULL,
    model       TEXT   NOT NULL,
    namespace   TEXT   NOT NULL,
    job_id      TEXT   NOT NULL,
    group_name  TEXT   NOT NULL,
    card_us     BIGINT NOT NULL
);
CREATE INDEX card_use_hour ON card_use (hour);
CREATE INDEX card_use_tenant_hour ON card_use (tenant, hour);

-- +goose Down
DROP TABLE card_use;
DROP TABLE card_clock;
DROP TABLE card_spans;
