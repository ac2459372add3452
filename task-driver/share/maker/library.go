package maker

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/heteroflow/heteroflow/task-driver/share"
)

// A Folder is what a backend keeps of one share below the driver's state folder: what the task mounts. Its name is the
// share's ID, so that what is ours can be told, and it goes with its share.
type Folder struct {
	host share.Host
	dir  string // of the backend, on the machine
}

// FolderOf are the folders of the backend of this brand and name.
func FolderOf(h share.Host, vendor, name string) Folder {
	return Folder{host: h, dir: filepath.Join(h.Dir, vendor, name, "shares")}
}

// Path is a path in the folder of a share as the machine, and so a mount, knows it.
func (f Folder) Path(id share.ID, elem ...string) string {
	return filepath.Join(append([]string{f.dir, string(id)}, elem...)...)
}

func (f Folder) here(id share.ID, elem ...string) string { return f.host.Path(f.Path(id, elem...)) }

// Write writes a file of a share, whole or not at all. What is there with the same bytes is left alone, since a container may
// have it mounted.
func (f Folder) Write(id share.ID, name string, body []byte, mode fs.FileMode) error {
	path := f.here(id, name)
	if old, err := os.ReadFile(path); err == nil && string(old) == string(body) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make folder of a share: %w", err)
	}
	return replace(path, body, mode)
}

// replace writes beside the file and renames, so that a crash leaves no half of it.
func replace(path string, body []byte, mode fs.FileMode) error {
	temp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = temp.Write(body)
	if err == nil {
		err = temp.Chmod(mode)
	}
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(temp.Name()))
	}
	return nil
}

// Make makes a folder of a share that tasks of any user may write to.
func (f Folder) Make(id share.ID, name string) error {
	path := f.here(id, name)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("make folder of a share: %w", err)
	}
	if err := os.Chmod(path, 0o1777); err != nil { //nolint:gosec // the task's user is not known here
		return fmt.Errorf("open folder of a share: %w", err)
	}
	return nil
}

// Keep copies a file of the machine into the folder of a share, where an upgrade of the original does not reach it, and tells
// the first digits of its SHA-256. A copy that is there stays: the task that runs goes on with what it began with.
func (f Folder) Keep(id share.ID, source, name string) (digest string, err error) {
	path := f.here(id, name)
	body, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if body, err = readCapped(f.host.Path(source)); err == nil {
			err = f.Write(id, name, body, 0o755)
		}
	}
	if err != nil {
		return "", fmt.Errorf("keep %s for the task: %w", source, err)
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:6]), nil
}

// largest bounds a library that is copied.
const largest = 256 << 20

func readCapped(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	body, err := io.ReadAll(io.LimitReader(file, largest+1))
	if err == nil && len(body) > largest {
		err = fmt.Errorf("%s is larger than any library", path)
	}
	return body, err
}

// Drop removes the folder of a share; none is no error.
func (f Folder) Drop(id share.ID) error {
	if err := os.RemoveAll(f.here(id)); err != nil {
		return fmt.Errorf("remove the folder of a share: %w", err)
	}
	return nil
}

// IDs are the shares that have a folder.
func (f Folder) IDs() ([]share.ID, error) {
	entries, err := os.ReadDir(f.host.Path(f.dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the folders of shares: %w", err)
	}
	var ids []share.ID
	for _, e := range entries {
		if share.IsID(e.Name()) {
			ids = append(ids, share.ID(e.Name()))
		}
	}
	return ids, nil
}

// Sweep drops the folders of shares that are not live.
func (f Folder) Sweep(live map[share.ID]share.Ask) error {
	ids, err := f.IDs()
	problems := []error{err}
	for _, id := range ids {
		if _, is := live[id]; !is {
			problems = append(problems, f.Drop(id))
		}
	}
	return errors.Join(problems...)
}

// Exists reports whether a path of the machine is there.
func Exists(h share.Host, path string) bool {
	_, err := os.Stat(h.Path(path))
	return err == nil
}
