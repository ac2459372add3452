package nomadplugin

import (
	"os"

	"github.com/hashicorp/go-hclog"
)

// NewLogger returns the logger of a plugin process: JSON lines at trace level on stderr, which the host reads and
// filters by its own level.
func NewLogger(name string) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Name: name, Level: hclog.Trace, JSONFormat: true, Output: os.Stderr})
}
