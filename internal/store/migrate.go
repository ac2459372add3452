package store

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migrate applies, under the engine's lock, the migrations that the database does not have yet. Each is one
// transaction, so a crash leaves the version before it or the version after it, never something between.
func migrate(ctx context.Context, d dialect, db *sql.DB) error {
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return fmt.Errorf("open migrations: %w", err)
	}
	return migrateFrom(ctx, d, db, files)
}

func migrateFrom(ctx context.Context, d dialect, db *sql.DB, files fs.FS) error {
	kind, lock := d.migrations()
	provider, err := goose.NewProvider(kind, db, files, lock)
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate database: %w", err)
	}
	have, err := provider.GetDBVersion(ctx)
	if err != nil {
		return fmt.Errorf("read schema version: %w", err)
	}
	sources := provider.ListSources()
	if known := sources[len(sources)-1].Version; have > known {
		return fmt.Errorf("the database has schema %d and this build knows only %d: "+
			"run the newer HeteroFlow that wrote it, or restore a backup made before it", have, known)
	}
	return nil
}
