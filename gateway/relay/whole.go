package relay

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/gateway/body"
	"github.com/heteroflow/heteroflow/gateway/upstream"
	"github.com/heteroflow/heteroflow/internal/store"
)

// whole passes on an answer that is not a stream of events. JSON up to a size is kept until it is complete, so that one
// cut short can be asked of another backend; what is longer, and sound as it is made, is passed on as it comes.
func (x *exchange) whole(resp *upstream.Response) error {
	resp.Body.Wait(x.call.Rules.Idle)
	x.mu.Lock()
	promised := x.headersSent
	x.mu.Unlock()
	if promised {
		// A stream was promised to the client by a backend that then died; this one answers whole.
		return &errBackend{err: fmt.Errorf("%s does not stream", x.lease.Addr)}
	}
	isJSON := strings.Contains(resp.Header.Get("Content-Type"), "json")
	first, err := beginning(resp, isJSON)
	if err != nil && err != io.EOF {
		return &errBackend{err: fmt.Errorf("read answer of %s: %w", x.lease.Addr, late(err, errStall))}
	}
	x.out.FirstByte = time.Since(x.began)
	x.lease.FirstByte()
	answer := &x.answer
	*answer = body.Answer{Model: x.call.Model}
	kept := len(first)
	if isJSON {
		first = passed(answer, first, err == io.EOF)
	}

	x.out.Status, x.out.End = resp.Status, store.EndDone
	if resp.Status >= http.StatusBadRequest {
		x.out.End = store.EndUpstreamError
	}
	x.mu.Lock()
	answerHeaders(x.w.Header(), resp.Header)
	switch {
	case err == io.EOF && int64(len(first)) == resp.Length: // as the engine said
	case err == io.EOF && x.in.Method != http.MethodHead:
		x.w.Header()["Content-Length"] = []string{strconv.Itoa(len(first))}
	case isJSON:
		x.w.Header().Del("Content-Length") // the name that comes later may have another length
	}
	x.bound()
	x.headersSent = true
	x.w.WriteHeader(resp.Status)
	_, writeErr := x.w.Write(first)
	x.mu.Unlock()
	if writeErr == nil && err == nil {
		err, writeErr = x.rest(resp.Body, answer, isJSON)
	}
	x.out.Usage = answer.Usage
	switch {
	case writeErr != nil || x.in.Context().Err() != nil && err != io.EOF:
		x.out.End = store.EndClientGone
	case err != io.EOF:
		x.out.End = store.EndUpstreamCut
		x.mu.Lock()
		x.fail("upstream_cut", "")
		x.mu.Unlock()
	case isJSON && x.call.Operation.Token != "" && resp.Status == http.StatusOK && !answer.HasUsage && kept < maxKept:
		n := int64(body.Words(first)+3) / 4
		x.out.Usage.CompletionTokens, x.out.Estimated = &n, true
	}
	return nil
}

// passed is what goes to the client of an answer's beginning, which may be all of it. One in which nothing changes goes on
// as it is.
func passed(answer *body.Answer, first []byte, all bool) []byte {
	if all {
		if answer.See(first); !answer.Renamed {
			return first
		}
		*answer = body.Answer{Model: answer.Model}
	}
	out := answer.Feed(make([]byte, 0, len(first)+len(answer.Model)), first)
	if all {
		out = answer.Rest(out)
	}
	return out
}

// beginning reads an answer, as much of it as is kept where it is JSON. What came in one piece is not copied, and valid
// until more is read.
func beginning(resp *upstream.Response, isJSON bool) (first []byte, err error) {
	first, err = resp.Body.Next()
	switch {
	case err == nil && int64(len(first)) == resp.Length:
		return first, io.EOF
	case err != nil || !isJSON:
		return first, err
	}
	size := 32 << 10
	if resp.Length > 0 {
		size = int(min(resp.Length, maxKept)) + 1
	}
	first = append(make([]byte, 0, max(size, len(first))), first...)
	for err == nil && len(first) < maxKept {
		if len(first) == cap(first) {
			first = append(first, 0)[:len(first)]
		}
		var n int
		n, err = resp.Body.Read(first[len(first):cap(first)])
		first = first[:len(first)+n]
	}
	return first, err
}

// rest passes on what comes after the beginning of an answer.
func (x *exchange) rest(from io.Reader, answer *body.Answer, isJSON bool) (readErr, writeErr error) {
	buf := make([]byte, 32<<10)
	var out []byte
	for {
		n, err := from.Read(buf)
		out = append(out[:0], buf[:n]...)
		if isJSON {
			out = answer.Feed(out[:0], buf[:n])
		}
		if err == io.EOF {
			out = answer.Rest(out)
		}
		x.mu.Lock()
		x.bound()
		_, writeErr := x.w.Write(out)
		if writeErr == nil && !isJSON {
			writeErr = x.flusher.Flush()
		}
		x.mu.Unlock()
		if err != nil || writeErr != nil {
			return err, writeErr
		}
	}
}
