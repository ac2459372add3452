package upstream

import (
	"bytes"
	"fmt"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// head is that of an answer.
type head struct {
	status int
	minor  int // of HTTP/1
	fields http.Header
}

// head reads the head of an answer; those of interim responses are dropped.
func (in *input) head() (head, error) {
	for range maxInterim {
		lines, err := in.untilBlankLine()
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
	if len(first) < 12 || string(first[:7]) != "HTTP/1." || first[7] != '0' && first[7] != '1' || first[8] != ' ' || len(first) > 12 && first[12] != ' ' || !plainText(first) {
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
	fields := make(http.Header, n)
	values := make([]string, 0, n) // all in one piece of memory
	for len(lines) > 0 {
		line, rest, ok := strings.Cut(lines, "\r\n")
		if !ok {
			return nil, fmt.Errorf("%w: a line that does not end as lines do", ErrMalformed)
		}
		lines = rest
		name, value, err := parseField(line)
		if err != nil {
			return nil, err
		}
		name = canonical(name)
		if have := fields[name]; have != nil {
			fields[name] = append(have, value)
			continue
		}
		values = append(values, value)
		fields[name] = values[len(values)-1 : len(values) : len(values)]
	}
	return fields, nil
}

// parseField reads one line of a header.
func parseField[T []byte | string](line T) (name, value string, err error) {
	text := string(line)
	name, value, ok := strings.Cut(text, ":")
	if !ok || name == "" || !isToken(name) || !plainText(value) {
		return "", "", fmt.Errorf("%w: %.60q is no line of a header", ErrMalformed, text)
	}
	return name, strings.Trim(value, " \t"), nil
}

// isToken reports whether a text is a token. Source: RFC 9110 section 5.6.2.
func isToken(text string) bool {
	for i := range len(text) {
		if !tokens[text[i]] {
			return false
		}
	}
	return text != ""
}

var tokens = func() (t [256]bool) {
	for _, c := range "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" {
		t[c] = true
	}
	return t
}()

// plainText reports whether a text has no control characters but tabs.
func plainText[T []byte | string](text T) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// canonical is the name as http.Header keeps it, without new memory for those that engines send.
func canonical(name string) string {
	switch len(name) {
	case 4:
		if strings.EqualFold(name, "Date") {
			return "Date"
		}
	case 6:
		if strings.EqualFold(name, "Server") {
			return "Server"
		}
	case 10:
		if strings.EqualFold(name, "Connection") {
			return "Connection"
		}
	case 12:
		if strings.EqualFold(name, "Content-Type") {
			return "Content-Type"
		}
	case 14:
		if strings.EqualFold(name, "Content-Length") {
			return "Content-Length"
		}
	case 17:
		if strings.EqualFold(name, "Transfer-Encoding") {
			return "Transfer-Encoding"
		}
	}
	return textproto.CanonicalMIMEHeaderKey(name)
}

// framing is how the body ends and whether the connection can be used again. Length is below 0 where it is not said.
type framing struct {
	kind   kind
	length int64
	keep   bool
}

// framing reads how the body ends. An answer that says it in two ways is refused.
func (h *head) framing(method string) (framing, error) {
	f := framing{kind: toEnd, length: -1, keep: h.minor == 1 && !says(h.fields["Connection"], "close")}
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
		f.kind, f.length = sized, int64(n)
	case len(codings) == 1:
		f.kind = chunked
	}
	if method == http.MethodHead || h.status == http.StatusNoContent || h.status == http.StatusNotModified {
		f.kind = empty
	}
	if f.kind == sized && f.length == 0 {
		f.kind = empty
	}
	return f, nil
}

// says reports whether a list has the word.
func says(values []string, word string) bool {
	for _, value := range values {
		for part := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.Trim(part, " \t"), word) {
				return true
			}
		}
	}
	return false
}
