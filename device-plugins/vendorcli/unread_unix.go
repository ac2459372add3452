//go:build unix

package vendorcli

import (
	"os"

	"golang.org/x/sys/unix"
)

// unread tells whether a pipe has something that nobody has read yet, be it its end; false when it cannot be told.
func unread(pipe *os.File) bool {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return false
	}
	some := false
	err = raw.Control(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		some = n > 0 && err == nil
	})
	return some && err == nil
}
