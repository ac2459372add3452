package driver

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// signalByName is the number of a signal such as SIGTERM, 0 when there is none of that name.
func signalByName(name string) syscall.Signal { return unix.SignalNum(name) }
