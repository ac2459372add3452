-- Finds the intents that ended lately.

-- +goose Up
CREATE INDEX intents_updated ON intents (updated_at, id);

-- +goose Down
DROP INDEX intents_updated;
