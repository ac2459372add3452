package catalogue

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"
)

// sourcesFile holds what several products, or figures of one, come from. A maker's page stands for its figures also where they
// were read from a copy of it or from a table that cites it.
//
//go:embed sources.csv
var sourcesFile string

var sourceColumns = []string{"key", "title", "address"}

var (
	sourceKey     = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	sourceAddress = regexp.MustCompile(`^[a-z0-9-]+(\.[a-z0-9-]+)+(/\S*)?$`) // without https://
)

// parseSources returns title and address by key.
func parseSources(text string) (map[string]string, error) {
	out := map[string]string{}
	err := eachRow(text, "sources", sourceColumns, func(cells []string) error {
		key, title, address := cells[0], cells[1], cells[2]
		switch {
		case !sourceKey.MatchString(key):
			return fmt.Errorf("key %q", key)
		case out[key] != "":
			return fmt.Errorf("key %q comes twice", key)
		case title == "" || strings.TrimSpace(title) != title:
			return fmt.Errorf("%s has the title %q", key, title)
		case !sourceAddress.MatchString(address):
			return fmt.Errorf("%s has the address %q", key, address)
		}
		out[key] = title + ", " + address
		return nil
	})
	return out, err
}
