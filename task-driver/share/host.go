package share

import (
	"context"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
)

// Tool runs makers' tools.
type Tool interface {
	// Run runs one tool to its end. A status other than 0 is a fact in Output. The error says that the tool could not be
	// started (errors.Is exec.ErrNotFound when it is not installed) or that ctx ended first; what was printed until then
	// comes with it.
	Run(ctx context.Context, name string, args ...string) (Output, error)
	// Look finds a program on PATH, or at its path; the error is as with Run.
	Look(name string) (string, error)
}

// Output is what a tool printed.
type Output struct {
	Stdout, Stderr string
	ExitCode       int
}

// Host is the machine as a backend meets it. Every constructor of a backend takes one: New(h share.Host) *Backend.
type Host struct {
	// Tool runs tools.
	Tool Tool
	// Root is where the machine's file system begins: "/", or a folder in tests. Join paths of /proc, /sys, /dev and of
	// makers' files to it with Path; paths in a Setup are the machine's own, without it.
	Root string
	// Dir is the folder for shares in the driver's state folder, absolute and without Root. A backend has the folder Dir/<name of the
	// brand>/<its own name> for sockets, lock files and what tasks mount; it makes it in Prepare, never in its constructor.
	Dir string
	Log hclog.Logger
}

// Path is a path of the machine below Root.
func (h Host) Path(elem ...string) string { return filepath.Join(append([]string{h.Root}, elem...)...) }

// Logger is Log, or one that says nothing.
func (h Host) Logger() hclog.Logger {
	if h.Log == nil {
		return hclog.NewNullLogger()
	}
	return h.Log
}
