//go:build linux

package plain

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/gateway/http1"
)

// sample is one of testdata/requests.txt.
type sample struct {
	name, text string
	want       []string
}

func corpus(tb testing.TB) []sample {
	tb.Helper()
	raw, err := os.ReadFile("testdata/requests.txt")
	if err != nil {
		tb.Fatal(err)
	}
	var list []sample
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSuffix(line, "\n")
		last := len(list) - 1
		switch {
		case line == "", strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "== "):
			list = append(list, sample{name: line[3:]})
		case strings.HasPrefix(line, "-- "):
			list[last].want = append(list[last].want, line[3:])
		default:
			text, err := strconv.Unquote(`"` + line + `"`)
			if err != nil {
				tb.Fatalf("%s: %q: %v", list[last].name, line, err)
			}
			list[last].text += text
		}
	}
	list = append(list,
		sample{"a head without end", "GET /x HTTP/1.1\r\nHost: a\r\nX-A: " + strings.Repeat("a", http1.MaxHead) + "\r\n\r\n", []string{"431"}},
		sample{"a target without end", "GET /" + strings.Repeat("a", http1.MaxHead) + " HTTP/1.1\r\nHost: a\r\n\r\n", []string{"431"}},
		sample{"a head of many lines", "GET /x HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("X-A: b\r\n", 20_000) + "\r\n", []string{"431"}},
		sample{"extensions without end", "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;" + strings.Repeat("a", 2000) + "\r\nhello\r\n0\r\n\r\n", []string{`POST /x "" and an error`}},
		sample{"extensions in every chunk", "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1;"+strings.Repeat("a", 900)+"\r\nx\r\n", 30) + "0\r\n\r\n", []string{`POST /x "xxxxxxxxxxxxxxxxxx" and an error`}},
		sample{"trailers without end", "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n" + strings.Repeat("X-A: b\r\n", 1000) + "\r\n", []string{`POST /x "hello" and an error`}},
	)
	return list
}

// seen is a request as a handler had it.
type seen struct {
	method, target, body string
	header               http.Header
	err                  error // of reading the body
}

func (s seen) String() string {
	text := fmt.Sprintf("%s %s %q", s.method, s.target, s.body)
	if s.err != nil {
		text += " and an error"
	}
	return text
}

func see(r *http.Request) seen {
	body, err := io.ReadAll(r.Body)
	return seen{r.Method, r.RequestURI, string(body), r.Header.Clone(), err}
}

// TestServer_OnTheCorpus: what reaches the handler, what is refused and with which status, and what is handed on.
func TestServer_OnTheCorpus(t *testing.T) {
	t.Parallel()
	for _, c := range corpus(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var got []string
			note := func(text string) {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, text)
			}
			addr := up(t, &Server{
				Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { note(see(r).String()) }),
				Other: func(c net.Conn) {
					note("other")
					c.Close()
				},
			})
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			sent := make(chan error, 1)
			go func() {
				_, err := io.WriteString(conn, c.text)
				sent <- errors.Join(err, conn.(*net.TCPConn).CloseWrite()) //nolint:forcetypeassert // of Dial
			}()
			answers, _ := io.ReadAll(conn) // it may be cut
			<-sent
			r := bufio.NewReader(bytes.NewReader(answers))
			for {
				resp, err := http.ReadResponse(r, nil)
				if err != nil {
					break
				}
				io.Copy(io.Discard, resp.Body) //nolint:errcheck // it is in memory
				if resp.StatusCode >= 400 {
					note(strconv.Itoa(resp.StatusCode))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// bytesOf is a source of bytes that are there.
type bytesOf struct{ io.Reader }

func (s bytesOf) ReadTo(in *http1.Input, p []byte) (int, error) {
	if p == nil {
		p = in.Take()
	}
	return s.Read(p)
}

// taken are the requests that this package takes out of a text, one after the other.
func taken(text string) (list []seen) {
	in := &http1.Input{From: bytesOf{strings.NewReader(text)}}
	for {
		lines, err := in.UntilBlankLine()
		if err != nil {
			return list
		}
		x := &exchange{header: http.Header{}}
		if x.parse(string(lines)) != nil {
			return list
		}
		s := seen{method: x.request.Method, target: x.request.URL.String() + " " + x.request.RequestURI + " " + x.request.Host, header: x.header}
		body := &x.life.body.from
		buf := make([]byte, 700)
		for s.err == nil {
			var n int
			n, s.err = body.Read(in, buf)
			s.body += string(buf[:n])
		}
		if s.err != io.EOF {
			return list
		}
		s.err = nil
		list = append(list, s)
		if x.request.Close {
			return list
		}
	}
}

// memory is a connection on which everything has come.
type memory struct {
	net.Conn
	from io.Reader
	list []seen
	end  chan struct{}
	once sync.Once
}

func (m *memory) Read(p []byte) (int, error)     { return m.from.Read(p) }
func (*memory) Write(p []byte) (int, error)      { return len(p), nil }
func (*memory) SetDeadline(time.Time) error      { return nil }
func (*memory) SetReadDeadline(time.Time) error  { return nil }
func (*memory) SetWriteDeadline(time.Time) error { return nil }
func (*memory) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (*memory) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (m *memory) Close() error {
	m.once.Do(func() { close(m.end) })
	return nil
}

// FuzzRequest: whatever is taken for a request, net/http's server takes for the same one, ending at the same byte.
func FuzzRequest(f *testing.F) {
	for _, c := range corpus(f) {
		f.Add(c.text)
	}
	conns := &listener{conns: make(chan net.Conn)}
	type connKey struct{}
	reference := &http.Server{
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			m := r.Context().Value(connKey{}).(*memory) //nolint:forcetypeassert // set below
			s := see(r)
			s.target = r.URL.String() + " " + r.RequestURI + " " + r.Host
			m.list = append(m.list, s)
		}),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
	go reference.Serve(conns) //nolint:errcheck // it ends with the process
	f.Fuzz(func(t *testing.T, text string) {
		ours := taken(text)
		if len(ours) == 0 {
			return
		}
		m := &memory{from: strings.NewReader(text), end: make(chan struct{})}
		conns.conns <- m
		<-m.end
		for i, our := range ours {
			if i >= len(m.list) {
				t.Fatalf("net/http takes %d requests and not %s", len(m.list), our)
			}
			their := m.list[i]
			if their.err != nil {
				t.Fatalf("net/http refuses the body of %s: %v", our, their.err)
			}
			// It adds one header where there is another that means the same: that is not what the client said.
			if our.header["Pragma"] != nil && our.header["Cache-Control"] == nil {
				delete(their.header, "Cache-Control")
			}
			if our.String() != their.String() || fmt.Sprint(our.header) != fmt.Sprint(their.header) {
				t.Fatalf("%s %q, net/http %s %q", our, our.header, their, their.header)
			}
		}
	})
}

type listener struct{ conns chan net.Conn }

func (l *listener) Accept() (net.Conn, error) { return <-l.conns, nil }
func (l *listener) Close() error              { return nil }
func (l *listener) Addr() net.Addr            { return &net.TCPAddr{} }
