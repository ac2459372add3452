package relay

import (
	"fmt"
	"io"
	"net/http"
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
	size := 32 << 10
	if isJSON && resp.Length > 0 {
		size = int(min(resp.Length, maxKept)) + 1
	}
	buf := make([]byte, size)
	kept := 0
	var err error
	for err == nil && (isJSON && kept < maxKept || kept == 0) {
		if kept == len(buf) {
			buf = append(make([]byte, 0, 2*len(buf)), buf...)[:2*len(buf)]
		}
		var n int
		n, err = resp.Body.Read(buf[kept:])
		kept += n
	}
	if err != nil && err != io.EOF {
		return &errBackend{err: fmt.Errorf("read answer of %s: %w", x.lease.Addr, late(err, errStall))}
	}
	x.out.FirstByte = time.Since(x.began)
	x.lease.FirstByte()
	answer := body.Answer{Model: x.call.Model}
	first := buf[:kept]
	if isJSON {
		first = answer.Feed(make([]byte, 0, kept+len(x.call.Model)), first)
		if err == io.EOF {
			first = answer.Rest(first)
		}
	}

	x.out.Status, x.out.End = resp.Status, store.EndDone
	if resp.Status >= http.StatusBadRequest {
		x.out.End = store.EndUpstreamError
	}
	x.mu.Lock()
	answerHeaders(x.w.Header(), resp.Header)
	switch {
	case err == io.EOF && x.in.Method != http.MethodHead:
		x.w.Header().Set("Content-Length", fmt.Sprint(len(first)))
	case isJSON:
		x.w.Header().Del("Content-Length") // the name that comes later may have another length
	}
	x.bound()
	x.headersSent = true
	x.w.WriteHeader(resp.Status)
	_, writeErr := x.w.Write(first)
	x.mu.Unlock()
	if writeErr == nil && err == nil {
		err, writeErr = x.rest(resp.Body, &answer, isJSON, buf)
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
		n := int64(body.Words(buf[:kept])+3) / 4
		x.out.Usage.CompletionTokens, x.out.Estimated = &n, true
	}
	return nil
}

// rest passes on what comes after the beginning of an answer.
func (x *exchange) rest(from io.Reader, answer *body.Answer, isJSON bool, buf []byte) (readErr, writeErr error) {
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
