-- name: GetSetting :one
SELECT value FROM settings WHERE name = @name;

-- name: InsertSettingOnce :execrows
INSERT INTO settings (name, value) VALUES (@name, @value) ON CONFLICT (name) DO NOTHING;
