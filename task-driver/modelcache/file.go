package modelcache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// fileOrigin is a file, or a folder of files, of the node itself: a local disk, or a file system of several nodes.
type fileOrigin struct {
	root string // the folder of the node that it must not leave
	path string // below root
}

var _ origin = (*fileOrigin)(nil)

// fileOrigin finds the folder of the node that a source lies in. A link cannot lead out of it.
func (c *Cache) fileOrigin(s source) (origin, error) {
	path := filepath.Clean(s.url.Path)
	for _, root := range c.o.FileRoots {
		rel, err := filepath.Rel(root, path)
		if err == nil && filepath.IsLocal(rel) {
			return &fileOrigin{root: root, path: rel}, nil
		}
	}
	if len(c.o.FileRoots) == 0 {
		return nil, fmt.Errorf("source: %s is a file of the node, and this node allows none: have models { file_roots = [\"%s\"] } set in the plugin's config", redact(s.url), filepath.Dir(path))
	}
	return nil, fmt.Errorf("source: %s lies outside the folders that this node allows: use one below %s, or have it added to models { file_roots } in the plugin's config", redact(s.url), strings.Join(c.o.FileRoots, ", "))
}

func (o *fileOrigin) String() string { return "file://" + filepath.Join(o.root, o.path) }

func (o *fileOrigin) open(_ context.Context, name string, offset int64, etag string) (*piece, error) {
	f, info, err := o.file(name)
	if err != nil {
		return nil, err
	}
	p := &piece{body: f, total: info.Size(), etag: fmt.Sprintf("%d-%d", info.ModTime().UnixNano(), info.Size())}
	if offset == 0 || etag != "" && etag != p.etag || offset > p.total {
		return p, nil
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", o, err), f.Close())
	}
	p.offset = offset
	return p, nil
}

func (o *fileOrigin) size(_ context.Context, name string) (int64, error) {
	f, info, err := o.file(name)
	if err != nil {
		return 0, err
	}
	return info.Size(), f.Close()
}

func (o *fileOrigin) file(name string) (*os.File, fs.FileInfo, error) {
	root, err := os.OpenRoot(o.root)
	if err != nil {
		return nil, nil, &stubborn{fmt.Errorf("folder for models: %w", err)}
	}
	defer root.Close()                                                                                          //nolint:errcheck // only read
	f, err := root.OpenFile(filepath.Join(o.path, filepath.FromSlash(name)), os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe must not hold us
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, &stubborn{fmt.Errorf("%s: %w: mend source", o, errNotThere)}
	}
	if err != nil {
		return nil, nil, &stubborn{fmt.Errorf("%s: %w", o, err)}
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is no file: a folder is written with a slash at its end")
	}
	if err != nil {
		return nil, nil, errors.Join(&stubborn{fmt.Errorf("%s: %w", o, err)}, f.Close())
	}
	return f, info, nil
}
