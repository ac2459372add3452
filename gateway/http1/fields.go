package http1

import (
	"fmt"
	"net/textproto"
	"strings"
)

// EachField calls f for each line of a header, every one with its end. The texts lie in lines. It takes nothing that
// RFC 9112 does not allow to be sent, even where it lets a reader be kind: what two readers take for two different
// things is how messages are smuggled.
func EachField(lines string, f func(name, value string)) error {
	for len(lines) > 0 {
		line, rest, ok := strings.Cut(lines, "\r\n")
		if !ok {
			return errLineEnd
		}
		lines = rest
		name, value, err := ParseField(line)
		if err != nil {
			return err
		}
		f(Canonical(name), value)
	}
	return nil
}

// ParseField reads one line of a header, without its end. The value has no blanks around it.
func ParseField[T []byte | string](line T) (name, value string, err error) {
	text := string(line)
	name, value, ok := strings.Cut(text, ":")
	if !ok || !IsToken(name) || !PlainText(value) {
		return "", "", fmt.Errorf("%w: %.60q is no line of a header", ErrMalformed, text)
	}
	return name, strings.Trim(value, " \t"), nil
}

// IsToken reports whether a text is a token. Source: RFC 9110 section 5.6.2.
func IsToken[T []byte | string](text T) bool {
	for i := range len(text) {
		if !tokens[text[i]] {
			return false
		}
	}
	return len(text) > 0
}

var tokens = func() (t [256]bool) {
	for _, c := range "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" {
		t[c] = true
	}
	return t
}()

// PlainText reports whether a text has no control characters but tabs.
func PlainText[T []byte | string](text T) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// Says reports whether a list with commas has the word, in whatever letters.
func Says(values []string, word string) bool {
	for _, value := range values {
		for part := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.Trim(part, " \t"), word) {
				return true
			}
		}
	}
	return false
}

// usual are names that clients and engines send, as http.Header keeps them, by the same in small letters and as they
// are: making the one from the other takes memory.
var usual = func() map[string]string {
	names := map[string]string{}
	for _, name := range []string{
		"Accept", "Accept-Encoding", "Accept-Language", "Anthropic-Version", "Authorization", "Cache-Control", "Connection", "Content-Length",
		"Content-Type", "Cookie", "Date", "Expect", "Host", "Keep-Alive", "Openai-Organization", "Openai-Processing-Ms", "Openai-Project",
		"Openai-Version", "Server", "Traceparent", "Tracestate", "Trailer", "Transfer-Encoding", "User-Agent", "Vary", "Via", "X-Accel-Buffering",
		"X-Api-Key", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip", "X-Request-Id", "X-Request-Priority", "X-Session-Id",
		"X-Stainless-Arch", "X-Stainless-Async", "X-Stainless-Lang", "X-Stainless-Os", "X-Stainless-Package-Version", "X-Stainless-Read-Timeout",
		"X-Stainless-Retry-Count", "X-Stainless-Runtime", "X-Stainless-Runtime-Version", "X-Stainless-Timeout",
	} {
		names[name], names[strings.ToLower(name)] = name, name
	}
	return names
}()

// Canonical is a name as http.Header keeps it, without new memory for those that are usual.
func Canonical(name string) string {
	if have, ok := usual[name]; ok {
		return have
	}
	return textproto.CanonicalMIMEHeaderKey(name)
}
