-- name: ListUsage :many
SELECT * FROM usage_records
WHERE started_at >= @from_started AND started_at <= @before_started
  AND (started_at < @before_started OR id < @before_id)
  AND (CAST(@any_tenant AS BOOLEAN) OR tenant = @tenant)
ORDER BY started_at DESC, id DESC
LIMIT @max_rows;

-- name: SumUsageByModel :many
SELECT model AS name,
       COUNT(*) AS requests,
       CAST(COALESCE(SUM(prompt_tokens), 0) AS BIGINT) AS prompt_tokens,
       CAST(COALESCE(SUM(completion_tokens), 0) AS BIGINT) AS completion_tokens,
       CAST(COALESCE(SUM(cached_tokens), 0) AS BIGINT) AS cached_tokens,
       CAST(COALESCE(SUM(CASE WHEN estimated THEN 1 ELSE 0 END), 0) AS BIGINT) AS estimated,
       CAST(COALESCE(SUM(CASE WHEN prompt_tokens IS NULL OR completion_tokens IS NULL THEN 1 ELSE 0 END), 0) AS BIGINT) AS unknown
FROM usage_records
WHERE started_at >= @from_started AND started_at < @to_started
  AND (CAST(@any_tenant AS BOOLEAN) OR tenant = @tenant)
GROUP BY model ORDER BY model;

-- name: SumUsageByKey :many
SELECT key_id AS name,
       COUNT(*) AS requests,
       CAST(COALESCE(SUM(prompt_tokens), 0) AS BIGINT) AS prompt_tokens,
       CAST(COALESCE(SUM(completion_tokens), 0) AS BIGINT) AS completion_tokens,
       CAST(COALESCE(SUM(cached_tokens), 0) AS BIGINT) AS cached_tokens,
       CAST(COALESCE(SUM(CASE WHEN estimated THEN 1 ELSE 0 END), 0) AS BIGINT) AS estimated,
       CAST(COALESCE(SUM(CASE WHEN prompt_tokens IS NULL OR completion_tokens IS NULL THEN 1 ELSE 0 END), 0) AS BIGINT) AS unknown
FROM usage_records
WHERE started_at >= @from_started AND started_at < @to_started
  AND (CAST(@any_tenant AS BOOLEAN) OR tenant = @tenant)
GROUP BY key_id ORDER BY key_id;

-- name: SumUsageByEndpoint :many
SELECT endpoint_id AS name,
       COUNT(*) AS requests,
       CAST(COALESCE(SUM(prompt_tokens), 0) AS BIGINT) AS prompt_tokens,
       CAST(COALESCE(SUM(completion_tokens), 0) AS BIGINT) AS completion_tokens,
       CAST(COALESCE(SUM(cached_tokens), 0) AS BIGINT) AS cached_tokens,
       CAST(COALESCE(SUM(CASE WHEN estimated THEN 1 ELSE 0 END), 0) AS BIGINT) AS estimated,
       CAST(COALESCE(SUM(CASE WHEN prompt_tokens IS NULL OR completion_tokens IS NULL THEN 1 ELSE 0 END), 0) AS BIGINT) AS unknown
FROM usage_records
WHERE started_at >= @from_started AND started_at < @to_started
  AND (CAST(@any_tenant AS BOOLEAN) OR tenant = @tenant)
GROUP BY endpoint_id ORDER BY endpoint_id;

-- name: SumUsageByTenant :many
SELECT tenant AS name,
       COUNT(*) AS requests,
       CAST(COALESCE(SUM(prompt_tokens), 0) AS BIGINT) AS prompt_tokens,
       CAST(COALESCE(SUM(completion_tokens), 0) AS BIGINT) AS completion_tokens,
       CAST(COALESCE(SUM(cached_tokens), 0) AS BIGINT) AS cached_tokens,
       CAST(COALESCE(SUM(CASE WHEN estimated THEN 1 ELSE 0 END), 0) AS BIGINT) AS estimated,
       CAST(COALESCE(SUM(CASE WHEN prompt_tokens IS NULL OR completion_tokens IS NULL THEN 1 ELSE 0 END), 0) AS BIGINT) AS unknown
FROM usage_records
WHERE started_at >= @from_started AND started_at < @to_started
  AND (CAST(@any_tenant AS BOOLEAN) OR tenant = @tenant)
GROUP BY tenant ORDER BY tenant;
