package relay

import (
	"io"

	"github.com/heteroflow/heteroflow/gateway/body"
)

// Content is the body of a request on its way to an engine. It can be read more than once, one reader at a time.
type Content interface {
	// Reader reads from the beginning. askUsage asks a stream for its usage, where that can be said.
	Reader(askUsage bool) (r io.Reader, length int64)
	// Err is what went wrong with what the client sent; nil when nothing did.
	Err() error
}

// JSON is a body that is there as a whole, sent with the model's name replaced unless Served is empty.
type JSON struct {
	Request *body.Request
	Served  string
}

var _ Content = (*JSON)(nil)

// Reader implements Content.
func (c *JSON) Reader(askUsage bool) (io.Reader, int64) { return c.Request.Reader(c.Served, askUsage) }

// Err implements Content: what is there as a whole was read before.
func (c *JSON) Err() error { return nil }

// Form is a form that still comes in. length is what the client said of it, or below 0.
func Form(u *body.Upload, served string, length int64) Content {
	if length >= 0 {
		length += u.Grows(served)
	}
	return formContent{u, served, length}
}

type formContent struct {
	u      *body.Upload
	served string
	length int64
}

func (c formContent) Reader(bool) (io.Reader, int64) { return c.u.Reader(c.served), c.length }

func (c formContent) Err() error { return c.u.Err() }
