// Package httpx is what every HTTP edge of HeteroFlow repeats: problem+json answers, and reading a JSON body with a
// limit and with errors that point at the field. Routes, handlers and identity do not belong here.
package httpx

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// ContentTypeProblem is the media type of a problem, RFC 9457.
const ContentTypeProblem = "application/problem+json"

// Problem is an error answer, RFC 9457 with a stable code. It is an error, so that handlers return it.
type Problem struct {
	Type   string       `json:"type"` // always about:blank: Code says which problem it is
	Title  string       `json:"title"`
	Status int          `json:"status"`
	Code   string       `json:"code"`             // stable, lower case with underscores
	Detail string       `json:"detail,omitempty"` // what was wrong and what to write instead
	Errors []FieldError `json:"errors,omitempty"`
}

// FieldError is what is wrong with one field.
type FieldError struct {
	Pointer string `json:"pointer"` // JSON pointer into the body, RFC 6901; empty is the whole body
	Detail  string `json:"detail"`
}

// ErrStopping is the cause with which the context of a request that waits ends when its server stops: what it waits for
// is not to come, and whoever sent it is still there for an answer.
var ErrStopping = errors.New("the server stops")

// NewProblem makes a problem with the status's own title.
func NewProblem(status int, code, detail string) *Problem {
	return &Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Code: code, Detail: detail}
}

// At adds what is wrong with the field at the JSON pointer, and returns the problem.
func (p *Problem) At(pointer, detail string) *Problem {
	p.Errors = append(p.Errors, FieldError{Pointer: pointer, Detail: detail})
	return p
}

func (p *Problem) Error() string {
	if p.Detail == "" {
		return p.Title
	}
	return p.Detail
}

// WriteProblem answers with the problem that err is or wraps. Any other error is answered as an internal error
// without its text, which may hold what no client should read: log it before.
func WriteProblem(w http.ResponseWriter, err error) {
	var p *Problem
	if !errors.As(err, &p) {
		p = NewProblem(http.StatusInternalServerError, "internal", "an internal error, see the server's log")
	}
	writeJSON(w, ContentTypeProblem, p.Status, p)
}

// WriteJSON answers with v as JSON. A v that does not encode is a mistake in the program and is answered as an
// internal error.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	writeJSON(w, "application/json", status, v)
}

func writeJSON(w http.ResponseWriter, contentType string, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		status, contentType = http.StatusInternalServerError, ContentTypeProblem
		body = fmt.Appendf(nil, `{"type":"about:blank","title":"Internal Server Error","status":500,"code":"internal","detail":%q}`,
			"the answer does not encode as JSON")
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	// The client may be gone; there is nobody left to tell.
	_, _ = w.Write(append(body, '\n'))
}
