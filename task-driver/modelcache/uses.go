package modelcache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// A use is a file that holds its task's id. It is there before the model is, and until the task is destroyed; what runs
// when its driver dies keeps its model thereby.

// markName is a task's id as a file name.
func markName(taskID string) string {
	sum := sha256.Sum256([]byte(taskID))
	return hex.EncodeToString(sum[:16])
}

// mark notes that a task uses a model.
func (c *Cache) mark(ctx context.Context, key, taskID string) error {
	return c.inRoom(ctx, func() error {
		path := filepath.Join(c.o.Dir, usesDir, key, markName(taskID))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("note the use of a model: %w", err)
		}
		if err := os.WriteFile(path, []byte(taskID), 0o600); err != nil {
			return fmt.Errorf("note the use of a model: %w", err)
		}
		return nil
	})
}

// unmark takes a use back. The folder's time becomes that of the last use.
func (c *Cache) unmark(ctx context.Context, key, taskID string) error {
	return c.inRoom(ctx, func() error {
		err := os.Remove(filepath.Join(c.o.Dir, usesDir, key, markName(taskID)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("take back the use of a model: %w", err)
		}
		return nil
	})
}

// inRoom does what must not happen while room is made.
func (c *Cache) inRoom(ctx context.Context, do func() error) error {
	l, err := c.lock(ctx, roomLock, func() {})
	if err != nil {
		return err
	}
	return errors.Join(do(), l.Release())
}

// uses lists the notes of a task, or of all tasks with "*".
func (c *Cache) uses(name string) ([]string, error) {
	found, err := fs.Glob(os.DirFS(c.o.Dir), usesDir+"/*/"+name)
	if err != nil {
		return nil, fmt.Errorf("list users of models: %w", err)
	}
	for i := range found {
		found[i] = filepath.Join(c.o.Dir, filepath.FromSlash(found[i]))
	}
	return found, nil
}

// Release takes back every use of a task. A task without any is no error.
func (c *Cache) Release(taskID string) error {
	found, err := c.uses(markName(taskID))
	errs := []error{err}
	for _, path := range found {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("take back the use of a model: %w", err))
		}
	}
	return errors.Join(errs...)
}

// User is a task that is noted as using a model.
type User struct {
	TaskID string
	Since  time.Time
}

// Users lists the tasks that are noted, one entry for each use.
func (c *Cache) Users() ([]User, error) {
	found, err := c.uses("*")
	errs := []error{err}
	var out []User
	for _, path := range found {
		body, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		info, statErr := os.Stat(path)
		if err := errors.Join(err, statErr); err != nil {
			errs = append(errs, fmt.Errorf("list users of models: %w", err))
			continue
		}
		out = append(out, User{TaskID: string(body), Since: info.ModTime()})
	}
	return out, errors.Join(errs...)
}

// used reports whether any task uses a model, and when one did last.
func (c *Cache) used(key string) (now bool, last time.Time, err error) {
	dir := filepath.Join(c.o.Dir, usesDir, key)
	marks, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, time.Time{}, nil
	}
	if err != nil {
		return false, time.Time{}, fmt.Errorf("look at the uses of a model: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return false, time.Time{}, fmt.Errorf("look at the uses of a model: %w", err)
	}
	return len(marks) > 0, info.ModTime(), nil
}
