package upstream

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/heteroflow/heteroflow/gateway/http1"
)

// head is that of an answer.
type head struct {
	status int
	minor  int // of HTTP/1
	fields http.Header
}

// readHead reads the head of an answer; those of interim responses are dropped.
func readHead(in *http1.Input) (head, error) {
	for range maxInterim {
		lines, err := in.UntilBlankLine()
		if err != nil {
			return head{}, err
		}
		h, err := parseHead(lines)
		if err != nil || h.status >= http.StatusOK {
			return h, err
		}
		if h.status == http.StatusSwitchingProtocols {
			return h, fmt.Errorf("%w: it changes to another protocol, which was not asked for", ErrMalformed)
		}
	}
	return head{}, fmt.Errorf("%w: more than %d interim responses", ErrMalformed, maxInterim)
}

// parseHead reads the lines of a head, each with its end. It takes nothing that RFC 9112 does not allow to be sent, even
// where it lets a reader be kind: what two readers take for two different things is how requests are smuggled.
func parseHead(lines []byte) (head, error) {
	h := head{}
	first, rest, _ := bytes.Cut(lines, []byte("\r\n"))
	// HTTP/1.1 200 OK; the blank before the reason may be missing together with it
	if len(first) < 12 || string(first[:7]) != "HTTP/1." || first[7] != '0' && first[7] != '1' || first[8] != ' ' || len(first) > 12 && first[12] != ' ' || !http1.PlainText(first) {
		return h, fmt.Errorf("%w: it begins with %.40q", ErrMalformed, first)
	}
	h.minor = int(first[7] - '0')
	for _, c := range first[9:12] {
		if c < '0' || c > '9' {
			return h, fmt.Errorf("%w: it begins with %.40q", ErrMalformed, first)
		}
		h.status = 10*h.status + int(c-'0')
	}
	if h.status < 100 {
		return h, fmt.Errorf("%w: it has the status %d", ErrMalformed, h.status)
	}
	var err error
	h.fields, err = parseFields(string(rest))
	return h, err
}

// parseFields reads the lines of a header.
func parseFields(lines string) (http.Header, error) {
	n := strings.Count(lines, "\n")
	fields := headers.Get().(http.Header) //nolint:forcetypeassert // nothing else is put there
	values := make([]string, 0, n)        // all in one piece of memory
	err := http1.EachField(lines, func(name, value string) {
		if have := fields[name]; have != nil {
			fields[name] = append(have, value)
			return
		}
		values = append(values, value)
		fields[name] = values[len(values)-1 : len(values) : len(values)]
	})
	return fields, err
}

// framing is how the body ends and whether the connection can be used again. Length is below 0 where it is not said.
type framing struct {
	kind   http1.Kind
	length int64
	keep   bool
}

// framing reads how the body ends. An answer that says it in two ways is refused.
func (h *head) framing(method string) (framing, error) {
	f := framing{kind: http1.ToEnd, length: -1, keep: h.minor == 1 && !http1.Says(h.fields["Connection"], "close")}
	lengths, codings := h.fields["Content-Length"], h.fields["Transfer-Encoding"]
	switch {
	case len(codings) > 0 && (len(lengths) > 0 || len(codings) > 1 || h.minor == 0 || !strings.EqualFold(codings[0], "chunked")):
		return f, fmt.Errorf("%w: Transfer-Encoding %.60q beside Content-Length %.60q in HTTP/1.%d", ErrMalformed, codings, lengths, h.minor)
	case len(lengths) > 1:
		return f, fmt.Errorf("%w: Content-Length %.60q", ErrMalformed, lengths)
	case len(lengths) == 1:
		n, err := strconv.ParseUint(lengths[0], 10, 63)
		if err != nil || lengths[0][0] == '+' {
			return f, fmt.Errorf("%w: Content-Length %.60q", ErrMalformed, lengths)
		}
		f.kind, f.length = http1.Sized, int64(n)
	case len(codings) == 1:
		f.kind = http1.Chunked
	}
	if method == http.MethodHead || h.status == http.StatusNoContent || h.status == http.StatusNotModified {
		f.kind = http1.None
	}
	if f.kind == http1.Sized && f.length == 0 {
		f.kind = http1.None
	}
	return f, nil
}
