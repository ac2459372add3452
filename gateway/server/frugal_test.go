package server

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/gateway/plain"
	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/store"
)

// What a request and an event take is counted on a client and an engine that take nothing.

// mostAllocations of a whole request: all of the gateway, from the first byte of the request to its row of usage, with
// a key, a session and a choice of backends, without limits.
const mostAllocations = 9

// quietEngine answers each request with the same bytes, and each event that is asked for.
func quietEngine(t *testing.T, answer []byte, events <-chan bool) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 8<<10)
				for n := 0; ; {
					m, err := c.Read(buf[n:])
					if err != nil {
						return
					}
					if n += m; !bytes.HasSuffix(buf[:n], []byte("}")) {
						continue
					}
					n = 0
					if _, err := c.Write(answer); err != nil {
						return
					}
					for range events {
						if _, err := c.Write(quietEvent); err != nil {
							return
						}
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

var (
	quietAnswer = func() []byte {
		body := `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Whole."},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}}`
		return fmt.Appendf(nil, "HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n%s", len(body), body)
	}()
	quietHead  = []byte("HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
	quietEvent = func() []byte {
		event := "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}]}\n\n"
		return fmt.Appendf(nil, "%x\r\n%s\r\n", len(event), event)
	}()
)

// oneKey is a store with one key.
type oneKey struct{ key store.Key }

func (oneKey) Revision(context.Context, string) (int64, error) { return 1, nil }
func (o oneKey) KeyChanges(_ context.Context, revision int64, _ string) ([]store.Key, int64, string, error) {
	if revision >= 0 {
		return nil, revision, "", nil
	}
	return []store.Key{o.key}, 1, o.key.ID, nil
}
func (oneKey) TouchKey(context.Context, string, time.Time) error { return nil }

// nowhere records nothing.
type nowhere struct{}

func (nowhere) Record(store.Usage) {}

// quiet is a gateway before such an engine, and a connection to it; the request has a key and is answered until there is
// the end.
func quiet(t *testing.T, answer []byte, events <-chan bool) (c net.Conn, request func(body string) []byte) {
	t.Helper()
	if raced {
		t.Skip("under the race detector pools forget at random, and what is allocated says nothing: run it without -race")
	}
	if !plain.Supported || standardFront {
		t.Skip("net/http's server takes more")
	}
	text, key, err := auth.NewKey(auth.KindEndpoint)
	if err != nil {
		t.Fatal(err)
	}
	key.Tenant = "default"
	keys := auth.NewKeyring(oneKey{key}, nil, nil)
	keys.Follow(t.Context())
	b := setUp(t, of{addrs: []string{quietEngine(t, answer, events), quietEngine(t, answer, events)}, keys: keys})
	b.h.meter = nowhere{}
	if c, err = net.Dial("tcp", b.addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, func(body string) []byte {
		return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: a\r\nAccept: application/json\r\nContent-Type: application/json\r\nUser-Agent: OpenAI/Python\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", chat, text, len(body), body)
	}
}

// until reads until what came ends so.
func until(t *testing.T, c net.Conn, buf []byte, end string) []byte {
	for n := 0; ; {
		m, err := c.Read(buf[n:])
		if err != nil {
			t.Fatalf("%v after %q", err, buf[:n])
		}
		if n += m; n >= len(end) && string(buf[n-len(end):n]) == end {
			return buf[:n]
		}
	}
}

func TestRequest_Frugal(t *testing.T) {
	c, request := quiet(t, quietAnswer, closed)
	ask := request(`{"model":"m","temperature":0.7,"max_tokens":128,"messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":"Which card has room?"},{"role":"assistant","content":"That depends."},{"role":"user","content":"Say it in one sentence."}]}`)
	buf := make([]byte, 4<<10)
	one := func() {
		if _, err := c.Write(ask); err != nil {
			t.Fatal(err)
		}
		if got := until(t, c, buf, "}}"); !bytes.HasPrefix(got, []byte("HTTP/1.1 200 OK\r\n")) {
			t.Fatalf("%s", got)
		}
	}
	for range 100 {
		one()
	}
	if got := testing.AllocsPerRun(1000, one); got > mostAllocations {
		t.Errorf("%v allocations a request, want at most %d", got, mostAllocations)
	} else {
		t.Logf("%v allocations a request", got)
	}
}

var closed = func() <-chan bool {
	c := make(chan bool)
	close(c)
	return c
}()

// TestEvent_Frugal: an event of a stream takes nothing.
func TestEvent_Frugal(t *testing.T) {
	events := make(chan bool)
	defer close(events)
	c, request := quiet(t, quietHead, events)
	if _, err := c.Write(request(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4<<10)
	one := func() {
		events <- true
		until(t, c, buf, "}\n\n\r\n")
	}
	for range 100 {
		one()
	}
	if got := testing.AllocsPerRun(1000, one); got > 0 {
		t.Errorf("%v allocations an event, want none", got)
	}
}
