//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// An engine answers at next to no cost, so that what is measured is what stands before it. What it does to a call is
// said by the header X-Mock:
//
//	(none)            a whole answer with usage
//	stream N EVERY    N events, one in each EVERY, each with the moment it was written, then usage if it was asked for
//	think             nothing, until the client leaves; also after "stream", once N events were given out
//	left              how many clients left in the middle so far, when the last one did, Unix nanoseconds, and how many
//	                  are waiting
type engine struct {
	left    atomic.Int64
	leftAt  atomic.Int64
	waiting atomic.Int64
}

// serve answers on every listener until the context ends.
func (e *engine) serve(ctx context.Context, listeners []net.Listener) error {
	var group sync.WaitGroup
	for _, l := range listeners {
		context.AfterFunc(ctx, func() { l.Close() })
		group.Go(func() {
			for {
				c, err := l.Accept()
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err != nil { // of that client, or too many of them
					time.Sleep(time.Millisecond)
					continue
				}
				go e.answer(c)
			}
		})
	}
	group.Wait()
	return nil
}

const answerBody = `{"id":"chatcmpl-5f3c","object":"chat.completion","created":1760000000,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"` +
	`A pool of accelerators is a set of cards of several makers that one scheduler hands out whole or in shares. The scheduler keeps a ledger of what was granted, ` +
	`and each node sets up the share before the task starts and takes it down after it ended. A gateway stands before the replicas of a model: it finds them, keeps ` +
	`a conversation where its cache is, tries another replica when one fails before the first byte, and counts every token that was read or written, so that the ` +
	`bill is right also when the client left in the middle of the answer."},"logprobs":null,"finish_reason":"stop"}],` +
	`"usage":{"prompt_tokens":101,"completion_tokens":98,"total_tokens":199,"prompt_tokens_details":{"cached_tokens":64}}}`

var (
	wholeAnswer = fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nServer: uvicorn\r\nContent-Length: %d\r\nContent-Type: application/json\r\n\r\n%s", len(answerBody), answerBody)
	streamHead  = []byte("HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nServer: uvicorn\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n")
	eventHead   = `data: {"id":"chatcmpl-5f3c","object":"chat.completion.chunk","created":1760000000,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}],"t":`
	usageEvent  = `data: {"id":"chatcmpl-5f3c","object":"chat.completion.chunk","created":1760000000,"model":"m","choices":[],"usage":{"prompt_tokens":101,"completion_tokens":98,"total_tokens":199}}` + "\n\n"
	doneEvent   = "data: [DONE]\n\n"
)

// call is one request as far as the engine reads it.
type call struct {
	mock  []string
	usage bool
}

var errHead = errors.New("the head of a request makes no sense")

// read reads a request and drops its body.
func read(r *bufio.Reader, scratch []byte) (call, error) {
	var c call
	length := 0
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return c, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		switch {
		case first:
		case !ok:
			return c, errHead
		case bytes.EqualFold(name, []byte("content-length")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return c, errHead
			}
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			return c, errHead // nothing that is measured sends a body without its length
		case bytes.EqualFold(name, []byte("x-mock")):
			c.mock = strings.Fields(string(value))
		}
	}
	for length > 0 {
		n, err := r.Read(scratch[:min(length, len(scratch))])
		if err != nil {
			return c, err
		}
		length -= n
		c.usage = c.usage || len(c.mock) > 0 && bytes.Contains(scratch[:n], []byte(`"include_usage":true`))
	}
	return c, nil
}

func (e *engine) answer(c net.Conn) {
	defer c.Close()
	r := bufio.NewReaderSize(c, 2<<10)
	scratch := scratches.Get().(*[]byte) //nolint:forcetypeassert // nothing else is put there
	defer scratches.Put(scratch)
	for {
		asked, err := read(r, *scratch)
		if err != nil {
			return
		}
		if len(asked.mock) == 0 {
			if _, err := c.Write(wholeAnswer); err != nil {
				return
			}
			continue
		}
		switch asked.mock[0] {
		case "left":
			text := fmt.Sprint(e.left.Load(), " ", e.leftAt.Load(), " ", e.waiting.Load())
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text) //nolint:errcheck // the next read tells
		case "think":
			e.think(c)
			return
		case "stream":
			if !e.stream(c, asked) {
				return
			}
		}
	}
}

var scratches = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}

// think waits for the client to leave.
func (e *engine) think(c net.Conn) {
	e.waiting.Add(1)
	defer e.waiting.Add(-1)
	c.Read(make([]byte, 1)) //nolint:errcheck // whatever ends it is the client
	e.leftAt.Store(time.Now().UnixNano())
	e.left.Add(1)
}

func (e *engine) stream(c net.Conn, asked call) bool {
	if len(asked.mock) < 3 {
		return false
	}
	n, _ := strconv.Atoi(asked.mock[1])
	every, err := time.ParseDuration(asked.mock[2])
	if err != nil {
		return false
	}
	if _, err := c.Write(streamHead); err != nil {
		return false
	}
	var event, out []byte
	next := time.Now()
	for range n {
		next = next.Add(every)
		time.Sleep(time.Until(next))
		event = append(strconv.AppendInt(append(event[:0], eventHead...), time.Now().UnixNano(), 10), "}\n\n"...)
		out = chunk(out[:0], event)
		if _, err := c.Write(out); err != nil {
			return false
		}
	}
	if len(asked.mock) > 3 {
		e.think(c)
		return false
	}
	out = out[:0]
	if asked.usage {
		out = chunk(out, []byte(usageEvent))
	}
	out = append(chunk(out, []byte(doneEvent)), "0\r\n\r\n"...)
	_, err = c.Write(out)
	return err == nil
}

func chunk(out, data []byte) []byte {
	out = strconv.AppendInt(out, int64(len(data)), 16)
	out = append(out, "\r\n"...)
	return append(append(out, data...), "\r\n"...)
}
