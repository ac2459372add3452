-- name: InsertDecision :execrows
INSERT INTO decisions (id, namespace, job_id, outcome, reason_code, reason, decided_at, input, output)
VALUES (@id, @namespace, @job_id, @outcome, @reason_code, @reason, @decided_at, @input, @output)
ON CONFLICT (id) DO NOTHING;

-- name: ListDecisions :many
SELECT * FROM decisions
WHERE namespace = @namespace AND job_id = @job_id
ORDER BY decided_at DESC, id DESC
LIMIT @max_rows;

-- name: TrimDecisions :exec
DELETE FROM decisions
WHERE decisions.namespace = @namespace AND decisions.job_id = @job_id AND decisions.id NOT IN (
    SELECT kept.id FROM decisions AS kept
    WHERE kept.namespace = @namespace AND kept.job_id = @job_id
    ORDER BY kept.decided_at DESC, kept.id DESC
    LIMIT @keep
);
