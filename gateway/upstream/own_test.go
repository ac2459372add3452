package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/gateway/http1"
)

// malformed are answers that one reader may take for something else than another does.
var malformed = map[string]string{
	"two lengths":                          "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
	"the same length twice":                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
	"two lengths in a line":                "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello",
	"a length with a sign":                 "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
	"a length below 0":                     "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
	"a length in hex":                      "HTTP/1.1 200 OK\r\nContent-Length: 0x5\r\n\r\nhello",
	"an empty length":                      "HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\nhello",
	"a length no number holds":             "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nhello",
	"a length beside chunks":               "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"chunks in HTTP/1.0":                   "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"another coding":                       "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
	"an unknown coding":                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
	"chunked twice":                        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"a blank before the colon":             "HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello",
	"a line that is folded":                "HTTP/1.1 200 OK\r\nX-A: b\r\n c\r\nContent-Length: 5\r\n\r\nhello",
	"a line without a colon":               "HTTP/1.1 200 OK\r\nX-A\r\nContent-Length: 5\r\n\r\nhello",
	"a line without a name":                "HTTP/1.1 200 OK\r\n: x\r\nContent-Length: 5\r\n\r\nhello",
	"a line's end of one byte":             "HTTP/1.1 200 OK\r\nX-A: b\nContent-Length: 5\r\n\r\nhello",
	"a return in a value":                  "HTTP/1.1 200 OK\r\nX-A: b\rContent-Length: 6\r\nContent-Length: 5\r\n\r\nhello",
	"a zero byte in a value":               "HTTP/1.1 200 OK\r\nX-A: b\x00\r\nContent-Length: 5\r\n\r\nhello",
	"another protocol":                     "HTTP/2 200 OK\r\nContent-Length: 5\r\n\r\nhello",
	"another protocol still":               "ICY 200 OK\r\nContent-Length: 5\r\n\r\nhello",
	"no number of a status":                "HTTP/1.1 2x0 OK\r\nContent-Length: 5\r\n\r\nhello",
	"a status of four digits":              "HTTP/1.1 2000 OK\r\nContent-Length: 5\r\n\r\nhello",
	"a status below 100":                   "HTTP/1.1 099 OK\r\nContent-Length: 5\r\n\r\nhello",
	"another protocol that is switched to": "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nhello",
	"interim answers without end":          strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 9) + "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
	"no length of a chunk":                 "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\nhello\r\n0\r\n\r\n",
	"a chunk below 0":                      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
	"a chunk in 0x":                        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
	"a blank behind a chunk's length":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n",
	"a chunk no number holds":              "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello\r\n0\r\n\r\n",
	"a chunk longer than it says":          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n",
	"a chunk whose end is one byte":        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n",
	"a chunk's length with one byte":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
	"a chunk's extension with a return":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a\rb\r\nhello\r\n0\r\n\r\n",
	"a chunk's extension without end":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;" + strings.Repeat("a", 2000) + "\r\nhello\r\n0\r\n\r\n",
	"a trailer that is none":               "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx y\r\n\r\n",
	"trailers without end":                 "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n" + strings.Repeat("X-A: b\r\n", 1000) + "\r\n",
	"a head without end":                   "HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", http1.MaxHead) + "\r\n\r\n",
}

func TestSend_RefusesWhatCanBeReadInTwoWays(t *testing.T) {
	t.Parallel()
	for name, answer := range malformed {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := New()
			used := make(chan int, 2)
			addr := engine(t, func(n int, conn net.Conn, r *bufio.Reader) {
				for in, _ := request(r); in != nil; in, _ = request(r) {
					used <- n
					io.WriteString(conn, answer) //nolint:errcheck // the client tells
				}
			})
			for n := range 2 {
				if a := send(t, c, post(addr, "ask")); !errors.Is(a.err, ErrMalformed) {
					t.Errorf("%d %q, %v", a.status, a.body, a.err)
				}
				if got := <-used; got != n {
					t.Errorf("request %d on connection %d: the one before was used again", n, got)
				}
			}
		})
	}
}

func TestSend_NeverReusesAConnectionWithMoreOnIt(t *testing.T) {
	t.Parallel()
	const forged = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
	for name, late := range map[string]bool{"together with the answer": false, "once it was read": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := New()
			read, wrote := make(chan bool, 1), make(chan bool, 1)
			addr := engine(t, func(n int, conn net.Conn, r *bufio.Reader) {
				for in, _ := request(r); in != nil; in, _ = request(r) {
					switch {
					case n > 0:
						io.WriteString(conn, hello) //nolint:errcheck // the client tells
					case late:
						io.WriteString(conn, hello) //nolint:errcheck // the client tells
						<-read
						io.WriteString(conn, forged) //nolint:errcheck // the client tells
						wrote <- true
					default:
						io.WriteString(conn, hello+forged) //nolint:errcheck // the client tells
					}
				}
			})
			send(t, c, post(addr, "ask"))
			if late {
				read <- true
				<-wrote
			}
			for range 2 {
				if a := send(t, c, post(addr, "ask")); a.err != nil || a.body != "hello" {
					t.Errorf("%q, %v", a.body, a.err)
				}
			}
		})
	}
}

func TestPool_ClosesWhatIsOld(t *testing.T) {
	t.Parallel()
	left := make(chan bool)
	addr := engine(t, func(n int, c net.Conn, r *bufio.Reader) {
		for in, _ := request(r); in != nil; in, _ = request(r) {
			io.WriteString(c, hello) //nolint:errcheck // the client tells
		}
		if n == 0 {
			close(left)
		}
	})
	c := New()
	send(t, c, post(addr, "ask"))
	c.pool.mu.Lock()
	for _, kept := range c.pool.idle[addr] {
		kept.since = kept.since.Add(-idleTime)
	}
	c.pool.mu.Unlock()
	c.pool.swept()
	receive(t, left, "the end of the connection")
	if n := len(c.pool.idle); n != 0 {
		t.Errorf("%d addresses are remembered", n)
	}
	if a := send(t, c, post(addr, "ask")); a.body != "hello" {
		t.Errorf("%q, %v", a.body, a.err)
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

// read reads one answer as Send does, and gives what is left.
func readAnswer(method string, from io.Reader) (h head, f framing, body []byte, rest []byte, err error) {
	in := &http1.Input{From: bytesOf{from}}
	if h, err = readHead(in); err != nil {
		return h, f, nil, nil, err
	}
	if f, err = h.framing(method); err != nil {
		return h, f, nil, nil, err
	}
	c := http1.Body{Kind: f.kind, Left: f.length}
	buf := make([]byte, 700)
	for err == nil {
		var n int
		n, err = c.Read(in, buf)
		body = append(body, buf[:n]...)
	}
	if err != io.EOF {
		return h, f, body, nil, err
	}
	rest = bytes.Clone(in.Held())
	more, _ := io.ReadAll(from)
	return h, f, body, append(rest, more...), nil
}

// FuzzAnswer: whatever is taken for an answer, net/http takes for the same one, ending at the same byte.
func FuzzAnswer(f *testing.F) {
	for _, answer := range malformed {
		f.Add(answer, false)
	}
	for _, answer := range []string{
		hello, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA;x=y\r\n, chunked!\r\n0\r\nX-Sum: 1\r\n\r\nmore", "HTTP/1.1 200 OK\r\n\r\nhello",
		"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 304\r\nContent-Length: 5\r\n\r\nrest", "HTTP/1.1 100 Continue\r\n\r\n" + hello + hello,
	} {
		f.Add(answer, false)
		f.Add(answer, true)
	}
	f.Fuzz(func(t *testing.T, answer string, isHead bool) {
		method := http.MethodPost
		if isHead {
			method = http.MethodHead
		}
		h, framing, body, rest, err := readAnswer(method, strings.NewReader(answer))
		if err != nil {
			return
		}
		r := bufio.NewReader(strings.NewReader(answer))
		resp, err := http.ReadResponse(r, &http.Request{Method: method})
		for err == nil && resp.StatusCode < 200 {
			resp, err = http.ReadResponse(r, &http.Request{Method: method})
		}
		if err == nil && h.fields["Trailer"] != nil {
			return // net/http refuses names in it that would do harm if trailers were passed on
		}
		if err != nil {
			if h.fields["Trailer"] == nil {
				t.Fatalf("net/http refuses it: %v", err)
			}
			return
		}
		theirs, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatalf("net/http refuses its body: %v", err)
		}
		left, _ := io.ReadAll(r)
		if resp.StatusCode != h.status || !bytes.Equal(theirs, body) || !bytes.Equal(left, rest) {
			t.Fatalf("%d %q and %q left, net/http %d %q and %q left", h.status, body, rest, resp.StatusCode, theirs, left)
		}
		if framing.keep && resp.Close && framing.kind != http1.ToEnd {
			t.Fatal("the connection is kept, and net/http closes it")
		}
		ours := maps.Clone(h.fields)
		delete(ours, "Transfer-Encoding")
		if !maps.EqualFunc(ours, resp.Header, func(a, b []string) bool { return strings.Join(a, "\x00") == strings.Join(b, "\x00") }) {
			t.Fatalf("header %q, net/http %q", ours, resp.Header)
		}
	})
}

// TestSend_CostsLittleMemory: a request and its answer on a connection that was kept.
func TestSend_CostsLittleMemory(t *testing.T) {
	c := New()
	addr := engine(t, func(_ int, c net.Conn, r *bufio.Reader) {
		buf := make([]byte, 4<<10)
		for {
			if _, err := r.Read(buf); err != nil {
				return
			}
			io.WriteString(c, hello) //nolint:errcheck // the client tells
		}
	})
	body, buf := strings.NewReader(""), make([]byte, 100)
	r := post(addr, "")
	got := testing.AllocsPerRun(200, func() {
		body.Reset("ask")
		r.Body, r.Length = body, 3
		resp, err := c.Send(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Wait(time.Minute)
		if n, err := resp.Body.Read(buf); n != 5 || err != io.EOF {
			t.Fatal(n, err)
		}
		resp.Body.Close()
	})
	if most := 16.0; got > most {
		t.Errorf("%v allocations a request, want at most %v", got, most)
	}
}
