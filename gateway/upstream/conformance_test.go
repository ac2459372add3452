package upstream

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
	"strings"
	"sync"
	"testing"
	"time"
)

// patience bounds waits for what must come; a test that passes never waits for it.
const patience = 30 * time.Second

type sender interface {
	Send(ctx context.Context, r *Request) (*Response, error)
	Close()
}

// each runs a test on both clients.
func each(t *testing.T, test func(t *testing.T, s sender)) {
	t.Helper()
	for name, fresh := range map[string]func() sender{"own": func() sender { return New() }, "net/http": func() sender { return NewStandard() }} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := fresh()
			t.Cleanup(s.Close)
			test(t, s)
		})
	}
}

// engine answers connections, numbered from 0, until they end.
func engine(t *testing.T, answer func(n int, c net.Conn, r *bufio.Reader)) (addr string) {
	t.Helper()
	return engineAt(t, "127.0.0.1:0", answer)
}

func engineAt(t *testing.T, addr string, answer func(n int, c net.Conn, r *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	group.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			group.Go(func() {
				defer c.Close()
				answer(n, c, bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		group.Wait()
	})
	return l.Addr().String()
}

// request reads a request with its body; nil at the end of the connection.
func request(r *bufio.Reader) (*http.Request, []byte) {
	in, err := http.ReadRequest(r)
	if err != nil {
		return nil, nil
	}
	body, err := io.ReadAll(in.Body)
	if err != nil {
		return nil, nil
	}
	return in, body
}

// says answers each request with the same bytes.
func speaks(text string) func(int, net.Conn, *bufio.Reader) {
	return func(_ int, c net.Conn, r *bufio.Reader) {
		for in, _ := request(r); in != nil; in, _ = request(r) {
			if _, err := io.WriteString(c, text); err != nil {
				return
			}
		}
	}
}

func post(addr, body string) *Request {
	return &Request{Method: http.MethodPost, Addr: addr, Target: "/v1/x?y=1", Header: []Field{{"X-A", "b"}}, Body: strings.NewReader(body), Length: int64(len(body)), Wait: patience}
}

// got is an answer as it was read.
type got struct {
	status int
	header http.Header
	body   string
	err    error
}

func send(t *testing.T, s sender, r *Request) got {
	t.Helper()
	resp, err := s.Send(t.Context(), r)
	if err != nil {
		return got{err: err}
	}
	defer resp.Body.Close()
	resp.Body.Wait(patience)
	body, err := io.ReadAll(resp.Body)
	return got{resp.Status, resp.Header, string(body), err}
}

const hello = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nx-lower: v\r\n\r\nhello"

func TestSend_ReadsAnswersOfEachForm(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		method, answer string
		close          bool // the engine closes behind the answer
		status         int
		body           string
		err            error
	}{
		"with a length":                    {answer: hello, status: 200, body: "hello"},
		"in chunks":                        {answer: "HTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA;x=y\r\n, chunked!\r\n0\r\n\r\n", status: 201, body: "hello, chunked!"},
		"in chunks with trailers":          {answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n", status: 200, body: "hello"},
		"until the connection ends":        {answer: "HTTP/1.1 200 OK\r\n\r\nhello", close: true, status: 200, body: "hello"},
		"of HTTP/1.0":                      {answer: "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", status: 200, body: "hello"},
		"to HEAD":                          {method: http.MethodHead, answer: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", status: 200},
		"with status 204":                  {answer: "HTTP/1.1 204 No Content\r\n\r\n", status: 204},
		"with status 304 and a length":     {answer: "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", status: 304},
		"of no bytes":                      {answer: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", status: 200},
		"without a reason":                 {answer: "HTTP/1.1 299\r\nContent-Length: 0\r\n\r\n", status: 299},
		"after interim ones":               {answer: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + hello, status: 200, body: "hello"},
		"with a length and cut":            {answer: "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", close: true, status: 200, body: "hello", err: io.ErrUnexpectedEOF},
		"in chunks and cut in one":         {answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhello", close: true, status: 200, body: "hello", err: io.ErrUnexpectedEOF},
		"in chunks without the last chunk": {answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", close: true, status: 200, body: "hello", err: io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, s sender) {
				addr := engine(t, func(_ int, conn net.Conn, r *bufio.Reader) {
					request(r)
					io.WriteString(conn, c.answer) //nolint:errcheck // the client tells
					if !c.close {
						request(r)
					}
				})
				r := post(addr, "ask")
				if c.method != "" {
					r.Method, r.Body, r.Length = c.method, nil, 0
				}
				a := send(t, s, r)
				if a.status != c.status || a.body != c.body || !errors.Is(a.err, c.err) {
					t.Errorf("got %d %q, %v; want %d %q, %v", a.status, a.body, a.err, c.status, c.body, c.err)
				}
			})
		})
	}
}

func TestSend_WritesWhatItIsGiven(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0123456789abcdef", 1<<16)
	for name, body := range map[string]struct {
		from   io.Reader
		length int64
		want   string
	}{
		"none":             {nil, 0, ""},
		"short":            {strings.NewReader("short"), 5, "short"},
		"long":             {strings.NewReader(long), int64(len(long)), long},
		"of no length":     {io.MultiReader(strings.NewReader(long), strings.NewReader("end")), -1, long + "end"},
		"that is no bytes": {strings.NewReader(""), -1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			content := body.want
			each(t, func(t *testing.T, s sender) {
				from := body.from
				if from != nil {
					from = io.MultiReader(strings.NewReader(content)) // both clients read it
				}
				seen := make(chan *http.Request, 1)
				bodies := make(chan string, 1)
				addr := engine(t, func(_ int, c net.Conn, r *bufio.Reader) {
					in, raw := request(r)
					seen <- in
					bodies <- string(raw)
					io.WriteString(c, hello) //nolint:errcheck // the client tells
					request(r)
				})
				r := post(addr, "")
				r.Body, r.Length = from, body.length
				if a := send(t, s, r); a.err != nil || a.body != "hello" {
					t.Fatalf("%q, %v", a.body, a.err)
				}
				in := <-seen
				if in == nil || in.Method != http.MethodPost || in.RequestURI != "/v1/x?y=1" || in.Host != addr || in.Header.Get("X-A") != "b" || in.Header["User-Agent"] != nil {
					t.Errorf("the engine was asked %+v", in)
				}
				if got := <-bodies; got != content {
					t.Errorf("the body came as %d bytes, want %d", len(got), len(content))
				}
			})
		})
	}
}

func TestSend_KeepsConnectionsThatCanBeUsedAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer string
		unread bool
		want   int // connections for two requests
	}{
		"after a length":           {answer: hello, want: 1},
		"after the last chunk":     {answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", want: 1},
		"after nothing":            {answer: "HTTP/1.1 204 No Content\r\n\r\n", want: 1},
		"after an answer not read": {answer: "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", unread: true, want: 2},
		"after it is said not to":  {answer: "HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 5\r\n\r\nhello", want: 2},
		"after HTTP/1.0":           {answer: "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", want: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, s sender) {
				used := make(chan int, 2)
				addr := engine(t, func(n int, conn net.Conn, r *bufio.Reader) {
					for in, _ := request(r); in != nil; in, _ = request(r) {
						used <- n
						io.WriteString(conn, c.answer) //nolint:errcheck // the client tells
					}
				})
				for range 2 {
					if c.unread {
						resp, err := s.Send(t.Context(), post(addr, "ask"))
						if err != nil {
							t.Fatal(err)
						}
						resp.Body.Close()
						continue
					}
					if a := send(t, s, post(addr, "ask")); a.err != nil {
						t.Fatal(a.err)
					}
				}
				<-used
				if got := <-used + 1; got != c.want {
					t.Errorf("%d connections, want %d", got, c.want)
				}
			})
		})
	}
}

func TestSend_TellsOfAConnectionThatHadBeenClosed(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s sender) {
		addr := engine(t, func(n int, c net.Conn, r *bufio.Reader) {
			request(r)
			io.WriteString(c, hello) //nolint:errcheck // the client tells
			if n == 0 {
				request(r) // and closes without an answer
				return
			}
			request(r)
		})
		if a := send(t, s, post(addr, "ask")); a.err != nil {
			t.Fatal(a.err)
		}
		if a := send(t, s, post(addr, "ask")); !errors.Is(a.err, ErrStale) {
			t.Errorf("second request: %v, want %v", a.err, ErrStale)
		}
		if a := send(t, s, post(addr, "ask")); a.err != nil || a.body != "hello" {
			t.Errorf("third request: %q, %v", a.body, a.err)
		}
	})
}

func TestSend_AFirstConnectionThatEndsIsAnError(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s sender) {
		addr := engine(t, func(_ int, _ net.Conn, r *bufio.Reader) { request(r) })
		if a := send(t, s, post(addr, "ask")); a.err == nil || errors.Is(a.err, ErrStale) {
			t.Errorf("%v", a.err)
		}
	})
}

func TestSend_CancelEndsTheConnectionInEachPhase(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{"before an answer": "", "in the middle of one": "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello"} {
		for how, byClose := range map[string]bool{"by the context": false, "by closing the body": true} {
			if answer == "" && byClose {
				continue
			}
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				each(t, func(t *testing.T, s sender) {
					asked, left := make(chan bool, 1), make(chan bool)
					addr := engine(t, func(_ int, c net.Conn, r *bufio.Reader) {
						request(r)
						io.WriteString(c, answer) //nolint:errcheck // the client tells
						asked <- true
						r.ReadByte() //nolint:errcheck // whatever it is, it is the end
						close(left)
					})
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					ended := make(chan error, 1)
					go func() {
						resp, err := s.Send(ctx, post(addr, "ask"))
						if err == nil {
							defer resp.Body.Close()
							if byClose {
								resp.Body.Close()
							}
							_, err = io.ReadAll(resp.Body)
						}
						ended <- err
					}()
					<-asked
					if !byClose {
						cancel()
					}
					receive(t, left, "the engine's end of the connection")
					if err := receive(t, ended, "the error"); err == nil || !byClose && !errors.Is(err, context.Canceled) && !errors.Is(err, net.ErrClosed) {
						t.Errorf("it ended in %v", err)
					}
				})
			})
		}
	}
}

func receive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("%s never came", what)
		panic("unreachable")
	}
}

func TestSend_WaitsNoLongerThanItMay(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"for the head": "", "for the rest of the head": "HTTP/1.1 200 OK\r\nContent-",
		"for the body": "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", "for the rest of it": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, s sender) {
				asked, left := make(chan bool, 100), make(chan bool, 100)
				addr := engine(t, func(_ int, c net.Conn, r *bufio.Reader) {
					if in, _ := request(r); in == nil {
						return
					}
					io.WriteString(c, answer) //nolint:errcheck // the client tells
					asked <- true
					r.ReadByte() //nolint:errcheck // whatever it is, it is the end
					left <- true
				})
				for wait := 20 * time.Millisecond; len(asked) == 0; wait *= 2 { // a busy machine asks later
					r := post(addr, "ask")
					if !strings.HasSuffix(answer, "\n") {
						r.Wait = wait
					}
					resp, err := s.Send(t.Context(), r)
					if err == nil {
						resp.Body.Wait(wait)
						_, err = io.ReadAll(resp.Body)
						resp.Body.Close()
					}
					if !errors.Is(err, os.ErrDeadlineExceeded) {
						t.Errorf("%v", err)
					}
				}
				receive(t, left, "the engine's end of the connection")
			})
		})
	}
}

func TestSend_AnEngineMayAnswerBeforeItHasReadAll(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s sender) {
		addr := engine(t, func(_ int, c net.Conn, r *bufio.Reader) {
			http.ReadRequest(r)                                                                                        //nolint:errcheck // its head alone
			io.WriteString(c, "HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 5\r\n\r\nlarge") //nolint:errcheck // the client tells
			io.Copy(io.Discard, r)                                                                                     //nolint:errcheck // until the client closes
		})
		from, to := io.Pipe()
		defer to.Close()
		r := post(addr, "")
		r.Body, r.Length = from, 1<<30
		go to.Write(make([]byte, 1<<20)) //nolint:errcheck // ended by its reader
		if a := send(t, s, r); a.status != 413 || a.body != "large" {
			t.Errorf("%d %q, %v", a.status, a.body, a.err)
		}
		from.Close()
	})
}

func TestSend_ABodyThatCannotBeReadEndsTheRequest(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, length := range map[string]int64{"short": 100, "long": 1 << 20, "of no length": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, s sender) {
				addr := engine(t, func(_ int, _ net.Conn, r *bufio.Reader) { request(r) })
				r := post(addr, "")
				r.Body, r.Length = io.MultiReader(strings.NewReader("some"), failing{broken}), length
				if a := send(t, s, r); !errors.Is(a.err, broken) {
					t.Errorf("%v", a.err)
				}
			})
		})
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestSend_ReachesEnginesOverIPv6(t *testing.T) {
	t.Parallel()
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skipf("SKIPPED, IPv6 is not tested: %v", err)
	} else {
		l.Close()
	}
	each(t, func(t *testing.T, s sender) {
		addr := engineAt(t, "[::1]:0", speaks(hello))
		if a := send(t, s, post(addr, "ask")); a.body != "hello" {
			t.Errorf("%q, %v", a.body, a.err)
		}
	})
}

func TestSend_RefusesARequestThatWouldBeTwo(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Request){
		"a line's end in a value":  func(r *Request) { r.Header = []Field{{"X-A", "b\r\nX-C: d"}} },
		"a line's end in a name":   func(r *Request) { r.Header = []Field{{"X-A: b\r\nX-C", "d"}} },
		"a name of nothing":        func(r *Request) { r.Header = []Field{{"", "d"}} },
		"a blank in the target":    func(r *Request) { r.Target = "/ HTTP/1.1" },
		"a line's end in it":       func(r *Request) { r.Target = "/\r\nX: y" },
		"no target":                func(r *Request) { r.Target = "" },
		"a blank in the method":    func(r *Request) { r.Method = "GET /x" },
		"a length without a body":  func(r *Request) { r.Body = nil },
		"a line's end in the host": func(r *Request) { r.Addr = "127.0.0.1:1\r\nX: y" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, s sender) {
				addr := engine(t, func(_ int, c net.Conn, r *bufio.Reader) {
					if in, _ := request(r); in != nil {
						t.Errorf("an engine was asked %+v", in)
					}
				})
				r := post(addr, "ask")
				change(r)
				if a := send(t, s, r); !errors.Is(a.err, ErrRequest) {
					t.Errorf("%v", a.err)
				}
			})
		})
	}
}

func TestSend_GivesPiecesAsTheyCome(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s sender) {
		more := make(chan string)
		addr := engine(t, func(_ int, c net.Conn, r *bufio.Reader) {
			request(r)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n") //nolint:errcheck // the client tells
			for piece := range more {
				io.WriteString(c, piece) //nolint:errcheck // the client tells
			}
		})
		resp, err := s.Send(t.Context(), post(addr, "ask"))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		buf := make([]byte, 100)
		for _, piece := range []string{"one", "two", "three"} {
			more <- fmt.Sprintf("%x\r\n%s\r\n", len(piece), piece)
			n, err := resp.Body.Read(buf)
			if err != nil || string(buf[:n]) != piece {
				t.Errorf("%q, %v", buf[:n], err)
			}
		}
		more <- "0\r\n\r\n"
		if n, err := resp.Body.Read(buf); n != 0 || err != io.EOF {
			t.Errorf("%d, %v", n, err)
		}
		close(more)
	})
}

func TestSend_LongAnswers(t *testing.T) {
	t.Parallel()
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	each(t, func(t *testing.T, s sender) {
		addr := engine(t, func(n int, c net.Conn, r *bufio.Reader) {
			for in, _ := request(r); in != nil; in, _ = request(r) {
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nX-Long: %s\r\nContent-Length: %d\r\n\r\n%s", want[:20_000], len(want), want)
			}
		})
		for range 2 {
			if a := send(t, s, post(addr, "ask")); a.body != string(want) || len(a.header.Get("X-Long")) != 20_000 {
				t.Errorf("%d bytes, %v", len(a.body), a.err)
			}
		}
	})
}

func TestBody_NextGivesTheSameAsRead(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0123456789abcdef", 1<<12)
	for name, answer := range map[string]struct{ head, body string }{
		"with a length":      {"Content-Length: 65536\r\n", long},
		"in chunks":          {"Transfer-Encoding: chunked\r\n", strings.Repeat("10\r\n0123456789abcdef\r\n", 1<<12) + "0\r\n\r\n"},
		"in long chunks":     {"Transfer-Encoding: chunked\r\n", "8000\r\n" + long[:1<<15] + "\r\n8000\r\n" + long[1<<15:] + "\r\n0\r\nX-A: b\r\n\r\n"},
		"until the end":      {"", long},
		"cut in a chunk":     {"Transfer-Encoding: chunked\r\n", "10000\r\n" + long[:100]},
		"cut in its length":  {"Content-Length: 65536\r\n", long[:100]},
		"malformed after it": {"Transfer-Encoding: chunked\r\n", "10\r\n" + long[:16] + "\r\nx\r\n"},
		"of nothing":         {"Content-Length: 0\r\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, s sender) {
				addr := engine(t, func(_ int, c net.Conn, r *bufio.Reader) {
					request(r)
					fmt.Fprintf(c, "HTTP/1.1 200 OK\r\n%s\r\n%s", answer.head, answer.body)
				})
				want := send(t, s, post(addr, "ask"))
				resp, err := s.Send(t.Context(), post(addr, "ask"))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				resp.Body.Wait(patience)
				var got []byte
				for err == nil {
					var data []byte
					data, err = resp.Body.Next()
					if len(data) > 0 == (err != nil) {
						t.Errorf("%d bytes with %v", len(data), err)
					}
					got = append(got, data...)
				}
				if string(got) != want.body || (err == io.EOF) != (want.err == nil) {
					t.Errorf("%d bytes, %v; Read gives %d, %v", len(got), err, len(want.body), want.err)
				}
			})
		})
	}
}
