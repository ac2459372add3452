package httpx

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strings"
)

// Codes of the problems that DecodeJSON answers.
const (
	CodeUnsupportedType = "unsupported_media_type"
	CodeTooLarge        = "body_too_large"
	CodeEmptyBody       = "body_empty"
	CodeTruncated       = "body_truncated"
	CodeNotJSON         = "body_not_json"
	CodeWrongType       = "field_wrong_type"
	CodeUnknownField    = "field_unknown"
)

// DecodeJSON reads the request's body, at most limit bytes of one JSON value, into v, which must be a pointer. Fields
// that v does not have are refused. The error is a *Problem with status 400, 413 or 415; where a field is at fault it
// holds the field's JSON pointer. w is told to close the connection when the body is too large.
func DecodeJSON(w http.ResponseWriter, r *http.Request, limit int64, v any) error {
	if err := checkContentType(r.Header.Get("Content-Type")); err != nil {
		return err
	}
	body, err := ReadBody(w, r, limit)
	if err != nil {
		return err
	}
	return unmarshal(body, v, true)
}

// UnmarshalLoose is DecodeJSON for a body that was read already, of whatever type it says it is, and whose unknown fields
// belong to someone else: they are ignored.
func UnmarshalLoose(body []byte, v any) error { return unmarshal(body, v, false) }

// checkContentType accepts JSON, "+json" types, and none, because curl users forget it.
func checkContentType(header string) error {
	if header == "" {
		return nil
	}
	kind, _, err := mime.ParseMediaType(header)
	if err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json")) {
		return nil
	}
	return NewProblem(http.StatusUnsupportedMediaType, CodeUnsupportedType,
		fmt.Sprintf("the body is %q: send JSON with Content-Type: application/json", header))
}

// ReadBody reads at most limit bytes of the body. The error is a *Problem with status 400 or 413.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, NewProblem(http.StatusRequestEntityTooLarge, CodeTooLarge,
			fmt.Sprintf("the body is larger than %d bytes: send less", limit))
	case err != nil:
		return nil, NewProblem(http.StatusBadRequest, CodeTruncated,
			"the body ended before its announced length: send it again")
	}
	return body, nil
}

func unmarshal(body []byte, v any, strict bool) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return NewProblem(http.StatusBadRequest, CodeEmptyBody, "the body is empty: send a JSON value")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if strict {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(v); err != nil {
		return problemOf(err, body, v)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return NewProblem(http.StatusBadRequest, CodeNotJSON,
			fmt.Sprintf("there is more after the JSON value, at %s: send one value", position(body, d.InputOffset())))
	}
	return nil
}

// problemOf turns the decoder's error into a sentence with a place.
func problemOf(err error, body []byte, v any) error {
	var syntax *json.SyntaxError
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		pointer := pointerAt(body, wrong.Offset)
		detail := fmt.Sprintf("must be %s, not %s", kindOf(wrong.Type), wrong.Value)
		return NewProblem(http.StatusBadRequest, CodeWrongType, name(pointer)+" "+detail).At(pointer, detail)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return NewProblem(http.StatusBadRequest, CodeTruncated,
			fmt.Sprintf("the JSON ends in the middle, at %s: send all of it", position(body, int64(len(body)))))
	case errors.As(err, &syntax):
		return NewProblem(http.StatusBadRequest, CodeNotJSON,
			fmt.Sprintf("not JSON at %s: %v", position(body, syntax.Offset), syntax))
	}
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		field = strings.Trim(field, `"`)
		pointer := findField(body, reflect.TypeOf(v), field)
		return NewProblem(http.StatusBadRequest, CodeUnknownField,
			fmt.Sprintf("%s is not a field of this body: check its spelling or leave it out", name(pointer))).
			At(pointer, "unknown field")
	}
	// A type's own UnmarshalJSON or UnmarshalText refused its value and knows best why.
	return NewProblem(http.StatusBadRequest, CodeWrongType, err.Error())
}

func name(pointer string) string {
	if pointer == "" {
		return "the body"
	}
	return pointer
}

// position is line and column, from 1, of a byte offset.
func position(body []byte, offset int64) string {
	before := body[:min(max(0, offset), int64(len(body)))]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(before) - bytes.LastIndexByte(before, '\n')
	return fmt.Sprintf("line %d, column %d", line, column)
}

// kindOf says a Go type in JSON's words.
func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return kindOf(t.Elem())
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number" + rangeOf(t)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number not below 0"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return "another type"
}

func rangeOf(t reflect.Type) string {
	if t.Bits() == 64 {
		return ""
	}
	return fmt.Sprintf(" of %d bits", t.Bits())
}
