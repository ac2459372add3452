package modelcache

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"
)

// source is a parsed source of a model.
type source struct {
	url  *url.URL
	tree bool   // a folder with a list of its files
	name string // last part of the path
}

// parseSource reads a source. One that ends with a slash is a folder.
func parseSource(text string) (source, error) {
	if text == "" {
		return source{}, errors.New(`source: it is missing: write for example source = "https://models.example/llama.gguf", or a folder with a slash at its end`)
	}
	if strings.HasPrefix(text, "/") {
		text = "file://" + (&url.URL{Path: text}).EscapedPath()
	}
	u, err := url.Parse(text)
	if err != nil {
		return source{}, errors.New("source: it is not a URL") // the error's text would hold it, with what may be secret
	}
	u.Fragment, u.RawFragment = "", ""
	switch u.Scheme {
	case "http", "https":
		if u.Host == "" {
			return source{}, fmt.Errorf("source: %s names no host", redact(u))
		}
	case "s3":
		if u.Host == "" || strings.Trim(u.Path, "/") == "" {
			return source{}, fmt.Errorf(`source: %s names no bucket or no key: write "s3://bucket/key"`, redact(u))
		}
		if u.User != nil || u.RawQuery != "" {
			return source{}, errors.New("source: an s3 source has neither user nor query: credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of the task's environment, or from the plugin's config")
		}
	case "file":
		if u.Host != "" && u.Host != "localhost" || !strings.HasPrefix(u.Path, "/") {
			return source{}, fmt.Errorf(`source: %s is not a file of this node: write "file:///path"`, redact(u))
		}
	default:
		return source{}, fmt.Errorf("source: scheme %q is not known: write https://, http://, s3:// or file://", u.Scheme)
	}
	s := source{url: u, tree: strings.HasSuffix(u.Path, "/"), name: path.Base(u.Path)}
	if s.name == "." || s.name == "/" || s.name == ".." || !printable(s.name) || strings.ContainsAny(s.name, `:\`) { // the latter mean something in paths of mounts
		s.name = fileName
	}
	return s, nil
}

// redact is a URL as people may see it: without user and query, which may hold secrets.
func redact(u *url.URL) string {
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	return shown.String()
}

func printable(name string) bool {
	return !strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0xfffd })
}

// ParseChecksum reads sha256:<64 hexadecimal digits> into the digits, in lower case.
func ParseChecksum(text string) (string, error) {
	if text == "" {
		return "", errors.New(`checksum: it is missing: write checksum = "sha256:…", which "sha256sum <file>" shows; for a folder, that of its ` + manifestName + " (sha256sum * > " + manifestName + ")")
	}
	kind, digits, ok := strings.Cut(text, ":")
	if !ok || kind != "sha256" {
		return "", fmt.Errorf(`checksum: %q is of an unknown kind: write "sha256:" and the digits that "sha256sum <file>" shows`, text)
	}
	if raw, err := hex.DecodeString(digits); err != nil || len(raw) != 32 {
		return "", fmt.Errorf(`checksum: %q is not a SHA-256: it has 64 hexadecimal digits, "sha256sum <file>" shows them`, text)
	}
	return strings.ToLower(digits), nil
}
