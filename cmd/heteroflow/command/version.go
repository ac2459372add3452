package command

import (
	"context"
	"runtime"

	"github.com/heteroflow/heteroflow/internal/version"
)

func versionCommand(env Env) *command {
	c := newCommand(env, "Print the version", "")
	out := c.withOutput()
	c.run = func(context.Context, []string) error {
		answer := struct {
			Version string `json:"version"`
			Go      string `json:"go"`
			OS      string `json:"os"`
			Arch    string `json:"arch"`
		}{version.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH}
		return c.print(out, answer, nil, func() error { return c.printf("HeteroFlow v%s\n", version.Version) })
	}
	return c
}
