package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/heteroflow/heteroflow/internal/store/sqlgen"
)

// Setting reads one setting, or ErrNotFound.
func (s *Store) Setting(ctx context.Context, name string) (string, error) {
	if !storable(name) {
		return "", fmt.Errorf("setting: %w", ErrNotFound)
	}
	value, err := s.reader().GetSetting(ctx, name)
	if errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("setting %s: %w", name, ErrNotFound)
	}
	if err != nil {
		return "", fmt.Errorf("read setting %s: %w", name, err)
	}
	return value, nil
}

// SetSettingOnce sets the setting if nobody has, and returns what is set now. won tells whether it was this call.
func (s *Store) SetSettingOnce(ctx context.Context, name, value string) (current string, won bool, err error) {
	n, err := s.writer().InsertSettingOnce(ctx, sqlgen.InsertSettingOnceParams{Name: name, Value: value})
	if err != nil {
		return "", false, fmt.Errorf("set %s once: %w", name, err)
	}
	if n == 1 {
		return value, true, nil
	}
	current, err = s.Setting(ctx, name)
	return current, false, err
}
