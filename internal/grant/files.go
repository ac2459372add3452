package grant

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/atomicwriter"
)

// What driver and device plugin tell each other of a node lies in folders of small files, one for each record.

// writeFile writes a value as JSON, whole or not at all.
func writeFile(dir, path string, value any) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make lease folder: %w", err)
	}
	body, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode lease: %w", err)
	}
	if err := atomicwriter.WriteFile(path, body, 0o600); err != nil {
		return fmt.Errorf("write lease: %w", err)
	}
	return nil
}

// ReadFiles hands every file of dir with the suffix to read, with its name before the suffix. A folder that does not exist has
// none, nor do those count that are being written (ShareTemp). What cannot be read is told beside the others.
func ReadFiles(dir, suffix string, read func(name string, body []byte) error) error {
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
		if e.IsDir() || !ok || strings.HasPrefix(name, ShareTemp) {
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
