//go:build linux

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// patience bounds the wait for an answer.
const patience = 20 * time.Second

// client is one connection to what is measured.
type client struct {
	conn net.Conn
	r    *bufio.Reader
}

func dial(addr string) (*client, error) {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return nil, err
	}
	return &client{c, bufio.NewReaderSize(c, 2<<10)}, nil
}

var errAnswer = errors.New("the answer is not the one that was asked for")

// do sends a request and drops its answer.
func (c *client) do(request []byte) error {
	_, err := c.get(request, nil)
	return err
}

// get sends a request and gives its body, appended to what is given; without any it is dropped.
func (c *client) get(request, body []byte) ([]byte, error) {
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if _, err := c.conn.Write(request); err != nil {
		return nil, err
	}
	length, err := c.head()
	if err != nil {
		return nil, err
	}
	if length < 0 {
		return nil, fmt.Errorf("%w: it has no length", errAnswer)
	}
	if body == nil {
		_, err = c.r.Discard(length)
		return nil, err
	}
	body = slices.Grow(body, length)[:len(body)+length]
	_, err = io.ReadFull(c.r, body)
	return body, err
}

// head reads the head of a good answer; the length is below 0 for one that comes in chunks.
func (c *client) head() (length int, err error) {
	length = -1
	for first := true; ; first = false {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		switch {
		case first:
			if !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
				rest, _ := io.ReadAll(io.LimitReader(c.r, int64(c.r.Buffered())))
				return 0, fmt.Errorf("%w: %s: %s", errAnswer, bytes.TrimSpace(line), bytes.TrimSpace(rest))
			}
		case len(line) <= 2:
			return length, nil
		case len(line) > 15 && bytes.EqualFold(line[:15], []byte("content-length:")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[15:]))); err != nil {
				return 0, err
			}
		}
	}
}

// events reads a stream: seen is told the moment that the engine wrote into each event. It ends with the mark of the
// end, or with an error.
func (c *client) events(seen func(writtenAt int64)) error {
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if !bytes.HasPrefix(line, []byte("data: ")) {
			continue // the length of a chunk, an empty line
		}
		if bytes.HasPrefix(line, []byte("data: [DONE]")) {
			return nil
		}
		at := bytes.LastIndex(line, []byte(`"t":`))
		if at < 0 {
			return fmt.Errorf("%w: an event without its time: %q", errAnswer, line)
		}
		text, _, _ := bytes.Cut(line[at+4:], []byte("}"))
		n, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil {
			return fmt.Errorf("%w: %w", errAnswer, err)
		}
		seen(n)
	}
}

// request writes a call. mock is what the engine is told.
func request(key, mock, body string) []byte {
	if mock != "" {
		mock = "X-Mock: " + mock + "\r\n"
	}
	return fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nAccept: application/json\r\nContent-Type: application/json\r\n"+
		"User-Agent: OpenAI/Python 1.109.1\r\nAuthorization: Bearer %s\r\n%sContent-Length: %d\r\n\r\n%s", key, mock, len(body), body)
}

// conversation is a body of about half a kilobyte, of one of many conversations, or one with a prompt of so many bytes.
func conversation(n, prompt int, stream bool) string {
	text := fmt.Sprintf("Question %d: which card has room for a replica that needs twenty gibibytes, and why is it that one and not its neighbour?", n)
	if more := prompt - len(text); more > 0 {
		text += strings.Repeat(" The ledger says what was granted, and to whom it was granted.", more/62)
	}
	asked := ""
	if stream {
		asked = `"stream":true,`
	}
	return fmt.Sprintf(`{"model":"m",%s"temperature":0.7,"max_tokens":128,"messages":[{"role":"system","content":"You are a helpful assistant of the people who run a cluster of accelerators."},`+
		`{"role":"user","content":"%s"},{"role":"assistant","content":"That depends on what runs there."},{"role":"user","content":"Say it in one sentence."}]}`, asked, text)
}

// requests are whole calls of different conversations.
func requests(key string, prompt int) [][]byte {
	list := make([][]byte, 128)
	if prompt > 0 {
		list = list[:8]
	}
	for i := range list {
		list[i] = request(key, "", conversation(i, prompt, false))
	}
	return list
}

// times are how long requests took.
type times []time.Duration

func (t times) at(share float64) time.Duration {
	if len(t) == 0 {
		return 0
	}
	slices.Sort(t)
	return t[min(len(t)-1, int(share*float64(len(t))))]
}

// load is what a run of requests came to.
type load struct {
	mu    sync.Mutex
	took  times
	count int
	errs  []error
}

func (l *load) add(took times, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took = append(l.took, took...)
	l.count += len(took)
	if err != nil {
		l.errs = append(l.errs, err)
	}
}

func (l *load) err() error { return errors.Join(l.errs[:min(len(l.errs), 3)]...) }

// closed sends as fast as answers come, over so many connections for so long.
func closed(addr string, list [][]byte, connections int, long time.Duration) *load {
	l := &load{}
	end := time.Now().Add(long)
	var group sync.WaitGroup
	for n := range connections {
		group.Go(func() {
			c, err := dial(addr)
			if err != nil {
				l.add(nil, err)
				return
			}
			defer c.conn.Close()
			var took times
			for i := n; ; i++ {
				began := time.Now()
				if i > n && began.After(end) { // one at least
					break
				}
				if err = c.do(list[i%len(list)]); err != nil {
					break
				}
				took = append(took, time.Since(began))
			}
			l.add(took, err)
		})
	}
	group.Wait()
	return l
}

// open sends at a rate, whatever the answers do: a late answer counts from when its request was due.
func open(addr string, list [][]byte, connections, perSecond int, long time.Duration) *load {
	l := &load{}
	every := time.Second / time.Duration(perSecond)
	start := time.Now().Add(20 * time.Millisecond)
	var group sync.WaitGroup
	for n := range connections {
		group.Go(func() {
			c, err := dial(addr)
			if err != nil {
				l.add(nil, err)
				return
			}
			defer c.conn.Close()
			var took times
			for i := n; ; i += connections {
				due := start.Add(time.Duration(i) * every)
				if due.Sub(start) > long {
					break
				}
				time.Sleep(time.Until(due))
				if err = c.do(list[i%len(list)]); err != nil {
					break
				}
				took = append(took, time.Since(due))
			}
			l.add(took, err)
		})
	}
	group.Wait()
	return l
}

// streams are open streams.
type streams struct {
	load
	seen    atomic.Int64 // events so far
	answers atomic.Int64 // heads so far
	clients []*client
	group   sync.WaitGroup
	begun   sync.WaitGroup // each stream's first event
}

// openStreams opens so many streams and reads them to their end in the background.
func openStreams(addr, key, mock string, n int) (*streams, error) {
	s := &streams{}
	for i := range n {
		for s.answers.Load() < int64(i-500) { // no more at once than anything takes
			time.Sleep(time.Millisecond)
		}
		c, err := dial(addr)
		if err != nil {
			s.close()
			return nil, fmt.Errorf("stream %d: %w", i, err)
		}
		s.clients = append(s.clients, c)
		s.begun.Add(1)
		s.group.Go(func() {
			began := sync.OnceFunc(s.begun.Done)
			defer began()
			_, err := c.conn.Write(request(key, mock, conversation(i, 0, true)))
			if err == nil {
				_, err = c.head()
			}
			s.answers.Add(1)
			var took times
			if err == nil {
				err = c.events(func(writtenAt int64) {
					took = append(took, time.Duration(time.Now().UnixNano()-writtenAt))
					s.seen.Add(1)
					began()
				})
			}
			s.add(took, err)
		})
	}
	return s, nil
}

// close leaves in the middle.
func (s *streams) close() {
	for _, c := range s.clients {
		c.conn.Close()
	}
	s.group.Wait()
}
