package relay

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// credentials are the headers in which a key may stand: the client's key is the gateway's business alone.
var credentials = []string{"Authorization", "X-Nomad-Token", "X-Api-Key", "Api-Key", "Cookie"}

// hopByHop headers belong to one connection. Source: RFC 9110 section 7.6.1. Expect was answered by the gateway.
var hopByHop = []string{"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Expect"}

func copyHeaders(to, from http.Header) {
	var named []string
	for _, value := range from["Connection"] {
		for name := range strings.SplitSeq(value, ",") {
			named = append(named, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
	for name, values := range from {
		to[name] = values
	}
	for _, name := range named {
		delete(to, name)
	}
	for _, name := range hopByHop {
		delete(to, name)
	}
}

// answerHeaders takes an engine's headers over. The request's id and the route are the gateway's own.
func answerHeaders(to, from http.Header) {
	id, route := to["X-Request-Id"], to[RouteHeader]
	copyHeaders(to, from)
	if id != nil {
		to["X-Request-Id"] = id
	}
	if route != nil {
		to[RouteHeader] = route
	}
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
