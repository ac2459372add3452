package modelcache_test

import (
	"errors"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/task-driver/modelcache"
)

func asTemporary(err error, to *interface{ Temporary() bool }) bool {
	return errors.As(err, to) && (*to).Temporary()
}

func FuzzParseManifest(f *testing.F) {
	sum := strings.Repeat("0", 64)
	for _, seed := range []string{"", sum + "  a\n", sum + " *./a/b\r\n" + sum + "  c\n", sum + "  ../a", sum + "  a\x00b"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		seen := map[string]bool{}
		for _, name := range modelcache.Names(body) {
			if !filepath.IsLocal(name) || seen[name] || name == "." || strings.ContainsAny(name, "\x00\n\\") || filepath.Clean(name) != name {
				t.Errorf("%q is taken as a file of the folder", name)
			}
			seen[name] = true
		}
	})
}

func FuzzParseContentRange(f *testing.F) {
	for _, seed := range []string{"bytes 0-9/10", "bytes 5-2/10", "bytes */10", "bytes -1-2/3", "bytes 0-9223372036854775807/9223372036854775807"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		from, total, err := modelcache.ParseContentRange(text)
		if err == nil && (from < 0 || from >= total) {
			t.Errorf("%q is taken as from %d of %d", text, from, total)
		}
	})
}

func FuzzParseSource(f *testing.F) {
	for _, seed := range []string{"https://u:secretpw@h/a/b.gguf?x=secretpw", "s3://bucket/key/", "/data/m", "file://x/y", "https://h", "https://h/%00", "https://h/..", "https://h/a//"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name, shown, err := modelcache.Parsed(text)
		if err != nil {
			return
		}
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
			t.Errorf("%q has the name %q", text, name)
		}
		if u, err := url.Parse(shown); err != nil || u.User != nil || u.RawQuery != "" {
			t.Errorf("%q is shown as %q (%v)", text, shown, err)
		}
	})
}

func FuzzEscape(f *testing.F) {
	f.Add("a b/c+d=%é")
	f.Fuzz(func(t *testing.T, path string) {
		if back, err := url.PathUnescape(modelcache.Escape(path)); err != nil || back != path {
			t.Errorf("%q comes back as %q, %v", path, back, err)
		}
	})
}
