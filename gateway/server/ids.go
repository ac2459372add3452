package server

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/http"
	"time"
)

const requestPrefix = "req-"

// newRequestID makes the id of a request: a prefix and a UUID of version 7, whose text order is that of creation.
func newRequestID() string {
	var u [16]byte
	now := time.Now()
	fraction := uint64(now.Nanosecond()%1e6) << 12 / 1e6 // of a millisecond, in 4096ths
	binary.BigEndian.PutUint64(u[:], uint64(now.UnixMilli())<<16|7<<12|fraction)
	binary.BigEndian.PutUint64(u[8:], rand.Uint64()&^(3<<62)|2<<62) //nolint:gosec // it tells rows apart, and is no secret
	text := append(make([]byte, 0, len(requestPrefix)+36), requestPrefix...)
	for i, part := range [][]byte{u[:4], u[4:6], u[6:8], u[8:10], u[10:]} {
		if i > 0 {
			text = append(text, '-')
		}
		text = hex.AppendEncode(text, part)
	}
	return string(text)
}

// name passes on the client's request id or makes one, and returns it. The id for the row of usage is always the
// gateway's own: of two rows with one id, only one counts.
func name(w http.ResponseWriter, r *http.Request) (row string) {
	const header = "X-Request-Id"
	id := newRequestID()
	values := r.Header[header]
	if len(values) == 0 || !isRequestID(values[0]) {
		values = []string{id}
		r.Header[header] = values
	}
	w.Header()[header] = values[:1:1]
	return id[len(requestPrefix):]
}

func isRequestID(text string) bool {
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return false
		}
	}
	return text != "" && len(text) <= 128
}
