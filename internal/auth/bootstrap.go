package auth

import (
	"context"
	"fmt"

	"github.com/heteroflow/heteroflow/internal/store"
)

// bootstrapSetting is set, to the first key's id, by the one start that made it.
const bootstrapSetting = "auth.bootstrap_key"

// FirstKey is where Bootstrap keeps the first key.
type FirstKey interface {
	CreateKeyOnce(ctx context.Context, setting, value string, k store.Key) (created bool, err error)
}

var _ FirstKey = (*store.Store)(nil)

// Bootstrap makes the first admin key, once in the life of a database, whoever starts first: created is true, and
// plaintext is the key, for exactly one caller, who prints it. Deleting the key does not make a new one.
func Bootstrap(ctx context.Context, s FirstKey) (plaintext string, created bool, err error) {
	plaintext, key, err := NewKey(KindAdmin)
	if err != nil {
		return "", false, err
	}
	key.Name = "bootstrap"
	created, err = s.CreateKeyOnce(ctx, bootstrapSetting, key.ID, key)
	if err != nil {
		return "", false, fmt.Errorf("make first admin key: %w", err)
	}
	if !created {
		return "", false, nil
	}
	return plaintext, true, nil
}
