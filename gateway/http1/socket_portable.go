//go:build unix && (!linux || race)

package http1

import (
	"errors"
	"syscall"
)

// The race detector takes what is read from a connection for later than what was written to it only by these.

func readNow(fd uintptr, p []byte) (int, syscall.Errno) {
	n, err := syscall.Read(int(fd), p)
	return n, errno(err)
}

func writeNow(fd uintptr, p []byte) (int, syscall.Errno) {
	n, err := syscall.Write(int(fd), p)
	return n, errno(err)
}

// errno is the number of an error of the system, which calls of it have.
func errno(err error) (n syscall.Errno) {
	if err != nil && !errors.As(err, &n) {
		return syscall.EIO
	}
	return n
}
