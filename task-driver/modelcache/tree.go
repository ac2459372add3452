package modelcache

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
)

// A model of several files is a folder with a list of them, as sha256sum writes it. The model's checksum is that of the
// list, and thereby of every file.
const (
	manifestName = "SHA256SUMS"
	maxManifest  = 4 << 20 // bytes
	maxFiles     = 20000
	atOnce       = 4 // files
)

// tree gets the files of a model of several.
func (f *fetch) tree(ctx context.Context, o origin, sum string, patience int) error {
	list := wanted{name: manifestName, rel: manifestName, sum: sum, most: maxManifest}
	if err := f.file(ctx, o, list, patience); err != nil {
		if errors.Is(err, errNotThere) {
			return fmt.Errorf("%w; a source that ends with a slash is a folder with a file %s (sha256sum * > %s)", err, manifestName, manifestName)
		}
		return err
	}
	body, err := os.ReadFile(filepath.Join(f.dir, manifestName))
	if err != nil {
		return fmt.Errorf("read the model's list of files: %w", err)
	}
	files, err := parseManifest(body)
	if err != nil {
		return &stubborn{fmt.Errorf("%s%s: %w", o, manifestName, err)}
	}
	if err := f.measure(ctx, o, files, patience); err != nil {
		return err
	}
	getting, ctx := errgroup.WithContext(ctx)
	getting.SetLimit(atOnce)
	for _, w := range files {
		getting.Go(func() error { return f.file(ctx, o, w, patience) })
	}
	return getting.Wait()
}

// measure asks how long the files are, so that there is room for all before the first comes.
func (f *fetch) measure(ctx context.Context, o origin, files []wanted, patience int) error {
	var mu sync.Mutex
	sizes := map[string]int64{}
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(atOnce)
	for _, w := range files {
		asking.Go(func() error {
			var size int64
			var err error
			for range patience {
				if size, err = o.size(ctx, w.name); err == nil || isStubborn(err) || ctx.Err() != nil {
					break
				}
			}
			if err != nil {
				return &originError{err}
			}
			mu.Lock()
			defer mu.Unlock()
			sizes[w.rel] = size
			return nil
		})
	}
	if err := asking.Wait(); err != nil {
		return err
	}
	f.mu.Lock()
	known := maps.Clone(f.sizes)
	f.mu.Unlock()
	maps.Copy(known, sizes)
	return f.expect(ctx, known, tags{})
}

// parseManifest reads lines of sha256sum: 64 digits, two characters, a name. Names are paths below the folder.
func parseManifest(body []byte) ([]wanted, error) {
	var out []wanted
	seen := map[string]bool{}
	for i, line := range strings.Split(strings.TrimSuffix(string(body), "\n"), "\n") {
		line = strings.TrimSuffix(line, "\r")
		if line == "" {
			continue
		}
		w, err := parseLine(line)
		if err == nil && seen[w.rel] {
			err = fmt.Errorf("%q stands there twice", w.rel)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		if w.rel == manifestName {
			continue // written into the folder while it was made
		}
		seen[w.rel] = true
		if out = append(out, w); len(out) > maxFiles {
			return nil, fmt.Errorf("it has more than %d files", maxFiles)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("it names no file")
	}
	for name := range seen {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if seen[dir] {
				return nil, fmt.Errorf("%q is a file and a folder", dir)
			}
		}
	}
	return out, nil
}

func parseLine(line string) (wanted, error) {
	if len(line) < 67 || line[64] != ' ' || line[65] != ' ' && line[65] != '*' {
		return wanted{}, errors.New("it is not as sha256sum writes it: 64 digits, two spaces, a name")
	}
	if _, err := hex.DecodeString(line[:64]); err != nil {
		return wanted{}, errors.New("it is not as sha256sum writes it: 64 digits, two spaces, a name")
	}
	name := strings.TrimPrefix(line[66:], "./")
	// Windows' ways to leave a folder are refused everywhere: a list means the same on every node.
	if !filepath.IsLocal(name) || path.Clean(name) != name || name == "." || strings.ContainsAny(name, `\:`) || !printable(name) {
		return wanted{}, fmt.Errorf("%q is no name of a file below the folder", name)
	}
	return wanted{name: name, rel: name, sum: strings.ToLower(line[:64])}, nil
}
