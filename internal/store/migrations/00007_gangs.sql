-- The members of gangs that came to the start, and the start that each belongs to.

-- +goose Up
-- attempt is 0 while the member waits, the number of the start that it began with, and below 0 when it is to begin anew
-- with the others. visit tells one start of its task from the next.
CREATE TABLE gang_members (
    namespace TEXT   NOT NULL,
    job_id    TEXT   NOT NULL,
    alloc_id  TEXT   NOT NULL,
    visit     TEXT   NOT NULL,
    attempt   BIGINT NOT NULL,
    rank      BIGINT NOT NULL,
    body      TEXT   NOT NULL,
    came_at   BIGINT NOT NULL,
    seen_at   BIGINT NOT NULL,
    PRIMARY KEY (namespace, job_id, alloc_id)
);
CREATE INDEX gang_members_seen ON gang_members (seen_at);

-- +goose Down
DROP TABLE gang_members;
