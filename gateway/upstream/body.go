package upstream

import (
	"io"
	"time"

	"github.com/heteroflow/heteroflow/gateway/http1"
)

// body is that of an answer on its way. It is read by one goroutine.
type body struct {
	conn *conn
	pool *pool
	from http1.Body
	keep bool // the connection can be used again once the body has ended
	done bool
	err  error // what Read says from now on
}

var _ Body = (*body)(nil)

// Read implements Body.
func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.from.Read(&b.conn.in, p)
	if err != nil {
		b.err = err
		b.end(err == io.EOF)
	}
	return n, err
}

// Next implements Body.
func (b *body) Next() ([]byte, error) {
	if b.err != nil {
		return nil, b.err
	}
	data, err := b.from.Next(&b.conn.in)
	if err != nil {
		b.err = err
		b.end(err == io.EOF)
	}
	return data, err
}

// Wait implements Body.
func (b *body) Wait(d time.Duration) { b.conn.wait = d }

// Close implements Body.
func (b *body) Close() {
	if b.err == nil {
		b.err = io.ErrClosedPipe
		b.end(b.from.All())
	}
}

// end gives the connection back, or closes it.
func (b *body) end(whole bool) {
	if b.done {
		return
	}
	b.done = true
	c := b.conn
	free := c.free()
	if whole && free && b.keep && b.from.Kind != http1.ToEnd && c.in.Empty() && c.finished() {
		c.in.Drop()
		b.pool.give(c)
		return
	}
	c.close()
	c.in.Drop()
	c.forgo()
}
