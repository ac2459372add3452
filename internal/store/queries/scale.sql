-- name: GetScaleState :one
SELECT * FROM scale_states WHERE namespace = @namespace AND job_id = @job_id AND task_group = @task_group;

-- name: InsertScaleState :execrows
INSERT INTO scale_states (namespace, job_id, task_group, state, updated_at, version)
VALUES (@namespace, @job_id, @task_group, @state, @updated_at, 1)
ON CONFLICT DO NOTHING;

-- name: UpdateScaleState :execrows
UPDATE scale_states SET state = @state, updated_at = @updated_at, version = version + 1
WHERE namespace = @namespace AND job_id = @job_id AND task_group = @task_group AND version = @version;

-- name: DeleteOldScaleStates :exec
DELETE FROM scale_states WHERE updated_at < @before;
