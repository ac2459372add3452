package modelcache

import (
	"context"
	"io"
	"net/url"
	"strings"
)

// origin is where the files of a model are got from. Its errors hold no secrets.
type origin interface {
	// open asks for a file from an offset on. etag is what an earlier answer said of the content; empty is not known. The
	// answer may begin at 0 though more was asked for: the content has changed, or the origin knows no offsets.
	open(ctx context.Context, name string, offset int64, etag string) (*piece, error)
	// size is how long a file is.
	size(ctx context.Context, name string) (int64, error)
	// String names it for people.
	String() string
}

// piece is a file from an offset on.
type piece struct {
	body   io.ReadCloser
	offset int64
	total  int64  // length of the whole file
	etag   string // empty: none that could be asked for again
}

// origin makes the origin of a task's source.
func (c *Cache) origin(a Ask) (origin, error) {
	s, err := parseSource(a.Source)
	if err != nil {
		return nil, err
	}
	switch s.url.Scheme {
	case "s3":
		return c.s3Origin(s, a.Env)
	case "file":
		return c.fileOrigin(s)
	}
	return &httpOrigin{client: c.o.Client, base: s.url, token: a.Env[tokenVariable]}, nil
}

// peersOf are the other nodes as origins of a model.
func (c *Cache) peersOf(key string, tree bool) []origin {
	var out []origin
	for _, p := range c.o.Peers {
		u, err := url.Parse(strings.TrimSuffix(p, "/") + "/" + key + "/")
		if err != nil {
			continue // checked with the config
		}
		if !tree {
			u = u.JoinPath(fileName)
		}
		out = append(out, &httpOrigin{client: c.peers, base: u})
	}
	return out
}

// escape is the path of a file below a folder as it stands in a URL. What S3 signs is escaped in the same way.
func escape(path string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(path) {
		c := path[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-._~/", c) >= 0:
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
		}
	}
	return b.String()
}

// below is the URL of a file of a folder; name "" is the URL itself.
func below(base *url.URL, name string) *url.URL {
	u := *base
	if name != "" {
		u.RawPath = base.EscapedPath() + escape(name)
		u.Path = base.Path + name
	}
	return &u
}
