package core

import "fmt"

// Error is a refusal with the HTTP status that Nomad gives it.
type Error struct {
	Status int
	Text   string
}

func (e *Error) Error() string { return e.Text }

// Invalid is a request that can not be served as it is: Nomad answers 500 to those that reach its servers.
func Invalid(format string, args ...any) *Error {
	return &Error{Status: 500, Text: fmt.Sprintf(format, args...)}
}

// Bad is a request that can not be read: 400.
func Bad(format string, args ...any) *Error {
	return &Error{Status: 400, Text: fmt.Sprintf(format, args...)}
}

// NotFound is a request for something that is not there: 404.
func NotFound(format string, args ...any) *Error {
	return &Error{Status: 404, Text: fmt.Sprintf(format, args...)}
}

// Beyond is a request for something this engine does not do: 501.
func Beyond(format string, args ...any) *Error {
	return &Error{Status: 501, Text: fmt.Sprintf(format, args...)}
}
