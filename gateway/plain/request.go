package plain

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/heteroflow/heteroflow/gateway/http1"
)

// exchange is a request and its response, in memory that is used again.
type exchange struct {
	request  http.Request
	url      url.URL
	header   http.Header
	values   []string // of the header, in one piece of memory
	life     *life
	response response
}

var exchanges = sync.Pool{New: func() any {
	x := &exchange{header: http.Header{}}
	x.response.header = http.Header{}
	return x
}}

// mostKept is the length of a header whose memory is used again.
const mostKept = 64

func (x *exchange) release() {
	if len(x.header) > mostKept || len(x.response.header) > mostKept {
		return
	}
	clear(x.header)
	clear(x.values)
	clear(x.response.header)
	x.request, x.url, x.life, x.values = http.Request{}, url.URL{}, nil, x.values[:0]
	x.response = response{header: x.response.header}
	exchanges.Put(x)
}

// refusal is a request that is not answered here.
type refusal struct {
	status int
	text   string
	other  bool // it is sound, and somebody else may answer it
}

func bad(text string) *refusal { return &refusal{status: http.StatusBadRequest, text: text} }

// refusalOf is what is told of a head that could not be read; nil where nobody would hear it.
func refusalOf(err error) *refusal {
	switch {
	case errors.Is(err, http1.ErrTooLong):
		return &refusal{status: http.StatusRequestHeaderFieldsTooLarge, text: "the head of the request is over " + strconv.Itoa(http1.MaxHead) + " bytes"}
	case errors.Is(err, http1.ErrMalformed):
		return bad(strings.TrimPrefix(err.Error(), http1.ErrMalformed.Error()+": "))
	}
	return nil
}

// parse reads the lines of a head, each with its end. It takes nothing that RFC 9112 does not allow to be sent.
func (x *exchange) parse(lines string) *refusal {
	first, rest, _ := strings.Cut(lines, "\r\n")
	method, after, _ := strings.Cut(first, " ")
	blank := strings.LastIndexByte(after, ' ')
	if blank < 0 || !http1.IsToken(method) || !isTarget(after[:blank]) || !isVersion(after[blank+1:]) {
		return bad("its first line is none of HTTP/1.1")
	}
	target, version := after[:blank], after[blank+1:]
	if err := http1.EachField(rest, x.add); err != nil {
		return refusalOf(err)
	}
	x.life = &life{}
	length, why := x.framing(version == "HTTP/1.1")
	if why != nil {
		return why
	}
	hosts := x.header["Host"]
	delete(x.header, "Host")
	switch {
	case len(hosts) > 1 || len(hosts) == 1 && !isHost(hosts[0]):
		return bad("its Host makes no sense")
	case version != "HTTP/1.1":
		return &refusal{status: http.StatusHTTPVersionNotSupported, text: "it is not of HTTP/1.1", other: true}
	case len(hosts) == 0:
		return bad("it has no Host")
	case method == http.MethodConnect || target[0] != '/':
		return &refusal{status: http.StatusNotImplemented, text: "its target is no path", other: true}
	}
	if kinds := x.header["Content-Type"]; len(kinds) > 0 && len(kinds[0]) >= 10 && strings.EqualFold(kinds[0][:10], "multipart/") {
		return &refusal{status: http.StatusUnsupportedMediaType, text: "forms with files are not read here", other: true}
	}
	if why := x.expectation(length); why != nil {
		return why
	}
	if !x.plainTarget(target) {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			return bad("its target makes no sense")
		}
		x.url = *u
	}
	r := http.Request{
		Method: method, URL: &x.url, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: x.header, Body: http.NoBody,
		ContentLength: length, Host: hosts[0], RequestURI: target, Close: asksToClose(x.header["Connection"]),
	}
	if length != 0 {
		r.Body = &x.life.body
	}
	if length < 0 {
		r.TransferEncoding = inChunks
	}
	x.request = *r.WithContext(x.life)
	return nil
}

var inChunks = []string{"chunked"}

// asksToClose reports whether the word is there in any way in which somebody may read it, also with blanks for commas:
// what comes behind it would be another's.
func asksToClose(values []string) bool {
	for _, value := range values {
		for word := range strings.FieldsFuncSeq(value, func(c rune) bool { return c == ',' || c == ' ' || c == '\t' }) {
			if strings.EqualFold(word, "close") {
				return true
			}
		}
	}
	return false
}

// add takes a line of the header.
func (x *exchange) add(name, value string) {
	if have := x.header[name]; have != nil {
		x.header[name] = append(have, value)
		return
	}
	x.values = append(x.values, value)
	n := len(x.values)
	x.header[name] = x.values[n-1 : n : n]
}

// framing reads how the body ends: its length is below 0 where it comes in chunks. What says it in two ways is refused.
func (x *exchange) framing(chunksAllowed bool) (length int64, why *refusal) {
	lengths, codings := x.header["Content-Length"], x.header["Transfer-Encoding"]
	from := &x.life.body.from
	switch {
	case len(codings) > 0 && len(lengths) > 0:
		return 0, bad("it has a Transfer-Encoding and a Content-Length")
	case len(codings) > 1 || len(codings) == 1 && !chunksAllowed:
		return 0, bad("its Transfer-Encoding makes no sense")
	case len(codings) == 1 && !strings.EqualFold(codings[0], "chunked"):
		return 0, &refusal{status: http.StatusNotImplemented, text: "its Transfer-Encoding is not chunked"}
	case len(codings) == 1:
		for _, names := range x.header["Trailer"] {
			for name := range strings.SplitSeq(names, ",") {
				switch http1.Canonical(strings.Trim(name, " \t")) {
				case "Transfer-Encoding", "Content-Length", "Trailer":
					return 0, bad("its Trailer makes no sense")
				}
			}
		}
		delete(x.header, "Transfer-Encoding")
		delete(x.header, "Trailer") // trailers are not passed on
		from.Kind = http1.Chunked
		return -1, nil
	case len(lengths) > 1:
		return 0, bad("it has a Content-Length twice")
	case len(lengths) == 0:
		return 0, nil
	}
	for _, c := range []byte(lengths[0]) {
		if c < '0' || c > '9' {
			return 0, bad("its Content-Length is no number")
		}
	}
	n, err := strconv.ParseInt(lengths[0], 10, 64)
	if err != nil {
		return 0, bad("its Content-Length is no number")
	}
	from.Kind, from.Left = http1.Sized, n
	return n, nil
}

// expectation reads the header Expect, of which there is one that means something.
func (x *exchange) expectation(length int64) *refusal {
	expects := x.header["Expect"]
	if len(expects) == 0 || len(expects) == 1 && expects[0] == "" {
		return nil
	}
	if len(expects) > 1 || !strings.EqualFold(expects[0], "100-continue") {
		return &refusal{status: http.StatusExpectationFailed, text: "its Expect is not 100-continue"}
	}
	x.life.body.expects = length != 0
	return nil
}

// plainTarget reads a path, and a query, in which nothing is escaped or could be.
func (x *exchange) plainTarget(target string) bool {
	path, query, asks := strings.Cut(target, "?")
	if asks && query == "" {
		return false
	}
	for i := range len(path) {
		if c := path[i]; !plainly[c] && c != '/' {
			return false
		}
	}
	for i := range len(query) {
		if c := query[i]; !plainly[c] && c != '=' && c != '&' {
			return false
		}
	}
	x.url.Path, x.url.RawQuery = path, query
	return true
}

// isTarget reports whether a text is of the characters of a target. A fragment has no place there.
func isTarget(text string) bool {
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c >= 0x7f || c == '#' {
			return false
		}
	}
	return text != ""
}

func isVersion(text string) bool {
	return len(text) == 8 && text[:5] == "HTTP/" && text[5] >= '0' && text[5] <= '9' && text[6] == '.' && text[7] >= '0' && text[7] <= '9'
}

// isHost reports whether a text is of the characters of a host and its port. Source: RFC 3986 section 3.2.2.
func isHost(text string) bool {
	for i := range len(text) {
		if c := text[i]; !plainly[c] && !strings.ContainsRune("!$%&'()*+,:;=[]", rune(c)) {
			return false
		}
	}
	return true
}

// plainly are the characters that mean nothing in a URL. Source: RFC 3986 section 2.3.
var plainly = func() (t [256]bool) {
	for _, c := range "-._~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" {
		t[c] = true
	}
	return t
}()
