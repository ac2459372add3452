package hostfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// mostText bounds what is read of one file. The longest that is of use, the kernel's list of its modules, is some 2 MiB.
const mostText = 8 << 20

// A source is where a machine's files are: a folder, a folder that is recorded, or a recording. Names have no slash in
// front. Absent files are errors that are fs.ErrNotExist, and those that may not be used fs.ErrPermission.
type source interface {
	read(name string) ([]byte, error)
	names(name string) ([]string, error)
	link(name string) (string, error)
	exists(name string) error
	usable(name string) error // may be read and written
}

// folder is the files under a folder.
type folder string

func (f folder) path(name string) string { return filepath.Join(string(f), filepath.FromSlash(name)) }

func (f folder) read(name string) (text []byte, err error) {
	file, err := os.Open(f.path(name))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return io.ReadAll(io.LimitReader(file, mostText))
}

func (f folder) names(name string) ([]string, error) {
	entries, err := os.ReadDir(f.path(name))
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (f folder) link(name string) (string, error) {
	target, err := os.Readlink(f.path(name))
	return filepath.ToSlash(target), err
}

func (f folder) exists(name string) error {
	_, err := os.Stat(f.path(name))
	return err
}

func (f folder) usable(name string) error { return mayUse(f.path(name)) }

// Snapshot is what was read of a machine's files. Names have no slash in front. What is not in it was not there, or
// nobody asked for it.
type Snapshot struct {
	Texts   map[string]string   `json:"-"`
	Folders map[string][]string `json:"folders,omitempty"` // folder → names in it that were asked for, sorted
	Links   map[string]string   `json:"links,omitempty"`   // link → target
	Present map[string]bool     `json:"present,omitempty"` // known to be there
	Usable  map[string]bool     `json:"usable,omitempty"`  // may be read and written; false where it is there and may not
	// Errors are of what is there and could not be read, by "read", "names" or "link" and the name.
	Errors map[string]string `json:"errors,omitempty"`
}

// NewSnapshot returns one in which nothing is.
func NewSnapshot() Snapshot {
	return Snapshot{
		Texts: map[string]string{}, Folders: map[string][]string{}, Links: map[string]string{}, Present: map[string]bool{},
		Usable: map[string]bool{}, Errors: map[string]string{},
	}
}

// Replay returns the files of a recorded machine. Nothing outside of the snapshot is touched.
func Replay(s Snapshot) FS { return FS{source: &recorded{s}} }

// recorded plays a snapshot.
type recorded struct{ Snapshot }

func (r *recorded) trouble(op, name string) error {
	switch text, failed := r.Errors[op+" "+name]; {
	case !failed:
		return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
	case text == fs.ErrPermission.Error():
		return &fs.PathError{Op: op, Path: name, Err: fs.ErrPermission}
	default:
		return &fs.PathError{Op: op, Path: name, Err: errors.New(text)}
	}
}

func (r *recorded) read(name string) ([]byte, error) {
	if text, ok := r.Texts[name]; ok {
		return []byte(text), nil
	}
	return nil, r.trouble("read", name)
}

func (r *recorded) names(name string) ([]string, error) {
	if names, ok := r.Folders[name]; ok {
		return names, nil
	}
	return nil, r.trouble("names", name)
}

func (r *recorded) link(name string) (string, error) {
	if target, ok := r.Links[name]; ok {
		return target, nil
	}
	return "", r.trouble("link", name)
}

func (r *recorded) exists(name string) error {
	if r.Present[name] {
		return nil
	}
	return &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
}

func (r *recorded) usable(name string) error {
	switch may, known := r.Usable[name]; {
	case may:
		return nil
	case known:
		return &fs.PathError{Op: "access", Path: name, Err: fs.ErrPermission}
	}
	return &fs.PathError{Op: "access", Path: name, Err: fs.ErrNotExist}
}

// A Recorder notes what is read through its files. It is safe for concurrent use.
type Recorder struct {
	from source

	mu   sync.Mutex
	made Snapshot
}

// Record returns a recorder of the machine's files under root.
func Record(root string) *Recorder { return &Recorder{from: New(root).source, made: NewSnapshot()} }

// Files are the files that are recorded.
func (r *Recorder) Files() FS { return FS{source: r} }

// Snapshot is what was noted until now. It is not to be changed while files are still read.
func (r *Recorder) Snapshot() Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.made
}

// note files an answer, or the error of what is there all the same.
func (r *Recorder) note(op, name string, err error, file func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		file()
	case errors.Is(err, fs.ErrPermission):
		r.made.Errors[op+" "+name] = fs.ErrPermission.Error()
	case !errors.Is(err, fs.ErrNotExist):
		r.made.Errors[op+" "+name] = fmt.Sprint(innermost(err))
	}
}

func innermost(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

func (r *Recorder) read(name string) ([]byte, error) {
	text, err := r.from.read(name)
	r.note("read", name, err, func() { r.made.Texts[name] = string(text) })
	return text, err
}

func (r *Recorder) names(name string) ([]string, error) {
	names, err := r.from.names(name)
	r.note("names", name, err, func() { r.made.Folders[name] = slices.Clone(names) })
	return names, err
}

// noteNames notes that these names are in a folder.
func (r *Recorder) noteNames(folder string, names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := append(slices.Clone(r.made.Folders[folder]), names...)
	slices.Sort(all)
	r.made.Folders[folder] = slices.Compact(all)
}

func (r *Recorder) link(name string) (string, error) {
	target, err := r.from.link(name)
	r.note("link", name, err, func() { r.made.Links[name] = target })
	return target, err
}

func (r *Recorder) exists(name string) error {
	err := r.from.exists(name)
	r.note("exists", name, err, func() { r.made.Present[name] = true })
	return err
}

func (r *Recorder) usable(name string) error {
	err := r.from.usable(name)
	r.note("usable", name, err, func() { r.made.Usable[name] = true })
	if errors.Is(err, fs.ErrPermission) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.made.Usable[name] = false
	}
	return err
}
