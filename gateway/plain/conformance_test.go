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
	"strings"
	"sync"
	"testing"
)

// server is what both servers are.
type server interface {
	Serve(l net.Listener) error
	Shutdown(ctx context.Context) error
	Close() error
}

// up serves until the test ends.
func up(t *testing.T, s server) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close() //nolint:errcheck // Serve tells
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("the end of serving: %v", err)
		}
	})
	return l.Addr().String()
}

// each runs a test on both servers.
func each(t *testing.T, h func(t *testing.T) http.HandlerFunc, test func(t *testing.T, addr string)) {
	t.Helper()
	for name, fresh := range map[string]func(http.Handler) server{
		"plain":    func(h http.Handler) server { return &Server{Handler: h} },
		"net/http": func(h http.Handler) server { return &http.Server{Handler: h} }, //nolint:gosec // nobody is slow here
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, up(t, fresh(h(t))))
		})
	}
}

// client is one connection.
type client struct {
	t *testing.T
	*net.TCPConn
	r *bufio.Reader
}

func dial(t *testing.T, addr string) *client {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &client{t, c.(*net.TCPConn), bufio.NewReader(c)} //nolint:forcetypeassert // of Dial
}

func (c *client) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Fatal(err)
	}
}

// answer reads an answer to a method, interim ones too.
func (c *client) answer(method string) (*http.Response, string, error) {
	c.t.Helper()
	resp, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err != nil {
		return nil, "", err
	}
	if resp.Close {
		resp.Header.Set("Connection", "close") // which was taken out
	}
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

// want reads an answer that must be so.
func (c *client) want(status int, body string) http.Header {
	c.t.Helper()
	resp, got, err := c.answer(http.MethodPost)
	if err != nil {
		c.t.Fatalf("no answer: %v", err)
	}
	if resp.StatusCode != status || got != body {
		c.t.Errorf("%d %.100q, want %d %.100q", resp.StatusCode, got, status, body)
	}
	return resp.Header
}

// ends wants nothing more to come.
func (c *client) ends() {
	c.t.Helper()
	if rest, err := io.ReadAll(c.r); len(rest) > 0 || err != nil && !strings.Contains(err.Error(), "reset") {
		c.t.Errorf("%q came where the connection should have ended: %v", rest, err)
	}
}

const get = "GET /x HTTP/1.1\r\nHost: a\r\n\r\n"

func post(body string) string {
	return fmt.Sprintf("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

func always(h http.HandlerFunc) func(*testing.T) http.HandlerFunc {
	return func(*testing.T) http.HandlerFunc { return h }
}

func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusTeapot)
		return
	}
	w.Write(body) //nolint:errcheck // the client tells
}

var long = strings.Repeat("0123456789abcdef", 1<<14) // 256 KiB

func TestServer_Bodies(t *testing.T) {
	t.Parallel()
	each(t, always(echo), func(t *testing.T, addr string) {
		c := dial(t, addr)
		for _, body := range []string{"hello", "", long, strings.Repeat("x", bufSize), "again"} {
			go io.WriteString(c, post(body)) //nolint:errcheck // the answer tells
			c.want(200, body)
		}
		go io.WriteString(c, "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"+fmt.Sprintf("%x\r\n%s\r\n", len(long), long)+"0\r\nX-Sum: 1\r\n\r\n"+get) //nolint:errcheck // see above
		c.want(200, "hello"+long)
		c.want(200, "")
	})
}

func TestServer_AnswersInTheOrderOfTheRequests(t *testing.T) {
	t.Parallel()
	each(t, always(echo), func(t *testing.T, addr string) {
		c := dial(t, addr)
		c.send(post("one") + post("two") + get + post("three") + "POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 4\r\n\r\nlast" + get)
		for _, want := range []string{"one", "two", "", "three", "last"} {
			c.want(200, want)
		}
		c.ends()
	})
}

// TestServer_HowAnswersAreFramed: by a length where it is known before anything is sent, in chunks where it is not, and
// with no body where none may be.
func TestServer_HowAnswersAreFramed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		method string
		h      http.HandlerFunc
		length int64
		status int
		body   string
		header map[string]string
		cut    bool
		once   bool // the connection may be closed behind it
	}{
		"nothing": {h: func(http.ResponseWriter, *http.Request) {}, status: 200},
		"a little": {h: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "a little") }, length: 8, status: 200, body: "a little", //nolint:errcheck // the client tells
			header: map[string]string{"Content-Type": "text/plain; charset=utf-8"}},
		"much": {h: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, long) }, length: -1, status: 200, body: long}, //nolint:errcheck // see above
		"much in pieces": {h: func(w http.ResponseWriter, _ *http.Request) {
			for i := range 64 {
				io.WriteString(w, long[i<<12:(i+1)<<12]) //nolint:errcheck // see above
			}
		}, length: -1, status: 200, body: long},
		"with its length": {h: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(long)))
			w.Header().Set("Content-Type", "x/y")
			w.Header().Set("Date", "then")
			w.WriteHeader(201)
			io.WriteString(w, long[:100]) //nolint:errcheck // see above
			io.WriteString(w, long[100:]) //nolint:errcheck // see above
		}, length: int64(len(long)), status: 201, body: long, header: map[string]string{"Content-Type": "x/y", "Date": "then"}},
		"shorter than its length": {h: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			io.WriteString(w, "hello") //nolint:errcheck // see above
		}, length: 9, status: 200, body: "hello", cut: true},
		"longer than its length": {h: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			io.WriteString(w, "hello") //nolint:errcheck // see above
			if _, err := io.WriteString(w, "!"); !errors.Is(err, http.ErrContentLength) {
				panic("more than was said can be written")
			}
		}, length: 5, status: 200, body: "hello", once: true},
		"to HEAD": {method: http.MethodHead, h: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			io.WriteString(w, "hello") //nolint:errcheck // see above
		}, length: 5, status: 200},
		"with status 204": {h: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(204)
			if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrBodyNotAllowed) {
				panic("a body can be written where there is none")
			}
		}, status: 204},
		"with status 304": {h: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(304) }, status: 304},
		"with headers that would be others": {h: func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["X-A"] = []string{"b\r\nX-B: c"}
			w.Header()["X-C\r\nX-D"] = []string{"e"}
		}, status: 200, header: map[string]string{"X-A": "b  X-B: c", "X-B": "", "X-D": ""}},
		"changed after its head": {h: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(203)
			w.Header().Set("X-Late", "1")
			w.WriteHeader(500)
		}, status: 203, header: map[string]string{"X-Late": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, always(c.h), func(t *testing.T, addr string) {
				conn := dial(t, addr)
				method := http.MethodGet
				if c.method != "" {
					method = c.method
				}
				for range 2 {
					conn.send(strings.Replace(get, "GET", method, 1))
					resp, body, err := conn.answer(method)
					if c.cut {
						if !errors.Is(err, io.ErrUnexpectedEOF) || body != c.body {
							t.Errorf("%q, %v", body, err)
						}
						return
					}
					if err != nil {
						t.Fatal(err)
					}
					if resp.StatusCode != c.status || body != c.body || resp.ContentLength != c.length && method != http.MethodHead && c.status != 304 {
						t.Errorf("%d with %d bytes of %d, want %d with %d", resp.StatusCode, len(body), resp.ContentLength, c.status, c.length)
					}
					for name, want := range c.header {
						if got := resp.Header.Get(name); got != want {
							t.Errorf("%s: %q, want %q", name, got, want)
						}
					}
					if resp.Header.Get("Date") == "" {
						t.Error("no Date")
					}
					if c.once {
						return
					}
				}
			})
		})
	}
}

func TestServer_FlushedPiecesArriveBeforeTheNext(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	next := map[*testing.T]chan bool{}
	each(t, func(t *testing.T) http.HandlerFunc {
		go1 := make(chan bool)
		mu.Lock()
		next[t] = go1
		mu.Unlock()
		return func(w http.ResponseWriter, _ *http.Request) {
			control := http.NewResponseController(w)
			w.WriteHeader(http.StatusOK)
			for i := range 5 {
				if err := control.Flush(); err != nil {
					t.Error(err)
				}
				<-go1
				fmt.Fprintf(w, "piece %d\n", i) //nolint:errcheck // the client tells
			}
		}
	}, func(t *testing.T, addr string) {
		mu.Lock()
		go1 := next[t]
		mu.Unlock()
		c := dial(t, addr)
		c.send(get)
		resp, err := http.ReadResponse(c.r, nil)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(resp.Body)
		for i := range 5 {
			go1 <- true
			if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintf("piece %d\n", i) {
				t.Errorf("%q, %v", line, err)
			}
		}
		if _, err := lines.ReadByte(); err != io.EOF {
			t.Errorf("behind the last piece: %v", err)
		}
	})
}

func TestServer_InterimResponses(t *testing.T) {
	t.Parallel()
	each(t, always(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusProcessing)
		w.Header().Set("Link", "x")
		w.WriteHeader(http.StatusEarlyHints)
		echo(w, r)
	}), func(t *testing.T, addr string) {
		c := dial(t, addr)
		for range 2 {
			c.send(post("hello"))
			c.want(102, "")
			if h := c.want(103, ""); h.Get("Link") != "x" {
				t.Errorf("%q", h)
			}
			c.want(200, "hello")
		}
	})
}

// TestServer_ExpectedBodies are asked for by reading them, and never sent where nobody does.
func TestServer_ExpectedBodies(t *testing.T) {
	t.Parallel()
	expects := func(path string) string {
		return "POST " + path + " HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
	}
	each(t, always(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/refused" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		echo(w, r)
	}), func(t *testing.T, addr string) {
		c := dial(t, addr)
		for range 2 {
			c.send(expects("/x"))
			c.want(100, "")
			c.send("hello")
			c.want(200, "hello")
		}
		c.send(expects("/refused"))
		if h := c.want(403, "no\n"); h.Get("Connection") != "close" {
			t.Errorf("nobody knows whether the body comes, and the connection is kept: %q", h)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		c.ends()
	})
}

// TestServer_UnreadBodies are not taken for requests.
func TestServer_UnreadBodies(t *testing.T) {
	t.Parallel()
	each(t, always(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path) }), func(t *testing.T, addr string) { //nolint:errcheck // the client tells
		c := dial(t, addr)
		c.send(post("GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n") + get)
		c.want(200, "/x")
		c.want(200, "/x")
		c.send("POST /y HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n" + get)
		c.want(200, "/y")
		c.want(200, "/x")
		c.send("POST /y HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\nx")
		if h := c.want(200, "/y"); h.Get("Connection") != "close" {
			t.Errorf("megabytes would be read for nothing: %q", h)
		}
		c.ends()
	})
}

// TestServer_AClientThatLeavesEndsTheContext in each phase.
func TestServer_AClientThatLeavesEndsTheContext(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		begun bool // the answer
		reset bool // the client resets
	}{"before the answer": {}, "in the answer": {begun: true}, "with a reset": {reset: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			over := make(chan error, 2)
			each(t, func(t *testing.T) http.HandlerFunc {
				return func(w http.ResponseWriter, r *http.Request) {
					body, err := io.ReadAll(r.Body)
					if err != nil {
						t.Error(err)
					}
					control := http.NewResponseController(w)
					if c.begun {
						w.Write(body)   //nolint:errcheck // the client tells
						control.Flush() //nolint:errcheck // see above
					}
					// A client that only closed its sending side is told by what is written to it.
					for r.Context().Err() == nil {
						if !c.begun && !c.reset {
							w.WriteHeader(http.StatusProcessing)
							continue
						}
						io.WriteString(w, "more") //nolint:errcheck // see above
						control.Flush()           //nolint:errcheck // see above
					}
					over <- context.Cause(r.Context())
				}
			}, func(t *testing.T, addr string) {
				conn := dial(t, addr)
				conn.send(post("hello"))
				if c.begun {
					if _, err := conn.r.ReadString('\n'); err != nil {
						t.Fatal(err)
					}
				}
				if c.reset {
					conn.SetLinger(0) //nolint:errcheck // the handler tells
				}
				conn.Close()
				if err := <-over; !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		})
	}
}

// TestServer_ContextsEndWithTheirRequest, and take those that were made of them along.
func TestServer_ContextsEndWithTheirRequest(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T) http.HandlerFunc {
		kept := make(chan context.Context, 10)
		return func(w http.ResponseWriter, r *http.Request) {
			select {
			case before := <-kept:
				<-before.Done()
			default:
			}
			type key struct{}
			made, cancel := context.WithCancel(context.WithValue(r.Context(), key{}, 1))
			_ = cancel
			called := make(chan bool)
			context.AfterFunc(made, func() { close(called) })
			kept <- made
			if r.URL.Path == "/y" {
				cancel()
				<-called
				if err := r.Context().Err(); err != nil {
					t.Error(err)
				}
			}
			echo(w, r)
		}
	}, func(t *testing.T, addr string) {
		c := dial(t, addr)
		for range 3 {
			c.send(post("hello"))
			c.want(200, "hello")
			c.send(strings.Replace(get, "/x", "/y", 1))
			c.want(200, "")
		}
	})
}

func TestServer_Panics(t *testing.T) {
	t.Parallel()
	each(t, always(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/x" {
			panic(http.ErrAbortHandler)
		}
	}), func(t *testing.T, addr string) {
		c := dial(t, addr)
		c.send(strings.Replace(get, "/x", "/y", 1))
		c.want(200, "")
		c.send(get)
		c.ends()
		c = dial(t, addr)
		c.send(strings.Replace(get, "/x", "/y", 1))
		c.want(200, "")
	})
}

func TestServer_Hijack(t *testing.T) {
	t.Parallel()
	each(t, always(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if r.URL.Path == "/cut" {
			io.WriteString(w, "half") //nolint:errcheck // the client tells
			control.Flush()           //nolint:errcheck // see above
			if conn, _, err := control.Hijack(); err == nil {
				conn.Close()
			}
			return
		}
		conn, both, err := control.Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		line, _ := both.ReadString('\n')
		both.WriteString("you said " + line) //nolint:errcheck // see above
		both.Flush()                         //nolint:errcheck // see above
		if _, err := w.Write(nil); !errors.Is(err, http.ErrHijacked) {
			panic("it can still be written to")
		}
	}), func(t *testing.T, addr string) {
		c := dial(t, addr)
		c.send(get + "more\n")
		if line, err := c.r.ReadString('\n'); err != nil || line != "you said more\n" {
			t.Errorf("%q, %v", line, err)
		}
		c.ends()
		c = dial(t, addr)
		c.send(strings.Replace(get, "/x", "/cut", 1))
		if _, body, err := c.answer(http.MethodGet); !errors.Is(err, io.ErrUnexpectedEOF) || body != "half" {
			t.Errorf("%q, %v", body, err)
		}
	})
}

func TestServer_DeadlinesOfTheHandler(t *testing.T) {
	t.Parallel()
	failed := make(chan error, 2)
	each(t, always(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if r.URL.Path == "/read" {
			control.SetReadDeadline(aMoment()) //nolint:errcheck // the read tells
			_, err := io.ReadAll(r.Body)
			failed <- err
			return
		}
		control.SetWriteDeadline(aMoment()) //nolint:errcheck // the write tells
		for {
			if _, err := io.WriteString(w, long); err != nil {
				failed <- err
				return
			}
		}
	}), func(t *testing.T, addr string) {
		c := dial(t, addr)
		c.send(get) // and nothing of the answer is read
		if err := <-failed; err == nil {
			t.Error("a client that reads nothing is written to without end")
		}
		c = dial(t, addr)
		c.send("POST /read HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n")
		if err := <-failed; err == nil {
			t.Error("a body that never comes was read")
		}
	})
}

// TestServer_Shutdown closes what is idle and answers what was asked.
func TestServer_Shutdown(t *testing.T) {
	t.Parallel()
	for name, fresh := range map[string]func(http.Handler) server{
		"plain":    func(h http.Handler) server { return &Server{Handler: h} },
		"net/http": func(h http.Handler) server { return &http.Server{Handler: h} }, //nolint:gosec // nobody is slow here
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked, gate := make(chan bool), make(chan bool)
			s := fresh(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/slow" {
					asked <- true
					<-gate
				}
				echo(w, r)
			}))
			addr := up(t, s)
			still, busy := dial(t, addr), dial(t, addr)
			still.send(post("hello"))
			still.want(200, "hello")
			busy.send(strings.Replace(post("slow"), "/x", "/slow", 1))
			<-asked
			late, leave := context.WithCancel(t.Context())
			leave()
			if err := s.Shutdown(late); !errors.Is(err, context.Canceled) {
				t.Errorf("with a request that is answered: %v", err)
			}
			ended := make(chan error, 1)
			go func() { ended <- s.Shutdown(context.Background()) }()
			still.ends()
			close(gate)
			if h := busy.want(200, "slow"); h.Get("Connection") != "close" {
				t.Errorf("%q", h)
			}
			busy.ends()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if c, err := net.Dial("tcp", addr); err == nil {
				c.Close()
				t.Error("there is still somebody who listens")
			}
		})
	}
}

// TestServer_ManyAtOnce: each gets its own answer, whatever the others do.
func TestServer_ManyAtOnce(t *testing.T) {
	t.Parallel()
	each(t, always(echo), func(t *testing.T, addr string) {
		var group sync.WaitGroup
		for n := range 50 {
			c := dial(t, addr)
			group.Go(func() {
				for i := range 20 {
					body := strings.Repeat(fmt.Sprintf("%d of %d, ", i, n), 1+n*i)
					var out bytes.Buffer
					out.WriteString(post(body))
					go c.Write(out.Bytes()) //nolint:errcheck // the answer tells
					if resp, got, err := c.answer(http.MethodPost); err != nil || got != body || resp.StatusCode != 200 {
						t.Errorf("%v: %d bytes, want %d", err, len(got), len(body))
						return
					}
				}
			})
		}
		group.Wait()
	})
}
