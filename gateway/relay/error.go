package relay

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// WriteError answers in the error shape of the request's protocol: OpenAI's, with an empty code as null, or
// Anthropic's, which has kinds of its own by status.
func WriteError(w http.ResponseWriter, r *http.Request, status int, kind, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(errorBody(ShapeOf(r.URL.Path), status, kind, code, message)) //nolint:errcheck // the client left; nobody to tell
}

func errorBody(shape Shape, status int, kind, code, message string) []byte {
	var body any
	if shape == Anthropic {
		body = map[string]any{"type": "error", "error": map[string]any{"type": anthropicKind(status), "message": message}}
	} else {
		var codeValue any
		if code != "" {
			codeValue = code
		}
		body = map[string]any{"error": map[string]any{"message": message, "type": kind, "param": nil, "code": codeValue}}
	}
	raw, err := json.Marshal(body)
	if err != nil {
		panic(fmt.Sprintf("relay: encode an error: %v", err)) // maps of texts
	}
	return append(raw, '\n')
}

// anthropicKind is the kind of error that a status stands for. Source: Anthropic's API reference, errors.
func anthropicKind(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable, 529:
		return "overloaded_error"
	}
	if status >= http.StatusInternalServerError {
		return "api_error"
	}
	return "invalid_request_error"
}

// BrokenEvent is what ends a stream of the path that began before any engine answered.
func BrokenEvent(path, code, message string) string {
	return brokenEvent(ShapeOf(path), 0, code, message)
}

// brokenEvent is the event with which a stream tells that its answer is not whole. No end mark follows it.
func brokenEvent(shape Shape, events int, code, message string) string {
	switch shape {
	case Anthropic:
		return fmt.Sprintf("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":%q}}\n\n", message)
	case Responses:
		return fmt.Sprintf("event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":%d,\"response\":{\"object\":\"response\",\"status\":\"failed\",\"output\":[],\"error\":{\"code\":\"server_error\",\"message\":%q}}}\n\n", events, message)
	}
	return fmt.Sprintf("data: {\"error\":{\"message\":%q,\"type\":\"api_error\",\"param\":null,\"code\":%q}}\n\n", message, code)
}
