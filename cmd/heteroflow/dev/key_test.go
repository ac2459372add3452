package dev

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The key is in a file that its owner alone reads, and is not printed. The other engine's key, of another database,
// does not take its place.
func TestKeepKey(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	for _, c := range []struct{ engine, key, file string }{
		{Embedded, "hf-admin-one", "admin.key"},
		{Nomad, "hf-admin-two", "nomad/admin.key"},
		{Nomad, "hf-admin-three", "nomad/admin.key"}, // its database was removed meanwhile
	} {
		var said bytes.Buffer
		o := Options{DataDir: data, Stderr: &said, home: filepath.Join(data, c.engine)}
		if err := os.MkdirAll(o.home, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := o.keepKey(c.key); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(data, c.file)
		text, err := os.ReadFile(path)
		if err != nil || string(text) != c.key+"\n" {
			t.Errorf("%s holds %q, %v", path, text, err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode is %v, %v", info.Mode(), err)
		}
		if line := said.String(); strings.Count(line, "\n") != 1 || !strings.Contains(line, path) || strings.Contains(line, c.key) {
			t.Errorf("it says %q", line)
		}
	}
	if text, err := os.ReadFile(filepath.Join(data, "admin.key")); err != nil || string(text) != "hf-admin-one\n" {
		t.Errorf("the first key is now %q, %v", text, err)
	}
}
