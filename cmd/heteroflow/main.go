// Command heteroflow is the one command line: it starts the parts, and speaks to them. What each command does lives
// in the packages below; nothing but the hand-over belongs here.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/heteroflow/heteroflow/cmd/heteroflow/command"
	"github.com/heteroflow/heteroflow/internal/embedded/client"
)

func main() {
	client.Helper() // the embedded engine starts this program again to read what a task writes
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // a closed terminal ends what was started in it, but for nohup
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	code := command.Run(ctx, os.Args[1:], command.Env{Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Environ: os.Environ})
	stop()
	os.Exit(code)
}
