package modelcache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-cleanhttp"
)

// tokenVariable of a task's environment is sent as a bearer token to its http source, and to nobody else.
const tokenVariable = "HETEROFLOW_MODEL_TOKEN"

// headerTimeout is how long an answer may take to begin. Stores that fetch it themselves first are slow.
const headerTimeout = 2 * time.Minute

// newClient is a client that waits so long for a connection, and for an answer to begin.
func newClient(connect, answer time.Duration) *http.Client {
	t := cleanhttp.DefaultPooledTransport()
	t.DialContext = (&net.Dialer{Timeout: connect, KeepAlive: 30 * time.Second}).DialContext
	t.ResponseHeaderTimeout, t.DisableCompression = answer, true
	t.MaxResponseHeaderBytes = 256 << 10
	return &http.Client{Transport: t, CheckRedirect: checkRedirect}
}

const maxRedirects = 10

// checkRedirect keeps to the network, and to encryption once there was some. Credentials do not follow to another host:
// net/http sees to that.
func checkRedirect(req *http.Request, via []*http.Request) error {
	req.Header.Del("Referer") // net/http puts in the address that came before, with what may be secret
	switch {
	case len(via) > maxRedirects:
		return stubbornf("more than %d redirects", maxRedirects)
	case req.URL.Scheme != "http" && req.URL.Scheme != "https":
		return stubbornf("redirect to a %q address, which is refused", req.URL.Scheme)
	case req.URL.Scheme == "http" && via[len(via)-1].URL.Scheme == "https":
		return stubbornf("redirect from https to http, which is refused")
	}
	return nil
}

// httpOrigin is a file, or a folder of files, of a web server.
type httpOrigin struct {
	client *http.Client
	base   *url.URL
	token  string
	// sign prepares a request in a way of its own; nil is the usual one.
	sign func(*http.Request) error
	// refuse reads an answer that is no file; nil is the usual way.
	refuse func(*http.Response) error
}

var _ origin = (*httpOrigin)(nil)

func (o *httpOrigin) String() string { return redact(o.base) }

func (o *httpOrigin) open(ctx context.Context, name string, offset int64, etag string) (*piece, error) {
	header := http.Header{}
	if offset > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
		if etag != "" {
			header.Set("If-Range", etag)
		}
	}
	resp, err := o.do(ctx, http.MethodGet, name, header)
	if err != nil {
		return nil, err
	}
	p, err := o.piece(resp, offset, etag)
	if err == nil {
		return p, nil
	}
	drop(resp)
	if offset > 0 && errors.Is(err, errStartOver) {
		return o.open(ctx, name, 0, "")
	}
	return nil, err
}

// errStartOver says that the file cannot be gone on with.
var errStartOver = errors.New("the file has changed")

// piece reads an answer to a request from the offset on.
func (o *httpOrigin) piece(resp *http.Response, offset int64, etag string) (*piece, error) {
	p := &piece{body: resp.Body, etag: strongTag(resp.Header.Get("ETag"))}
	if coding := resp.Header.Get("Content-Encoding"); coding != "" && coding != "identity" && resp.StatusCode < 300 {
		return nil, stubbornf("%s: the answer is encoded as %q: have the server send the file as it is", o, coding)
	}
	switch resp.StatusCode {
	case http.StatusOK:
		if resp.ContentLength < 0 {
			return nil, stubbornf("%s: the server does not say how long the file is (no Content-Length): nothing can be kept room for or gone on with; serve it as a file", o)
		}
		p.total = resp.ContentLength
		return p, nil
	case http.StatusPartialContent:
		from, total, err := parseContentRange(resp.Header.Get("Content-Range"))
		if err != nil || from != offset || offset == 0 {
			return nil, fmt.Errorf("%s: asked from byte %d on, the server answers Content-Range %.60q: %w", o, offset, resp.Header.Get("Content-Range"), errStartOver)
		}
		if etag != "" && p.etag != "" && p.etag != etag { // it was to send the whole file then
			return nil, errStartOver
		}
		p.offset, p.total = offset, total
		return p, nil
	case http.StatusRequestedRangeNotSatisfiable:
		if offset > 0 {
			return nil, errStartOver // it is shorter now, or whole already: the checksum was looked at before
		}
	}
	if o.refuse != nil {
		return nil, o.refuse(resp)
	}
	return nil, o.refused(resp, "")
}

// refused turns an answer that is no file into an error. detail is what more there is to say.
func (o *httpOrigin) refused(resp *http.Response, detail string) error {
	status := strconv.Itoa(resp.StatusCode) + " " + http.StatusText(resp.StatusCode) + detail
	switch code := resp.StatusCode; {
	case code == http.StatusNotFound || code == http.StatusGone:
		return &stubborn{fmt.Errorf("%s: %w (%s): mend source", o, errNotThere, status)}
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return stubbornf("%s: not allowed (%s): give the task credentials for it", o, status)
	case code == http.StatusTooManyRequests || code == http.StatusRequestTimeout || code >= 500:
		return fmt.Errorf("%s: %s", o, status)
	}
	return stubbornf("%s: %s", o, status)
}

func (o *httpOrigin) size(ctx context.Context, name string) (int64, error) {
	resp, err := o.do(ctx, http.MethodHead, name, http.Header{})
	if err != nil {
		return 0, err
	}
	p, err := o.piece(resp, 0, "")
	drop(resp)
	if err != nil {
		return 0, err
	}
	return p.total, nil
}

func (o *httpOrigin) do(ctx context.Context, method, name string, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "", nil)
	if err != nil {
		return nil, err
	}
	req.URL = below(o.base, name)
	req.Host = req.URL.Host
	req.Header = header
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", "heteroflow-driver")
	switch {
	case o.sign != nil:
		if err := o.sign(req); err != nil {
			return nil, err
		}
	case o.token != "":
		req.Header.Set("Authorization", "Bearer "+o.token)
	}
	client := *o.client
	if o.sign != nil { // a signature holds for one address
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	resp, err := client.Do(req)
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // its text holds the address with what may be secret
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o, err)
	}
	return resp, nil
}

// drop ends with an answer. What is left of a short body is read, so that the connection can be used again.
func drop(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	_ = resp.Body.Close()
}

// strongTag is the tag when it names the very bytes.
func strongTag(tag string) string {
	if len(tag) < 2 || tag[0] != '"' || tag[len(tag)-1] != '"' || !printable(tag) {
		return ""
	}
	return tag
}

// parseContentRange reads "bytes <from>-<to>/<total>".
func parseContentRange(text string) (from, total int64, err error) {
	spec, ok := strings.CutPrefix(text, "bytes ")
	span, size, ok2 := strings.Cut(spec, "/")
	first, last, ok3 := strings.Cut(span, "-")
	if !ok || !ok2 || !ok3 {
		return 0, 0, errors.New("it is no range")
	}
	from, err1 := strconv.ParseInt(first, 10, 64)
	to, err2 := strconv.ParseInt(last, 10, 64)
	total, err3 := strconv.ParseInt(size, 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return 0, 0, errors.New("it is no range")
	}
	if from < 0 || to < from || total <= to {
		return 0, 0, errors.New("it is no range within the file")
	}
	return from, total, nil
}
