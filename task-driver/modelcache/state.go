package modelcache

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
)

// stateSuffix ends the name of a partial model's state.
const stateSuffix = ".state"

// state is what is known of a model that is being fetched, or was. A state that is lost, or half written, costs nothing
// but a question: what is there of the files is held against the checksum in any case.
type state struct {
	Total int64           `json:"total"` // of all files; what room was kept for
	Tags  map[string]tags `json:"tags"`  // by file
}

// tags are what an origin said of a file's content.
type tags struct {
	Origin string `json:"origin"`
	ETag   string `json:"etag"`
}

// readState is empty when there is none.
func (c *Cache) readState(key string) state {
	var s state
	body, err := os.ReadFile(filepath.Join(c.o.Dir, partialDir, key+stateSuffix))
	if err != nil || json.Unmarshal(body, &s) != nil || s.Total < 0 {
		s = state{}
	}
	if s.Tags == nil {
		s.Tags = map[string]tags{}
	}
	return s
}

func (c *Cache) writeState(key string, s state) error {
	body, err := json.Marshal(s)
	if err != nil {
		return err
	}
	path := filepath.Join(c.o.Dir, partialDir, key+stateSuffix)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+"~", body, 0o600); err != nil {
		return err
	}
	return os.Rename(path+"~", path)
}

// bytesIn is how long the files below a folder are together. What goes away meanwhile counts nothing.
func bytesIn(dir string) int64 {
	var sum int64
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		if info, err := d.Info(); err == nil {
			sum += info.Size()
		}
		return nil
	})
	return sum
}
