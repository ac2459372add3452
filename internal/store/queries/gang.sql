-- name: UpsertGangMember :one
INSERT INTO gang_members (namespace, job_id, alloc_id, visit, attempt, rank, body, came_at, seen_at)
VALUES (@namespace, @job_id, @alloc_id, @visit, 0, 0, @body, @seen_at, @seen_at)
ON CONFLICT (namespace, job_id, alloc_id) DO UPDATE SET
    attempt = CASE WHEN gang_members.visit = excluded.visit THEN gang_members.attempt ELSE 0 END,
    rank    = CASE WHEN gang_members.visit = excluded.visit THEN gang_members.rank ELSE 0 END,
    came_at = CASE WHEN gang_members.visit = excluded.visit THEN gang_members.came_at ELSE excluded.came_at END,
    visit = excluded.visit, body = excluded.body, seen_at = excluded.seen_at
RETURNING *;

-- name: ListGangMembers :many
SELECT * FROM gang_members WHERE namespace = @namespace AND job_id = @job_id ORDER BY alloc_id;

-- name: StartGangMember :execrows
UPDATE gang_members SET attempt = @attempt, rank = @rank
WHERE namespace = @namespace AND job_id = @job_id AND alloc_id = @alloc_id AND visit = @visit AND gang_members.attempt = 0;

-- name: RecallGangMembers :many
UPDATE gang_members SET attempt = -attempt
WHERE namespace = @namespace AND job_id = @job_id AND attempt > 0
RETURNING *;

-- name: ListStartedGangs :many
SELECT DISTINCT namespace, job_id FROM gang_members WHERE attempt <> 0 ORDER BY namespace, job_id;

-- name: DeleteGangMember :exec
DELETE FROM gang_members WHERE namespace = @namespace AND job_id = @job_id AND alloc_id = @alloc_id;

-- name: DeleteGang :exec
DELETE FROM gang_members WHERE namespace = @namespace AND job_id = @job_id;

-- name: DeleteOldGangMembers :execrows
DELETE FROM gang_members WHERE seen_at < @before;
