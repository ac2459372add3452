package client

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// allocDir is the folder of one allocation, laid out as drivers expect it: alloc/ is shared by its tasks, and each
// task has a folder of its own name.
type allocDir struct{ root string }

func (d allocDir) shared() string           { return filepath.Join(d.root, "alloc") }
func (d allocDir) logs() string             { return filepath.Join(d.root, "alloc", "logs") }
func (d allocDir) task(name string) string  { return filepath.Join(d.root, name) }
func (d allocDir) local(task string) string { return filepath.Join(d.root, task, "local") }
func (d allocDir) secrets(task string) string {
	return filepath.Join(d.root, task, "secrets")
}

// fifo is the pipe that a task's output goes through; kind is stdout or stderr.
func (d allocDir) fifo(task, kind string) string {
	return filepath.Join(d.logs(), "."+task+"."+kind+".fifo")
}

// build makes the shared folders. It may be called again.
func (d allocDir) build() error {
	for _, dir := range []string{filepath.Join(d.shared(), "data"), d.logs(), filepath.Join(d.shared(), "tmp")} {
		if err := makeOpenDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// buildTask makes the folders of one task and its log pipes. It may be called again.
func (d allocDir) buildTask(name string) error {
	for _, dir := range []string{d.local(name), filepath.Join(d.task(name), "tmp")} {
		if err := makeOpenDir(dir); err != nil {
			return err
		}
	}
	for _, dir := range []string{d.secrets(name), filepath.Join(d.task(name), "private")} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("make task folder: %w", err)
		}
	}
	for _, kind := range []string{"stdout", "stderr"} {
		if err := makeFIFO(d.fifo(name, kind)); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make log pipe of %s: %w", name, err)
		}
	}
	return nil
}

// makeOpenDir makes a folder that tasks of any user may write to.
func makeOpenDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	return nil
}
