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
		f(name, value)
	}
	return nil
}

// ParseField reads one line of a header, without its end. The name is in its canonical form, the value has no blanks
// around it.
func ParseField(line string) (name, value string, err error) {
	name, value, ok := strings.Cut(line, ":")
	known, isUsual := usual[name] // such a one is a token
	if !ok || !isUsual && !IsToken(name) || !PlainText(value) {
		return "", "", fmt.Errorf("%w: %.60q is no line of a header", ErrMalformed, line)
	}
	if !isUsual {
		known = textproto.CanonicalMIMEHeaderKey(name)
	}
	return known, strings.Trim(value, " \t"), nil
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
	i := 0
	for ; i+8 <= len(text); i += 8 {
		w := uint64(text[i]) | uint64(text[i+1])<<8 | uint64(text[i+2])<<16 | uint64(text[i+3])<<24 |
			uint64(text[i+4])<<32 | uint64(text[i+5])<<40 | uint64(text[i+6])<<48 | uint64(text[i+7])<<56
		if mayControl(w) && !plainBytes(text, i, i+8) {
			return false
		}
	}
	return plainBytes(text, i, len(text))
}

func plainBytes[T []byte | string](text T, from, to int) bool {
	for i := from; i < to; i++ {
		if c := text[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// mayControl reports whether one of eight bytes is below a blank or 0x7f. It is true of some that have none, too.
func mayControl(w uint64) bool {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	del := w ^ ones*0x7f
	return ((w-ones*' ')&^w|(del-ones)&^del)&high != 0
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
