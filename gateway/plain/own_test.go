//go:build linux

package plain

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// aMoment is a deadline that is soon over.
func aMoment() time.Time { return time.Now().Add(20 * time.Millisecond) }

// TestServer_NobodyIsWaitedForWithoutEnd: a head that comes byte by byte, a connection on which nothing is asked, a body
// that stops.
func TestServer_NobodyIsWaitedForWithoutEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		server *Server
		first  string
		drip   bool
		body   bool // it is the handler that is told
	}{
		"a head that drips":            {server: &Server{HeadTime: 50 * time.Millisecond}, first: "GET /x HTTP/1.1\r\n", drip: true},
		"nothing from the beginning":   {server: &Server{IdleTime: 50 * time.Millisecond}},
		"nothing behind a request":     {server: &Server{IdleTime: 50 * time.Millisecond}, first: get},
		"a body of which nothing came": {server: &Server{BodyTime: 50 * time.Millisecond}, first: "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n", body: true},
		"a body that stops":            {server: &Server{BodyTime: 50 * time.Millisecond}, first: "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe", body: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			told := make(chan error, 1)
			s := c.server
			s.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				_, err := io.ReadAll(r.Body)
				told <- err
			})
			conn := dial(t, up(t, s))
			conn.send(c.first)
			if c.drip {
				for range 200 { // each in time, and the head is not complete then
					io.WriteString(conn, "X-A: b\r\n") //nolint:errcheck // the end may have come
				}
			}
			if c.body {
				if err := <-told; !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error(err)
				}
			}
			io.Copy(io.Discard, conn) //nolint:errcheck // the end is what is waited for
		})
	}
}

// TestServer_HandsOnWhatItDoesNotSpeak with all that came, and goes on to answer the rest.
func TestServer_HandsOnWhatItDoesNotSpeak(t *testing.T) {
	t.Parallel()
	handed := make(chan net.Conn, 1)
	s := &Server{Handler: http.HandlerFunc(echo), Other: func(c net.Conn) { handed <- c }}
	addr := up(t, s)
	c := dial(t, addr)
	const other = "POST /form HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 5\r\n\r\nhe"
	c.send(post("hello") + other)
	c.want(200, "hello")
	to := <-handed
	defer to.Close()
	c.send("llo")
	got := make([]byte, len(other)+3)
	if _, err := io.ReadFull(to, got); err != nil || string(got) != other+"llo" {
		t.Errorf("%q, %v", got, err)
	}
	if err := s.Shutdown(context.Background()); err != nil { // it is not this server's any more
		t.Error(err)
	}
	io.WriteString(to, "answered") //nolint:errcheck // the client tells
	to.Close()
	if rest, _ := io.ReadAll(c.r); string(rest) != "answered" {
		t.Errorf("%q", rest)
	}
}

// TestServer_RefusesWhatItDoesNotSpeak where nobody else does.
func TestServer_RefusesWhatItDoesNotSpeak(t *testing.T) {
	t.Parallel()
	addr := up(t, &Server{Handler: http.HandlerFunc(echo), Refuse: func(w http.ResponseWriter, status int, why string) {
		w.WriteHeader(status)
		io.WriteString(w, "refused: "+why) //nolint:errcheck // the client tells
	}})
	c := dial(t, addr)
	c.send("GET /x HTTP/1.0\r\n\r\n")
	c.want(http.StatusHTTPVersionNotSupported, "refused: it is not of HTTP/1.1")
	c.ends()
}

// knocker is told that a client sends nothing more.
type knocker chan bool

func (k knocker) Knock() { k <- true }

// TestResponse_HalfClosed: a client that closes its sending side is asked whether it listens; one that does gets its
// answer, and of one that does not the context ends.
func TestResponse_HalfClosed(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"while it is answered": false, "before it is answered": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked, go1, knocked, over := make(chan bool), make(chan bool), make(knocker, 1), make(chan error, 1)
			addr := up(t, &Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked <- true
				if late {
					<-go1
				}
				w.(*response).HalfClosed(knocked) //nolint:forcetypeassert // it is this package's
				<-knocked
				if r.URL.Path == "/gone" {
					for r.Context().Err() == nil {
						w.WriteHeader(http.StatusProcessing)
					}
					over <- r.Context().Err()
					return
				}
				if err := r.Context().Err(); err != nil {
					t.Errorf("a client that listens was taken for gone: %v", err)
				}
				echo(w, r)
			})})
			ask := func(path string) *client {
				c := dial(t, addr)
				c.send(strings.Replace(post("hello"), "/x", path, 1))
				<-asked
				return c
			}
			c := ask("/x")
			if err := c.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if late {
				go1 <- true
			}
			c.want(200, "hello")
			c.ends()
			c = ask("/gone")
			c.Close()
			if late {
				go1 <- true
			}
			if err := <-over; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
}

// TestServer_BodiesEndWithTheirRequest: nothing of the next request is read by somebody who is late.
func TestServer_BodiesEndWithTheirRequest(t *testing.T) {
	t.Parallel()
	late := make(chan io.Reader, 1)
	addr := up(t, &Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case before := <-late:
			if n, err := before.Read(make([]byte, 10)); n > 0 || !errors.Is(err, http.ErrBodyReadAfterClose) {
				t.Errorf("%d bytes, %v", n, err)
			}
		default:
			late <- r.Body
		}
		echo(w, r)
	})})
	c := dial(t, addr)
	c.send(post("hello") + post("again"))
	c.want(200, "hello")
	c.want(200, "again")
}

// TestServer_ABodyThatIsStillReadEndsTheConnection, and the reader with it.
func TestServer_ABodyThatIsStillReadEndsTheConnection(t *testing.T) {
	t.Parallel()
	read := make(chan error, 1)
	addr := up(t, &Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun := make(chan bool)
		go func() {
			r.Body.Read(make([]byte, 1)) //nolint:errcheck // the first byte is there
			close(begun)
			_, err := io.ReadAll(r.Body)
			read <- err
		}()
		<-begun
		w.WriteHeader(http.StatusAccepted)
	})})
	c := dial(t, addr)
	c.send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nh")
	if err := <-read; err == nil {
		t.Error("a body that never came was read")
	}
	io.Copy(io.Discard, c) //nolint:errcheck // the end is what is waited for
}

// TestServe_Frugal: a request and its answer on a connection that is kept take two pieces of memory: the text of its
// head, and what may outlive its handler.
func TestServe_Frugal(t *testing.T) {
	if raced {
		t.Skip("under the race detector pools forget at random, and what is allocated says nothing: run it without -race")
	}
	body := []byte("hello")
	length := []string{"5"}
	addr := up(t, &Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var into [16]byte
		r.Body.Read(into[:]) //nolint:errcheck // the answer tells
		w.Header()["Content-Length"] = length
		w.Write(body) //nolint:errcheck // the client tells
	})})
	c := dial(t, addr)
	request := []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nContent-Type: application/json\r\nUser-Agent: x\r\nAuthorization: Bearer y\r\nContent-Length: 5\r\n\r\nhello")
	answer := make([]byte, 1<<10)
	one := func() {
		if _, err := c.Write(request); err != nil {
			t.Fatal(err)
		}
		for n := 0; n < 5 || string(answer[n-5:n]) != "hello"; {
			m, err := c.Read(answer[n:])
			if err != nil {
				t.Fatal(err)
			}
			n += m
		}
	}
	if got := testing.AllocsPerRun(500, one); got > 3 {
		t.Errorf("%v allocations a request, want at most 3", got)
	}
}
