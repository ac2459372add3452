//go:build !linux

package process

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"

	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// errOnlyLinux is the answer of every step that needs Linux: sessions, cgroups and /proc.
var errOnlyLinux = fmt.Errorf("the process runtime needs a Linux node, this one has %s: use another driver of Nomad here", runtime.GOOS)

func writable(string) bool { return false }

func startIn(*exec.Cmd, Group) error { return errOnlyLinux }

func killProcess(int) error { return errOnlyLinux }

func ownSession(*exec.Cmd) {}

func endWithParent(*exec.Cmd) {}

func setUser(*exec.Cmd, string) error { return errOnlyLinux }

func execTTY(context.Context, *exec.Cmd, Command, Streams) (supervisor.Exit, error) {
	return supervisor.Exit{}, errOnlyLinux
}
