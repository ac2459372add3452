-- What is remembered of groups that are scaled by their load, so that whoever decides next knows it.

-- +goose Up
CREATE TABLE scale_states (
    namespace  TEXT   NOT NULL,
    job_id     TEXT   NOT NULL,
    task_group TEXT   NOT NULL,
    state      TEXT   NOT NULL,
    updated_at BIGINT NOT NULL,
    version    BIGINT NOT NULL,
    PRIMARY KEY (namespace, job_id, task_group)
);
CREATE INDEX scale_states_updated ON scale_states (updated_at);

-- +goose Down
DROP TABLE scale_states;
