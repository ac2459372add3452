package upstream

import (
	"fmt"
	"strconv"

	"github.com/heteroflow/heteroflow/gateway/http1"
)

// check refuses what would be another request on the wire than it is here.
func (r *Request) check() error {
	if !http1.IsToken(r.Method) {
		return fmt.Errorf("%w: the method %q", ErrRequest, r.Method)
	}
	if r.Target == "" || !visible(r.Target) || !visible(r.Addr) {
		return fmt.Errorf("%w: the target %q at %q", ErrRequest, r.Target, r.Addr)
	}
	for _, f := range r.Header {
		if !http1.IsToken(f.Name) || !http1.PlainText(f.Value) {
			return fmt.Errorf("%w: the header %q", ErrRequest, f.Name)
		}
	}
	if r.Body == nil && r.Length != 0 {
		return fmt.Errorf("%w: a length of %d without a body", ErrRequest, r.Length)
	}
	return nil
}

// visible reports whether a text has neither blanks nor control characters.
func visible(text string) bool {
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c == 0x7f {
			return false
		}
	}
	return true
}

// appendHead writes the head.
func (r *Request) appendHead(b []byte) []byte {
	b = append(append(append(append(b, r.Method...), ' '), r.Target...), " HTTP/1.1\r\nHost: "...)
	b = append(append(b, r.Addr...), "\r\n"...)
	for _, f := range r.Header {
		b = append(append(append(append(b, f.Name...), ": "...), f.Value...), "\r\n"...)
	}
	switch {
	case r.Length < 0:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	case r.Length > 0 || r.Method != "GET" && r.Method != "HEAD":
		b = append(strconv.AppendInt(append(b, "Content-Length: "...), r.Length, 10), "\r\n"...)
	}
	return append(b, "\r\n"...)
}
