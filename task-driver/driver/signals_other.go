//go:build !linux

package driver

import "syscall"

// signalByName knows the signals that Go has on every system; no task gets one here.
func signalByName(name string) syscall.Signal {
	return map[string]syscall.Signal{
		"SIGHUP": syscall.SIGHUP, "SIGINT": syscall.SIGINT, "SIGTERM": syscall.SIGTERM, "SIGKILL": syscall.SIGKILL,
	}[name]
}
