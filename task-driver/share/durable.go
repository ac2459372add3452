package share

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/heteroflow/heteroflow/internal/grant"
)

// tempPrefix begins the name of a file that is being written.
const tempPrefix = grant.ShareTemp

// writeDurable writes a value as JSON so that neither a kill nor a loss of power leaves half of it, and so that it is there
// once the call has returned: the file is synced, renamed, and its folder is synced.
func writeDurable(path string, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	dir := filepath.Dir(path)
	if err := makeDurable(dir); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(body)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), ignoreGone(os.Remove(f.Name())))
	}
	return syncDir(dir)
}

// makeDurable makes a folder and those above it, and syncs the folder each was made in.
func makeDurable(dir string) error {
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := makeDurable(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make folder: %w", err)
	}
	return syncDir(parent)
}

// removeDurable removes a file; one that is not there is no error.
func removeDurable(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

// readAll hands every file of dir with the suffix to read. A folder that is not there has none. Files that cannot be read
// are told beside the others.
func readAll(dir, suffix string, read func(name string, body []byte) error) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", dir, err)
	}
	var problems []error
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if e.IsDir() || !ok || strings.HasPrefix(e.Name(), tempPrefix) {
			continue
		}
		body, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err == nil {
			err = read(name, body)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("read %s: %w", filepath.Join(dir, e.Name()), err))
		}
	}
	return errors.Join(problems...)
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
