package relay

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/gateway/upstream"
)

// isSecret reports whether a key may stand in the header: the client's key is the gateway's business alone. Names are
// in their canonical form.
func isSecret(name string) bool {
	switch name {
	case "Authorization", "X-Nomad-Token", "X-Api-Key", "Api-Key", "Cookie":
		return true
	}
	return false
}

// isHopByHop reports whether a header belongs to one connection. Source: RFC 9110 section 7.6.1. Expect was answered by
// the gateway.
func isHopByHop(name string) bool {
	switch name {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Expect":
		return true
	}
	return false
}

// named are the further headers that belong to one connection, as it says itself.
func named(h http.Header) []string {
	var names []string
	for _, value := range h["Connection"] {
		for name := range strings.SplitSeq(value, ",") {
			names = append(names, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
	return names
}

// appendFields adds the headers of a request as they go on to a backend.
func appendFields(fields []upstream.Field, in http.Header, via string) []upstream.Field {
	dropped := named(in)
	for name, values := range in {
		if isHopByHop(name) || isSecret(name) || name == "Content-Length" || name == "Accept-Encoding" || slices.Contains(dropped, name) {
			continue
		}
		for _, value := range values {
			fields = append(fields, upstream.Field{Name: name, Value: value})
		}
	}
	return append(fields, upstream.Field{Name: "Via", Value: via})
}

// answerHeaders takes an engine's headers over. The request's id, the route and what its limits leave are
// the gateway's own.
func answerHeaders(to, from http.Header) {
	dropped := named(from)
	for name, values := range from {
		if isHopByHop(name) || slices.Contains(dropped, name) || to[name] != nil && (name == "X-Request-Id" || name == RouteHeader || isLimit(name)) {
			continue
		}
		to[name] = values
	}
}

// isLimit: what a client has left here is the gateway's to say, where it says it.
func isLimit(name string) bool {
	return strings.HasPrefix(name, "X-Ratelimit-") || strings.HasPrefix(name, "Anthropic-Ratelimit-")
}

// retryAfter reads how long an engine asks to be left alone; 0 when it does not say.
func retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if text == "" {
		return 0
	}
	if seconds, err := strconv.ParseFloat(text, 64); err == nil && seconds > 0 && seconds < 1e6 {
		return time.Duration(seconds * float64(time.Second))
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}
