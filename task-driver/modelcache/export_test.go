package modelcache

// For tests with clients of their own.
var (
	CheckRedirect     = checkRedirect
	ParseManifest     = func(body []byte) error { _, err := parseManifest(body); return err }
	ParseContentRange = parseContentRange
	Escape            = escape
)

// Names are the files of a list.
func Names(body []byte) (names []string) {
	files, err := parseManifest(body)
	if err != nil {
		return nil
	}
	for _, f := range files {
		names = append(names, f.rel)
	}
	return names
}

// Parsed is a source's name and what people see of it.
func Parsed(text string) (name, shown string, err error) {
	s, err := parseSource(text)
	if err != nil {
		return "", "", err
	}
	return s.name, redact(s.url), nil
}
