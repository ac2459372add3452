-- What a row of usage tells besides: both names of the model, cached tokens, estimates, and every backend that was tried.

-- +goose Up
ALTER TABLE usage_records ADD COLUMN served_model TEXT NOT NULL DEFAULT '';
ALTER TABLE usage_records ADD COLUMN cached_tokens BIGINT;
ALTER TABLE usage_records ADD COLUMN estimated BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE usage_records ADD COLUMN chunks BIGINT NOT NULL DEFAULT 0;
ALTER TABLE usage_records ADD COLUMN tried TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE usage_records DROP COLUMN tried;
ALTER TABLE usage_records DROP COLUMN chunks;
ALTER TABLE usage_records DROP COLUMN estimated;
ALTER TABLE usage_records DROP COLUMN cached_tokens;
ALTER TABLE usage_records DROP COLUMN served_model;
